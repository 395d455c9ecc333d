"""Every potential, also one written tomorrow, must pass these: they run over the registry."""

import dataclasses
import math

import pytest
import torch
from hypothesis import given
from potentials import POTENTIALS
from strategies import matrices

from mirrormax.geometry import ElasticNet, GroupElasticNet, Hypentropy, Lp, Potential, SquaredLp, as_potential, lp_norm

every_potential = pytest.mark.parametrize("potential", POTENTIALS, ids=repr)

# u = ∇ψ(w) must fit into float64: at p = 50 that leaves |w| from about 1e-6 to 1e6.
weights = matrices(largest=10.0, smallest=1e-4)


@every_potential
@given(w=weights)
def test_inverse_undoes_the_mirror_map(potential, w):
    torch.testing.assert_close(potential.inverse_map(potential.mirror_map(w)), w, rtol=1e-11, atol=1e-300)


@every_potential
@given(u=matrices(largest=3.0, smallest=0.5))
def test_mirror_map_undoes_the_inverse(potential, u):
    if not potential.smooth:
        # Where the weight is zero, u may be any subgradient; elsewhere the maps undo each other.
        u = torch.where(potential.inverse_map(u) == 0, 0.0, u)
    torch.testing.assert_close(potential.mirror_map(potential.inverse_map(u)), u, rtol=1e-11, atol=1e-300)


@every_potential
@given(w=matrices(largest=3.0, smallest=0.1))
def test_mirror_map_is_the_gradient_of_the_value(potential, w):
    w = w + 1e-3  # away from zero, where |w|^p has no second derivative for autograd to be sure of
    w.requires_grad_()
    (gradient,) = torch.autograd.grad(potential.value(w), w)
    torch.testing.assert_close(potential.mirror_map(w.detach()), gradient, rtol=1e-9, atol=1e-12)


@every_potential
@pytest.mark.parametrize("size", [0.05, 0.7, 3.0])
def test_curvature_is_the_slope_of_the_mirror_map_of_one_entry(potential, size):
    w = torch.tensor([size * (1 - 1e-6), size * (1 + 1e-6)], dtype=torch.float64)
    below, above = (potential.mirror_map(entry) for entry in w.split(1))
    assert potential.curvature(size) == pytest.approx(float((above - below) / (2e-6 * size)), rel=1e-6)


@pytest.mark.parametrize("lam", [0.0, 0.3])
@pytest.mark.parametrize("delta", [1.0, 0.5])
def test_the_elastic_net_is_a_soft_threshold_with_a_gradient_of_zero_at_zero(lam, delta):
    net, u = ElasticNet(lam, delta), torch.tensor([-1.0, -0.3, 0.0, 0.2, 0.31, 2.0], dtype=torch.float64)
    expected = [delta * (abs(x) - lam) * (1 if x > 0 else -1) if abs(x) > lam else 0.0 for x in u.tolist()]
    torch.testing.assert_close(net.inverse_map(u), torch.tensor(expected, dtype=torch.float64), rtol=1e-15, atol=0)
    assert not net.mirror_map(torch.zeros(3)).any()


