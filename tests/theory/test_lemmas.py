"""The lemmas hold deep in the cone, are seen to fail on doctored runs, and are silent where they say nothing."""

import dataclasses

import numpy as np
import pytest
import torch

from mirrormax.attention import gradient, risk, scaled_gradient
from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.geometry import Lp
from mirrormax.theory import (
    boundary_starts,
    check_lemma,
    check_lemmas,
    constants,
)

EXPONENTS = [1.75, 2, 3]


def run_of(problem, p, **options):
    settings = {"steps": 20, "lr": 0.01, "record": "all"} | options
    return simulate(problem.X, problem.y, problem.z, problem.v, p=p, **settings)


def deep(problem, c, R, mu=None, **options):
    """A run from norm R, in the direction of W_mm or at divergence μ from it."""
    W0 = c.W_mm * (R / c.norm) if mu is None else boundary_starts(c.W_mm, c.p, mu, R, starts=1, seed=5)[0]
    return run_of(problem, c.p, W0=W0, **options)


def doctored(run, record, factor):
    W = run.W.copy()
    W[record] *= factor
    return dataclasses.replace(run, W=W)


@pytest.mark.parametrize("p", EXPONENTS)
def test_all_lemmas_but_17_hold_beyond_the_radius(solve, p):
    problem, c = solve(p)
    for mu in (None, c.mu0 / 2):
        run = deep(problem, c, 2 * c.R_pi(0.5), mu)
        checks = check_lemmas(problem, run, c)
        assert [check.lemma for check in checks] == [9, 10, 11, 12, 13, 14, 16, 17, 18, 19]
        for check in checks:
            if check.lemma == 17:  # whose cone begins further out
                continue
            assert check.applies, str(check)
            assert check.holds, str(check)
            assert len(check.steps) >= 20
            assert len(check.margins) == len(check.steps)
            assert "holds at all" in str(check)


@pytest.mark.parametrize("p", EXPONENTS)
def test_lemma_17_holds_from_the_thin_cone(solve, p):
    problem, c = solve(p)
    R = 2 * c.R_pi(c.mu0 / 3)
    check = check_lemma(problem, 17, deep(problem, c, R, c.mu0 / 4, lr=1e-3), c)
    assert check.applies, str(check)
    assert check.holds
    assert check.steps.tolist() == list(range(1, 21))
    alone = check_lemma(
        problem, 17, deep(problem, c, R, c.mu0 / 4, steps=0), c
    )  # the hypothesis, and nothing of what follows
    assert alone.holds is None


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_doctored_run_violates_each_lemma_where_it_was_doctored(solve, p):
    problem, c = solve(p)
    run = deep(problem, c, 2 * c.R_pi(0.5))
    shrunk, grown = doctored(run, 5, 0.9), doctored(run, 5, 1.1)
    assert check_lemma(problem, 12, shrunk).violations.tolist() == [4]
    assert 4 in check_lemma(problem, 13, grown).violations
    assert 4 in check_lemma(problem, 16, shrunk, c).violations
    backwards = dataclasses.replace(run, W=run.W[::-1])
    check = check_lemma(problem, 14, backwards)
    assert len(check.violations) == 20
    assert not check.holds
    assert "is violated at 20 of 20 records (steps 0, 1, 2, 3, 4, …)" in str(check)


def test_lemma_17_takes_its_radius_for_plain_steps_from_the_range_of_the_risk(solve):
    problem, c = solve(2)
    for factor, applies in ((1.01, True), (0.99, False)):
        run = deep(problem, c, factor * c.R_mu(lr=0.01), normalize=None)
        assert run.status == "stationary"  # so far out a plain step is zero, and W(5) is W(0)
        run = dataclasses.replace(run, steps=np.array([0, 5]), W=np.repeat(run.W, 2, axis=0), updates=np.array(5))
        assert check_lemma(problem, 17, run, c).applies is applies
    # So long a step needs a larger norm than R_π.
    lr = 1e40
    assert c.R_mu(lr=lr) > 1e3 * c.R_pi(c.mu0 / 3)
    run = deep(problem, c, 2 * c.R_pi(c.mu0 / 3), normalize=None, lr=lr)
    assert not check_lemma(problem, 17, run, c).applies


