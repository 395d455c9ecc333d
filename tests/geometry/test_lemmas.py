"""Lemmas of the paper's Appendix B that speak of the geometry alone, as properties."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from strategies import exponents, matrices, moderate_exponents, nonzero_matrices

from mirrormax.geometry import Hypentropy, Lp, SquaredLp, bregman, direction, lp_norm

D = 3
nonnegative = st.floats(0, 10)


def attention_risk(w):
    """A smooth nonconvex loss of a matrix: the paper's, on two sequences of three tokens."""
    generator = torch.Generator().manual_seed(5)
    x, z = torch.randn(2, 3, D, generator=generator).double(), torch.randn(2, D, generator=generator).double()
    v, y = torch.randn(D, generator=generator).double(), torch.tensor([1.0, -1.0]).double()
    weights = torch.softmax(torch.einsum("ntd,de,ne->nt", x, w, z), -1)
    return torch.nn.functional.softplus(-y * torch.einsum("nt,ntd,d->n", weights, x, v)).mean()


@pytest.mark.parametrize("potential", [Lp(1.5), Lp(2.0), Lp(3.0), SquaredLp(1.5), Hypentropy(0.5)], ids=repr)
@given(w=matrices(D, smallest=0.1), start=matrices(D, smallest=0.1))
def test_lemma_1_mirror_descent_identity(potential, w, start):
    eta = 0.1
    gradient = torch.func.grad(attention_risk)(start)
    after = potential.inverse_map(potential.mirror_map(start) - eta * gradient)
    loss_bregman = attention_risk(after) - attention_risk(start) - (gradient * (after - start)).sum()
    right = (
        bregman(w, after, potential)
        + bregman(after, start, potential)
        - eta * loss_bregman
        - eta * (gradient * (w - start)).sum()
        - eta * attention_risk(start)
        + eta * attention_risk(after)
    )
    torch.testing.assert_close(bregman(w, start, potential), right, rtol=1e-9, atol=1e-10)


@given(matrices(D), exponents)
def test_lemma_2_lp_and_l2_norms(w, p):
    ends = sorted([float(D ** (2 / p - 1) * lp_norm(w, 2)), float(lp_norm(w, 2))])
    assert ends[0] * (1 - 1e-12) <= float(lp_norm(w, p)) <= ends[1] * (1 + 1e-12)


@given(nonzero_matrices(D), nonzero_matrices(D), exponents)
def test_lemma_3_divergence_of_directions_bounds_their_distance(a, b, p):
    a, b = direction(a, p), direction(b, p)
    if p >= 2:
        bound = lp_norm(a - b, p).pow(p) / (p * 2**p)
    else:
        bound = (p - 1) ** 2 / p * lp_norm(a - b, 2).square()
    assert float(bregman(a, b, p)) >= float(bound) * (1 - 1e-9)


@given(nonnegative, nonnegative, moderate_exponents)
def test_lemma_4(x, y, p):
    x, y = max(x, y), min(x, y)
    left = (p - 1) / p * (x**p - y**p)
    assert left >= y * (x ** (p - 1) - y ** (p - 1)) - 1e-12 * (1 + x**p)


@given(nonnegative, nonnegative, st.floats(0.05, 6))
def test_lemma_5(x, y, q):
    x, y = max(x, y), min(x, y)
    if q >= 1:
        bound = q * x ** (q - 1) * (x - y) if x else 0.0
    else:
        bound = q * y ** (q - 1) * (x - y) if y else float("inf")
    assert x**q - y**q <= bound + 1e-12 * (1 + x**q)


@pytest.mark.parametrize("potential", [Lp(1.1), Lp(2.0), Lp(6.0), SquaredLp(3.0), Hypentropy(1.0)], ids=repr)
@given(a=matrices(D, smallest=0.1), b=matrices(D, smallest=0.1), c=matrices(D, smallest=0.1))
def test_lemma_15_cosine_law(potential, a, b, c):
    cross = ((potential.mirror_map(b) - potential.mirror_map(c)) * (a - c)).sum()
    right = bregman(a, c, potential) + bregman(c, b, potential) - cross
    scale = float(bregman(a, c, potential) + bregman(c, b, potential) + cross.abs())
    assert float(bregman(a, b, potential)) == pytest.approx(float(right), abs=1e-10 * (1 + scale))
