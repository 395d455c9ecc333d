"""The vector functions of the kernel against numpy's."""

from __future__ import annotations

import numpy as np
import pytest

pytest.importorskip("numba")

from mirrormax.dynamics import elementary

RNG = np.random.default_rng(0)


def test_exponential_is_good_to_an_ulp() -> None:
    x = RNG.uniform(-707, 700, 2000)
    assert np.abs(np.array([elementary.exp(t) for t in x]) / np.exp(x) - 1).max() < 5e-16


def test_exponential_of_what_is_no_number() -> None:
    assert elementary.exp(0.0) == 1.0
    assert elementary.exp(-np.inf) == elementary.exp(-800.0) == 0.0
    assert np.isnan(elementary.exp(np.nan))


def test_logarithm_is_good_to_an_ulp() -> None:
    x = np.concatenate([10.0 ** RNG.uniform(-299, 299, 1000), 1 + 10.0 ** RNG.uniform(-15, -0.4, 1000), [1.0]])
    ours = np.array([elementary.log(t) for t in x])
    assert (np.abs(ours - np.log(x)) <= 5e-16 * np.abs(np.log(x))).all()


@pytest.mark.parametrize("exponent", [0.2, 0.5, 1.0, 4 / 3, 1.5, 2.0, 4.0, 10.0, 10.5, 7 / 3, 100.0, 0.02])
def test_signed_power(exponent: float) -> None:
    u = np.concatenate([RNG.standard_normal(500), [0.0, -0.0, 1e-310, 3.0, -2.0]])
    w = np.empty_like(u)
    elementary.signed_power(u, w, exponent)
    expected = np.copysign(np.abs(u) ** exponent, u)
    tiny = np.abs(u) < 1e-300  # what is smaller counts as zero
    assert np.allclose(w[~tiny], expected[~tiny], rtol=1e-13, atol=0)
    assert (w[u == 0] == 0).all()


@pytest.mark.parametrize("exponent", [0.3, 2.0, 10 / 3])
def test_signed_power_passes_on_what_is_not_finite(exponent: float) -> None:
    u = np.array([np.inf, -np.inf, np.nan, 1e200, 0.5])
    w = np.empty_like(u)
    elementary.signed_power(u, w, exponent)
    with np.errstate(over="ignore"):
        np.testing.assert_allclose(w, np.copysign(np.abs(u) ** exponent, u), rtol=1e-13)