def test_lemma_17_needs_every_normalised_step_and_none_too_long(solve):
    problem, c = solve(2)
    R = 2 * c.R_pi(c.mu0 / 3)
    sparse = check_lemma(problem, 17, deep(problem, c, R, record=[5]), c)
    assert "every update must be recorded" in str(sparse)
    for lemma in (16, 17):
        long = check_lemma(problem, lemma, deep(problem, c, R, lr=R), c)
        assert not long.applies
        assert "the step is too long for ψ − ηL to be convex" in str(long)


def test_a_run_that_leaves_the_cone_violates_lemma_17(solve):
    problem, c = solve(2)
    run = deep(problem, c, 2 * c.R_pi(c.mu0 / 3), lr=1e-3)
    W = run.W.copy()
    W[-1] = boundary_starts(c.W_mm, 2, 2 * c.mu0, float(run.norm[-1]), starts=1)[0]
    check = check_lemma(problem, 17, dataclasses.replace(run, W=W), c)
    assert check.applies
    assert check.violations.tolist() == [20]
    assert check.margins[-1] == pytest.approx(-c.mu0, rel=1e-3)


@pytest.mark.parametrize("p", EXPONENTS)
def test_lemma_9_fails_in_a_cone_wider_than_its_own(solve, p):
    problem, c = solve(p)
    run = deep(problem, c, c.norm, 0.2, steps=1)
    assert not check_lemma(problem, 9, run, c).applies
    wide = check_lemma(problem, 9, run, dataclasses.replace(c, mu0=0.9))
    assert wide.applies
    assert not wide.holds
    assert 0 in wide.violations


@pytest.mark.parametrize("p", EXPONENTS)
def test_lemma_10_is_the_bound_of_the_paper_and_fails_for_a_larger_one(solve, p):
    problem, c = solve(p)
    run = deep(problem, c, 2 * c.R_delta, c.mu0 / 2, steps=1)
    check = check_lemma(problem, 10, run, c)
    assert check.holds
    W, gap = run.W[0], np.nanmin(c.gamma_gap)
    scaled, log_scale = scaled_gradient(problem.X, problem.y, problem.z, problem.v, W)
    pull = min(-(scaled * c.W_mm).sum(), -(scaled * W).sum() * c.norm / run.norm[0])
    slopes = 1 / (1 + np.exp(c_scores(problem, c)))  # attention is at α to the last digit
    ratio = run.norm[0] / c.norm
    bound = (1 - c.delta / 2) * gap * slopes.min() / c.T
    bound -= 2 * c.Gamma * c.A * c.T * (c.T + 1) * slopes.sum() * np.exp(-c.delta * ratio)
    wanted = np.log(pull) + log_scale - np.log(bound / c.n) + (1 + c.delta / 2) * ratio
    assert check.margins[0] == pytest.approx(wanted, rel=1e-6)
    wider = dataclasses.replace(c, gamma_gap=c.gamma_gap * np.exp(check.margins[0] + 1), R_delta=c.R_delta / 2)
    assert not check_lemma(problem, 10, run, wider).holds
    assert 0 in check_lemma(problem, 10, run, wider).violations


def c_scores(problem, c):
    return np.take_along_axis(problem.scores(), c.alpha[:, None], 1)[:, 0]


