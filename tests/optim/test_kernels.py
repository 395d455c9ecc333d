"""Sparse rows, chunks, strides: the same step however the tensor lies in memory."""

import functools

import pytest
import torch
from optimizer_table import ROWS

from mirrormax import MirrorDescent
from mirrormax.geometry import Hypentropy, SquaredLp
from mirrormax.optim import kernels

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)


def embedding(row_or_options, sparse, steps=4):
    torch.manual_seed(0)
    layer = torch.nn.Embedding(20, 4, sparse=sparse).double()
    optimizer = row_or_options([layer.weight])
    for k in range(steps):
        optimizer.zero_grad()
        tokens = torch.tensor([[k, 3, 3], [7, k + 1, 3]])
        layer(tokens).square().sum().backward()
        optimizer.step()
    return layer.weight.detach(), optimizer


@every_row
def test_sparse_gradients_equal_dense_ones(row):
    sparse, _ = embedding(row, sparse=True)
    dense, _ = embedding(row, sparse=False)
    torch.testing.assert_close(sparse, dense, rtol=1e-10, atol=1e-12)


@pytest.mark.parametrize("p", [1.1, 2.0, 3.0, Hypentropy(1.0)], ids=str)
def test_rows_without_gradient_keep_every_bit(p):
    torch.manual_seed(0)
    before = torch.nn.Embedding(20, 4, sparse=True).double().weight.detach()
    after, _ = embedding(lambda params: MirrorDescent(params, lr=0.05, p=p), sparse=True)
    assert torch.equal(after[10:], before[10:])
    assert not torch.equal(after[3], before[3])


def test_a_potential_that_is_not_separable_moves_all_rows():
    torch.manual_seed(0)
    before = torch.nn.Embedding(20, 4, sparse=True).double().weight.detach()
    after, _ = embedding(lambda params: MirrorDescent(params, lr=0.05, p=SquaredLp(1.5)), sparse=True)
    assert not torch.equal(after[10:], before[10:])


@every_row
def test_chunks_equal_the_whole(row, monkeypatch):
    def steps():
        param = torch.nn.Parameter(torch.linspace(-1, 1, 1003).double())
        optimizer = row([param], fused=False)
        for k in range(3):
            param.grad = torch.cos(torch.arange(1003.0) + k).double()
            optimizer.step()
        return param.detach()

    whole = steps()
    monkeypatch.setattr(kernels, "step_eagerly", functools.partial(kernels.step_eagerly, chunk=100))
    torch.testing.assert_close(steps(), whole, rtol=1e-13, atol=1e-300)


LAYOUTS = {
    "channels last": lambda t: t.to(memory_format=torch.channels_last),
    "transposed": lambda t: t.transpose(0, 1).contiguous().transpose(0, 1),
    "every other entry": lambda t: torch.stack([t, t], -1)[..., 0],
}


@pytest.mark.parametrize("layout", LAYOUTS.values(), ids=LAYOUTS.keys())
@pytest.mark.parametrize("gradient_layout", ["same", "contiguous"])
@pytest.mark.parametrize("fused", [None, False])
def test_memory_layout_does_not_matter(layout, gradient_layout, fused, monkeypatch):
    monkeypatch.setattr(kernels, "step_eagerly", functools.partial(kernels.step_eagerly, chunk=7))
    weights, gradient = torch.randn(2, 4, 3, 5, 5, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    plain, strided = torch.nn.Parameter(weights.clone()), torch.nn.Parameter(layout(weights))
    plain.grad = gradient.clone()
    strided.grad = layout(gradient) if gradient_layout == "same" else gradient.clone()
    for param in (plain, strided):
        optimizer = MirrorDescent([param], lr=0.1, p=1.25, momentum=0.5, fused=fused)
        optimizer.step()
        optimizer.step()
    torch.testing.assert_close(strided.detach(), plain.detach(), rtol=1e-13, atol=0)


def test_an_empty_parameter_is_no_problem():
    param = torch.nn.Parameter(torch.empty(0, 3))
    param.grad = torch.empty(0, 3)
    for normalize in (None, "tensor", "global"):
        MirrorDescent([param], lr=0.1, p=1.5, normalize=normalize).step()
