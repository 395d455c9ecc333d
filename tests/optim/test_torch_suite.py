"""What torch asks of its own optimizers (its test_optim.py and OptimizerInfo tables), asked of ours.

torch.testing._internal itself needs packages that torch does not install, so its questions are put in our words.
Bitwise resumption, closures, dtypes, gradients left alone and tensor step sizes are in test_conformance.
"""

import copy
import gc
import math
import weakref

import pytest
import torch
from torch.nn import Parameter
from torch.optim import lr_scheduler as schedules

from mirrormax import MirrorDescent

INPUTS = {
    "default": {},
    "another lr": {"lr": 0.01},
    "tensor lr": {"lr": torch.tensor(0.001)},
    "weight decay": {"weight_decay": 0.5},
    "momentum": {"momentum": 0.9},
    "maximize": {"weight_decay": 0.1, "maximize": True},
    "decay with momentum": {"momentum": 0.9, "weight_decay": 0.1},
    "nesterov": {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1},
    "normalized": {"normalize": "global"},
}
SCHEDULES = {
    "step": [lambda o: schedules.StepLR(o, gamma=0.9, step_size=10)],
    "linear": [lambda o: schedules.LinearLR(o, start_factor=0.4, end_factor=0.8, total_iters=4)],
    "constant": [lambda o: schedules.ConstantLR(o, factor=0.4, total_iters=4)],
    "polynomial": [lambda o: schedules.PolynomialLR(o, power=0.9, total_iters=50)],
    "cyclic": [lambda o: schedules.CyclicLR(o, base_lr=0.001, max_lr=0.01, cycle_momentum=False)],
    "restarts": [lambda o: schedules.CosineAnnealingWarmRestarts(o, T_0=10)],
    "three at once": [
        lambda o: schedules.StepLR(o, gamma=0.99, step_size=10),
        lambda o: schedules.ExponentialLR(o, gamma=0.99),
        schedules.ReduceLROnPlateau,
    ],
}
each_input = pytest.mark.parametrize("options", INPUTS.values(), ids=INPUTS)
each_p = pytest.mark.parametrize("p", [1.1, 2.0, 3.0])
each_kernel = pytest.mark.parametrize("fused", [None, False], ids=["fused", "eager"])


def make(params, p=1.5, **options):
    return MirrorDescent(params, **{"lr": 0.01, "p": p, **options})


def layer(contiguous):
    """Weight and bias of a layer whose output should be zero, and the function that computes loss and gradients."""
    generator = torch.Generator().manual_seed(0)
    storage = torch.randn(10, 5, 2, generator=generator, dtype=torch.float64)
    weight = storage[..., 0]
    weight = Parameter(weight.clone(memory_format=torch.contiguous_format) if contiguous else weight)
    bias = Parameter(torch.randn(10, generator=generator, dtype=torch.float64))
    data = torch.randn(5, generator=generator, dtype=torch.float64)

    def loss():
        weight.grad = bias.grad = None
        value = (weight @ data + bias).pow(2).sum()
        value.backward()
        return value.detach()

    return weight, bias, loss


@each_input
@each_p
@each_kernel
@pytest.mark.parametrize("contiguous", [True, False], ids=["contiguous", "strided"])
def test_it_goes_in_the_right_direction(options, p, fused, contiguous):
    weight, bias, loss = layer(contiguous)
    assert weight.is_contiguous() == contiguous
    optimizer = make([weight, bias], p, fused=fused, **{"lr": 0.001, **options})
    before = float(loss())
    for _ in range(10):
        loss()
        optimizer.step()
    after = float(loss())
    assert after > before if options.get("maximize") else after < before


@pytest.mark.parametrize("chosen", SCHEDULES.values(), ids=SCHEDULES)
@each_kernel
def test_schedules_take_it_the_right_way_too(chosen, fused):
    weight, bias, loss = layer(True)
    optimizer = make([{"params": [weight]}, {"params": [bias], "lr": 0.001}], fused=fused)
    moving = [make_schedule(optimizer) for make_schedule in chosen]
    before, rates = float(loss()), set()
    for _ in range(40):
        value = loss()
        optimizer.step()
        rates.add(optimizer.param_groups[0]["lr"])
        for schedule in moving:
            schedule.step(*([float(value)] if isinstance(schedule, schedules.ReduceLROnPlateau) else []))
    assert float(loss()) < before
    assert len(rates) > 1


