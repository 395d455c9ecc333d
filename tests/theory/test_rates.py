"""Theorem 4's rates and their fits."""

import math

import numpy as np
import pytest

from mirrormax.theory import fit_rate, rate

K = np.unique(np.geomspace(20, 1e6, 50).round())


def test_the_three_cases_of_the_theorem():
    log = math.log(500)
    assert rate(3, 500) == pytest.approx(math.log(log) / log)
    assert rate(2, 500) == pytest.approx(math.log(log) ** 2 / log)
    assert rate(1.5, 500) == pytest.approx(math.log(log) / log**0.5)
    assert rate(1.5, 500, "proof") == pytest.approx(1 / log**0.5)
    assert rate(3, 500, "proof") == rate(3, 500)


@pytest.mark.parametrize("p", [1.25, 2, 3])
def test_a_divergence_at_the_rate_is_fitted_by_it(p):
    fit = fit_rate(K, 0.7 * rate(p, K), p)
    assert fit.constant == pytest.approx(0.7)
    assert fit.scale == pytest.approx(0.7)
    assert fit.exponent == pytest.approx(fit.expected)
    assert fit.expected == min(1, p - 1)
    assert np.allclose(fit.ratio, 0.7)


def test_a_faster_divergence_has_a_larger_exponent_and_a_falling_ratio():
    fit = fit_rate(K, rate(3, K) / np.log(K), 3)
    assert fit.exponent == pytest.approx(2)
    assert (np.diff(fit.ratio) < 0).all()
    assert fit.constant == fit.ratio[0]
    assert "falls" in str(fit)


def test_the_constant_bounds_every_step():
    D = rate(2, K) * (1 + 0.5 * np.sin(K))
    fit = fit_rate(K, D, 2)
    assert (fit.constant * rate(2, K) >= D * (1 - 1e-12)).all()
    assert (fit.constant * rate(2, K) * 0.999 < D).any()


def test_early_steps_and_missing_divergences_are_left_out():
    D = rate(2, K)
    steps, divergences = np.concatenate([[0, 1, 5], K]), np.concatenate([[np.nan, 9, 9], D])
    divergences[10] = 0.0
    fit = fit_rate(steps, divergences, 2)
    assert len(fit.steps) == len(K) - 1
    assert fit.constant == pytest.approx(1)


def test_what_cannot_be_fitted_is_refused():
    with pytest.raises(ValueError, match="above e"):
        rate(2, [2, 100])
    with pytest.raises(ValueError, match="'theorem' or 'proof'"):
        rate(2, 100, "book")
    with pytest.raises(ValueError, match="only 2 steps"):
        fit_rate([5, 20, 30], [0.1, 0.1, 0.1], 2)
    with pytest.raises(ValueError, match="one length"):
        fit_rate([20, 30, 40], [0.1, 0.1], 2)
    with pytest.raises(ValueError, match="all of these steps"):
        fit_rate([20, 20, 20], [0.1, 0.1, 0.1], 2)
