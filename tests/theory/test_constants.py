"""The constants against the formulas of Appendix B written as plain loops."""

import dataclasses
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from mirrormax.attention import Loss, gradient, risk
from mirrormax.data import Problem, example1, sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.geometry import Hypentropy
from mirrormax.svm import att_svm
from mirrormax.theory import constants


def by_loops(problem, alpha, p):
    """Appendix B with every sum and maximum written out, for the logistic loss."""
    X, y, z, v = problem.X, problem.y, problem.z, problem.v
    n, T, d = X.shape
    W = att_svm(X, z, alpha, p=p).W
    norm = sum(abs(w) ** p for w in W.ravel()) ** (1 / p)
    q, found = p / (p - 1), {"norm": norm}
    far, largest_outer, gap, bar, Gamma = math.inf, 0.0, math.inf, -math.inf, 0.0
    slopes_low, slopes_high, low_loss, high_loss = [], [], 0.0, 0.0
    for i in range(n):
        scores = [y[i] * X[i, t] @ v for t in range(T)]
        near = []
        for t in range(T):
            outer = sum(abs(a * b) ** q for a in X[i, t] for b in z[i]) ** (1 / q)
            largest_outer = max(largest_outer, outer)
            Gamma = max(Gamma, *(abs(scores[t] - s) for s in scores))
            lead = (X[i, alpha[i]] - X[i, t]) @ W @ z[i]
            if t != alpha[i] and lead <= 1 + 1e-4:
                near.append(scores[t])
            elif t != alpha[i]:
                far = min(far, (lead - 1) / 2)
        if near:
            gap, bar = min(gap, scores[alpha[i]] - max(near)), max(bar, scores[alpha[i]] - min(near))
        slopes_low.append(1 / (1 + math.exp(max(scores))))
        slopes_high.append(1 / (1 + math.exp(min(scores))))
        low_loss += math.log1p(math.exp(-max(scores))) / n
        high_loss += math.log1p(math.exp(-min(scores))) / n
    delta, A = min(0.25, far), max(1.0, norm * largest_outer)
    mu0 = (delta / (8 * A)) ** p / p if p >= 2 else (delta * (p - 1) / (4 * A * d ** (2 / p - 1))) ** 2 / p
    L_bar = sum(slopes_high) / min(slopes_low)
    found |= {"delta_prime": far, "delta": delta, "A": A, "mu0": mu0, "Gamma": Gamma, "L_bar": L_bar, "Xi": 1 / norm}
    found |= {"loss_min": low_loss, "loss_max": high_loss, "gap": gap, "bar": bar}
    found["R_delta"] = norm / delta * math.log(2 * Gamma * L_bar * A * T**2 * (T + 1) / (gap * (1 - delta / 2)))
    return found


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_every_constant_is_that_of_the_plain_loops(solve, p):
    problem, c = solve(p)
    wanted = by_loops(problem, c.alpha, p)
    gaps = {"gap": np.nanmin(c.gamma_gap), "bar": np.nanmax(c.gamma_bar_gap)}
    for name, value in wanted.items():
        assert gaps.get(name, getattr(c, name, None)) == pytest.approx(value, rel=1e-6), name


def test_the_radii_of_lemmas_11_and_17_are_their_formulas(solve):
    _, c = solve(2)
    tail = 0.5 * c.delta * np.nanmax(c.gamma_bar_gap) * 16 + 6 * c.Gamma * c.A * 16 * 5
    for pi in (0.9, 1e-3, 1e-6):
        bound = c.norm / min(pi, 1.5 * c.delta) * math.log(tail * c.L_bar / (pi * np.nanmin(c.gamma_gap)))
        assert dataclasses.replace(c, R_delta=0.0).R_pi(pi) == pytest.approx(bound)
        assert c.R_pi(pi) == pytest.approx(max(c.R_delta, bound))
    assert c.R_mu(1e-8) == c.R_pi(1e-8 / 3)
    assert c.R_delta > 3 * c.norm, "so no V of Lemma 10 is in the cone that it prints"
    mu = c.mu0 / 2
    assert c.R_mu(mu, lr=1e20) == pytest.approx((3e20 * (c.loss_max - c.loss_min) / mu) ** 0.5)
    with pytest.raises(ValueError, match=r"mu must be at most μ0 = .*, where Lemma 17 ends"):
        c.R_mu(1.01 * c.mu0)
    assert c.R_mu() == c.R_mu(c.mu0)


