"""compile=True, and MirrorDescent inside somebody else's torch.compile.

All that compiles is here, as the compiler's own start takes ten seconds in every process.
"""

import pytest
import torch
from optimizer_table import ROWS, parameters, run, set_gradients
from torch._inductor.cpp_builder import get_cpp_compiler
from torch._inductor.exc import InvalidCxxCompiler

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.geometry import Hypentropy, Potential, SquaredLp

try:
    get_cpp_compiler()
except InvalidCxxCompiler as error:
    pytest.skip(f"torch.compile needs a C++ compiler: {error}", allow_module_level=True)

NAMES = ("p=1.1", "p=1.75", "p=2", "p=3", "p=50", "squared p=1.5", "hypentropy", "decay and momentum", "sgd with all")
NAMES += ("held", "held at p=2", "held squared", "LinBreg", "AdamW", "Adam p=1.25 held", "Adam p=3 by entry")
NAMES += ("Adam hypentropy", "Adam elastic with decay")
QUICK = ("squared p=1.5", "Adam p=1.25 held")  # compiling takes seconds each
some_rows = pytest.mark.parametrize(
    "row",
    [pytest.param(r, marks=() if r.name in QUICK else pytest.mark.slow) for r in ROWS if r.name in NAMES],
    ids=lambda row: row.name,
)


