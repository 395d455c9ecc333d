"""The kernel that takes a step in one pass over memory, against the others and against the formulas."""

import functools
import math

import pytest
import torch
from torch import nn

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.geometry import Lp, lp_norm
from mirrormax.optim import fused
from mirrormax.optim.update import Tensors

pytest.importorskip("numba")

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
# A block and a bit, small ones, one without entries, one whose rows lie far apart in memory.
SHAPES = [(41, 52), (3, 5), (1,), (), (0,), (64, 8)]


def parameters(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [0.05 * torch.randn(shape, generator=generator).to(dtype) for shape in SHAPES]
    tensors[-1] = tensors[-1].t().contiguous().t()
    return [nn.Parameter(tensor) for tensor in tensors]


def train(optimizer, params, steps=4, size=0.3, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        for param in params:
            gradient = size * torch.randn(param.shape, generator=generator)
            param.grad = torch.empty_strided(param.shape, param.stride(), dtype=param.dtype).copy_(gradient)
        optimizer.step()
    return params


def close(a, b, p):
    """In the dual variables, which is where the steps are taken."""
    for x, y in zip(a, b, strict=True):
        psi, tol = Lp(p), 200 * torch.finfo(x.dtype).eps
        torch.testing.assert_close(psi.mirror_map(x.detach()), psi.mirror_map(y.detach()), rtol=tol, atol=tol)


# Each has a kernel of its own to compile; test_conformance holds float64 against the formulas.
@pytest.mark.parametrize(
    ("dtype", "p"),
    [
        *((torch.float32, p) for p in (1.1, 1.5, 1.75, 2.0, 10.0)),
        *((torch.bfloat16, p) for p in (1.1, 1.75, 2.0)),
        (torch.float64, 1.75),
    ],
    ids=str,
)
@pytest.mark.parametrize("options", [{}, {"moments": "tensor", "trust": 0.02}], ids=str)
def test_it_takes_the_step_of_the_other_kernels(dtype, p, options):
    results = []
    for choice in (None, False):
        params = parameters(dtype)
        results.append(train(MirrorAdamW(params, lr=0.03, p=p, fused=choice, **options), params))
    close(*results, p)


@pytest.mark.parametrize(
    ("dtype", "p"), [(torch.float32, 1.1), (torch.float32, 1.75), (torch.float32, 2.0), (torch.float64, 1.1)], ids=str
)
@pytest.mark.parametrize(
    "options",
    [
        {},
        {"momentum": 0.9, "weight_decay": 0.1},
        {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
        {"normalize": "tensor"},
        {"normalize": "global", "maximize": True},
        {"scale": "tensor", "trust": 0.02, "clip": 0.5},
    ],
    ids=str,
)
def test_so_does_plain_mirror_descent(dtype, p, options):
    results = []
    for choice in (None, False):
        params = parameters(dtype)
        results.append(train(MirrorDescent(params, lr=0.01, p=p, fused=choice, **options), params))
    close(*results, p)


def test_it_was_the_fused_kernel(monkeypatch):
    taken = []
    monkeypatch.setattr(fused, "step", lambda *_: functools.partial(taken.append, "step"))
    for dtype in (torch.float32, torch.float64, torch.bfloat16):
        params = parameters(dtype)
        train(MirrorAdamW(params, p=1.1), params, steps=1)
        train(MirrorAdamW(params, p=1.7), params, steps=1)
        train(MirrorAdamW(params, p=1.1, fused=False), params, steps=1)
    assert len(taken) == 6


def test_a_kernel_that_cannot_be_made_has_moved_nothing(monkeypatch):
    make, made = fused.step, []

    def once(*arguments):
        if made:
            raise RuntimeError("no compiler")
        made.append(make(*arguments))
        return made[0]

    monkeypatch.setattr(fused, "step", once)
    params = [*parameters(torch.float32), *parameters(torch.float64)]
    before = [param.detach().clone() for param in params]
    with pytest.raises(RuntimeError, match="no compiler"):
        train(MirrorAdamW(params, p=1.1), params, steps=1)
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, params, strict=True))


ODD = {
    "another type": lambda t: t.double(),
    "rows far apart": lambda t: torch.stack([t, t], -1)[..., 0],
    "another order": lambda t: t.t().contiguous().t(),
}


@pytest.mark.parametrize("name", ["dual", "exp_avg", "exp_avg_sq", "gradient"])
@pytest.mark.parametrize("odd", ODD.values(), ids=ODD)
def test_tensors_of_another_type_or_order_are_taken_as_they_are(name, odd):
    results = []
    for choice in (None, False):
        params = [nn.Parameter(torch.linspace(-0.1, 0.2, 24).view(4, 6) + k) for k in range(3)]
        optimizer = MirrorAdamW(params, lr=0.03, p=1.1, fused=choice)
        train(optimizer, params, 2)
        if name == "gradient":
            for param in params:
                param.grad = torch.linspace(-1, 1, 24).view(4, 6)
            params[1].grad = odd(params[1].grad).float()
        else:
            optimizer.state[params[1]][name] = odd(optimizer.state[params[1]][name])
        optimizer.step()
        results.append(params)
    close(*results, 1.1)


@pytest.mark.parametrize("name", ["weight", "dual", "exp_avg", "exp_avg_sq", "gradient"])
@pytest.mark.parametrize("choice", [None, False])
def test_memory_that_was_given_back_is_never_touched(name, choice):
    params = [nn.Parameter(torch.ones(6)) for _ in range(3)]
    optimizer = MirrorAdamW(params, p=1.1, fused=choice)
    train(optimizer, params, 2)
    before = [param.detach().clone() for param in params]
    tensors = {"weight": params[1], "gradient": params[1].grad, **optimizer.state[params[1]]}
    tensors[name].untyped_storage().resize_(0)
    with pytest.raises(ValueError, match="lost its memory"):
        optimizer.step()
    assert all(torch.equal(before[k], params[k]) for k in (0, 2))


def _moved(param, state):
    state["exp_avg"].data = state["exp_avg"].data.clone()


def _resized(param, state):
    """Away and back, by way of another place in memory."""
    kept, storage = state["exp_avg"].clone(), state["exp_avg"].untyped_storage()
    size = storage.nbytes()
    storage.resize_(0)
    held = torch.empty(size, dtype=torch.uint8)  # lies where the storage lay, perhaps
    storage.resize_(size)
    state["exp_avg"].copy_(kept)
    state["held"] = held


@pytest.mark.parametrize("act", [_moved, _resized])
def test_state_that_was_moved_in_memory_is_found_where_it_is(act):
    results = []
    for choice in (None, False):
        params = parameters(torch.float32)
        optimizer = MirrorAdamW(params, lr=0.03, p=1.1, fused=choice)
        train(optimizer, params, 2)
        for param in params:
            act(param, optimizer.state[param])
        results.append(train(optimizer, params, 2, first=2))
    close(*results, 1.1)


@pytest.mark.parametrize("p", [1.1, 1.75])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_threads_change_no_bit(p, dtype):
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(threads)
            generator = torch.Generator().manual_seed(0)
            sizes = (300_000, 1000, 140_001)
            params = [nn.Parameter((0.05 * torch.randn(n, generator=generator)).to(dtype)) for n in sizes]
            results.append(train(MirrorAdamW(params, lr=0.03, p=p), params, steps=2))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


def norms(grads, p):
    rows = fused.Rows(Tensors(grads, grads, None))
    assert rows.receive(grads) is grads
    return fused.norms(rows, p).tolist()


@pytest.mark.parametrize("entries", [1, fused.BLOCK - 1, fused.BLOCK, fused.BLOCK + 1, 40_000])
@pytest.mark.parametrize("p", [1.1, 1.75, 2.0])
def test_norms_of_every_length_are_those_of_torch(entries, p):
    x = torch.randn(entries, generator=torch.Generator().manual_seed(entries))
    assert norms([x], p)[0] == pytest.approx(float(lp_norm(x.double(), p / (p - 1), dim=0)), rel=1e-5)


@DTYPES
@pytest.mark.parametrize("p", [1.1, 1.75, 2.0])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
def test_norms_hold_at_every_scale(dtype, p, scale):
    generator = torch.Generator().manual_seed(0)
    small, large = (torch.randn(3000, generator=generator, dtype=dtype) for _ in range(2))
    grads = [scale * small, scale * torch.cat([1e-3 * small, large]), scale * torch.cat([large, 1e-3 * small])]
    growing = torch.cat([10.0**k * torch.ones(fused.BLOCK, dtype=dtype) for k in range(-6, 7)])
    grads += [scale * growing, scale * growing.flip(0), torch.zeros(7, dtype=dtype), torch.zeros(0, dtype=dtype)]
    expected = [float(lp_norm(g.double(), p / (p - 1), dim=0)) for g in grads]
    assert norms(grads, p) == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("p", [1.1, 1.75, 2.0])
def test_norms_say_what_is_not_finite(p):
    ordinary = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    infinite, none = torch.tensor([math.inf]), torch.tensor([math.nan])
    grads = [torch.cat([ordinary, infinite, ordinary]), torch.cat([ordinary, none, ordinary, infinite])]
    first, second = norms(grads, p)
    assert first == math.inf
    assert math.isnan(second)


def test_versions_are_counted():
    params = parameters(torch.float32)
    optimizer = MirrorAdamW(params, p=1.1)
    train(optimizer, params, 1)
    versions = [param._version for param in params]
    train(optimizer, params, 1)
    assert [param._version for param in params] == [version + 1 for version in versions]
