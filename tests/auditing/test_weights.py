"""The measures have their closed forms, do not see scale, and find the matrices of each role."""

import json
import math
from dataclasses import asdict

import numpy as np
import pytest
import torch
from torch import nn

from mirrormax.auditing.weights import (
    Sparsity,
    attention_weights,
    effective_rank,
    hoyer,
    sparsity,
    top_mass,
)


def one_hot(shape=(20, 30)):
    matrix = np.zeros(shape)
    matrix[3, 4] = -2.5
    return matrix


def test_a_single_entry_is_as_concentrated_as_can_be():
    measured = sparsity(one_hot())
    assert (measured.hoyer, measured.top_mass) == (1, 1)
    assert measured.effective_rank == pytest.approx(1)


def test_equal_sizes_are_not_concentrated_at_all():
    signs = np.random.default_rng(0).choice([-0.3, 0.3], (20, 30))
    measured = sparsity(signs)
    assert measured.hoyer == pytest.approx(0, abs=1e-12)
    assert measured.top_mass == pytest.approx(6 / 600)


@pytest.mark.parametrize("k", [1, 7, 400])
def test_k_equal_entries_have_the_hoyer_of_their_number(k):
    weights = np.zeros(400)
    weights[:k] = -1.5
    assert hoyer(weights) == pytest.approx((20 - math.sqrt(k)) / 19)


def test_gaussian_weights_have_their_expected_values():
    from scipy.stats import norm

    weights = np.random.default_rng(0).standard_normal((600, 700))
    n = weights.size
    # ‖w‖₁/‖w‖₂ → √n √(2/π); E[|w|; |w| > c] = 2 φ(c) with P(|w| > c) = 1 %, over E|w| = √(2/π).
    cut = norm.isf(0.005)
    measured = sparsity(weights)
    assert measured.hoyer == pytest.approx((1 - math.sqrt(2 / math.pi)) * math.sqrt(n) / (math.sqrt(n) - 1), abs=2e-3)
    assert measured.top_mass == pytest.approx(2 * norm.pdf(cut) / math.sqrt(2 / math.pi), rel=0.02)
    assert measured.left_range == pytest.approx(2 * norm.sf(1 / math.sqrt(700)), rel=0.02)


def test_uniform_weights_have_their_expected_values():
    weights = np.random.default_rng(0).uniform(-1, 1, (600, 700)) / math.sqrt(700)
    measured = sparsity(weights)
    assert measured.hoyer == pytest.approx(1 - math.sqrt(3) / 2, abs=2e-3)
    assert measured.top_mass == pytest.approx(1 - 0.99**2, rel=0.01)
    assert measured.left_range == 0


def test_the_effective_rank_follows_known_singular_values():
    rng = np.random.default_rng(0)
    left = np.linalg.qr(rng.standard_normal((8, 8)))[0]
    right = np.linalg.qr(rng.standard_normal((12, 12)))[0]
    values = np.array([4.0, 2.0, 1.0, 1.0, 0, 0, 0, 0])
    matrix = left @ np.diag(values) @ right[:8]
    # Shares 1/2, 1/4, 1/8, 1/8: an entropy of 1.75 bits.
    assert effective_rank(matrix) == pytest.approx(2**1.75)
    assert effective_rank(np.zeros((3, 4))) == 0
    assert effective_rank(left) == pytest.approx(8)


@pytest.mark.parametrize("scale", [1e-300, 1e-30, 1e10, 1e200])
def test_shares_do_not_change_with_scale(scale):
    weights = np.random.default_rng(0).standard_normal((15, 16))
    small = np.abs(weights) * scale
    assert hoyer(small) == pytest.approx(hoyer(weights), rel=1e-12)
    assert top_mass(small) == pytest.approx(top_mass(weights), rel=1e-12)
    assert effective_rank(small) == pytest.approx(effective_rank(np.abs(weights)), rel=1e-9)


def test_the_top_mass_is_that_of_sorted_sizes_and_rounds_their_number_up():
    weights = np.random.default_rng(0).standard_normal(150)
    sizes = np.sort(np.abs(weights))[::-1]
    assert top_mass(weights) == pytest.approx(sizes[:2].sum() / sizes.sum())


def test_counts_are_the_papers():
    matrix = np.array([[0.06, -0.06, 0.0599, 0.01], [-0.0099, 0.0, 0.5, -0.51]])
    measured = sparsity(matrix)
    assert (measured.entries, measured.large, measured.near_zero) == (8, 4, 2)
    assert measured.left_range == 1 / 8  # the range is ±1/√4


def test_several_matrices_are_measured_together_each_with_its_own_range():
    rng = np.random.default_rng(0)
    one, two = rng.uniform(-1, 1, (6, 4)), rng.uniform(-1, 1, (6, 100))
    together = sparsity(one, torch.tensor(two))
    flat = np.concatenate([one.ravel(), two.ravel()])
    assert together.hoyer == hoyer(flat)
    assert together.top_mass == top_mass(flat)
    assert together.effective_rank == pytest.approx((effective_rank(one) + effective_rank(two)) / 2)
    assert together.left_range == ((np.abs(one) > 0.5).sum() + (np.abs(two) > 0.1).sum()) / flat.size


class Block(nn.Module):
    def __init__(self, names):
        super().__init__()
        self.attention = nn.Module()
        for name in names:
            self.attention.add_module(name, nn.Linear(16, 16, bias=False))
        self.attention.add_module("output", nn.Linear(16, 16, bias=False))


@pytest.mark.parametrize("names", [("query", "key", "value"), ("q_proj", "k_proj", "v_proj")])
def test_matrices_are_found_by_role_and_in_the_order_of_blocks(names):
    model = nn.Module()
    model.blocks = nn.ModuleList(Block(names) for _ in range(3))
    found = attention_weights(model)
    assert list(found) == ["query", "key", "value"]
    for role, name in zip(found, names, strict=True):
        expected = [getattr(block.attention, name).weight for block in model.blocks]
        assert all(torch.equal(a, b) for a, b in zip(found[role], expected, strict=True))
    measured = {role: sparsity(*weights) for role, weights in attention_weights(model).items()}
    assert measured["key"] == sparsity(*found["key"])
    assert measured["key"].entries == 3 * 256
    assert measured["key"].left_range == 0  # as nn.Linear starts
    assert json.loads(json.dumps(asdict(measured["key"])))["entries"] == 768


def test_half_precision_weights_are_measured_too():
    weights = torch.randn(8, 8, generator=torch.Generator().manual_seed(0)).bfloat16()
    assert isinstance(sparsity(weights), Sparsity)
    assert sparsity(weights) == sparsity(weights.double())
    assert hoyer(weights.requires_grad_()) == sparsity(weights).hoyer


def test_packed_layers_and_models_without_attention_are_refused():
    with pytest.raises(ValueError, match="in_proj_weight is not the matrix of one role"):
        attention_weights(nn.MultiheadAttention(8, 2))
    with pytest.raises(ValueError, match="no attention weights were found"):
        attention_weights(nn.Linear(3, 3))


@pytest.mark.parametrize(
    ("matrices", "complaint"),
    [
        ([], "at least one matrix"),
        ([np.ones(3)], "shape"),
        ([np.full((2, 2), np.nan)], "hold nan"),
        ([np.zeros((2, 2))], "all zero"),
        ([np.ones((1, 1))], "two entries or more"),
    ],
)
def test_what_cannot_be_measured_is_refused(matrices, complaint):
    with pytest.raises(ValueError, match=complaint):
        sparsity(*matrices)
