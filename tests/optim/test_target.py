"""A share of zeros as a target: exact, the same by every kernel, and resumed to the bit."""

import copy
import math
import pickle

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.optim.reference import reference_threshold
from mirrormax.optim.target import kth_smallest, set_total_steps, thresholded

SCOPES = {"global": (0.8, "global"), "matrix": (0.7, "matrix"), "row": (0.75, "row"), "2:4": ("2:4", "global")}
SHAPES = ((6, 8), (5, 4), (3, 16))
EAGER = {"fused": False}


def weights(dtype=torch.float32, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return [nn.Parameter(torch.randn(shape, generator=generator).to(dtype)) for shape in SHAPES]


def train(params, optimizer, steps, first=0):
    for step in range(first, first + steps):
        generator = torch.Generator().manual_seed(100 + step)
        for param in params:
            param.grad = torch.randn(param.shape, generator=generator).to(param.dtype)
        optimizer.step()


def zeros(params):
    return sum(int((param == 0).sum()) for param in params)


def make(params, scope="global", kind=MirrorAdamW, **options):
    sparsity, compared = SCOPES[scope]
    options = {"lr": 0.03, "p": 2.0, "sparsity": sparsity, "scope": compared, "total_steps": 10, **EAGER, **options}
    return kind(params, **options)


@pytest.mark.parametrize("kind", [MirrorAdamW, MirrorDescent])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
@pytest.mark.parametrize("scope", SCOPES)
def test_at_the_end_exactly_the_share_is_zero_and_the_weights_are_those_of_the_reference(scope, dtype, kind):
    params = weights(dtype)
    optimizer = make(params, scope, kind)
    train(params, optimizer, 10)
    share, compared = SCOPES[scope]
    if scope == "2:4":
        assert all(bool(((p.view(-1, 4) == 0).sum(1) == 2).all()) for p in params)
        share, compared = 1.0, "2:4"
    elif scope == "row":
        assert all(bool(((p == 0).sum(1) == round(share * p.shape[1])).all()) for p in params)
    else:
        assert abs(zeros(params) - share * sum(p.numel() for p in params)) <= len(params)
    duals = [optimizer.state[param]["dual"] for param in params]
    for param, ours in zip(params, reference_threshold(duals, share, compared), strict=True):
        torch.testing.assert_close(
            param.detach(), ours.to(dtype), rtol=1e-6 if dtype != torch.bfloat16 else 1e-2, atol=0
        )


def test_a_whole_model_aims_with_its_matrices_alone():
    model = nn.TransformerEncoderLayer(8, 2, 16)
    optimizer = MirrorAdamW(model, lr=1e-2, sparsity=0.5, total_steps=3, **EAGER)
    assert [(group["name"], group["p"], group["sparsity"]) for group in optimizer.param_groups] == [
        ("matrices", 2.0, 0.5),
        ("rest", 2.0, None),
    ]
    train(list(model.parameters()), optimizer, 3)
    matrices, rest = (group["params"] for group in optimizer.param_groups)
    assert zeros(matrices) == sum(p.numel() for p in matrices) // 2
    assert zeros(rest) == 0


def test_groups_have_targets_of_their_own():
    first, second, third = weights()
    optimizer = MirrorAdamW(
        [{"params": [first], "sparsity": 0.5}, {"params": [second], "sparsity": 0.25}, {"params": [third]}],
        lr=0.03,
        total_steps=4,
        **EAGER,
    )
    train([first, second, third], optimizer, 4)
    assert [zeros([p]) for p in (first, second, third)] == [24, 5, 0]


def test_without_a_length_the_first_step_says_so_and_moves_nothing():
    params = weights()
    before = [param.detach().clone() for param in params]
    with pytest.raises(ValueError, match=r"total_steps=.*set_sparsity"):
        train(params, make(params, total_steps=None), 1)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_a_share_set_from_outside_is_that_of_the_next_step_also_after_a_checkpoint():
    params = weights()
    optimizer = make(params, total_steps=None)
    for share in (0.0, 0.3, 0.6, 0.2):
        optimizer.set_sparsity(share)
        train(params, optimizer, 1)
        assert zeros(params) == round(share * sum(p.numel() for p in params))
    other = make(params, total_steps=None)
    other.load_state_dict(optimizer.state_dict())
    train(params, other, 1)
    assert zeros(params) == round(0.2 * sum(p.numel() for p in params))


@pytest.mark.parametrize("scope", SCOPES)
@pytest.mark.parametrize("way", ["checkpoint", "deepcopy", "pickle"])
def test_a_resumed_training_ends_with_the_same_bits(scope, way):
    straight = weights()
    train(straight, make(straight, scope), 10)
    params = weights()
    optimizer = make(params, scope)
    train(params, optimizer, 5)
    if way == "checkpoint":
        saved = copy.deepcopy(optimizer.state_dict())
        params = [nn.Parameter(param.detach().clone()) for param in params]
        optimizer = make(params, scope)
        optimizer.load_state_dict(saved)
    elif way == "deepcopy":
        params, optimizer = copy.deepcopy((params, optimizer))
    else:
        params, optimizer = pickle.loads(pickle.dumps((params, optimizer)))
    train(params, optimizer, 5, first=5)
    assert all(torch.equal(a, b) for a, b in zip(params, straight, strict=True))


def test_entries_below_the_threshold_go_on_collecting_gradients_and_come_back():
    param = nn.Parameter(torch.tensor([[0.1, 1.0, 2.0, 3.0]]))
    optimizer = MirrorDescent([param], lr=0.1, sparsity=0.25, total_steps=1, **EAGER)
    seen = []
    for _ in range(12):
        param.grad = torch.tensor([[-1.0, 0.0, 0.0, 0.0]])
        optimizer.step()
        seen.append(param.detach().clone()[0])
    assert float(seen[0][0]) == 0
    assert float(seen[-1][0]) > 0
    assert float(seen[-1][1]) == 0


def test_weights_that_somebody_else_wrote_are_taken_over():
    params = weights()
    optimizer = make(params)
    train(params, optimizer, 10)
    with torch.no_grad():
        params[0].mul_(-0.999)
    written = [param.detach().clone() for param in params]
    optimizer.param_groups[0]["lr"] = 1e-9
    train(params, optimizer, 1)
    for param, ours in zip(params, written, strict=True):
        torch.testing.assert_close(param.detach(), ours, rtol=0, atol=0.02)


@pytest.mark.parametrize("before", SCOPES)
@pytest.mark.parametrize("after", SCOPES)
def test_weights_that_nobody_wrote_keep_their_dual_variables_when_other_weights_are_compared(before, after):
    params = weights()
    optimizer = make(params, before)
    train(params, optimizer, 10)
    duals = [optimizer.state[param]["dual"].clone() for param in params]
    sparsity, scope = SCOPES[after]
    optimizer.param_groups[0].update(sparsity=sparsity, scope=scope, lr=0.0)
    optimizer.resync()
    train(params, optimizer, 1)
    assert all(torch.equal(optimizer.state[param]["dual"], u) for param, u in zip(params, duals, strict=True))


def test_a_target_that_is_dropped_leaves_plain_steps_on_the_weights():
    params = weights()
    optimizer = make(params)
    train(params, optimizer, 10)
    before = [param.detach().clone() for param in params]
    optimizer.param_groups[0]["sparsity"] = None
    train(params, optimizer, 1)
    assert "dual" not in optimizer.state[params[0]]
    assert all(float((a - b).detach().abs().max()) < 0.1 for a, b in zip(params, before, strict=True))


def test_a_step_of_size_zero_moves_nothing():
    params = weights()
    before = [param.detach().clone() for param in params]
    train(params, make(params, lr=0.0), 10)
    assert all(torch.equal(a, b) for a, b in zip(params, before, strict=True))


def test_every_kernel_gives_the_same_weights_for_the_same_dual_variables():
    pytest.importorskip("numba")
    found = []
    for fused in (None, False):
        params = weights()
        optimizer = make(params, fused=fused)
        train(params, optimizer, 10)
        duals = [optimizer.state[param]["dual"] for param in params]
        lam = torch.tensor(kth_smallest(duals, round(0.8 * sum(u.numel() for u in duals))))
        assert all(torch.equal(thresholded(u, lam), p.detach()) for u, p in zip(duals, params, strict=True))
        found.append(params)
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


def test_many_weights_are_sampled_on_the_way_and_counted_at_the_end():
    param = nn.Parameter(torch.randn(1030, 1030, generator=torch.Generator().manual_seed(0)))
    optimizer = MirrorDescent([param], lr=1e-3, sparsity=0.8, total_steps=6, **EAGER)
    for step in range(6):
        param.grad = torch.ones_like(param)
        optimizer.step()
        if step == 3:
            assert zeros([param]) / param.numel() == pytest.approx(0.8, abs=0.006)
    assert zeros([param]) == round(0.8 * param.numel())


@pytest.mark.parametrize("fused", [None, False])
def test_a_sample_tells_of_every_column(fused):
    """Also where columns differ in size, as they do in trained models, and the sample is one in so many."""
    w = torch.randn(1024, 1024, generator=torch.Generator().manual_seed(0))
    w[:, ::8] *= 0.01
    param = nn.Parameter(w)
    optimizer = MirrorDescent([param], lr=1e-6, sparsity=0.5, total_steps=100, fused=fused)
    optimizer.param_groups[0]["sparsity_step"] = 70
    param.grad = torch.ones_like(param)
    optimizer.step()
    assert zeros([param]) / param.numel() == pytest.approx(0.5, abs=0.01)


@pytest.mark.parametrize("kind", [MirrorAdamW, MirrorDescent])
def test_many_weights_are_those_of_the_formulas_at_every_step_by_every_kernel(kind):
    """On the way the fused kernel knows the threshold before it steps, by a sample that steps first."""
    pytest.importorskip("numba")
    shapes = [(1030, 700), (700, 1030), (64,)]

    def gradients(step):
        generator = torch.Generator().manual_seed(step)
        return [torch.randn(shape, generator=generator) for shape in shapes]

    models = [[nn.Parameter(w) for w in gradients(0)] for _ in range(2)]
    for params in models:
        params[1].data = params[1].data.t().contiguous().t()  # whose memory is not in the order of its rows
    options = {"lr": 1e-2, "p": 2.0, "sparsity": 0.8, "total_steps": 6}
    optimizers = [kind(params, **options, fused=fused) for params, fused in zip(models, (None, False), strict=True)]
    for step in range(1, 7):
        for params, optimizer in zip(models, optimizers, strict=True):
            for param, g in zip(params, gradients(step), strict=True):
                param.grad = g
            optimizer.step()
            for param in params:
                lam = optimizer.state[param]["threshold"][0].float()
                assert torch.equal(param.detach(), thresholded(optimizer.state[param]["dual"], lam))
        for ours, theirs in zip(*models, strict=True):
            torch.testing.assert_close(ours, theirs, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("still", [0, 7])
def test_a_schedule_that_begins_or_ends_at_zero_ends_with_the_share_all_the_same(still):
    param = nn.Parameter(torch.randn(1030, 1030, generator=torch.Generator().manual_seed(0)))
    optimizer = MirrorDescent([param], lr=1e-3, sparsity=0.8, total_steps=8, **EAGER)
    for step in range(8):
        optimizer.param_groups[0]["lr"] = 0.0 if step == still else 1e-3
        param.grad = torch.ones_like(param)
        optimizer.step()
    assert zeros([param]) == round(0.8 * param.numel())


@settings(max_examples=40, deadline=None)
@given(
    st.lists(st.floats(-(2.0**60), 2.0**60, width=32), min_size=1, max_size=40),
    st.integers(0, 39),
    st.sampled_from([torch.float32, torch.float64]),
)
def test_the_kth_smallest_is_that_of_sorting(values, place, dtype):
    place %= len(values)
    u = torch.tensor(values, dtype=dtype)
    parts = [u[: place + 1].clone(), u[place + 1 :].clone()]
    assert kth_smallest(parts, place + 1) == sorted(abs(float(x)) for x in u)[place]
    assert kth_smallest(parts, place + 1, wanted=False) == kth_smallest(parts, place + 1)


@settings(max_examples=40, deadline=None)
@given(st.floats(0.1, 10.0), st.floats(0.0, 2.0))
def test_the_threshold_is_odd_monotone_continuous_and_homogeneous(factor, lam):
    u = torch.linspace(-7, 7, 5001, dtype=torch.float64)
    w = thresholded(u, torch.tensor(lam, dtype=torch.float64))
    torch.testing.assert_close(w, -thresholded(-u, torch.tensor(lam, dtype=torch.float64)))
    assert bool((w.diff() >= 0).all())
    assert float(w.diff().max()) <= 1.5 * float(u.diff().max()) + 1e-9
    scaled = thresholded(factor * u, torch.tensor(factor * lam, dtype=torch.float64))
    near = (u.abs() - lam).abs().minimum((u.abs() - 3 * lam).abs()) > 1e-9
    torch.testing.assert_close(scaled[near], factor * w[near])


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"sparsity": 1.0}, "sparsity must be"),
        ({"sparsity": -0.1}, "sparsity must be"),
        ({"sparsity": "4:2"}, "n:m with n < m"),
        ({"sparsity": "half"}, "n:m with n < m"),
        ({"p": 1.1}, "in the place of p"),
        ({"total_steps": 0}, "total_steps must be"),
        ({"total_steps": 2.5}, "total_steps must be"),
        ({"capturable": True, "fused": None}, "capturable=True leaves no time"),
    ],
)
def test_what_does_not_go_together_is_refused(options, said):
    with pytest.raises((ValueError, TypeError), match=said):
        make(weights(), **options)
    with pytest.raises(ValueError, match="scope must be"):
        MirrorAdamW(weights(), lr=0.1, sparsity=0.5, scope="layer")


