"""The bounds of Theorem 5's proof against what they bound."""

import math

import numpy as np
import pytest
import torch

from mirrormax.attention import attend, attention_weights, leads, risk
from mirrormax.data import example2, sphere_problem
from mirrormax.geometry import dual_exponent
from mirrormax.svm import att_svm, lp_svm
from mirrormax.theory import joint_bounds

EXPONENTS = (1.1, 1.5, 2.0, 3.0, 6.0)


def separable(seed, p):
    """A problem and tokens that some W and some readout separate."""
    problem = sphere_problem(seed, n=3, T=4, d=6)
    alpha = np.array([0, 1, 2])
    return problem, alpha, joint_bounds(problem, alpha, p=p)


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("seed", [0, 1, 2])
def test_the_limit_is_bounded_as_the_proof_says(p, seed):
    problem, alpha, bounds = separable(seed, p)
    tokens = problem.X[np.arange(3), alpha]
    for R in (0.5, 3.0, 20.0):
        W, low_high = bounds.W_bar(R), bounds.nonoptimality(R)
        assert np.linalg.norm(W.ravel(), p) == pytest.approx(R)
        weights = np.asarray(attention_weights(problem, W=W))
        missed = (1 - weights[np.arange(3), alpha]).max()
        assert low_high[0] * (1 - 1e-9) <= missed <= low_high[1] * (1 + 1e-9)
        moved = np.linalg.norm(np.asarray(attend(problem, W=W)) - tokens, dual_exponent(p), axis=1).max()
        assert moved <= bounds.perturbation(R) * (1 + 1e-9)
        for r in (0.5, 5.0):
            v = bounds.v_bar(r)
            value = float(risk(problem.X, problem.y, problem.z, v=v, W=W))
            assert math.log(value) <= bounds.log_risk_bound(R, r) + 1e-9


@pytest.mark.parametrize("p", EXPONENTS)
def test_weights_of_a_smaller_margin_attend_elsewhere_by_the_bound(p):
    problem, alpha, bounds = separable(0, p)
    generator = np.random.default_rng(0)
    for R in (1.0, 10.0):
        for noise in (0.3, 1.0, 3.0):
            W = bounds.W_mm * bounds.Xi + noise * generator.standard_normal((6, 6)) / 6
            W *= R / np.linalg.norm(W.ravel(), p)
            margin = float(np.asarray(leads(problem, W=W, alpha=alpha)).min())
            gamma = 1 - margin / (bounds.Xi * R)
            if 0 < gamma < 1:
                weights = np.asarray(attention_weights(problem, W=W))
                missed = (1 - weights[np.arange(3), alpha]).max()
                assert missed >= bounds.nonoptimality_elsewhere(R, gamma) * (1 - 1e-9)


def test_beyond_the_threshold_the_limit_is_better_for_a_large_readout_only():
    bounds = joint_bounds(example2(), [1, 0], p=2)
    nu, gamma = 0.1, 0.5
    R = 1.1 * bounds.threshold(nu, gamma)
    r = bounds.readout_radius(R, nu, gamma)
    assert bounds.readout_radius(0.9 * bounds.threshold(nu, gamma), nu, gamma) == math.inf
    assert bounds.log_risk_bound(R, 1.01 * r) < bounds.log_risk_elsewhere(R, 1.01 * r, nu, gamma)
    assert bounds.log_risk_bound(R, 0.99 * r) > bounds.log_risk_elsewhere(R, 0.99 * r, nu, gamma)
    # The factor 1/2n that the text drops makes r grow exponentially in R.
    growth = bounds.readout_radius(4 * R, nu, gamma) / bounds.readout_radius(2 * R, nu, gamma)
    assert growth == pytest.approx(math.exp((1 - gamma) * bounds.Xi * 2 * R), rel=0.2)


def test_the_printed_norm_of_m_is_too_small_beyond_two():
    """d = 2, p = 3, one sample: the readout's margin moves by more than the printed M says."""
    X = np.array([[[1.0, 1.0], [0.0, 0.0]]])
    y, alpha = np.array([1.0]), np.array([0])
    bounds = joint_bounds(X, y, X[:, 0], alpha=alpha, p=3)
    assert pytest.approx(2 ** (2 / 3)) == bounds.M
    assert bounds.M_printed == pytest.approx(2 ** (1 / 3))
    v = lp_svm(X[:, 0], y, p=3).v
    halfway = 0.5 * X[0, 0]  # attention 1/2 on either token
    lost = 1 - halfway @ v
    assert lost > 0.5 * bounds.M_printed * np.linalg.norm(v, 3)
    assert lost <= 0.5 * bounds.M * np.linalg.norm(v, 3) * (1 + 1e-9)


def test_the_margins_are_those_of_the_two_problems():
    problem, alpha, bounds = separable(1, 3.0)
    assert pytest.approx(float(att_svm(problem, alpha, p=3.0).margin)) == bounds.Xi
    assert pytest.approx(float(lp_svm(problem.X[np.arange(3), alpha], problem.y, p=3.0).margin)) == bounds.Gamma


@pytest.mark.parametrize(
    ("name", "call"), [("R", lambda b: b.nonoptimality(0)), ("gamma", lambda b: b.threshold(1, 1))]
)
def test_arguments_out_of_bounds_are_refused(name, call):
    with pytest.raises(ValueError, match=name):
        call(joint_bounds(example2(), [1, 0], p=2))


def test_tensors_are_taken():
    problem = example2()
    torch_bounds = joint_bounds(torch.as_tensor(np.asarray(problem.X)), problem.y, problem.z, alpha=[1, 0], p=2)
    assert torch_bounds.M == joint_bounds(problem, [1, 0], p=2).M
