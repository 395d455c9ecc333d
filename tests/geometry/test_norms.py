import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import exponents, matrices

from mirrormax.geometry import dual_exponent, dual_norm, lp_norm


@given(matrices(), st.floats(1.0, 50.0))
def test_norm_agrees_with_numpy(w, p):
    assert float(lp_norm(w, p)) == pytest.approx(np.linalg.norm(w.numpy().ravel(), ord=p), rel=1e-12)


@pytest.mark.parametrize("p", [1.0, 1.01, 2.0, 50.0, math.inf])
@pytest.mark.parametrize("scale", [1e-300, 1e300])
def test_entries_of_any_scale_neither_overflow_nor_underflow(p, scale):
    w = torch.tensor([[3.0, -4.0], [0.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(lp_norm(scale * w, p), scale * lp_norm(w, p), rtol=1e-13, atol=0)


@given(matrices(), matrices(), exponents)
def test_dual_norm_bounds_the_inner_product(g, w, p):
    assert abs(float((g * w).sum())) <= float(dual_norm(g, p) * lp_norm(w, p)) * (1 + 1e-12)


@given(matrices(), exponents)
def test_dual_norm_is_attained(g, p):
    q = dual_exponent(p)
    w = g.sign() * (g.abs() / g.abs().max().clamp_min(1e-300)) ** (q - 1)
    assert float((g * w).sum()) == pytest.approx(float(dual_norm(g, p) * lp_norm(w, p)), rel=1e-10)


def test_leading_dimensions_are_a_batch():
    w = torch.randn(5, 2, 3, 4, dtype=torch.float64)
    assert lp_norm(w, 3).shape == (5, 2)
    torch.testing.assert_close(lp_norm(w, 3)[4, 1], lp_norm(w[4, 1], 3))
    torch.testing.assert_close(lp_norm(w, 3, dim=-1)[4, 1, 2], lp_norm(w[4, 1, 2], 3))
    assert lp_norm(w, 3, keepdim=True).shape == (5, 2, 1, 1)


def test_numpy_answers_in_kind():
    norm = lp_norm(np.array([3.0, 4.0]), 2)
    assert isinstance(norm, np.ndarray)
    assert norm == pytest.approx(5.0)


@pytest.mark.parametrize(
    ("w", "expected"), [([0.0, 0.0], 0.0), ([math.inf, 1.0], math.inf), ([1.0, math.nan], math.nan)]
)
def test_zero_infinity_and_nan(w, expected):
    assert float(lp_norm(torch.tensor(w), 1.5)) == pytest.approx(expected, nan_ok=True)


def test_an_empty_tensor_has_norm_zero():
    assert lp_norm(torch.empty(0), 2.5) == 0


def test_half_precision_is_summed_in_single():
    w = torch.full((64, 64), 300.0, dtype=torch.float16)
    assert float(lp_norm(w, 2)) == pytest.approx(300.0 * 64)


@pytest.mark.parametrize("p", [0.5, math.nan, -1])
def test_what_is_no_norm_is_refused(p):
    with pytest.raises(ValueError, match=f"p must be a finite number at least 1, got {p}"):
        lp_norm(torch.ones(2), p)
    with pytest.raises(ValueError, match=f"p must be a finite number at least 1, got {p}"):
        dual_norm(torch.ones(2), p)


@given(exponents)
def test_dual_exponents_pair_up(p):
    assert 1 / p + 1 / dual_exponent(p) == pytest.approx(1.0)
    assert dual_exponent(1) == math.inf
    assert dual_exponent(math.inf) == 1
