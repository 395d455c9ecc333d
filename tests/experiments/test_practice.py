"""The study of practice: its verdicts can go both ways, and its widths are what the grid says."""

import numpy as np
import pytest
from tiny import measured as rows_of

from mirrormax.experiments import DIFFERS, load_experiment

practice = load_experiment("practice")
LRS = np.array([1e-3, 1e-2, 1e-1])


def measured(
    unit="accuracy", ours=((0.80, 0.795), (0.81, 0.805)), adamw=((0.80, 0.60), (0.81, 0.60)), tuning=(0.5, 0.8, 0.8)
):
    """Arrays as ``run`` gives them, of two optimizers and two seeds."""
    data = {
        "tasks": np.array(["task"]),
        "units": np.array([unit]),
        "rivals": np.array(["AdamW", "p = 1.1"]),
        "shares": np.array([0.8]),
        "retrained": np.array([0.8]),
        "gradual": np.array([0.8]),
        "task/gradual": np.array([[0.7], [0.7]]),
        "task/step_time": np.array([1.0, 2.0]),
        "task/state_bytes": np.array([8.0, 12.0]),
    }
    for name, test, tried in (("AdamW", adamw, (0.5, 0.8, 0.8)), ("p = 1.1", ours, tuning)):
        data |= {
            f"task/{name}/test": np.array(test),
            f"task/{name}/retrained": np.array(test)[:, 1:],
            f"task/{name}/lrs": LRS,
            f"task/{name}/tuning": np.stack([np.array(tried), np.array(tried)], 1),
            f"task/{name}/lr": np.array(1e-2),
        }
    return data


def verdicts(data):
    return {row.name.removeprefix("task: "): row.verdict for row in rows_of("practice", data)}


def test_goals_that_are_reached_are_met():
    found = verdicts(measured(ours=((0.81, 0.805), (0.8101, 0.8051))))
    assert found["points lost with 80 % cut, p = 1.1"] == "met"
    assert found["decades of usable step sizes, p = 1.1"] == "met"
    assert found["points that AdamW loses with 80 % cut"] == "met"


def test_goals_that_are_missed_are_not():
    found = verdicts(
        measured(ours=((0.70, 0.60), (0.701, 0.601)), adamw=((0.80, 0.79), (0.801, 0.791)), tuning=(0.1, 0.8, 0.1))
    )
    assert set(found.values()) == {DIFFERS, "not published"}


def test_an_interval_that_holds_the_bar_decides_nothing():
    found = verdicts(measured(ours=((0.80, 0.80), (0.82, 0.80))))
    assert found["points behind AdamW, whole, p = 1.1"] == "undecided"
    assert found["points lost with 80 % cut, p = 1.1"] == "undecided"


def test_losses_count_the_other_way_round():
    data = measured("loss", ours=((2.0, 2.01), (2.01, 2.02)), adamw=((2.0, 2.5), (2.01, 2.51)))
    rows = {row.name: row for row in rows_of("practice", data)}
    assert rows["task: nats lost with 80 % cut, p = 1.1"].verdict == "met"
    assert rows["task: nats that AdamW loses with 80 % cut"].ours.startswith("0.5")


@pytest.mark.parametrize(
    ("tuning", "decades"),
    [((0.8, 0.8, 0.8), 2.0), ((0.1, 0.8, 0.1), 2 * 0.04 / 0.7), ((0.8, 0.76, 0.0), 1.0), ((0.0, 0.0, 0.5), 0.1 * 0.5)],
)
def test_the_width_of_the_range_of_step_sizes(tuning, decades):
    found = rows_of("practice", measured(tuning=tuning)).ours("task: decades of usable step sizes", "p = 1.1")
    assert float(found) == pytest.approx(decades, abs=0.006)


def test_every_optimizer_gets_as_many_step_sizes():
    with pytest.raises(ValueError, match="same number of step sizes"):
        practice.Config((), (practice.Rival("AdamW", (1e-3,)), practice.Rival("SGD", (0.1, 0.3))), seeds=())
    with pytest.raises(ValueError, match="seeds must be one number per task"):
        practice.Config((), (), seeds=(3,))
