"""The experiments at a size that takes a moment, and what they should show."""

from dataclasses import fields, is_dataclass, replace

import numpy as np
import pytest
from tiny import TINY, result

from mirrormax._drawing import RULES, house_style, save
from mirrormax.experiments import (
    VERDICTS,
    Work,
    _joint,
    experiment_names,
    fig1,
    fig4,
    fig5,
    fig6,
    fig7,
    in_order,
    load_experiment,
    sparsity,
    step_size,
)

NAMES = experiment_names()


class Once(dict):
    """The data of each experiment that is asked for, worked out once in this process."""

    def __missing__(self, name):
        self[name] = result(name)
        return self[name]


@pytest.fixture(scope="module")
def results():
    return Once()


def verdicts(name, data):
    return {row.name: row.verdict for row in load_experiment(name).comparisons(data)}


@pytest.mark.parametrize("name", NAMES)
def test_an_experiment_tells_what_its_arrays_show_and_draws_them_alone(name, results, tmp_path, monkeypatch):
    experiment, data = load_experiment(name), results[name]
    monkeypatch.setattr(experiment, "run", None)
    assert all(isinstance(array, np.ndarray) and array.dtype != object for array in data.values())
    rows = experiment.comparisons(data)
    assert rows
    assert {row.verdict for row in rows} <= set(VERDICTS)
    assert 1 <= experiment.shows(data).count(". ") <= 2, "what it shows is two or three sentences"
    numbers = [value for row in experiment.summary(data).values() for value in row.values()]
    assert all(isinstance(value, (int, float)) for value in numbers)
    with house_style():
        experiment.draw(data).savefig(tmp_path / "picture.png", dpi=50)
    assert (tmp_path / "picture.png").stat().st_size > 5000


@pytest.mark.parametrize("name", NAMES)
def test_a_configuration_is_frozen_and_has_both_profiles(name):
    profiles = load_experiment(name).PROFILES
    assert {"quick", "paper"} <= set(profiles) <= {"quick", "small", "paper"}
    for config in profiles.values():
        assert is_dataclass(config)
        with pytest.raises(AttributeError):
            setattr(config, fields(config)[0].name, None)


def test_the_report_has_the_order_of_the_paper():
    first = ["fig1", "fig2", "feasibility", "fig3", "fig4", "fig5", "fig6", "fig7", "table1", "fig8", "fig9", "vit"]
    known = [*first, "thm1", "thm3", "thm4", "thm5", "nuclear", "sparsity", "step_size", "joint", "starts", "batches"]
    assert [name for name in in_order(NAMES) if name in known] == known


def test_a_figure_is_the_same_each_time_and_another_for_other_data(results, tmp_path, monkeypatch):
    data, draw = results["fig2"], load_experiment("fig2").draw
    monkeypatch.setitem(RULES, "savefig.dpi", 50)  # fewer pixels, for speed
    with house_style():
        first, second = ([path.read_bytes() for path in save(draw(data), tmp_path / folder, "fig2")] for folder in "ab")
        other = [path.read_bytes() for path in save(draw(data | {"W": 2 * data["W"][::-1]}), tmp_path / "c", "fig2")]
    assert first == second != other
    assert [file[:4] for file in first] == [b"<?xm", b"\x89PNG"]


@pytest.mark.parametrize("name", ["fig4", "fig5", "thm4"])
def test_the_same_configuration_gives_the_same_numbers(name, results):
    again = load_experiment(name).run(TINY[name], Work())
    assert again.keys() == results[name].keys()
    for key, array in again.items():
        np.testing.assert_array_equal(array, results[name][key], err_msg=key)


def test_random_starts_differ_by_p_and_shared_ones_do_not(results):
    data = results["fig4"]
    first = {protocol: [data[f"{protocol}/D/{p:g}"][0] for p in data["p"]] for protocol in fig4.PROTOCOLS}
    assert all(np.isnan(D).all() for D in first["shared"]), "a zero has no direction"
    assert np.isfinite(first["random"]).all()
    assert not np.allclose(first["random"][0][:, 0], first["random"][1][:, 0])


