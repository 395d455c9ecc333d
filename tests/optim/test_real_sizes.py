"""One step at the shapes of models that people train, and at the borders of every constant, against the formulas."""

import functools

import pytest
import torch
from torch import nn

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.optim import fused, kernels
from mirrormax.optim.reference import ReferenceTensor

BERT = [(30522, 768), (512, 768), (2, 768), *[(768, 768)] * 4, (3072, 768), (3072,), (768, 3072), *[(768,)] * 8]
GPT_2 = [(50257, 768), (1024, 768), (768, 2304), (2304,), (768, 768), (768, 3072), (3072,), (3072, 768), *[(768,)] * 7]
PARTS = [*[(512, 1536)] * 6, *[(512, 512)] * 18]  # 24 MiB of gradients in tensors of one to three
BORDERS = [(n + d,) for n in (fused.BLOCK, fused.PIECE, kernels.CHUNK["cpu"], 1 << 21) for d in (-1, 0, 1)]
SIZES = {"BERT-base": BERT, "GPT-2-small": GPT_2, "24 MiB": PARTS, "borders": BORDERS}
SOME = 101  # every so many entries are compared: each is by itself, and there are 38 million in a vocabulary
OPTIMIZERS = {
    "MirrorAdamW": (MirrorAdamW, {"lr": 1e-3, "p": 1.1}),
    "MirrorAdamW, p = 1.75": (MirrorAdamW, {"lr": 1e-3, "p": 1.75, "clip": None}),
    "MirrorDescent": (MirrorDescent, {"lr": 1e-2, "p": 1.1, "momentum": 0.9}),
}
CASES = [
    ("fused", "MirrorAdamW", "GPT-2-small"),  # one vocabulary for each rule, and one for the slower kernel
    ("fused", "MirrorAdamW, p = 1.75", "BERT-base"),
    ("fused", "MirrorDescent", "BERT-base"),
    *(("fused", name, sizes) for name in OPTIMIZERS for sizes in ("24 MiB", "borders")),
    ("eager", "MirrorAdamW", "GPT-2-small"),
    ("eager", "MirrorDescent", "borders"),
    *(pytest.param("compiled", name, sizes, marks=pytest.mark.slow) for name in OPTIMIZERS for sizes in SIZES),
]
KERNELS = {"fused": {}, "eager": {"fused": False}, "compiled": {"fused": False, "compile": True}}


def tensors(shapes, seed, size):
    generator = torch.Generator().manual_seed(seed)
    return [size * torch.randn(shape, generator=generator) for shape in shapes]


def some(t):
    t = t.flatten()
    return torch.cat([t[:5000], t[::SOME], t[-5000:]]).double()


@pytest.mark.parametrize(("kernel", "name", "sizes"), CASES)
def test_a_step_is_that_of_the_reference(kernel, name, sizes):
    kind, options = OPTIMIZERS[name]
    shapes = SIZES[sizes]
    params, grads = [nn.Parameter(w) for w in tensors(shapes, 0, 0.05)], tensors(shapes, 1, 1e-3)
    before = [some(param.detach()) for param in params]
    full = [float(param.detach().square().mean(dtype=torch.float64).sqrt()) for param in params]
    for param, g in zip(params, grads, strict=True):
        param.grad = g
    optimizer = kind(params, **options, **KERNELS[kernel])
    optimizer.step()
    (group,) = optimizer.param_groups
    length = torch.stack([g.double().norm() for g in grads]).norm()
    factor = 1.0 if group["clip"] is None else min(1.0, group["clip"] / (float(length) + 1e-6))
    for param, g, w, size in zip(params, grads, before, full, strict=True):
        reference = ReferenceTensor(w)
        reference.size = size
        (reference.adapt if kind is MirrorAdamW else reference.descend)(factor * some(g), options["p"], group)
        u = some(optimizer.state[param]["dual"])
        assert bool(((u - reference.u).abs() <= 16 * torch.finfo(torch.float32).eps * reference.rounding).all())
        moved = some(param.detach())
        assert bool(((moved - reference.w).abs() <= 1e-4 * reference.w.abs() + 1e-12).all())
        assert bool(torch.isfinite(param).all())


@pytest.mark.parametrize("block", [1, 7, 2048, 10_000])
@pytest.mark.parametrize("piece", [8, 1000])
def test_where_work_is_cut_changes_no_bit(monkeypatch, block, piece):
    pytest.importorskip("numba")

    def steps():
        params = [nn.Parameter(w) for w in tensors([(37, 31), (5,), (1,), (2050,)], 0, 0.05)]
        optimizer = MirrorAdamW(params, lr=0.01, p=1.75, clip=None)
        for seed in (1, 2):
            for param, g in zip(params, tensors([p.shape for p in params], seed, 0.1), strict=True):
                param.grad = g
            optimizer.step()
        return [param.detach() for param in params]

    whole = steps()
    monkeypatch.setattr(fused, "step", functools.partial(fused.step, block=block, piece=piece))
    threads = torch.get_num_threads()
    try:
        torch.set_num_threads(2)
        cut = steps()
    finally:
        torch.set_num_threads(threads)
    for a, b in zip(whole, cut, strict=True):
        torch.testing.assert_close(
            a, b, rtol=3e-7, atol=0
        )  # a loop's last entries may be rounded by other instructions