def test_rows_that_a_pattern_does_not_divide_are_refused_at_the_first_step():
    params = [nn.Parameter(torch.randn(3, 6))]
    with pytest.raises(ValueError, match=r"multiple of 4.*\(3, 6\)"):
        train(params, make(params, "2:4"), 1)


def test_set_sparsity_wants_a_target_and_a_share():
    params = weights()
    with pytest.raises(ValueError, match="no group has a target"):
        MirrorAdamW(params, lr=0.1).set_sparsity(0.5)
    with pytest.raises(ValueError, match="share must be"):
        make(params).set_sparsity(1.5)
    with pytest.raises(ValueError, match="more than sparsity='2:4'"):
        make(params, "2:4").set_sparsity(0.6)
    with pytest.raises(ValueError, match="nothing to tell"):
        set_total_steps(MirrorAdamW(params, lr=0.1), 5)


@pytest.mark.parametrize("fused", [None, False])
def test_what_is_not_a_number_is_not_called_zero(fused):
    param = torch.nn.Parameter(torch.linspace(-1, 1, 40).view(5, 8))
    optimizer = MirrorAdamW([{"params": [param]}], lr=0.01, p=2.0, sparsity=0.5, total_steps=1, clip=None, fused=fused)
    param.grad = torch.zeros_like(param)
    param.grad[2, 3] = math.nan
    optimizer.step()
    assert param.detach().isnan().nonzero().tolist() == [[2, 3]]


