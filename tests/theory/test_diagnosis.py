"""Each signature of failure on a run that has it, and none on runs that have none."""

import numpy as np
import pytest

from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.geometry import Hypentropy
from mirrormax.svm import att_svm
from mirrormax.theory import diagnose

PROBLEM = sphere_problem(0)


@pytest.mark.parametrize(("p", "steps"), [(1.75, 1500), (2.0, 2000)])
def test_the_published_runs_are_healthy(p, steps):
    found = diagnose(simulate(PROBLEM, p=p, lr=0.1, steps=steps), PROBLEM)
    assert found.healthy, str(found)
    assert found["growth"].value > 1
    assert found["tokens"].seen is False


def test_a_norm_that_does_not_grow_is_seen():
    start = 100 * np.random.default_rng(0).standard_normal((10, 10))
    found = diagnose(simulate(PROBLEM, p=2, lr=0.01, steps=200, W0=start), PROBLEM)
    assert found["growth"].seen
    assert abs(found["growth"].value) < 1e-3
    assert "lr" in str(found)


@pytest.mark.parametrize(("p", "lr"), [(1.1, 1e-9), (2.0, 1e-4), (3.0, 1e-9)])
def test_a_step_that_is_too_small_to_leave_zero_is_seen(p, lr):
    found = diagnose(simulate(PROBLEM, p=p, lr=lr, steps=300, normalize=None), PROBLEM)
    assert found["growth"].value > 1
    assert found["growth"].seen
    assert "lr" in found["growth"].text


def test_a_divergence_that_oscillates_is_seen_and_the_step_divided_by_ten():
    options = SimulationOptions(batch=1)
    run = simulate(PROBLEM, p=2, lr=1.0, steps=400, record="all", options=options)
    found = diagnose(run, PROBLEM)
    assert found["oscillation"].seen
    assert "0.1" in found["oscillation"].text


def test_tokens_that_are_not_locally_optimal_are_seen_and_longer_runs_mend_them():
    short, longer = (diagnose(simulate(PROBLEM, p=3, lr=0.1, steps=steps), PROBLEM) for steps in (100, 20000))
    assert short["tokens"].seen
    assert short["tokens"].value >= 1
    assert longer["tokens"].seen is False


def test_overflow_near_one_is_seen():
    run = simulate(PROBLEM, p=1.01, lr=100, steps=300)
    assert run.status == "nonfinite"
    found = diagnose(run, PROBLEM)
    assert found["precision"].seen
    assert "1.01" in found["precision"].text


def test_weights_that_underflow_near_one_are_counted():
    found = diagnose(simulate(PROBLEM, p=1.001, lr=1e-2, steps=30), PROBLEM)["precision"]
    assert found.seen
    assert found.value > 0.5


def test_without_the_problem_local_optimality_is_left_open():
    run = simulate(PROBLEM, p=2, lr=0.1, steps=2000)
    found = diagnose(run)
    assert found["tokens"].seen is None
    assert found.healthy
    reference = att_svm(PROBLEM, run.alpha, p=2).W
    options = SimulationOptions(references={"svm": reference}, weights="last")
    assert diagnose(simulate(PROBLEM, p=2, lr=0.1, steps=2000, options=options))["oscillation"].seen is False


def test_of_another_potential_nothing_is_said_of_optimal_tokens():
    run = simulate(PROBLEM, p=Hypentropy(1.0), lr=0.1, steps=1000)
    found = diagnose(run, PROBLEM)
    assert found["tokens"].seen is None
    assert found.healthy, str(found)


def test_a_batch_is_refused():
    run = simulate(np.stack([PROBLEM.X] * 2), PROBLEM.y, PROBLEM.z, PROBLEM.v, p=2, steps=10)
    with pytest.raises(ValueError, match="run"):
        diagnose(run)
    assert diagnose(run[0]).signs