@each_p
def test_weight_decay_of_a_group_is_its_own(p):
    decayed, free = Parameter(torch.ones(3)), Parameter(torch.ones(3))
    optimizer = make([{"params": [decayed]}, {"params": [free], "weight_decay": 0.0}], p, weight_decay=0.9, lr=0.1)
    decayed.grad, free.grad = torch.zeros(3), torch.zeros(3)
    optimizer.step()
    torch.testing.assert_close(decayed.detach(), torch.full((3,), (1 - 0.09) ** (1 / (p - 1))))
    assert torch.equal(free, torch.ones(3))


@each_p
def test_a_step_size_of_zero_in_a_group_holds_it_still(p):
    moved, still = Parameter(torch.ones(3)), Parameter(torch.ones(3))
    optimizer = make([{"params": [moved]}, {"params": [still], "lr": 0.0}], p)
    for _ in range(3):
        moved.grad, still.grad = torch.ones(3), torch.ones(3)
        optimizer.step()
    assert bool((moved < 1).all())
    assert torch.equal(still, torch.ones(3))


@each_input
@each_kernel
def test_a_step_without_gradients_does_nothing(options, fused):
    param = Parameter(torch.randn(5, 5))
    before = param.detach().clone()
    optimizer = make([param], fused=fused, **options)
    optimizer.step()
    assert torch.equal(param, before)
    assert not optimizer.state


@each_kernel
@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_gradients_of_zero_hold_every_weight_still(p, fused):
    param = Parameter(torch.randn(5, 5, generator=torch.Generator().manual_seed(0)))
    before = param.detach().clone()
    optimizer = make([param], p, fused=fused)
    param.grad = torch.zeros(5, 5)
    optimizer.step()
    torch.testing.assert_close(param.detach(), before, rtol=1e-6, atol=0)


def test_many_tensors_of_mixed_sizes_and_types_are_the_same_at_once_as_one_by_one():
    generator = torch.Generator().manual_seed(0)
    shapes = [(), (1,), (0,), (3, 4), (2, 3, 4), (257,), (300, 1000)]
    values = [torch.randn(s, generator=generator).to(t) for s in shapes for t in (torch.float32, torch.float64)]
    one, all_at_once = [Parameter(v.clone()) for v in values], [Parameter(v.clone()) for v in values]
    optimizers = make(one, fused=False, momentum=0.9), make(all_at_once, momentum=0.9)
    for _ in range(3):
        for a, b in zip(one, all_at_once, strict=True):
            a.grad = torch.randn(a.shape, generator=generator).to(a.dtype)
            b.grad = a.grad.clone()
        for optimizer in optimizers:
            optimizer.step()
    for a, b in zip(one, all_at_once, strict=True):
        torch.testing.assert_close(a, b, rtol=2e-5, atol=2e-6)


@pytest.mark.parametrize("kind", [torch.complex64, torch.complex128])
def test_complex_parameters_are_refused(kind):
    with pytest.raises(TypeError, match="real floating-point"):
        make([Parameter(torch.zeros(2, dtype=kind))])


def test_one_parameter_in_two_groups_or_twice_in_one_is_torchs_error():
    param, other = Parameter(torch.ones(1)), Parameter(torch.ones(1))
    with pytest.raises(TypeError, match="params must be a list of parameters"):
        make(param)
    with pytest.raises(ValueError, match="more than one parameter group"):
        make([{"params": param}, {"params": param}])
    with pytest.raises(ValueError, match="with/without names"):
        make([("weight", param), other])
    with pytest.raises(ValueError, match="with/without names"):
        make([{"params": [param]}, {"params": [("weight", other)]}])
    with pytest.warns(UserWarning, match="duplicate parameters"):
        make([param, param])
    with pytest.raises(ValueError, match="can't optimize a non-leaf"):
        make([param * 2])


def trained(options, names=False):
    params = [Parameter(torch.full((3,), 0.5)), Parameter(torch.full((2,), -0.5))]
    optimizer = make([("a", params[0]), ("b", params[1])] if names else params, **options)
    for _ in range(2):
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
    return params, optimizer


@each_input
def test_a_deep_copy_stands_on_its_own(options):
    _, optimizer = trained(options)
    twin = copy.deepcopy(optimizer)
    before = copy.deepcopy(optimizer.state_dict())
    for param in twin.param_groups[0]["params"]:
        param.grad = torch.ones_like(param)
    twin.step()
    after = optimizer.state_dict()
    assert str(after["param_groups"]) == str(before["param_groups"])
    for key, state in before["state"].items():
        for name, value in state.items():
            assert torch.equal(after["state"][key][name], value), name


