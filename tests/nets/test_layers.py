"""Dropout against its definition."""

from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch import nn

from mirrormax.nets import Dropout, drawing_from
from mirrormax.nets.layers import LEVELS


@pytest.mark.parametrize("rate", [0.1, 0.2, 0.5, 0.9])
def test_entries_are_zero_at_the_rate_and_the_rest_scaled_to_keep_the_mean(rate):
    torch.manual_seed(0)
    dropped = Dropout(rate)(torch.ones(300, 1001))
    zero, rounded = dropped == 0, round(rate * LEVELS) / LEVELS
    deviation = (rate * (1 - rate) / dropped.numel()) ** 0.5
    assert abs(zero.double().mean() - rate) < 4 * deviation
    torch.testing.assert_close(dropped[~zero], torch.full_like(dropped[~zero], 1 / (1 - rounded)))


def test_neighbours_are_dropped_independently():
    torch.manual_seed(1)
    zero = (Dropout(0.3)(torch.ones(400_000)) == 0).double()
    for distance in range(1, 9):  # four entries share one random word
        assert abs(torch.corrcoef(torch.stack([zero[:-distance], zero[distance:]]))[0, 1]) < 0.007


def test_gradients_are_dropped_with_the_entries():
    torch.manual_seed(2)
    x = torch.randn(7, 5, dtype=torch.float64, requires_grad=True)
    y = Dropout(0.4)(x)
    y.sum().backward()
    torch.testing.assert_close(x.grad * x.detach(), y.detach())


def test_the_same_seed_drops_the_same_entries():
    drawn = []
    for _ in range(2):
        torch.manual_seed(3)
        drawn.append(Dropout(0.2)(torch.ones(50)))
    assert torch.equal(*drawn)


def test_a_generator_of_ones_own_is_used_in_its_thread_alone():
    x = torch.ones(50)
    torch.manual_seed(3)
    expected = Dropout(0.2)(x)
    untouched = torch.get_rng_state()
    with drawing_from(torch.Generator().manual_seed(3)), ThreadPoolExecutor(1) as other:
        assert torch.equal(Dropout(0.2)(x), expected)
        assert torch.equal(torch.get_rng_state(), untouched)
        other.submit(Dropout(0.2), x).result()
    assert not torch.equal(torch.get_rng_state(), untouched)
    torch.manual_seed(3)
    assert torch.equal(Dropout(0.2)(x), expected)


@pytest.mark.parametrize("rate", [1e-7, 1 - 1e-7])
def test_rates_near_all_or_nothing_draw_from_the_same_generator(rate):
    before = torch.get_rng_state()
    with drawing_from(torch.Generator()):
        Dropout(rate)(torch.ones(50))
    assert torch.equal(torch.get_rng_state(), before)


@pytest.mark.parametrize("rate", [0.0, 1e-9, 1.0])
def test_rates_of_all_or_nothing_are_those_of_torch(rate):
    x = torch.randn(20)
    assert torch.equal(Dropout(rate)(x), nn.Dropout(rate)(x) if rate != 1e-9 else x)


def test_nothing_is_dropped_in_evaluation():
    x = torch.randn(20)
    assert torch.equal(Dropout(0.5).eval()(x), x)
