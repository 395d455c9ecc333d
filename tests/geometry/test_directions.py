import math

import mpmath
import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from potentials import POTENTIALS
from strategies import exponents, matrices, nonzero_matrices

from mirrormax.geometry import bregman, cosine, direction, directional_divergence

every_potential = pytest.mark.parametrize("potential", POTENTIALS, ids=repr)


@every_potential
@given(a=matrices(smallest=1e-2), b=matrices(smallest=1e-2))
def test_divergence_is_positive_exactly_where_weights_differ(potential, a, b):
    divergence = float(bregman(a, b, potential))
    if torch.equal(a, b):
        assert divergence == 0
    elif float((a - b).abs().max()) > 1e-5 * float(b.abs().max()):
        assert divergence > 0
    else:
        assert divergence >= 0


@given(nonzero_matrices(smallest=1e-2), exponents, st.sampled_from([1e-15, 1e-12, 1e-8, 1e-4, 1e-2]))
def test_lp_divergence_keeps_its_digits_between_near_weights(b, p, distance):
    a = b * (1 + distance)
    assert float(bregman(a, b, p)) == pytest.approx(_bregman_in_high_precision(a, b, p), rel=1e-9)


@given(matrices(smallest=1e-2), matrices(smallest=1e-2), exponents)
def test_lp_divergence_agrees_with_high_precision(a, b, p):
    assert float(bregman(a, b, p)) == pytest.approx(_bregman_in_high_precision(a, b, p), rel=1e-9)


def _bregman_in_high_precision(a, b, p):
    with mpmath.workdps(60):
        p = mpmath.mpf(p)
        total = mpmath.mpf(0)
        for x, y in zip(map(mpmath.mpf, a.flatten().tolist()), map(mpmath.mpf, b.flatten().tolist()), strict=True):
            slope = mpmath.sign(y) * abs(y) ** (p - 1)
            total += abs(x) ** p / p - abs(y) ** p / p - slope * (x - y)
        return float(total)


@every_potential
@given(a=matrices(smallest=1e-1), b=matrices(smallest=1e-1))
def test_divergence_is_its_definition(potential, a, b):
    """Definition 1, evaluated as it stands."""
    value = potential.value(a) - potential.value(b) - (potential.mirror_map(b) * (a - b)).sum()
    scale = float(potential.value(a) + potential.value(b) + (potential.mirror_map(b) * (a - b)).abs().sum())
    assert float(bregman(a, b, potential)) == pytest.approx(float(value), abs=1e-11 * scale)


@pytest.mark.parametrize("p", [1.01, 1.5, 2.0, 3.0, 50.0])
@pytest.mark.parametrize("scale", [1e-300, 1e-150, 1e150, 1e300])
def test_directions_of_any_scale_have_the_same_divergence(p, scale):
    a, b = torch.randn(2, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(directional_divergence(scale * a, b / scale, p), directional_divergence(a, b, p))


@pytest.mark.parametrize("p", [1.5, 50.0])
def test_a_divergence_too_large_for_float64_is_infinite_and_not_nan(p):
    a = torch.full((2, 2), 1e300, dtype=torch.float64)
    assert bregman(a, -a, p) == math.inf
    assert bregman(a, a, p) == 0


def test_a_divergence_that_fits_is_found_where_its_terms_do_not():
    b = torch.full((1,), 1e105, dtype=torch.float64)
    a = b * (1 + 1e-8)
    assert float(bregman(a, b, 3)) == pytest.approx(_bregman_in_high_precision(a, b, 3), rel=1e-9)


@every_potential
def test_nothing_diverges_from_nothing(potential):
    assert float(bregman(torch.empty(0), torch.empty(0), potential)) == 0


@every_potential
@given(w=nonzero_matrices(smallest=1e-2), c=st.floats(1e-6, 1e6))
def test_directional_divergence_ignores_length(potential, w, c):
    assert float(directional_divergence(w, c * w, potential)) == pytest.approx(0, abs=1e-13)


def test_the_direction_of_zero_is_unknown():
    assert torch.isnan(directional_divergence(torch.ones(2), torch.zeros(2), 2))
    assert torch.isnan(cosine(torch.ones(2), torch.zeros(2)))


def test_directions_have_norm_one_even_where_the_norm_overflows():
    w = torch.full((100,), 1e308, dtype=torch.float64)
    torch.testing.assert_close(direction(w, 1.1), torch.full((100,), 100 ** (-1 / 1.1), dtype=torch.float64))


@given(nonzero_matrices(), nonzero_matrices())
def test_euclidean_divergence_of_directions_is_one_minus_the_cosine(a, b):
    assert float(directional_divergence(a, b, 2)) == pytest.approx(1 - float(cosine(a, b)), abs=1e-12)


def test_a_matrix_is_compared_with_a_whole_trajectory():
    reference, path = torch.randn(3, 3), torch.randn(7, 5, 3, 3)
    divergences = directional_divergence(reference, path, 1.5)
    assert divergences.shape == (7, 5)
    torch.testing.assert_close(divergences[6, 4], directional_divergence(reference, path[6, 4], 1.5))


def test_a_vector_is_compared_with_a_batch_of_vectors():
    reference, path = torch.randn(3), torch.randn(7, 3)
    assert cosine(reference, path).shape == (7,)
    torch.testing.assert_close(
        directional_divergence(reference, path, 3)[2], directional_divergence(reference, path[2], 3)
    )
    assert bregman(path, path + 1, 3, dim=-1).shape == (7,)


def test_numpy_answers_in_kind():
    a = np.array([[1.0, 2.0], [3.0, 4.0]])
    assert isinstance(directional_divergence(a, a + 1, 1.75), np.ndarray)
    assert isinstance(directional_divergence(a, torch.ones(2, 2), 1.75), torch.Tensor)
