"""The pictures are cuts and projections, as they claim to be."""

import numpy as np
import pytest

from mirrormax import att_svm
from mirrormax.app.planes import entries_plane, start_plane, token_planes
from mirrormax.data import sphere_problem


def lp(w, p):
    return (np.abs(w) ** p).sum((-2, -1)) ** (1 / p)


@pytest.fixture
def solved():
    problem = sphere_problem(3, n=3, T=4, d=4)
    alpha = np.array([0, 1, 2])
    return problem, alpha, lambda p: att_svm(problem.X, problem.z, alpha, p=p).W


@pytest.mark.parametrize("p", [1.1, 2.0, 5.0])
def test_the_edge_of_the_ball_has_unit_norm_in_either_plane(solved, p):
    W = solved[2](p)
    U = W / lp(W, p)
    first = np.random.default_rng(0).standard_normal(W.shape)
    for plane in (entries_plane(U, p, W), start_plane(U, p, first)):
        # What is not in the plane stays as it is in U.
        rest = U - np.einsum("a,ade->de", plane.place(U), plane.axes)
        edge = rest + np.einsum("ka,ade->kde", plane.ball, plane.axes)
        np.testing.assert_allclose(lp(edge, p), 1, rtol=1e-9)


def test_first_weights_and_solution_lie_in_their_plane(solved):
    W = solved[2](1.5)
    U, first = W / lp(W, 1.5), np.random.default_rng(0).standard_normal(W.shape)
    plane = start_plane(U, 1.5, first)
    for weights in (U, first):
        np.testing.assert_allclose(np.einsum("a,ade->de", plane.place(weights), plane.axes), weights, atol=1e-12)


def test_a_first_step_that_is_right_already_leaves_a_plane(solved):
    W = solved[2](2.0)
    axes = start_plane(W / lp(W, 2), 2, 3 * W).axes.reshape(2, -1)
    np.testing.assert_allclose(axes @ axes.T, np.eye(2), atol=1e-12)


@pytest.mark.parametrize("p", [1.5, 3.0])
def test_the_region_of_the_largest_margin_meets_the_ball_in_the_solution_alone(solved, p):
    problem, alpha, solve = solved
    W = solve(p)
    U = W / lp(W, p)
    plane = start_plane(U, p, np.random.default_rng(1).standard_normal(W.shape))
    pairs = [(i, t) for i in range(3) for t in range(4) if t != alpha[i]]
    x = np.stack([problem.X[i, alpha[i]] - problem.X[i, t] for i, t in pairs])
    z = np.stack([problem.z[i] for i, _ in pairs])
    margin = np.einsum("md,de,me->m", x, U, z)
    rows = plane.half_planes(x, z, margin)
    delta = plane.ball - plane.place(U)
    inside = (rows[:, :2] @ delta.T + rows[:, 2:] >= 1e-6).all(0)
    assert not inside.any()
    beyond = 0.5 * plane.place(U)  # further along the solution all margins grow
    assert (rows[:, :2] @ beyond + rows[:, 2] > 0).all()


def test_two_dimensions_are_shown_as_they_are_and_more_along_the_solution():
    rng = np.random.default_rng(0)
    tokens, aim, first = rng.standard_normal((2, 5, 2)), rng.standard_normal((2, 2)), rng.standard_normal((2, 2))
    np.testing.assert_array_equal(token_planes(tokens, aim, first), np.broadcast_to(np.eye(2), (2, 2, 2)))
    tokens, aim, first = rng.standard_normal((2, 5, 6)), rng.standard_normal((2, 6)), rng.standard_normal((2, 6))
    first[1] = -2 * aim[1]
    planes = token_planes(tokens, aim, first)
    np.testing.assert_allclose(
        np.einsum("nad,nbd->nab", planes, planes), np.broadcast_to(np.eye(2), (2, 2, 2)), atol=1e-12
    )
    np.testing.assert_allclose(planes[:, 0], aim / np.linalg.norm(aim, axis=1, keepdims=True))
    assert planes[0, 1] @ first[0] > 0
