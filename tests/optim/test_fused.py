"""The kernel that takes a step in one pass over memory, against the others; and what it remembers between steps."""

import copy
import io
import math

import pytest
import torch
from torch import nn

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.geometry import Lp, lp_norm
from mirrormax.optim import fused

DTYPES = pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
# A block and a bit, small ones, one without entries, one whose rows lie far apart in memory.
SHAPES = [(41, 52), (3, 5), (1,), (), (0,), (64, 8)]


def parameters(dtype, seed=0):
    generator = torch.Generator().manual_seed(seed)
    tensors = [0.05 * torch.randn(shape, generator=generator, dtype=dtype) for shape in SHAPES]
    tensors[-1] = tensors[-1].t().contiguous().t()
    return [nn.Parameter(tensor) for tensor in tensors]


def train(optimizer, params, steps=6, size=0.3, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        for param in params:
            param.grad = size * torch.randn(param.shape, generator=generator, dtype=param.dtype)
            if param.stride() != param.grad.stride():
                param.grad = torch.empty_strided(param.shape, param.stride(), dtype=param.dtype).copy_(param.grad)
        optimizer.step()
    return params


def close(a, b, p):
    """In the dual variables, which is where the steps are taken."""
    for x, y in zip(a, b, strict=True):
        psi, tol = Lp(p), 200 * torch.finfo(x.dtype).eps
        dims = tuple(range(x.ndim))
        torch.testing.assert_close(
            psi.mirror_map(x.detach(), dims), psi.mirror_map(y.detach(), dims), rtol=tol, atol=tol
        )


@DTYPES
@pytest.mark.parametrize("p", [1.05, 1.1, 1.25, 1.5, 2.0])
@pytest.mark.parametrize(
    "options", [{}, {"moments": "tensor"}, {"trust": 0.02}, {"trust": None, "clip": None}], ids=str
)
def test_it_takes_the_step_of_the_other_kernels(dtype, p, options):
    results = []
    for choice in (None, False):
        params = parameters(dtype)
        results.append(train(MirrorAdamW(params, lr=0.03, p=p, fused=choice, **options), params))
    close(*results, p)


@DTYPES
@pytest.mark.parametrize("p", [1.1, 1.2, 1.5, 2.0])
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


@DTYPES
@pytest.mark.parametrize("p", [1.05, 1.1, 1.2, 1.25, 1.5])
def test_its_weights_have_the_bits_of_the_mirror_map(dtype, p):
    params = parameters(dtype)
    optimizer = MirrorAdamW(params, lr=0.03, p=p, trust=0.02)
    train(optimizer, params)
    for param in params[:3]:
        expected = torch.empty_like(param)
        Lp(p).write_weights(optimizer.state[param]["dual"], expected)
        assert torch.equal(param.detach(), expected)


def test_it_was_the_fused_kernel(monkeypatch):
    taken = []
    monkeypatch.setattr(fused, "run", lambda *arguments: taken.append(arguments))
    params = parameters(torch.float32)
    train(MirrorAdamW(params, p=1.1), params, steps=1)
    train(MirrorAdamW(params, p=1.7), params, steps=1)  # 1/(p − 1) is not whole
    train(MirrorAdamW(params, p=1.1, fused=False), params, steps=1)
    assert len(taken) == 1


@pytest.mark.parametrize("clip", [None, 0.1])
@pytest.mark.parametrize("moments", ["tensor", "entry"])
def test_parts_of_a_plan_change_no_bit(monkeypatch, moments, clip):
    """Large models step part by part, so that gradients stay in a cache between their norms and their step."""

    def run(near):
        monkeypatch.setattr(fused, "NEAR", near)
        torch.manual_seed(0)
        params = [nn.Parameter(0.1 * torch.randn(shape)) for shape in [(40, 30), (7,), (50, 20), (3, 3), (60, 60)]]
        optimizer = MirrorAdamW(params, lr=1e-2, p=1.1, moments=moments, clip=clip)
        for _ in range(4):
            for param in params:
                param.grad = torch.randn_like(param)
            optimizer.step()
        parts = len(optimizer._plans[0][1][0].plan.parts)
        return parts, [param.detach().clone() for param in params]

    one, whole = run(1 << 30)
    several, cut = run(5000)
    assert (one, several) == (1, 3)
    assert all(torch.equal(a, b) for a, b in zip(whole, cut, strict=True))


@pytest.mark.parametrize("entries", [1, 2047, 2048, 8191, 8192, 8193, 40_000])
def test_norms_of_every_length_are_those_of_numpy(entries):
    x = torch.randn(entries, generator=torch.Generator().manual_seed(entries))
    found = fused.euclidean_norms(*fused.addresses_of([x]))
    assert found[0] == pytest.approx(float(x.double().norm()), rel=1e-6)


def test_threads_change_no_bit():
    before, results = torch.get_num_threads(), []
    try:
        for threads in (1, 3):
            torch.set_num_threads(1)  # torch's own powers, which make the first dual variables, do change
            generator = torch.Generator().manual_seed(0)
            params = [nn.Parameter(0.05 * torch.randn(n, generator=generator)) for n in (300_000, 1000, 140_001)]
            optimizer = MirrorAdamW(params, lr=0.03, p=1.1)
            train(optimizer, params, steps=1)
            torch.set_num_threads(threads)
            results.append(train(optimizer, params, steps=2, first=1))
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(*results, strict=True))


