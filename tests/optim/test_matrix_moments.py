"""MirrorAdamW with moments of matrices: Muon's direction in the dual space, alone and under a target."""

import copy

import pytest
import torch
from optimizer_table import PLAIN, set_gradients
from torch import nn

import mirrormax as mm
from mirrormax.optim.reference import ReferenceTensor

KERNELS = [{}, {"fused": False}, {"capturable": True}]
SHAPES = [(30, 40), (40, 30), (8, 3, 3, 3), (600, 500), (1, 5), (0, 4)]  # the fourth is larger than a piece


def matrices(dtype=torch.float64, shapes=SHAPES):
    generator = torch.Generator().manual_seed(0)
    return [nn.Parameter((0.05 * torch.randn(s, generator=generator, dtype=torch.float64)).to(dtype)) for s in shapes]


def steps_of(optimizer, params, steps=3, first=0):
    for step in range(first, first + steps):
        set_gradients(params, seed=step)
        optimizer.step()


def test_p_2_is_torchs_muon():
    common = {"lr": 0.01, "weight_decay": 0.1}
    ours, theirs = (matrices(torch.float32, SHAPES[:2]) for _ in range(2))
    steps_of(mm.MirrorAdamW(ours, p=2.0, moments="matrix", betas=(0.95, 0.999), **PLAIN, **common), ours)
    steps_of(torch.optim.Muon(theirs, momentum=0.95, adjust_lr_fn="match_rms_adamw", **common), theirs)
    for our, their, start in zip(ours, theirs, matrices(torch.float32, SHAPES[:2]), strict=True):
        assert (
            float(((our - their).norm() / (their - start).norm()).detach()) < 0.05
        )  # torch orthogonalises with 8 bits


@pytest.mark.parametrize("p", [1.5, 2.0])
@pytest.mark.parametrize("options", KERNELS, ids=str)
def test_steps_are_those_of_the_plain_reference(p, options):
    params = matrices()
    references = [ReferenceTensor(param.detach()) for param in params]
    optimizer = mm.MirrorAdamW(params, lr=0.01, p=p, moments="matrix", clip=None, **options)
    for step in range(3):
        set_gradients(params, seed=step)
        for reference, param in zip(references, params, strict=True):
            reference.measured(1.0)
            reference.adapt(param.grad, p, optimizer.param_groups[0])
        optimizer.step()
    for reference, param in zip(references, params, strict=True):
        torch.testing.assert_close(param.detach(), reference.w, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_under_a_target_exactly_the_share_is_zero_and_a_resumed_run_is_the_same(dtype):
    params = matrices(dtype, SHAPES[:3])
    optimizer = mm.MirrorAdamW(params, lr=0.01, moments="matrix", sparsity=0.75, total_steps=10)
    steps_of(optimizer, params, 5)
    twins = copy.deepcopy(params)
    again = mm.MirrorAdamW(twins, lr=0.01, moments="matrix", sparsity=0.75, total_steps=10)
    again.load_state_dict(copy.deepcopy(optimizer.state_dict()))
    steps_of(optimizer, params, 5, first=5)
    steps_of(again, twins, 5, first=5)
    assert sum(int((w == 0).sum()) for w in params) == round(0.75 * sum(w.numel() for w in params))
    assert all(torch.equal(w, twin) for w, twin in zip(params, twins, strict=True))


def test_a_model_has_them_for_its_matrices_alone():
    optimizer = mm.MirrorAdamW(nn.TransformerEncoderLayer(8, 2), lr=0.01, moments="matrix")
    assert [group["moments"] for group in optimizer.param_groups] == ["matrix", "entry"]


def test_a_matrix_without_gradient_signal_stays_and_is_finite():
    (w,) = matrices(shapes=[(4, 6)])
    before = w.detach().clone()
    w.grad = torch.zeros_like(w)
    mm.MirrorAdamW([w], lr=0.01, moments="matrix", weight_decay=0.0).step()
    assert torch.equal(w, before)


@pytest.mark.parametrize("size", [1e-4, 1e22])
def test_the_step_does_not_depend_on_the_size_of_the_gradients(size):
    results = []
    for factor in (1.0, size):
        params = matrices(torch.float32, SHAPES[:2])
        set_gradients(params, seed=0)
        for w in params:
            w.grad *= factor
        mm.MirrorAdamW(params, lr=0.01, moments="matrix", clip=None).step()
        results.append(params)
    for one, other in zip(*results, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-3, atol=1e-6)


def test_vectors_are_refused_before_anything_moves():
    params = matrices(shapes=[(4, 6), (6,)])
    before = [w.detach().clone() for w in params]
    optimizer = mm.MirrorAdamW(params, lr=0.01, p=2.0, moments="matrix")
    set_gradients(params, seed=0)
    with pytest.raises(ValueError, match=r"moments='matrix' needs matrices, got a tensor of shape \(6,\)"):
        optimizer.step()
    assert all(torch.equal(w, old) for w, old in zip(params, before, strict=True))


def test_second_moments_that_come_after_matrices_begin_together_with_the_first():
    """Else v̂ = v/(1 − β₂^t) of a young v and an old t is far too small, and steps many times too long."""
    (w,), (twin,) = matrices(shapes=[(4, 6)]), matrices(shapes=[(4, 6)])
    optimizer = mm.MirrorAdamW([w], lr=0.01, p=2.0, moments="matrix", weight_decay=0.0, trust=None)
    steps_of(optimizer, [w], 20)
    optimizer.param_groups[0]["moments"] = "entry"
    twin.data.copy_(w.detach())
    fresh = mm.MirrorAdamW([twin], lr=0.01, p=2.0, weight_decay=0.0, trust=None)
    for own, param in ((optimizer, w), (fresh, twin)):
        steps_of(own, [param], 3, first=20)
    torch.testing.assert_close(w, twin)
    optimizer.param_groups[0]["moments"] = "matrix"
    steps_of(optimizer, [w], 1, first=30)
    assert "exp_avg_sq" not in optimizer.state[w], "which no step would bring up to date"
