"""The vector functions of the kernel against numpy's."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

pytest.importorskip("numba")

from mirrormax.dynamics.kernel import lanes
from mirrormax.dynamics.kernel import loop as kernel
from mirrormax.dynamics.kernel.engine import layout_of
from mirrormax.dynamics.kernel.lanes import (
    WIDTH,
    all_less,
    any_less,
    if_equal,
    if_less,
    larger,
    lift,
    load,
    pointer,
    store,
)

RNG = np.random.default_rng(0)
Array = Any


def on_arrays(function: Callable[..., Any]) -> Callable[..., Array]:
    """A compiled function of a vector as one of an array, filled up to whole vectors with ones."""

    @lanes.compiled
    def run(x: Array, out: Array, arguments: Any) -> None:
        for row in range(len(x)):
            store(pointer(out), row, function(load(pointer(x), row), *arguments))

    def call(x: Array, *arguments: Any) -> Array:
        filled = np.ones((-(-len(x) // WIDTH), WIDTH))
        filled.flat[: len(x)] = x
        out = np.empty_like(filled)
        run(filled, out, arguments)
        return out.ravel()[: len(x)]

    return call


exp, log, planned_power = (on_arrays(f) for f in (lanes.exp, lanes.log, lanes.power))


def power(a: Array, exponent: float) -> Array:
    return planned_power(a, exponent, lanes.power_plan(exponent))


def test_exponential_is_good_to_an_ulp() -> None:
    x = RNG.uniform(-707, 700, 2000)
    assert np.abs(exp(x) / np.exp(x) - 1).max() < 5e-16


def test_exponential_of_what_is_no_number() -> None:
    found = exp(np.array([0.0, -np.inf, -800.0, np.nan]))
    np.testing.assert_array_equal(found, [1.0, 0.0, 0.0, np.nan])


def test_logarithm_is_good_to_an_ulp() -> None:
    x = np.concatenate([10.0 ** RNG.uniform(-299, 299, 1000), 1 + 10.0 ** RNG.uniform(-15, -0.4, 1000), [1.0]])
    ours = log(x)
    assert (np.abs(ours - np.log(x)) <= 5e-16 * np.abs(np.log(x))).all()


@pytest.mark.parametrize("exponent", [0.2, 0.5, 1.0, 4 / 3, 1.5, 2.0, 4.0, 10.0, 10.5, 7 / 3, 100.0, 0.02])
def test_powers(exponent: float) -> None:
    a = np.abs(np.concatenate([RNG.standard_normal(500), [0.0, 3.0]]))
    np.testing.assert_allclose(power(a, exponent), a**exponent, rtol=1e-13, atol=0)


def test_powers_of_what_is_too_small_are_zero() -> None:
    assert power(np.array([1e-310]), 0.3) == 0.0


@pytest.mark.parametrize("exponent", [0.3, 10 / 3])
def test_dual_variables_beyond_the_range_of_fast_powers_are_mapped_carefully(exponent: float) -> None:
    layout = layout_of(1, 1, 1, 1)
    u = np.array([np.inf, -np.inf, np.nan, 1e200, -0.5, 1e-320, 0.0, 1e301])
    rows = np.zeros((layout.rows, WIDTH))
    rows[layout.W + 1] = u

    @lanes.compiled
    def run(rows: Array) -> None:
        kernel.careful_powers(pointer(rows), layout, pointer(rows), layout.W, 1, exponent)

    run(rows)
    with np.errstate(over="ignore"):
        expected = np.copysign(np.abs(u) ** exponent, u)
    np.testing.assert_allclose(rows[layout.W], expected, rtol=1e-13)
    np.testing.assert_array_equal(rows[layout.breaks] == 0, np.isfinite(expected))


def test_vectors_choose_lane_by_lane_and_nan_is_never_chosen_for() -> None:
    @lanes.compiled
    def run(x: Array, out: Array) -> Any:
        a, b = load(pointer(x), 0), load(pointer(x), 1)
        store(pointer(out), 0, larger(a, b))
        store(pointer(out), 1, if_less(a, b, lift(1.0), lift(0.0)))
        store(pointer(out), 2, if_equal(a, b, lift(1.0), lift(0.0)))
        return any_less(a, b), all_less(a, b)

    a = np.array([0.0, 1.0, 2.0, -np.inf, np.inf, 5.0, np.nan, 1.0])
    b = np.array([1.0, 1.0, 1.0, 0.0, np.inf, np.nan, 3.0, 2.0])
    out = np.empty((3, WIDTH))
    assert run(np.stack([a, b]), out) == (True, False)
    np.testing.assert_array_equal(out[0], [1.0, 1.0, 2.0, 0.0, np.inf, 5.0, np.nan, 2.0])
    np.testing.assert_array_equal(out[1], a < b)
    np.testing.assert_array_equal(out[2], a == b)
    assert run(np.stack([np.zeros(WIDTH), np.ones(WIDTH)]), out) == (True, True)
    assert run(np.stack([np.ones(WIDTH), np.ones(WIDTH)]), out) == (False, False)