def test_a_path_comes_closer_to_the_svm_of_its_own_p_than_it_was(results):
    data = results["fig4"]
    for k, p in enumerate(data["p"]):
        D = data[f"random/D/{p:g}"][:, :, k]
        assert (D[-1] < D[0] + 0.05).all()
        assert np.median(D[-1]) < np.median(D[0])


def test_trials_that_are_not_locally_optimal_are_told_apart():
    p = np.array([1.75, 2.0, 3.0])
    D = np.array([[[0.1, 1.0, 1.0]], [[0.3, 1.0, 1.0]]]).transpose(1, 0, 2)
    data = {"p": p, "published_steps": np.array([5, 5, 5])}
    for protocol in fig4.PROTOCOLS:
        data |= {f"{protocol}/steps/{q:g}": np.array([5]) for q in p} | {f"{protocol}/D/{q:g}": D for q in p}
        data[f"{protocol}/alpha"] = np.array([[[0], [0], [0]], [[0], [1], [0]]])
        data[f"{protocol}/optimal"] = np.array([[True] * 3, [False] * 3])
        data[f"{protocol}/settled"] = np.zeros((2, 3), int)
    row = fig4.summary(data)["shared start, path 1.75"]
    assert row["own SVM, locally optimal"] == pytest.approx(0.1)
    assert row["own SVM, others"] == pytest.approx(0.3)
    assert row["to SVM 1.75"] == pytest.approx(0.2)
    assert row["to SVM 1.75, same α"] == pytest.approx(0.1)
    assert fig4.same_tokens(data, "shared").tolist() == [True, False]


def test_trials_that_select_their_tokens_late_are_told_apart():
    data = {"p": np.array([2.0]), "published_steps": np.array([100])}
    D = np.array([0.001, 0.003, 0.2])
    for protocol in fig4.PROTOCOLS:
        data |= {f"{protocol}/steps/2": np.array([100]), f"{protocol}/D/2": D[None, :, None]}
        data |= {f"{protocol}/alpha": np.zeros((3, 1, 1), int), f"{protocol}/optimal": np.ones((3, 1), bool)}
        data[f"{protocol}/settled"] = np.array([[3], [25], [26]])
    (row,) = (row for row in fig4.comparisons(data) if row.quantity.startswith("shared") and "settle" in row.quantity)
    assert row.ours == "0.002 (2); 0.2 (1)"
    assert "a quarter of the published steps" in row.why


def test_a_selection_is_settled_from_the_first_record_on_that_it_never_leaves():
    selected = np.array([[[0, 1]], [[2, 1]], [[0, 1]], [[0, 1]]])
    assert fig4.settled_at(np.array([0, 5, 10, 20]), selected).tolist() == [10]
    assert fig4.settled_at(np.array([0, 5]), selected[2:]).tolist() == [0]


def test_values_of_a_rerun_are_told_apart_from_those_of_the_paper(results):
    for name, count in (("fig4", 9), ("fig6", 15), ("fig7", 3)):
        rows = load_experiment(name).comparisons(results[name])
        assert sum(row.source == "rerun" for row in rows) == count
        assert all(row.beside.startswith("rerun: ") for row in rows if row.source == "rerun")


def test_a_bar_of_our_own_is_told_apart_from_what_the_paper_says(results):
    for name in ("fig1", "fig5", "thm1", "starts", "batches"):
        rows = load_experiment(name).comparisons(results[name])
        assert all(row.source.startswith("our bar") or row.verdict == "not published" for row in rows)


def test_example_1_is_an_erratum_and_its_printed_weights_those_of_p_2(results):
    assert verdicts("fig2", results["fig2"]) == {"W_mm, p = 2 (printed as p = 3)": "met", "W_mm, p = 3": "erratum"}
    wrong = results["fig2"] | {"W": 1.01 * results["fig2"]["W"]}
    assert set(verdicts("fig2", wrong).values()) == {"differs"}


def test_the_optimal_tokens_have_the_largest_label_margin(results):
    assert set(verdicts("fig3", results["fig3"]).values()) == {"met"}
    np.testing.assert_allclose(results["fig3"]["margin"][0], [5, 5 / 26**0.5, 5 / 26**0.5, 1], rtol=1e-6)