def test_without_other_tokens_delta_is_a_quarter():
    c = constants(example1(), p=2)
    assert c.delta_prime == math.inf
    assert c.delta == 0.25
    assert np.isfinite(c.R_delta)


def test_tokens_that_are_not_locally_optimal_have_no_radius(solve):
    problem, c = solve(2)
    worst = problem.scores().argmin(1)
    bad = constants(problem, worst, p=2)
    assert not bad.locally_optimal
    assert bad.R_delta == bad.R_pi(0.5) == bad.R_mu() == math.inf
    assert "NOT locally optimal" in str(bad)
    assert "NOT" not in str(c)


def test_a_given_solution_counts_at_any_scale(solve):
    problem, c = solve(3)
    given = constants(problem.X, torch.tensor(problem.y), problem.z, problem.v, c.alpha, p=3, W_mm=7 * c.W_mm)
    assert given.R_delta == pytest.approx(c.R_delta)
    with pytest.raises(ValueError, match="W_mm has the margin"):
        constants(problem, c.alpha, p=3, W_mm=-c.W_mm)


def test_masked_tokens_do_not_count(solve):
    problem, c = solve(2)
    X = np.concatenate([problem.X, np.full((3, 1, 5), 9.0)], 1)
    mask = np.arange(5) < np.full((3, 1), 4)
    padded = constants(Problem(X, problem.y, problem.z, problem.v, c.alpha, mask), p=2)
    for name in ("delta", "A", "mu0", "Gamma", "L_bar", "loss_max", "gradient_bound"):
        assert getattr(padded, name) == pytest.approx(getattr(c, name), rel=1e-6), name


@pytest.mark.parametrize("p", [1.5, 3])
def test_risk_and_gradient_stay_within_their_bounds(solve, p):
    problem, c = solve(p)
    W = np.random.default_rng(0).standard_normal((200, 5, 5)) * np.logspace(-1, 2, 200)[:, None, None]
    risks = risk(problem.X, problem.y, problem.z, problem.v, W=W)
    sizes = (np.abs(gradient(problem.X, problem.y, problem.z, problem.v, W=W)) ** p).sum((-2, -1)) ** (1 / p)
    assert c.loss_min <= risks.min() <= risks.max() <= c.loss_max
    assert 0.01 * c.gradient_bound < sizes.max() <= c.gradient_bound


def test_at_the_size_of_the_paper_the_constants_have_the_known_order():
    problems = [sphere_problem(seed) for seed in range(16)]
    X, y, z, v = (np.stack([getattr(problem, name) for problem in problems]) for name in "Xyzv")
    run = simulate(X, y, z, v, p=2, steps=2000, record=2, options=SimulationOptions(weights="last"))
    found = [constants(problem, alpha, p=2) for problem, alpha in zip(problems, run.alpha, strict=True)]
    found = [c for c in found if c.locally_optimal]
    assert len(found) >= 14
    for name, known in {"delta": 0.01, "A": 3.5, "mu0": 7e-8, "R_delta": 5.0e3}.items():
        assert np.median([getattr(c, name) for c in found]) == pytest.approx(known, rel=0.7), name
    assert run.norm[-1].max() < min(c.R_delta for c in found)


def test_a_loss_that_violates_assumption_a_is_named_where_it_makes_radii_infinite(solve):
    problem, c = solve(2)
    hinge = Loss("squared hinge", lambda x: (1 - x).clamp_min(0) ** 2, lambda x: -2 * (1 - x).clamp_min(0))
    found = constants(replace(problem, v=5 * problem.v), c.alpha, loss=hinge)
    assert found.L_bar == math.inf
    assert str(found).splitlines()[-1] == str(found.loss)
    assert "squared hinge violates Assumption A" in str(found)
    assert c.loss.holds
    assert "Assumption A" not in str(c)


def test_what_cannot_be_read_is_refused_in_a_sentence(solve):
    problem, c = solve(2)
    with pytest.raises(ValueError, match="needs alpha, which the problem does not have"):
        constants(problem)
    with pytest.raises(ValueError, match="alpha chooses token 9 in sample 2"):
        constants(problem, [0, 0, 9])
    with pytest.raises(ValueError, match="the theory is stated for"):
        constants(problem, c.alpha, p=Hypentropy(1.0))
    with pytest.raises(TypeError, match="constants needs a Problem, or X, y, z, v"):
        constants([1, 2, 3], c.alpha)
    with pytest.raises(dataclasses.FrozenInstanceError):
        c.mu0 = 1.0