@DTYPES
@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 2.0])
@pytest.mark.parametrize("scale", [1.0, 1e-30, 1e25])
@pytest.mark.parametrize("entries", [3000, 20_000])  # large ones are read in four parts
def test_norms_hold_at_every_scale(dtype, p, scale, entries):
    generator = torch.Generator().manual_seed(0)
    small, large = (torch.randn(entries, generator=generator, dtype=dtype) for _ in range(2))
    grads = [scale * small, scale * torch.cat([1e-3 * small, large]), scale * torch.cat([large, 1e-3 * small])]
    grads += [torch.zeros(7, dtype=dtype), torch.zeros(0, dtype=dtype)]
    memory = fused.addresses_of(grads)
    q = p / (p - 1)
    expected = [float(lp_norm(g.double(), q, dim=0)) for g in grads]
    assert fused.dual_norms(Lp(p), *memory) == pytest.approx(expected, rel=1e-5, abs=0)
    expected = [float(torch.linalg.vector_norm(g.double())) for g in grads]
    assert fused.euclidean_norms(*memory) == pytest.approx(expected, rel=1e-5, abs=0)


@pytest.mark.parametrize("p", [1.1, 1.25])
def test_norms_say_what_is_not_finite(p):
    ordinary = torch.randn(3000, generator=torch.Generator().manual_seed(0))
    infinite, none = torch.tensor([math.inf]), torch.tensor([math.nan])
    grads = [torch.cat([ordinary, infinite, ordinary]), torch.cat([ordinary, none, ordinary, infinite])]
    memory = fused.addresses_of(grads)
    for norms in (fused.dual_norms(Lp(p), *memory), fused.euclidean_norms(*memory)):
        assert norms[0] == math.inf
        assert math.isnan(norms[1])