@pytest.mark.parametrize("p", EXPONENTS)
def test_lemma_11_fails_where_a_direction_is_steeper_than_the_solution(solve, p):
    problem, c = solve(p)
    near = check_lemma(problem, 11, deep(problem, c, 2 * c.R_pi(0.1), steps=1), c, pi=0.1)
    assert near.holds
    # At W_mm itself the two sides differ by the factor 1 + π alone.
    assert near.margins[0] > 0
    steep = dataclasses.replace(c, W_mm=-c.W_mm)
    run = deep(problem, c, 2 * c.R_pi(0.5), steps=1)
    wide = check_lemma(problem, 11, run, dataclasses.replace(steep, mu0=3.0))
    assert wide.applies
    assert not wide.holds


@pytest.mark.parametrize("p", EXPONENTS)
def test_lemma_18_is_the_telescoped_sum_and_fails_when_the_direction_is_lost(solve, p):
    problem, c = solve(p)
    run = deep(problem, c, 50 * c.R_pi(0.5), c.mu0 / 100)
    check = check_lemma(problem, 18, run, c)
    assert check.holds
    assert check.steps.tolist() == list(range(1, 21))
    W = run.W.copy()
    W[10:] = boundary_starts(c.W_mm, p, 0.9 * c.mu0, 1.0, starts=1)[0] * run.norm[10:, None, None]
    worse = check_lemma(problem, 18, dataclasses.replace(run, W=W), c)
    assert not worse.holds
    assert worse.violations.min() == 10


def test_the_pi_of_a_norm_is_the_inverse_of_the_radius(solve):
    _, c = solve(2)
    for R in (30 * c.R_pi(0.5), 1e4 * c.R_pi(0.5)):
        assert c.R_pi(c.pi_at(R)) == pytest.approx(R, rel=1e-6)
        assert c.pi_at(R) < 0.05
    assert c.pi_at(c.R_delta / 2) == 1.0
    assert c.pi_at(1e9 * c.norm) < 1e-5


@pytest.mark.parametrize("p", EXPONENTS)
def test_lemma_19_fails_where_the_norm_does_not_grow(solve, p):
    problem, c = solve(p)
    run = deep(problem, c, 2 * c.R_pi(0.5))
    assert check_lemma(problem, 19, run, c).holds
    shrunk = check_lemma(problem, 19, doctored(run, 5, 0.999), c)
    assert shrunk.violations.tolist() == [4]
    plain = check_lemma(problem, 19, deep(problem, c, 2 * c.R_pi(0.5), normalize=None), c)
    assert not plain.applies
    assert "below the rounding of W" in str(plain)


@pytest.mark.parametrize("p", [2, 3])
def test_updates_with_too_long_a_step_are_not_judged(solve, p):
    problem, _ = solve(p)
    W0 = 3 * np.random.default_rng(0).standard_normal((5, 5))
    short, long = (run_of(problem, p, W0=W0, lr=lr, steps=3) for lr in (1e-4, 1000.0))
    for lemma in (13, 14):
        within, found = (check_lemma(problem, lemma, run) for run in (short, long))
        assert len(within.steps) == 3
        assert (found.applies, found.holds, len(found.steps)) == (False, None, 0)


def test_of_a_run_with_long_and_short_steps_the_short_ones_are_judged():
    problem = sphere_problem(1, 3, 4, 3)
    mixed = check_lemma(problem, 14, run_of(problem, 2, lr=300.0, steps=40, normalize=None))
    assert mixed.holds
    assert 0 < len(mixed.steps) < 40
    assert f"of 40 updates {40 - len(mixed.steps)} have too long a step" in str(mixed)


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_run_of_the_paper_is_told_that_the_theory_says_nothing(solve, p):
    problem, c = solve(p)
    run = run_of(problem, p, lr=0.1, steps=200)
    for check in check_lemmas(problem, run, c):
        if check.lemma in (12, 13, 14):
            assert check.applies
            assert check.holds
            continue
        assert not check.applies
        assert check.holds is None
        assert f"Lemma {check.lemma} says nothing about this run: no recorded W enters the cone" in str(check)
        assert "At this size the theory says nothing of the run; empirical_cone measures" in str(check)
        assert f"largest norm {run.norm.max():.3g}" in str(check)


