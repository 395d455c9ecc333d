"""Verdicts of the experiments beyond the paper, on data that should fail them too."""

import numpy as np
from tiny import result

from mirrormax.experiments import batches, joint, next_token, starts


def verdicts(experiment, data):
    return {row.quantity: row.verdict for row in experiment.comparisons(data)}


def joint_data(plain, relaxed, excess=0.5):
    shape = np.broadcast(plain, relaxed).shape
    return {
        "p": np.array([2.0]),
        "plain": np.broadcast_to(plain, shape).astype(float)[None],
        "relaxed": np.broadcast_to(relaxed, shape).astype(float)[None],
        "excess": np.full((1, *shape), excess),
        "ratio": np.ones((1, *shape)),
        "settled": np.ones((1, *shape), dtype=bool),
    }


def test_joint_training_is_an_erratum_only_where_the_relaxed_problem_is_nearer():
    limit = "limit of W where not every sample is a label support vector"
    near = np.full(20, 1e-3)
    assert verdicts(joint, joint_data(0.03 + near, near))[limit] == "erratum"
    assert verdicts(joint, joint_data(near, 0.03 + near))[limit] == "met"
    either = np.where(np.arange(20) % 2, 0.03, 1e-3)
    assert verdicts(joint, joint_data(either, either[::-1]))[limit] == "undecided"


def test_a_run_far_from_the_relaxed_problem_misses_the_bar():
    far = joint_data(np.full(5, 0.2), np.full(5, 0.1))
    assert verdicts(joint, far)["median D to the relaxed SVM, p = 2"] == "differs"
    on = joint_data(np.full(5, 0.2), np.full(5, 0.2), excess=0.0)
    row = "median D to the attention SVM where every sample is a label support vector"
    assert verdicts(joint, on)[row] == "differs"
    assert verdicts(joint, joint_data(np.full(5, 1e-4), np.full(5, 1e-4), excess=0.0))[row] == "met"


def test_joint_runs_without_excess_have_one_limit():
    data = result("joint")
    on = data["excess"] <= joint.ON_MARGIN
    np.testing.assert_allclose(data["plain"][on], data["relaxed"][on], atol=1e-4)


def starts_data(warm, basin):
    best = np.zeros((1, 4, 40), dtype=bool)
    best[0, 0, :26] = best[0, 1, :18] = best[0, 2, :27] = True
    best[0, 3] = warm
    return {
        "p": np.array([2.0]),
        "starts": np.array(["zero", "N(0, 1)", "one gradient step", "SVM, lead 3"]),
        "mu": np.array([0.1, 0.4]),
        "lead": np.array(3.0),
        "best": np.repeat(best, 3, -1),
        "basin": np.stack([np.full(90, basin), np.zeros(90, dtype=bool)])[None],
    }


def test_a_warm_start_that_loses_tokens_misses_its_bar():
    warm, basin = "SVM, lead 3, p = 2", "divergence of at most 0.2 at a lead of 3, p = 2"
    good = verdicts(starts, starts_data(True, True))
    assert good[warm] == good[basin] == "met"
    assert verdicts(starts, starts_data(np.arange(40) > 5, True))[warm] == "differs"
    assert verdicts(starts, starts_data(np.arange(40) > 0, True))[warm] == "undecided"
    assert verdicts(starts, starts_data(True, np.arange(90) > 12))[basin] == "differs"


def test_bounds_are_those_of_clopper_and_pearson():
    low, share, high = starts.bounds(np.ones(30, dtype=bool))
    assert (share, high) == (1.0, 1.0)
    assert abs(low - 0.025 ** (1 / 30)) < 1e-12


def test_batches_have_verdicts_that_can_fail():
    D = np.full((1, 5, 2, 10), 1e-3)
    D[0, 1] = 0.03
    data = {"p": np.array([2.0]), "steps": np.array([0, 10]), "D": D}
    said = verdicts(batches, data)
    assert said["median D, b = 1, normalised, p = 2"] == said["median D, b = 1, running scale, p = 2"] == "met"
    assert said["the running scale ends nearer, p = 2"] == "met"
    swapped = verdicts(batches, data | {"D": D[:, [0, 2, 1, 3, 4]]})
    assert {swapped[row] for row in swapped if "b = 1" in row or "nearer" in row} == {"differs"}


def next_token_data(acyclic, cyclic, odds):
    return {
        "p": np.array([2.0]),
        "steps": np.array([0, 10, 100]),
        "plain_steps": np.array([0, 10, 100]),
        "acyclic": np.broadcast_to(np.array(acyclic)[:, None], (3, 4))[None],
        "cyclic": np.broadcast_to(np.array(cyclic)[:, None], (3, 4))[None],
        "odds": np.broadcast_to(np.array(odds)[:, None], (3, 4))[None],
    }


def test_next_token_runs_that_stay_away_are_not_met():
    good = verdicts(next_token, next_token_data([np.nan, 0.1, 1e-3], [np.nan, 0.1, 0.03], [1.0, 0.1, 1e-3]))
    assert set(good.values()) <= {"met", "not published"}
    bad = verdicts(next_token, next_token_data([np.nan, 0.1, 0.05], [np.nan, 0.1, 0.2], [1.0, 0.1, 0.4]))
    assert list(bad.values()).count("differs") == 3
