"""The study of practice: its verdicts can go both ways, and everybody gets the same number of trials."""

import numpy as np
import pytest
import torch
from tiny import measured as rows_of
from tiny import result

from mirrormax.experiments import load_experiment

practice = load_experiment("practice")
OURS = practice.OURS_IS
SEEDS = np.array([0.0, 0.001, -0.001])


def arrays(unit="loss", **results):
    """Arrays as ``run`` gives them, of AdamW and ours, the target; ``results`` are means over three seeds."""
    data = {"tasks": np.array(["task"]), "units": np.array([unit]), "shares": np.array(practice.SHARES)}
    data["task/methods"] = np.array(["AdamW", OURS])
    for name, value in results.items():
        method, goal = name.replace("target", OURS).split("_")
        data[f"task/{method}/{goal} %/test"] = value + np.roll(SEEDS, method == OURS)
        data[f"task/{method}/{goal} %/chosen"] = np.array(["lr 0.003", "wanda"])
        data |= {f"task/{method}/{goal} %/{cost}": np.full(3, 2.0 + (method == OURS)) for cost in practice.COSTS}
        worse = (np.array(practice.SHARES) != int(goal) / 100) * (-1.0 if unit == "accuracy" else 1.0)
        data[f"task/{method}/{goal} %/curve"] = value + worse
    return data


def verdicts(**results):
    return {row.quantity.removeprefix("task: "): row.verdict for row in rows_of("practice", arrays(**results))}


def test_goals_that_are_reached_are_met():
    found = verdicts(AdamW_0=1.7, AdamW_80=2.5, AdamW_90=3.0, target_80=1.73, target_90=1.8)
    assert found["nats behind dense AdamW, 80 % zeros"] == "met"
    assert found["nats by which the target is ahead, 80 % zeros"] == "met"
    assert found["nats by which the target is ahead, 90 % zeros"] == "met"


def test_goals_that_are_missed_are_not():
    found = verdicts(AdamW_0=1.7, AdamW_80=1.75, AdamW_90=1.78, target_80=1.8, target_90=1.9)
    assert found["nats behind dense AdamW, 80 % zeros"] == "differs"
    assert found["nats by which the target is ahead, 80 % zeros"] == "differs"


def test_an_interval_that_holds_the_threshold_decides_nothing():
    found = verdicts(AdamW_0=1.7, AdamW_80=1.75, AdamW_90=1.8, target_80=1.75, target_90=1.8)
    assert found["nats behind dense AdamW, 80 % zeros"] == "undecided"
    assert found["nats by which the target is ahead, 90 % zeros"] == "undecided"


def test_accuracy_counts_the_other_way_round():
    found = verdicts(unit="accuracy", AdamW_0=0.7, AdamW_80=0.5, AdamW_90=0.4, target_80=0.6, target_90=0.6)
    assert found["points behind dense AdamW, 80 % zeros"] == "differs"
    assert found["points by which the target is ahead, 80 % zeros"] == "met"


def test_the_largest_share_is_the_last_within_the_loss_allowed():
    data = arrays(AdamW_0=1.7, AdamW_80=2.5, AdamW_90=3.0, target_80=1.71, target_90=1.78)
    shares = {(row.quantity, row.column): row.ours for row in rows_of("practice", data)}
    assert shares["task: zeros within 0.02 nats of dense AdamW", "AdamW"] == "0 %"
    assert shares["task: zeros within 0.02 nats of dense AdamW", OURS] == "80 %"
    assert shares["task: zeros within 0.1 nats of dense AdamW", OURS] == "90 %"


def test_what_a_step_takes_is_said_of_every_method():
    data = arrays(AdamW_0=1.7, AdamW_80=2.5, AdamW_90=3.0, target_80=1.71, target_90=1.78)
    costs = {(row.quantity, row.column): row.ours for row in rows_of("practice", data)}
    assert costs["task: processor time of a step, times that of AdamW", OURS] == "1.50"
    assert costs["task: memory of the state, times that of the weights", OURS] == "3.00"


def test_the_target_ends_with_the_share_that_it_was_told():
    data = result("practice")
    for goal in (0.8, 0.9):
        zeros = data[f"digits/target/{100 * goal:.0f} %/zeros"]
        assert zeros == pytest.approx(np.full(2, goal), abs=1e-3)  # to one weight of a few hundred


def test_every_method_gets_as_many_trials():
    with pytest.raises(ValueError, match="same number of trials"):
        practice.Task("task", practice.TEXT, 1, 1, (("AdamW", ((1e-3, 0.0),)), ("SGD", ((0.1, 0.0), (0.3, 0.0)))))
    with pytest.raises(ValueError, match="methods must be among"):
        practice.Task("task", practice.TEXT, 1, 1, (("Adam", ((1e-3, 0.0),)),))


def test_the_optimizer_of_torchao_ends_with_the_share_that_it_was_told():
    pytest.importorskip("torchao")
    model = torch.nn.Sequential(torch.nn.Linear(8, 8), torch.nn.Linear(8, 4))
    pat = practice.METHODS["torchao pat"](model, 1e-2, (0.1, 0.6), 0.75, 20, 0)
    for _ in range(20):
        model(torch.ones(1, 8)).square().sum().backward()
        pat.optimizers[0].step()
    assert sum(int((w == 0).sum()) for w in pat.matrices) == 72