def test_tokens_that_are_not_locally_optimal_are_outside_the_theory(solve):
    problem, _ = solve(2)
    c = constants(problem, problem.scores().argmin(1), p=2)
    run = deep(problem, c, 100.0, steps=2)
    for lemma in (9, 16, 17):
        assert "alpha is not locally optimal" in check_lemma(problem, lemma, run, c).reason


@pytest.mark.parametrize("normalize", ["tensor", None])
@pytest.mark.parametrize("p", EXPONENTS)
def test_margins_are_the_lemmas_as_printed_where_nothing_cancels(solve, p, normalize):
    problem, _ = solve(p)
    W0 = np.random.default_rng(0).standard_normal((5, 5))
    run = run_of(problem, p, W0=W0, normalize=normalize, lr=0.1)
    arrays = (problem.X, problem.y, problem.z, problem.v)
    L, norm = risk(*arrays, run.W), run.norm
    G = gradient(*arrays, run.W)
    eta = 0.1 / Lp(p).dual_norm(torch.from_numpy(G)).numpy() if normalize else np.full(21, 0.1)
    pull = -(eta * (G * run.W).sum((-2, -1)))[:-1]
    loss = (eta[:-1]) * np.diff(L)
    twelve = np.diff(norm ** (p - 1)) - pull / norm[:-1]
    thirteen = pull - (p - 1) / p * np.diff(norm**p) - loss
    assert check_lemma(problem, 12, run).margins == pytest.approx(twelve, abs=1e-12)
    assert check_lemma(problem, 13, run).margins == pytest.approx(thirteen, abs=1e-12)
    assert check_lemma(problem, 14, run).margins == pytest.approx(-loss, abs=1e-12)
    _, c = solve(p)
    wide = dataclasses.replace(c, mu0=2.0, R_delta=0.0, A=1e-300, Gamma=1.0, L_bar=1.0, delta=0.25)
    target = c.W_mm / c.norm
    u = np.sign(run.W) * np.abs(run.W) ** (p - 1)
    sixteen = (np.diff(u, axis=0) * target).sum((-2, -1)) - np.diff(norm ** (p - 1)) / 1.5 - loss / norm[:-1]
    check = check_lemma(problem, 16, run, dataclasses.replace(wide, norm=1e-300))
    assert check.margins == pytest.approx(sixteen, abs=1e-12)


def test_updates_lost_to_rounding_are_owned_up_to(solve):
    problem, c = solve(3)
    run = deep(problem, c, 1e12)
    assert "20 of 20 updates are below the rounding of W" in check_lemma(problem, 12, run).reason


def test_runs_that_the_lemmas_do_not_speak_of_are_refused(solve):
    problem, c = solve(2)
    with pytest.raises(ValueError, match=r"pass run\[i\]"):
        check_lemma(problem, 12, run_of(problem, 2, W0=np.zeros((2, 5, 5))))
    with pytest.raises(ValueError, match="fixed readout"):
        check_lemma(problem, 12, run_of(problem, 2, train_readout=True))
    with pytest.raises(ValueError, match="weights='all'"):
        check_lemma(problem, 12, run_of(problem, 2, options=SimulationOptions(weights="last")))
    with pytest.raises(ValueError, match="constants"):
        check_lemma(problem, 16, run_of(problem, 2))
    with pytest.raises(ValueError, match="lemma"):
        check_lemma(problem, 15, run_of(problem, 2), c)
    with pytest.raises(ValueError, match="use one p for both"):
        check_lemma(problem, 16, run_of(problem, 3), c)
    with pytest.raises(ValueError, match="at most μ0"):
        check_lemma(problem, 17, run_of(problem, 2), c, mu=0.5)
    sparse = run_of(problem, 2, record=[5, 10])
    for lemma in (12, 13, 14):
        assert "record='all'" in str(check_lemma(problem, lemma, sparse))