def test_defaults_are_neither_lost_nor_changed_by_loading():
    _, optimizer = trained({"momentum": 0.9})
    defaults = dict(optimizer.defaults)
    other = make([Parameter(torch.ones(3)), Parameter(torch.ones(2))], p=3.0, lr=0.5)
    kept = dict(other.defaults)
    with pytest.warns(UserWarning, match=r"changes p of group 0 from Lp\(p=3.0\) to Lp\(p=1.5\), as it was saved"):
        other.load_state_dict(optimizer.state_dict())
    assert optimizer.defaults == defaults
    assert {name: other.defaults[name] for name in kept} == kept  # torch adds one of its own
    assert other.param_groups[0]["p"] == 1.5
    assert other.param_groups[0]["momentum"] == 0.9


def test_a_state_dict_from_before_an_option_existed_loads():
    params, optimizer = trained({})
    old = copy.deepcopy(optimizer.state_dict())
    for name in ("error_if_nonfinite", "compile", "maximize"):
        del old["param_groups"][0][name]
    other = make(params)
    other.load_state_dict(old)
    assert other.param_groups[0]["maximize"] is False
    params[0].grad = torch.ones(3)
    other.step()


def test_hooks_around_steps_and_state_dicts_are_called_and_heard():
    params, optimizer = trained({})
    heard = []
    optimizer.register_step_pre_hook(lambda *_: heard.append("before step"))
    optimizer.register_step_post_hook(lambda *_: heard.append("after step"))
    optimizer.register_state_dict_pre_hook(lambda *_: heard.append("before saving"))
    optimizer.register_state_dict_post_hook(lambda _, saved: {**saved, "note": "ours"})

    def halve(_, loaded):
        loaded = copy.deepcopy(loaded)
        loaded["param_groups"][0]["lr"] /= 2
        return loaded

    optimizer.register_load_state_dict_pre_hook(halve)
    optimizer.register_load_state_dict_post_hook(lambda _: heard.append("after loading"))
    optimizer.step()
    saved = optimizer.state_dict()
    assert saved["note"] == "ours"
    optimizer.load_state_dict(saved)
    assert heard == ["before step", "after step", "before saving", "after loading"]
    assert optimizer.param_groups[0]["lr"] == 0.005
    assert len(params) == 2


def test_names_of_parameters_are_saved_and_survive_loading():
    _, optimizer = trained({}, names=True)
    saved = optimizer.state_dict()
    assert saved["param_groups"][0]["param_names"] == ["a", "b"]
    _, other = trained({}, names=True)
    other.load_state_dict(saved)
    assert other.param_groups[0]["param_names"] == ["a", "b"]
    _, nameless = trained({})
    nameless.load_state_dict(saved)
    assert "param_names" not in nameless.param_groups[0] or nameless.param_groups[0]["param_names"] == ["a", "b"]


def test_a_state_dict_for_other_parameters_is_refused_and_changes_nothing():
    params, optimizer = trained({})
    other = make([*params, Parameter(torch.ones(1))])
    with pytest.raises(ValueError, match="doesn't match the size"):
        other.load_state_dict(optimizer.state_dict())
    assert not other.state


@each_input
def test_nothing_keeps_a_dead_optimizer_or_its_parameters_alive(options):
    params, optimizer = trained(options)
    watched = [weakref.ref(optimizer), *(weakref.ref(param) for param in params)]
    gc.collect()
    gc.disable()
    try:
        del params, optimizer
        assert [ref() for ref in watched] == [None] * 3
    finally:
        gc.enable()


@each_kernel
def test_a_step_leaves_no_tensors_behind(fused):
    params = [Parameter(torch.ones(50)) for _ in range(4)]
    optimizer = make(params, momentum=0.9, fused=fused)

    def tensors_after_a_step():
        for param in params:
            param.grad = torch.ones_like(param)
        optimizer.step()
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    tensors_after_a_step()
    assert tensors_after_a_step() == tensors_after_a_step()


def test_state_may_be_set_to_parameters_that_moved_to_another_type():
    """Loading a float64 state for float32 weights keeps what the optimizer itself would have made."""
    params = [Parameter(torch.full((3,), 0.5, dtype=torch.float64))]
    wide = make(params)
    params[0].grad = torch.ones(3, dtype=torch.float64)
    wide.step()
    narrow_param = Parameter(params[0].detach().float())
    narrow = make([narrow_param])
    narrow.load_state_dict(wide.state_dict())
    narrow_param.grad = torch.ones(3)
    narrow.step()
    expected = (math.sqrt(0.5) - 0.02) ** 2
    torch.testing.assert_close(narrow_param.detach(), torch.full((3,), expected), rtol=1e-6, atol=0)


def test_rebuilding_from_defaults_gives_an_equal_optimizer():
    params, optimizer = trained({"momentum": 0.9, "nesterov": True})
    again = MirrorDescent(params, **optimizer.defaults)
    assert str(again) == str(optimizer)
