"""What the Geometry page is told agrees with the library asked directly."""

import json

import numpy as np
import pytest

import mirrormax as mm
from mirrormax.app.geometry import geometry
from mirrormax.data import Problem, example1, example2, sphere_problem


def test_the_answer_is_that_of_the_library():
    problem = sphere_problem(1, n=3, T=4, d=5)
    found = geometry(problem, 1.75, 0.1, 100, "zero", "tensor")
    run = mm.simulate(problem.X, problem.y, problem.z, problem.v, p=1.75, lr=0.1, steps=100, backend="tensor")
    solution = mm.att_svm(problem.X, problem.z, run.alpha, p=1.75)
    assert found["alpha"] == run.alpha.tolist()
    assert found["solution"]["margin"] == pytest.approx(float(solution.margin))
    assert found["solution"]["support"] == solution.support.tolist()
    distance = mm.directional_divergence(solution.W, run.W[-1], 1.75)
    assert found["divergence"]["own"][-1] == pytest.approx(float(distance), rel=1e-4)
    assert found["mass"][-1] == pytest.approx(float(run.mass[-1]), rel=1e-4)
    np.testing.assert_allclose(np.sum(found["tokens"]["attention"], -1), 1, atol=1e-3)


def test_distances_along_the_horizontal_axis_are_margins():
    problem = sphere_problem(1, n=3, T=4, d=5)
    found = geometry(problem, 2.0, 0.1, 100, "zero", "tensor")
    W = mm.att_svm(problem.X, problem.z, np.array(found["alpha"]), p=2.0).W
    for i, alpha in enumerate(found["alpha"]):
        across = np.array(found["tokens"]["places"][i])[:, 0]
        margins = (problem.X[i, alpha] - problem.X[i]) @ W @ problem.z[i]
        np.testing.assert_allclose((across[alpha] - across) * np.linalg.norm(W @ problem.z[i]), margins, atol=1e-3)


def test_training_turns_to_the_solution_and_not_to_that_of_another_p():
    found = geometry(example1(), 3.0, 0.1, 1500, "random", "tensor")
    own, plain = found["divergence"]["own"], found["divergence"]["plain"]
    assert own[-1] < 1e-3 * own[0]
    assert own[-1] < 0.1 * plain[-1]
    np.testing.assert_allclose(found["weights"]["path"][-1], found["weights"]["solution"], atol=0.01)


def test_at_p_2_there_is_no_other_solution_to_tell_apart():
    assert geometry(example1(), 2.0, 0.1, 100, "zero", "tensor")["divergence"]["plain"] is None


def test_a_head_of_zeros_is_trained_too():
    found = geometry(example2(), 2.0, 0.1, 300, "zero", "tensor")
    assert found["joint"]
    assert found["alpha"] == [1, 0]


def test_tokens_that_nothing_separates_are_shown_without_a_solution():
    # Two samples whose tokens score alike never move, and tie with the first token of each: one is the other's last.
    X = np.array([[[0.0, 1.0], [0.0, -1.0]], [[0.0, -1.0], [0.0, 1.0]], [[1.0, 0.0], [-1.0, 0.0]]])
    z = np.array([[1.0, 0.0], [1.0, 0.0], [0.0, 1.0]])
    problem = Problem(X=X, y=np.ones(3), z=z, v=np.array([1.0, 0.0]))
    found = geometry(problem, 2.0, 0.1, 100, "zero", "tensor")
    assert found["solution"] is None
    assert found["divergence"] == {"own": None, "plain": None}
    assert found["weights"]["half_planes"] == []
    json.dumps(found, allow_nan=False)


def test_masked_tokens_get_no_attention():
    problem = sphere_problem(0, n=2, T=4, d=3)
    mask = np.array([[True, True, True, False], [True] * 4])
    masked = Problem(X=problem.X, y=problem.y, z=problem.z, v=problem.v, mask=mask)
    found = geometry(masked, 1.5, 0.1, 100, "random", "tensor")
    assert found["tokens"]["present"] == mask.tolist()
    assert all(frame[0][3] == 0 for frame in found["tokens"]["attention"])
    json.dumps(found, allow_nan=False)


def test_a_start_from_which_nothing_moves_is_told():
    X = np.array([[[1.0, 0.0], [0.0, 1.0]]] * 2)
    problem = Problem(X=X, y=np.array([1.0, -1.0]), z=np.ones((2, 2)), v=np.array([1.0, -1.0]))
    with pytest.raises(ValueError, match="training does not move from the zero start"):
        geometry(problem, 2.0, 0.1, 100, "zero", "tensor")