class TestWhatItRemembers:
    """After its first step a group is taken as a whole; everything that others may do in between must be seen."""

    def pair(self, **options):
        """Two equal optimizers, of which the second forgets everything before every step."""
        ours, theirs = parameters(torch.float32), parameters(torch.float32)
        return (MirrorAdamW(ours, lr=0.03, p=1.1, **options), ours), (
            MirrorAdamW(theirs, lr=0.03, p=1.1, **options),
            theirs,
        )

    def check(self, change, steps=2, **options):
        (one, ours), (two, theirs) = self.pair(**options)
        train(one, ours, steps)
        change(one, ours)
        train(one, ours, steps, first=steps)
        for k in range(steps):
            two.resync()
            train(two, theirs, 1, first=k)
        two.resync()
        change(two, theirs)
        for k in range(steps):
            two.resync()
            train(two, theirs, 1, first=steps + k)
        for a, b in zip(ours, theirs, strict=True):
            torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-9)

    def test_a_new_step_size(self):
        self.check(lambda optimizer, _: optimizer.param_groups[0].update(lr=0.01, weight_decay=0.3, trust=0.1))

    def test_another_p(self):
        self.check(lambda optimizer, _: optimizer.param_groups[0].update(p=1.5))

    def test_moments_of_another_kind(self):
        self.check(lambda optimizer, _: optimizer.param_groups[0].update(moments="tensor"))

    def test_weights_written_by_others(self):
        def write(_, params):
            with torch.no_grad():
                params[0].mul_(0.5)

        self.check(write)

    def test_weights_in_another_place(self):
        def move(_, params):
            params[0].data = params[0].data.clone() * 0.5

        self.check(move)

    def test_moments_that_were_exchanged(self):
        def exchange(optimizer, params):
            optimizer.state[params[0]]["exp_avg"] = torch.ones_like(params[0])
            optimizer.state[params[1]]["step"] = torch.tensor(50.0, dtype=torch.float64)

        self.check(exchange)

    def test_numbers_changed_in_place(self):
        def change(optimizer, params):
            optimizer.state[params[0]]["step"].fill_(50)
            optimizer.state[params[1]]["exp_avg_sq"].mul_(4)

        self.check(change)

    def test_state_thrown_away(self):
        (optimizer, params), _ = self.pair()
        train(optimizer, params, 2)
        optimizer.state.clear()
        train(optimizer, params, 1, first=2)
        assert all(optimizer.state[param]["step"] == 1 for param in params)

    def test_a_frozen_parameter(self):
        (optimizer, params), _ = self.pair()
        train(optimizer, params, 2)
        before = [param.detach().clone() for param in params]
        for param in params:
            param.grad = None if param is params[0] else torch.ones_like(param)
        optimizer.step()
        assert torch.equal(params[0], before[0])
        assert not torch.equal(params[1], before[1])

    def test_a_sparse_gradient(self):
        (optimizer, params), _ = self.pair()
        train(optimizer, params, 2)
        for param in params:
            param.grad = torch.ones_like(param)
        params[0].grad = params[0].grad.to_sparse()
        before = params[0].detach().clone()
        optimizer.step()
        assert not torch.equal(params[0], before)

    def test_versions_are_counted(self):
        (optimizer, params), _ = self.pair()
        train(optimizer, params, 2)
        versions = [param._version for param in params]
        train(optimizer, params, 1)
        assert [param._version for param in params] == [version + 1 for version in versions]

    def test_a_saved_run_goes_on_bit_for_bit(self):
        (optimizer, params), _ = self.pair()
        train(optimizer, params, 3)
        file = io.BytesIO()
        torch.save(optimizer.state_dict(), file)
        file.seek(0)
        others = [nn.Parameter(param.detach().clone(memory_format=torch.preserve_format)) for param in params]
        other = MirrorAdamW(others, lr=0.03, p=1.1)
        other.load_state_dict(torch.load(file))
        train(optimizer, params, 3, first=3)
        train(other, others, 3, first=3)
        assert all(torch.equal(a, b) for a, b in zip(params, others, strict=True))

    def test_a_copy_shares_nothing(self):
        model = nn.Linear(8, 8)
        optimizer = MirrorAdamW(model, lr=0.03, p=1.1)
        train(optimizer, list(model.parameters()), 2)
        second, again = copy.deepcopy((model, optimizer))
        train(again, list(second.parameters()), 2)
        step = optimizer.state[model.weight]["step"]
        assert step == 2
        assert again.state[second.weight]["step"] == 4

    def test_steps_hold_no_gradients(self):
        (optimizer, params), _ = self.pair()
        train(optimizer, params, 3)
        for param in params:
            param.grad = None
        optimizer.step()
        assert all(optimizer.state[param]["step"] == 3 for param in params)
