"""Cone membership, starts on a cone's boundary, and the empirical cone."""

import math

import numpy as np
import pytest
import torch

from mirrormax.geometry import directional_divergence, lp_norm
from mirrormax.theory import boundary_starts, empirical_cone, in_cone

QUICK = {"starts": 5, "steps": 150, "grid": 4, "refinements": 1, "lr": 0.2}


def test_membership_needs_direction_and_norm_of_the_given_weights():
    W_mm, W = np.eye(2), np.array([[3.0, 0.3], [0.0, 3.0]])
    D = directional_divergence(W_mm, W, 2)
    assert in_cone(W, W_mm, 2, D * 1.001)
    assert not in_cone(W, W_mm, 2, D * 0.999)
    assert in_cone(W, W_mm, 2, 0.1, R=4.2)
    assert not in_cone(W, W_mm, 2, 0.1, R=4.3)
    # The printed definition asks for the norm of W_mm, which would let the small one in.
    assert not in_cone(W_mm * 1e-3, W_mm * 1e3, 2, 0.1, R=1.0)


def test_membership_answers_for_batches_and_never_for_zero():
    W_mm = torch.eye(3, dtype=torch.float64)
    answer = in_cone(torch.stack([W_mm, -W_mm, 0 * W_mm]), W_mm, 3, 0.5)
    assert answer.tolist() == [True, False, False]


@pytest.mark.parametrize("p", [1.2, 2, 4])
@pytest.mark.parametrize("mu", [1e-12, 1e-3, 0.7, 1.9])
def test_starts_lie_exactly_on_the_boundary(p, mu):
    W_mm = np.random.default_rng(1).standard_normal((4, 4))
    W = boundary_starts(W_mm, p, mu, 50.0, starts=5, seed=2)
    assert directional_divergence(W_mm, W, p) == pytest.approx(np.full(5, mu), rel=1e-6)
    assert lp_norm(W, p) == pytest.approx(np.full(5, 50.0))
    assert np.ptp(W[:, 0, 0]) > 0
    assert (boundary_starts(W_mm, p, mu, 50.0, starts=5, seed=2) == W).all()


@pytest.mark.parametrize("p", [1.75, 3])
def test_the_empirical_cone_is_bracketed_and_dwarfs_the_theorem(solve, p):
    problem, c = solve(p)
    cone = empirical_cone(problem, c.alpha, p=p, R=3 * c.norm, **QUICK)
    shares = dict(zip(cone.tried.tolist(), cone.shares.tolist(), strict=True))
    assert shares[cone.mu] == 1
    assert cone.mu < cone.upper == min((mu for mu in shares if mu > cone.mu), default=math.inf)
    assert all(share < 1 for mu, share in shares.items() if mu > cone.mu)
    assert cone.mu > 1e4 * c.mu0
    assert f"{cone.mu:.3g}" in str(cone)
    assert cone.confidence == pytest.approx(0.05 ** (1 / 5))
    assert "at least 55% of all such starts do, with 95 % confidence" in str(cone)


def test_a_refinement_quarters_the_bracket(solve):
    problem, c = solve(2)
    options = {**QUICK, "R": 15 * c.norm, "bracket": (1e-2, 1.9)}
    coarse = empirical_cone(problem, c.alpha, p=2, **{**options, "refinements": 0})
    fine = empirical_cone(problem, c.alpha, p=2, **options)
    assert 0 < coarse.mu < coarse.upper < math.inf
    assert coarse.mu <= fine.mu < fine.upper <= coarse.upper
    assert math.log(fine.upper / fine.mu) == pytest.approx(math.log(coarse.upper / coarse.mu) / 4)
    assert len(fine.tried) == len(coarse.tried) + 3


def test_tokens_that_no_run_selects_have_no_cone(solve):
    problem, _ = solve(2)
    # Any divergence would do here: what counts is what the runs select in the end.
    cone = empirical_cone(problem, problem.scores().argmin(1), p=2, stay=1e9, shrink=1e9, **QUICK)
    assert cone.mu == 0
    assert (cone.shares < 1).all()
    assert "at no divergence" in str(cone)


def test_a_cone_that_holds_everywhere_looked_at_has_no_upper_end(solve):
    problem, c = solve(2)
    cone = empirical_cone(problem, c.alpha, p=2, R=5 * c.norm, bracket=(0.01, 0.02), **QUICK)
    assert cone.mu == pytest.approx(0.02)
    assert cone.upper == math.inf


def test_runs_that_stray_or_do_not_come_nearer_do_not_count(solve):
    problem, c = solve(2)
    options = {**QUICK, "R": 5 * c.norm, "bracket": (0.01, 0.02), "grid": 2}
    assert empirical_cone(problem, c.alpha, p=2, stay=0.5, shrink=1e9, **options).mu == 0
    assert empirical_cone(problem, c.alpha, p=2, stay=1e9, shrink=1e-9, **options).mu == 0


def test_a_bracket_that_does_not_rise_is_refused(solve):
    problem, c = solve(2)
    with pytest.raises(ValueError, match="bracket must rise"):
        empirical_cone(problem, c.alpha, p=2, bracket=(0.1, 0.1))
