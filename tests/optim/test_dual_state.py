"""Dual variables: exact where weights are not, and true to weights that somebody else wrote."""

import pytest
import torch

from mirrormax import MirrorDescent
from mirrormax.geometry import Hypentropy, SquaredLp
from mirrormax.optim import reference_step


def step(optimizer, param, gradient):
    param.grad = torch.as_tensor(gradient, dtype=param.dtype).expand_as(param).clone()
    optimizer.step()


@pytest.mark.parametrize("p", [1.01, 1.05, 1.1])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.float16])
def test_an_entry_at_zero_is_not_trapped_near_p_1(p, dtype):
    """Primal storage forgets every step here: |u|^{1/(p-1)} of a small step is 0 in float32."""
    param = torch.nn.Parameter(torch.zeros(3, dtype=dtype))
    optimizer = MirrorDescent([param], lr=1e-5, p=p)
    step(optimizer, param, -1.0)
    assert not param.any(), "the weight is still below the smallest number"
    optimizer.param_groups[0]["lr"] = 1e-3
    for _ in range(1000):
        step(optimizer, param, -1.0)
    expected = torch.full((3,), 1.00001 ** (1 / (p - 1)), dtype=torch.float64)  # u = 1e-5 + 1000 · 1e-3
    torch.testing.assert_close(param.detach().double(), expected, rtol=0.01, atol=0)


@pytest.mark.parametrize("p", [1.01, 1.1, 1.75, 2.0, 3.0, 10.0, 50.0])
def test_a_gradient_of_zero_moves_no_bit(p):
    weights = 0.05 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    param = torch.nn.Parameter(weights.clone())
    optimizer = MirrorDescent([param], lr=0.1, p=p)
    step(optimizer, param, 0.0)
    for _ in range(20):
        step(optimizer, param, 0.0)
    assert torch.equal(param, weights)


@pytest.mark.parametrize("p", [1.01, 1.1, 1.5, 1.75, 2.5, 3.0, 6.0, 10.0, 50.0])
def test_a_long_float32_run_stays_with_the_float64_reference(p):
    generator = torch.Generator().manual_seed(1)
    weights = 0.5 + torch.rand(200, generator=generator)
    param, reference = torch.nn.Parameter(weights.clone()), weights.double()
    optimizer = MirrorDescent([param], lr=1e-3, p=p)
    for _ in range(500):
        gradient = 0.1 * torch.randn(200, generator=generator)
        step(optimizer, param, gradient)
        reference = reference_step(reference, gradient, 1e-3, p)
    torch.testing.assert_close(param.detach().double(), reference, rtol=3e-4 if p < 1.05 else 3e-5, atol=1e-6)


WRITES = {
    "initialisation": lambda w: torch.nn.init.constant_(w, 0.3),
    "clamp": lambda w: w.clamp_(-0.1, 0.1),
    "copy": lambda w: w.copy_(torch.linspace(-1, 1, w.numel())),
    "scaling": lambda w: w.mul_(0.999),
    "one entry": lambda w: w[1].fill_(7.0),
}


@pytest.mark.parametrize("write", WRITES.values(), ids=WRITES.keys())
@pytest.mark.parametrize("p", [1.1, 1.75, 3.0, 50.0, SquaredLp(1.5), Hypentropy(1.0)], ids=str)
def test_weights_that_others_wrote_are_taken_as_they_are(write, p):
    param = torch.nn.Parameter(torch.tensor([0.5, -0.4, 0.02, -0.9]))
    optimizer = MirrorDescent([param], lr=0.01, p=p)
    step(optimizer, param, 1.0)
    with torch.no_grad():
        write(param)
    fresh = torch.nn.Parameter(param.detach().clone())
    step(optimizer, param, 1.0)
    step(MirrorDescent([fresh], lr=0.01, p=p), fresh, 1.0)
    torch.testing.assert_close(param, fresh, rtol=1e-5, atol=1e-7)


def test_a_model_loaded_in_between_is_taken_as_it_is():
    model, other = torch.nn.Linear(3, 3), torch.nn.Linear(3, 3)
    optimizer = MirrorDescent(model.parameters(), lr=1e-6, p=1.1)
    model(torch.ones(1, 3)).sum().backward()
    optimizer.step()
    model.load_state_dict(other.state_dict())
    optimizer.step()
    torch.testing.assert_close(model.weight, other.weight, rtol=1e-3, atol=1e-5)


def test_entries_that_a_clamp_left_alone_keep_their_dual_to_the_last_bit():
    param = torch.nn.Parameter(torch.tensor([0.0, 0.5]))
    optimizer = MirrorDescent([param], lr=1e-3, p=1.01)
    step(optimizer, param, -1.0)
    hidden = optimizer.state[param]["dual"][0].clone()
    assert param[0] == 0, "its weight has underflowed"
    assert hidden != 0
    with torch.no_grad():
        param.clamp_(-0.1, 0.1)
    step(optimizer, param, 0.0)
    assert optimizer.state[param]["dual"][0] == hidden


def test_writes_through_data_are_seen_after_resync():
    param = torch.nn.Parameter(torch.tensor([0.5, -0.4]))
    optimizer = MirrorDescent([param], lr=1e-6, p=1.5)
    step(optimizer, param, 1.0)
    param.data.fill_(0.1)
    optimizer.resync()
    step(optimizer, param, 1.0)
    torch.testing.assert_close(param.detach(), torch.full((2,), 0.1), rtol=1e-4, atol=0)