@some_rows
def test_compiled_equals_eager(row):
    params, other = parameters(), parameters()
    run(row(params, compile=True, fused=False), params, steps=3)
    run(row(other), other, steps=3)
    for a, b in zip(params, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


def test_compiled_half_precision_equals_eager():
    params, other = parameters(torch.bfloat16), parameters(torch.bfloat16)
    run(MirrorDescent(params, lr=0.1, p=1.5, compile=True, fused=False), params, steps=3)
    run(MirrorDescent(other, lr=0.1, p=1.5), other, steps=3)
    for a, b in zip(params, other, strict=True):
        torch.testing.assert_close(a, b, rtol=0.01, atol=1e-6)


def test_it_really_compiles_and_never_again_when_numbers_change():
    params = parameters()
    optimizer = MirrorDescent(
        params, lr=0.1, p=1.375, momentum=0.5, weight_decay=0.1, compile=True, fused=False, normalize="tensor"
    )
    torch._dynamo.utils.counters.clear()
    run(optimizer, params, steps=2)
    assert torch._dynamo.utils.counters["stats"]["unique_graphs"] > 0
    with torch._dynamo.config.patch(error_on_recompile=True):
        for k in range(5):
            optimizer.param_groups[0]["lr"] = 0.1 / (k + 2)
            optimizer.param_groups[0]["momentum"] = 0.1 * k + 0.1
            run(optimizer, params, steps=1, first=k)


def test_kernels_of_one_potential_with_another_p_are_compiled_too():
    for p in (1.5, 3.0):
        params, other = parameters()[:1], parameters()[:1]
        run(MirrorDescent(params, lr=0.1, p=SquaredLp(p), compile=True, fused=False), params, steps=1)
        run(MirrorDescent(other, lr=0.1, p=SquaredLp(p)), other, steps=1)
        torch.testing.assert_close(params[0], other[0], rtol=1e-11, atol=1e-13)


@pytest.mark.slow
def test_many_potentials_do_not_run_into_the_recompile_limit():
    for k in range(12):
        params, other = parameters()[:1], parameters()[:1]
        run(MirrorDescent(params, lr=0.1, p=1.2 + k / 10, compile=True, fused=False), params, steps=1)
        run(MirrorDescent(other, lr=0.1, p=1.2 + k / 10), other, steps=1)
        torch.testing.assert_close(params[0], other[0], rtol=1e-11, atol=1e-13)


@pytest.mark.parametrize("dtype", [torch.float32, pytest.param(torch.bfloat16, marks=pytest.mark.slow)])
def test_a_write_that_changes_nothing_costs_no_bit_of_u(dtype):
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter((0.05 * torch.randn(37, 53, generator=generator)).to(dtype))
    optimizer = MirrorDescent([param], lr=1e-7, p=1.75, compile=True, fused=False)
    for _ in range(20):
        param.grad = torch.ones_like(param)
        optimizer.step()
        before = optimizer.state[param]["dual"].clone()
        with torch.no_grad():
            param.clamp_(-10, 10)
        param.grad = torch.zeros_like(param)
        optimizer.step()
        assert torch.equal(optimizer.state[param]["dual"], before)


def test_a_compiled_run_resumes_without_touching_its_dual():
    params = parameters(torch.float32)
    optimizer = MirrorDescent(params, lr=0.1, p=1.75, compile=True, fused=False)
    run(optimizer, params, steps=2)
    saved, weights = optimizer.state_dict(), [param.detach().clone() for param in params]
    duals = [state["dual"].clone() for state in saved["state"].values()]
    others = [torch.nn.Parameter(w) for w in weights]
    other = MirrorDescent(others, lr=0.1, p=1.75, compile=True, fused=False)
    other.load_state_dict(saved)
    for param in others:
        param.grad = torch.zeros_like(param)
    other.step()
    for param, dual in zip(others, duals, strict=True):
        assert torch.equal(other.state[param]["dual"], dual)


@pytest.mark.parametrize(
    ("kind", "options"),
    [
        pytest.param(MirrorDescent, {"p": 1.5}, marks=pytest.mark.slow),
        pytest.param(MirrorDescent, {"p": 3.0, "momentum": 0.9}, marks=pytest.mark.slow),
        pytest.param(MirrorDescent, {"p": 1.1, "normalize": "tensor"}, marks=pytest.mark.slow),
        (MirrorDescent, {"p": 1.25, "scale": "tensor", "trust": 0.05, "clip": 0.3}),
        pytest.param(MirrorAdamW, {"p": 1.5}, marks=pytest.mark.slow),
        pytest.param(MirrorAdamW, {"p": 2.0, "moments": "entry", "trust": 0.05}, marks=pytest.mark.slow),
    ],
    ids=str,
)
def test_the_step_may_be_compiled_from_outside(kind, options):
    params, other = parameters(), parameters()
    lr = torch.tensor(0.1, dtype=torch.float64)
    optimizer = kind(params, lr=lr, **options)
    step = torch.compile(optimizer.step)
    eager = kind(other, lr=0.1, **options)
    for k in range(4):
        set_gradients(params, seed=k)
        set_gradients(other, seed=k)
        step()
        eager.step()
    for a, b in zip(params, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-11, atol=1e-13)


@pytest.mark.slow
@pytest.mark.parametrize("target", [{}, {"sparsity": 0.5, "total_steps": 4}], ids=str)
def test_moments_of_matrices_may_be_compiled(target):
    models = []
    for compiled in (True, False):
        torch.manual_seed(0)
        models.append(torch.nn.Sequential(torch.nn.Linear(30, 40), torch.nn.Linear(40, 20)))
        optimizer = MirrorAdamW(models[-1], lr=0.01, moments="matrix", fused=False, compile=compiled, **target)
        for k in range(4):
            set_gradients(list(models[-1].parameters()), seed=k)
            optimizer.step()
    for a, b in zip(*(model.parameters() for model in models), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-4, atol=1e-6)


def test_a_step_compiled_from_outside_sees_what_others_write():
    param = torch.nn.Parameter(torch.full((8,), 2.0))
    step = torch.compile(MirrorDescent([param], lr=torch.tensor(0.1), p=1.5).step)
    param.grad = torch.zeros(8)
    step()
    with torch.no_grad():
        param.clamp_(-1, 1)
    step()
    assert torch.equal(param, torch.ones(8))


@pytest.mark.parametrize("p", [1.5, pytest.param(2.0, marks=pytest.mark.slow)])
def test_a_parameter_with_holes_writes_nothing_into_them(p):
    memory = torch.zeros(4, 10)
    param = torch.nn.Parameter(memory[:, :5])
    param.grad = torch.ones(4, 10)[:, :5]
    MirrorDescent([param], lr=1.0, p=p, compile=True, fused=False).step()
    assert torch.equal(memory[:, 5:], torch.zeros(4, 5))
    assert torch.equal(memory[:, :5], -torch.ones(4, 5))


def test_a_step_that_cannot_be_compiled_has_moved_nothing(monkeypatch):
    """Not even the tensors of a type for which it can."""
    monkeypatch.setattr(Potential, "registry", dict(Potential.registry))

    class Untraceable(Hypentropy):
        def inverse_map(self, u, dim=None):
            if u.dtype == torch.float64 and bool(u.sum() > 0):  # a question that a graph cannot ask
                return super().inverse_map(u, dim)
            return super().inverse_map(u, dim)

    params = [torch.nn.Parameter(torch.ones(4, dtype=dtype)) for dtype in (torch.float32, torch.float64)]
    optimizer = MirrorAdamW(params, lr=0.1, p=Untraceable(1.0), compile=True)
    for param in params:
        param.grad = torch.ones_like(param)
    with pytest.raises(torch._dynamo.exc.TorchDynamoException):
        optimizer.step()
    assert all(torch.equal(param.detach(), torch.ones_like(param)) for param in params)
    assert [float(optimizer.state[param]["step"]) for param in params] == [0.0, 0.0]


def test_what_was_compiled_before_anything_moved_takes_the_step():
    """Of tensors of all sizes, by any number of threads."""
    before = torch.get_num_threads()
    sizes = [(5, 7), (3,), (), (1,), (0, 4), (6, 4)]
    try:
        with torch._dynamo.config.patch(error_on_recompile=True):
            for threads in (1, 2):
                torch.set_num_threads(threads)
                params = [torch.nn.Parameter(torch.ones(size)) for size in sizes]
                optimizer = MirrorDescent(params, lr=0.1, p=1.625, compile=True, fused=False)
                for _ in range(2):
                    set_gradients(params, 0)
                    optimizer.step()
    finally:
        torch.set_num_threads(before)


def test_where_torch_compiles_no_more_the_step_is_taken_without():
    """A layout with other holes asks for one more kernel, when other tensors have moved."""
    memory, params, others = torch.ones(4, 10), [], []
    for several in (params, others):
        several += [torch.nn.Parameter(memory.clone()[:, : 2 + k]) for k in (0, 3, 6)]
        several += [torch.nn.Parameter(memory.clone().t()[:, :3])]
        set_gradients(several, 0)
    with torch._dynamo.config.patch(recompile_limit=1):
        MirrorDescent(params, lr=0.1, p=1.625, compile=True, fused=False).step()
    MirrorDescent(others, lr=0.1, p=1.625, fused=False).step()
    for ours, theirs in zip(params, others, strict=True):
        assert not torch.equal(ours, torch.ones_like(ours))
        torch.testing.assert_close(ours, theirs)
