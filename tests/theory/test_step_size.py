"""Remark 1's condition: closed-form Hessians, the largest step, and runs on either side of it."""

import math

import numpy as np
import pytest
import torch

from mirrormax.attention import as_loss, risk, scaled_gradient
from mirrormax.data import Problem, sphere_problem
from mirrormax.dynamics import simulate
from mirrormax.theory import check_lemma, step_size_ok
from mirrormax.theory.step_size import largest_step, scaled_hessian


def largest(curvature, hessian):
    return float(largest_step(torch.tensor(curvature, dtype=torch.float64), torch.from_numpy(hessian)))


@pytest.mark.parametrize("loss", ["logistic", "exponential", "correlation"])
def test_the_hessian_is_that_of_automatic_differentiation(solve, loss):
    data = solve(2)[0].tensors()
    W = 3 * torch.from_numpy(np.random.default_rng(0).standard_normal((5, 5)))
    wanted = torch.func.hessian(lambda w: risk(data.X, data.y, data.z, data.v, W=w, loss=loss))(W).reshape(25, 25)
    scaled, log_scale = scaled_hessian(data, W, as_loss(loss))
    assert torch.allclose(scaled * log_scale.exp(), wanted, rtol=1e-10, atol=1e-14 * wanted.abs().max())
    assert log_scale == scaled_gradient(data.X, data.y, data.z, data.v, W=W, loss=loss).log_scale


def test_the_hessian_keeps_its_digits_where_the_risk_is_flat(solve):
    problem, c = solve(2)
    data, W = problem.tensors(), torch.from_numpy(5000 * c.W_mm)
    scaled, log_scale = scaled_hessian(data, W, as_loss("logistic"))
    assert log_scale < -4000
    assert 1e-3 < scaled.abs().max() < 1e3


def test_of_a_quadratic_the_largest_step_is_one_over_its_largest_eigenvalue():
    basis = np.linalg.qr(np.random.default_rng(0).standard_normal((4, 4)))[0]
    H = basis @ np.diag([5.0, 1.0, 0.0, -7.0]) @ basis.T
    assert largest(np.ones(4), H) == pytest.approx(0.2)
    assert largest(2 * np.ones(4), H) == pytest.approx(0.4)
    assert largest(np.ones(4), -H @ H) == math.inf


def test_zero_curvature_allows_no_step_and_infinite_curvature_any():
    H = np.diag([1.0, 4.0])
    assert largest([1.0, 0.0], H) == 0
    assert largest([1.0, math.inf], H) == 1
    assert largest([1.0, 0.0], np.diag([1.0, 0.0])) == 1


def sigmoid_bend(w):
    """L'' of L(w) = −2σ(2w), by hand."""
    s = 1 / (1 + np.exp(-2 * w))
    return -8 * s * (1 - s) * (1 - 2 * s)


def test_one_weight_by_hand():
    problem = Problem(X=[[[1.0], [-1.0]]], y=[1.0], z=[[1.0]], v=[1.0])
    arrays = (problem.X, problem.y, problem.z, problem.v)
    run = simulate(*arrays, p=2, lr=0.2, steps=10, normalize=None, W0=[[0.1]], record="all", loss="correlation")
    w = run.W[:, 0, 0]
    found = step_size_ok(problem, run, fractions=(0.0, 1.0))
    assert found.largest_lr == pytest.approx(1 / sigmoid_bend(w).max())
    assert found.ok
    assert found.points == 20
    assert "is convex at the 20 points" in str(found)
    cubic = simulate(*arrays, p=3, lr=0.2, steps=10, normalize=None, W0=[[0.3]], record="all", loss="correlation")
    w = cubic.W[:, 0, 0]
    assert step_size_ok(problem, cubic, fractions=(0.0, 1.0)).largest_lr == pytest.approx(
        (2 * w / sigmoid_bend(w)).min()
    )


@pytest.mark.parametrize("p", [1.75, 2, 3])
@pytest.mark.parametrize("normalize", ["tensor", None])
def test_below_the_largest_step_lemma_13_holds_and_far_above_convexity_fails(solve, p, normalize):
    problem, _ = solve(p)
    arrays = (problem.X, problem.y, problem.z, problem.v)
    options = {"p": p, "steps": 5, "record": "all", "W0": np.random.default_rng(0).standard_normal((5, 5))}
    small = simulate(*arrays, lr=1e-4, normalize=normalize, **options)
    found = step_size_ok(problem, small)
    assert found.ok
    assert found.largest_lr > 1e-4
    assert check_lemma(problem, 13, small).holds
    large = step_size_ok(problem, simulate(*arrays, lr=100 * found.largest_lr, normalize=normalize, **options))
    assert not large.ok
    assert "NOT convex" in str(large)


def test_convex_on_one_segment_of_the_path_is_not_enough():
    """Remark 1's “there exists an index k” names the points of the path: all of them must be convex."""
    problem, options = sphere_problem(1, 3, 4, 3), {"p": 2, "lr": 300.0, "steps": 40, "normalize": None}
    run = simulate(problem, record="all", **options)
    on_the_last = step_size_ok(problem, simulate(problem, record=[39, 40], **options))
    assert on_the_last.ok
    assert not step_size_ok(problem, run).ok
    assert (np.diff(run.loss) > 1e-3 * run.loss[:-1]).any(), "Lemma 13 says it falls"


def test_above_p_2_no_step_is_small_enough_at_zero(solve):
    problem, _ = solve(3)
    run = simulate(problem.X, problem.y, problem.z, problem.v, p=3, steps=3, record="all")
    found = step_size_ok(problem, run)
    assert (found.ok, found.largest_lr, found.step, found.fraction) == (False, 0.0, 0, 0.0)


def test_updates_are_thinned_evenly_and_gaps_are_refused(solve):
    problem, _ = solve(2)
    arrays = (problem.X, problem.y, problem.z, problem.v)
    run = simulate(*arrays, p=2, steps=100, record="all")
    assert step_size_ok(problem, run, fractions=(0.5,), max_updates=10).points == 10
    with pytest.raises(ValueError, match="record='all'"):
        step_size_ok(problem, simulate(*arrays, p=2, steps=100, record=[50]))