@pytest.mark.parametrize("options", [{}, {"fused": False}], ids=str)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_a_write_that_changes_nothing_costs_no_bit_of_u(options, dtype):
    """Compiled: see test_compiled.py."""
    generator = torch.Generator().manual_seed(0)
    param = torch.nn.Parameter((0.05 * torch.randn(37, 53, generator=generator)).to(dtype))
    optimizer = MirrorDescent([param], lr=1e-7, p=1.75, **options)
    for _ in range(20):
        step(optimizer, param, 1.0)
        before = optimizer.state[param]["dual"].clone()
        with torch.no_grad():
            param.clamp_(-10, 10)
        step(optimizer, param, 0.0)
        assert torch.equal(optimizer.state[param]["dual"], before)


def test_tiny_writes_through_data_add_up():
    param = torch.nn.Parameter(torch.full((4,), 0.5))
    optimizer = MirrorDescent([param], lr=0.1, p=1.5)
    for _ in range(1000):
        step(optimizer, param, 0.0)
        param.data.mul_(1 - 1e-5)
        optimizer.resync()
    torch.testing.assert_close(param.detach(), torch.full((4,), 0.5 * (1 - 1e-5) ** 1000), rtol=1e-4, atol=0)


def test_storage_that_comes_to_lie_at_the_old_address_is_noticed():
    for _ in range(20):
        param = torch.nn.Parameter(torch.ones(1000))
        optimizer = MirrorDescent([param], lr=0.1, p=1.5)
        step(optimizer, param, 0.0)
        param.data = param.data.double() * 0.5
        param.data = param.data.float()
        step(optimizer, param, 0.0)
        torch.testing.assert_close(param.detach(), torch.full((1000,), 0.5))


def test_loading_a_state_dict_shares_nothing_with_its_source():
    one, two = torch.nn.Parameter(torch.ones(3)), torch.nn.Parameter(torch.ones(3))
    first, second = MirrorDescent([one], lr=0.1, p=1.5), MirrorDescent([two], lr=0.1, p=1.5)
    step(first, one, 0.0)
    second.load_state_dict(first.state_dict())
    step(second, two, 1.0)
    step(first, one, 0.0)
    assert torch.equal(one, torch.ones(3))


def test_a_state_dict_of_another_optimizer_keeps_our_own_p():
    params = [torch.nn.Parameter(torch.ones(2)) for _ in range(2)]
    groups = [{"params": [params[0]], "p": 1.1}, {"params": [params[1]], "p": 3.0}]
    optimizer = MirrorDescent(groups, lr=0.1)
    optimizer.load_state_dict(torch.optim.SGD([{"params": [param]} for param in params], lr=0.5).state_dict())
    assert [(group["p"], group["lr"]) for group in optimizer.param_groups] == [(1.1, 0.5), (3.0, 0.5)]


@pytest.mark.parametrize("p", [10.0, 20.0])
def test_a_squared_norm_of_large_p_loses_no_small_weight(p):
    weights = 0.05 * torch.randn(256, 256, generator=torch.Generator().manual_seed(0))
    param = torch.nn.Parameter(weights.clone())
    step(MirrorDescent([param], lr=0.0, p=SquaredLp(p)), param, 0.0)
    torch.testing.assert_close(param.detach(), weights, rtol=1e-5, atol=1e-9)


def test_new_storage_is_noticed():
    param = torch.nn.Parameter(torch.tensor([0.5, -0.4]))
    optimizer = MirrorDescent([param], lr=1e-6, p=1.5)
    step(optimizer, param, 1.0)
    param.data = torch.tensor([0.1, 0.1])
    step(optimizer, param, 1.0)
    torch.testing.assert_close(param.detach(), torch.full((2,), 0.1), rtol=1e-4, atol=0)


def test_p_may_change_between_steps():
    param = torch.nn.Parameter(torch.tensor([0.5, -0.4]))
    optimizer = MirrorDescent([param], lr=0.01, p=1.5)
    for p in (1.5, 3.0, 2.0, 10.0, 1.1):
        expected = reference_step(param.detach(), torch.ones(2), 0.01, p)
        optimizer.param_groups[0]["p"] = p
        step(optimizer, param, 1.0)
        torch.testing.assert_close(param.detach().double(), expected, rtol=1e-5, atol=1e-6)


def test_p_2_needs_no_state():
    param = torch.nn.Parameter(torch.ones(2))
    optimizer = MirrorDescent([param], lr=0.1)
    step(optimizer, param, 1.0)
    assert "dual" not in optimizer.state[param]


def test_half_precision_weights_accumulate_steps_below_their_resolution():
    param = torch.nn.Parameter(torch.ones(1, dtype=torch.bfloat16))
    optimizer = MirrorDescent([param], lr=1e-4, p=2.0)
    for _ in range(1000):
        step(optimizer, param, 1.0)
    assert float(param.detach()) == pytest.approx(0.9, rel=0.01)


@pytest.mark.parametrize("write", [lambda param: param.detach().mul_(0.5), lambda param: None], ids=["seen", "none"])
def test_writes_that_torch_tells_of_are_no_reason_to_warn(write):
    param = torch.nn.Parameter(torch.tensor([0.5, -0.4, torch.nan]))
    optimizer = MirrorDescent([param], lr=1e-4, p=1.5)
    for _ in range(5):
        step(optimizer, param, 1.0)
        write(param)


@pytest.mark.parametrize("p", [1.75, 2.5])
def test_looking_at_tiny_weights_again_changes_no_bit(p):
    """The error of a power that is not multiplied out grows with the logarithm of its argument."""
    param = torch.nn.Parameter(torch.logspace(-15, 0, 2001))
    optimizer = MirrorDescent([param], lr=0.1, p=p, fused=False)
    param.grad = param.detach() ** (p - 1)
    optimizer.step()
    before = optimizer.state[param]["dual"].clone()
    optimizer.resync()
    param.grad.zero_()
    optimizer.step()
    assert torch.equal(optimizer.state[param]["dual"], before)