def test_a_run_in_double_precision_goes_on_with_the_digits_of_its_threshold():
    def trained(resume):
        torch.manual_seed(0)
        param = torch.nn.Parameter(torch.randn(7, 5, dtype=torch.float64))
        optimizer = MirrorAdamW([param], lr=0.05, p=2.0, sparsity=0.6, total_steps=4)
        for step in range(4):
            if resume and step == 2:
                saved = optimizer.state_dict()
                optimizer = MirrorAdamW([param], lr=0.05, p=2.0, sparsity=0.6, total_steps=4)
                optimizer.load_state_dict(saved)
            param.grad = torch.sin(param.detach() + step)
            optimizer.step()
        return param.detach()

    assert torch.equal(trained(resume=True), trained(resume=False))


@pytest.mark.parametrize(
    "steps", [math.nan, math.inf, "x", "", [], (1,), 2.5, 0, -1, True, 10**400, torch.tensor([1, 2])]
)
def test_a_length_that_is_no_whole_number_is_refused_by_name(steps):
    with pytest.raises((TypeError, ValueError), match=r"^total_steps must be "):
        MirrorAdamW(weights(), lr=0.1, sparsity=0.5, total_steps=steps)


@pytest.mark.parametrize("scope", SCOPES)
def test_tensors_without_entries_step_along(scope):
    params = [*weights(), nn.Parameter(torch.empty(0, 4)), nn.Parameter(torch.empty(3, 0))]
    alone = weights()
    train(params, make(params, scope), 10)
    train(alone, make(alone, scope), 10)
    assert all(torch.equal(a, b) for a, b in zip(params[:3], alone, strict=True))


def test_a_group_that_joins_or_thaws_later_ends_with_its_share_all_the_same():
    params = weights()
    optimizer = make(params[:1])
    optimizer.add_param_group({"params": params[1:2]})
    train(params[:1], optimizer, 8)  # the second group has no gradients yet
    optimizer.add_param_group({"params": params[2:]})
    train(params, optimizer, 2, first=8)
    assert [zeros([param]) for param in params] == [round(0.8 * param.numel()) for param in params]