@pytest.mark.parametrize("shape", [(4, 3), (4, 3, 2)])
def test_a_group_elastic_net_thresholds_whole_rows_and_heads(shape):
    u = torch.randn(shape, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    u[0] *= 0.01
    dims = tuple(range(u.ndim))
    by_row = GroupElasticNet(0.3, 0.5).inverse_map(u, dims)
    by_head = GroupElasticNet(0.3, 0.5, by="head", heads=2).inverse_map(u, dims)
    for blocks, found in ((u.split(1), by_row.split(1)), (u.split(2), by_head.split(2))):
        for block, w in zip(blocks, found, strict=True):
            length = float(block.norm())
            factor = max(0.0, 1 - 0.3 * block.numel() ** 0.5 / length)
            torch.testing.assert_close(w, 0.5 * factor * block, rtol=1e-12, atol=0)
    assert not by_row[0].any()
    value = GroupElasticNet(0.3, 0.5).value(u, dims)
    expected = sum(0.3 * row.numel() ** 0.5 * row.norm() for row in u) + u.square().sum()
    torch.testing.assert_close(value, expected)


def test_group_elastic_nets_that_do_not_fit_are_refused():
    with pytest.raises(ValueError, match="heads=3 does not divide the 4 rows"):
        GroupElasticNet(0.1, by="head", heads=3).mirror_map(torch.ones(4, 2))
    with pytest.raises(ValueError, match="by must be 'row' or 'head', got 'column'"):
        GroupElasticNet(0.1, by="column")
    with pytest.raises(ValueError, match="heads=4 needs by='head'"):
        GroupElasticNet(0.1, heads=4)
    with pytest.raises(ValueError, match="lam must be a finite number at least 0, got -1"):
        ElasticNet(-1)
    with pytest.raises(ValueError, match="delta must be a finite number greater than 0, got 0"):
        ElasticNet(0.1, 0)


@every_potential
@given(a=weights, b=weights)
def test_mirror_map_is_monotone(potential, a, b):
    slopes = (potential.mirror_map(a) - potential.mirror_map(b)) * (a - b)
    assert float(slopes.sum()) >= 0
    assert (float(slopes.sum()) > 0) == (not torch.equal(a, b))


@every_potential
@given(g=weights, w=weights)
def test_dual_norm_bounds_the_inner_product(potential, g, w):
    assert abs(float((g * w).sum())) <= float(potential.dual_norm(g) * potential.norm(w)) * (1 + 1e-12)


@every_potential
@given(a=weights, b=weights)
def test_the_norm_of_norms_is_the_norm(potential, a, b):
    parts = torch.stack([potential.dual_norm(a), potential.dual_norm(b)])
    torch.testing.assert_close(potential.dual_norm(parts), potential.dual_norm(torch.cat([a, b])), rtol=1e-12, atol=0)


@every_potential
@given(w=weights)
def test_homogeneity_of_the_stated_degree(potential, w):
    if potential.degree is not None:
        torch.testing.assert_close(potential.value(3 * w), 3**potential.degree * potential.value(w), rtol=1e-11, atol=0)
    torch.testing.assert_close(potential.norm(3 * w), 3 * potential.norm(w), rtol=1e-12, atol=0)


@every_potential
def test_leading_dimensions_are_a_batch(potential):
    w = torch.randn(4, 3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    for method in (potential.value, potential.mirror_map, potential.inverse_map, potential.norm, potential.dual_norm):
        torch.testing.assert_close(method(w)[2], method(w[2]), rtol=1e-12, atol=0)


@every_potential
def test_a_spec_is_plain_data_and_makes_the_potential_again(potential):
    spec = potential.spec()
    assert all(isinstance(value, (str, float, int, bool)) for value in spec.values())
    assert as_potential(spec) == potential


@every_potential
def test_only_separable_potentials_ignore_other_entries(potential):
    w = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    alone = torch.cat([potential.mirror_map(entry) for entry in w.split(1)])
    assert torch.allclose(potential.mirror_map(w), alone) == (potential.separable or potential.is_identity)


@every_potential
def test_identity_is_claimed_only_by_identities(potential):
    w = torch.tensor([0.5, -2.0, 1.0], dtype=torch.float64)
    assert torch.equal(potential.mirror_map(w), w) == potential.is_identity


@pytest.mark.parametrize("p", [1.01, 1.5, 3.0, 50.0])
def test_lp_and_squared_lp_have_the_same_directions(p):
    w = torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(3))
    ratio = SquaredLp(p).mirror_map(w) / Lp(p).mirror_map(w)
    torch.testing.assert_close(ratio, lp_norm(w, p).pow(2 - p).expand(3, 3), rtol=1e-10, atol=0)


def test_hypentropy_is_between_gradient_and_exponentiated_gradient():
    w = torch.tensor([0.5, -2.0], dtype=torch.float64)
    torch.testing.assert_close(1e6 * Hypentropy(1e6).mirror_map(w), w)
    expected = w.sign() * torch.log(2 * w.abs() / 1e-9)
    torch.testing.assert_close(Hypentropy(1e-9).mirror_map(w), expected)


def test_dual_variables_of_large_p_are_kept_in_double():
    assert Lp(3).dual_dtype(torch.float32) == torch.float32
    assert Lp(3).dual_dtype(torch.bfloat16) == torch.float32
    assert Lp(50).dual_dtype(torch.float32) == torch.float64


def test_a_number_means_lp():
    assert as_potential(1.5) == Lp(1.5)
    assert as_potential(Hypentropy(2.0)) == Hypentropy(2.0)


@pytest.mark.parametrize("p", [1.0, 0, -3, math.nan, math.inf])
@pytest.mark.parametrize("family", [Lp, SquaredLp])
def test_exponents_that_give_no_potential_are_refused(family, p):
    with pytest.raises(ValueError, match=f"p must be a finite number greater than 1, got {p}"):
        family(p)


@pytest.mark.parametrize("p", ["1.5", None, True, [1.5], torch.tensor(1.5)])
def test_what_is_no_number_is_refused(p):
    with pytest.raises(TypeError, match="p must be a number, got"):
        as_potential(p)


def test_a_beta_that_is_not_positive_is_refused():
    with pytest.raises(ValueError, match="beta must be a finite number greater than 0, got 0"):
        Hypentropy(0)


def test_an_unknown_spec_is_refused():
    with pytest.raises(ValueError, match="no potential is named 'Entropy'"):
        as_potential({"name": "Entropy"})


def test_a_new_potential_works_from_its_five_methods():
    before = dict(Potential.registry)
    try:

        @dataclasses.dataclass(frozen=True)
        class Scaled(Potential):
            c: float = 3.0

            def value(self, w, dim=None):
                return self.c / 2 * lp_norm(w, 2, dim).square()

            def mirror_map(self, w, dim=None):
                return self.c * w

            def inverse_map(self, u, dim=None):
                return u / self.c

            def norm(self, w, dim=None, keepdim=False):
                return lp_norm(w, 2, dim, keepdim)

            dual_norm = norm

        a, b = torch.randn(2, 3, 3, dtype=torch.float64)
        torch.testing.assert_close(Scaled().bregman(a, b), 1.5 * (a - b).square().sum())
        assert as_potential({"name": "Scaled", "c": 3.0}) == Scaled()
    finally:
        Potential.registry.clear()
        Potential.registry.update(before)