def test_the_joint_runs_select_the_published_tokens_with_the_published_margins():
    data = fig6.run(replace(_joint.Config(), steps=(150, 150, 300), points=10, first_steps=5), Work())
    found = {row.name: row for row in fig6.comparisons(data)}
    met = [q for q, row in found.items() if row.verdict == "met"]
    assert [q for q in met if q.startswith("selected tokens")] == [
        f"selected tokens, p = {p}" for p in ("1.75", "2", "3")
    ]
    assert sum(q.startswith("label margin") for q in met) == 6


def test_attention_is_even_for_two_steps_and_certain_by_twenty(results):
    data = results["fig7"]
    for p in data["p"]:
        assert fig7.at_step(data, "softmax", p, 0) == pytest.approx(1 / 3)
        assert fig7.at_step(data, "softmax", p, 1) == pytest.approx(1 / 3)
        assert fig7.at_step(data, "softmax", p, 20) >= 0.998
    assert not any("step 0" in name or "step 1," in name for name in verdicts("fig7", data)), "these are identities"


def test_the_angle_is_that_in_the_plane():
    data = {"path/2": np.array([[0.0, 1.0], [1.0, 1.0]]), "svm/2": np.array([3.0, 0.0])}
    data |= {"steps/2": np.array([1, 9]), "published/2": np.array(1)}
    assert fig5.angle(data, 2.0) == pytest.approx(45)
    assert fig5.angle(data, 2.0, published=True) == pytest.approx(90)


def test_runs_stay_in_the_cone_from_a_large_norm_and_leave_that_of_a_random_direction(results):
    real, placebo = (fig1.stays(results["fig1"], centre) for centre in fig1.CENTRES)
    assert real.shape == placebo.shape == (2, 2, 2, 4)
    assert real[:, -1].all()
    assert not real[:, 0].all()
    assert placebo[:, -1].mean() < 0.5


def test_runs_are_long_enough_for_their_norm_to_grow():
    config = fig1.Config()
    for p in config.p:
        for R in config.radii:
            steps = fig1.steps_from(config, p, R)
            assert R ** (p - 1) + config.lr * steps >= (config.growth * R) ** (p - 1) * (1 - 1e-9)
    assert fig1.steps_from(config, 3.0, 30.0) > 10_000


def test_regularisation_paths_come_closer_as_the_ball_grows(results):
    D = results["thm1"]["D"]
    assert (D[:, :, -1] < 0.1 * D[:, :, 0]).all()
    example2 = results["thm5"]["D_W/3"][0, 0]
    assert example2[-1] < 0.1 * example2[0]


def test_smaller_p_gives_sparser_weights():
    data = sparsity.run(sparsity.Config(steps=300), Work())
    counts = [sparsity.entries_for_mass(W, 0.9) for W in data["W"]]
    assert counts[0] < 0.3 * counts[1] < counts[2]
    assert data["loss"].shape == (3, 300)
    assert np.all(data["loss"][:, -1] < data["loss"][:, 0])


def test_entries_for_mass_counts_the_largest():
    assert sparsity.entries_for_mass(np.array([[8.0, -1.0], [1.0, 0.0]]), 0.8) == 1
    assert sparsity.entries_for_mass(np.array([[8.0, -1.0], [1.0, 0.0]]), 0.81) == 2
    assert sparsity.entries_for_mass(np.ones((2, 5)), 0.9) == 9


def test_the_step_size_experiment_learns_and_spoils_itself_at_absurd_steps():
    data = step_size.run(step_size.Config(p=(1.5,), multiples=(1.0, 100.0), epochs=2), Work())
    assert data["accuracy"][0, 0] > 0.2
    assert data["accuracy"][0, 1] < 0.2
    assert data["lr"][0, 1] == 100 * data["lr"][0, 0]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["fig4", "fig6", "fig7", "fig1", "thm1", "thm4"])
def test_every_published_number_is_met_or_bettered(name):
    experiment = load_experiment(name)
    data = experiment.run(experiment.PROFILES["quick"], Work())
    assert "differs" not in verdicts(name, data).values()
