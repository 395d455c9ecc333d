"""What once went wrong with ordinary models, each as it was met."""

import copy
import gc
import pickle
import sys
import weakref

import pytest
import torch
import torch.distributed.checkpoint.state_dict as dcp
from torch import nn
from torch.nn.utils import parametrizations

from mirrormax import MirrorAdamW, MirrorDescent
from mirrormax.optim import reference_step

both = pytest.mark.parametrize("kind", [MirrorDescent, MirrorAdamW])
each_kernel = pytest.mark.parametrize("fused", [None, False])


def layers(dtype=torch.float32):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(30, 20), nn.Linear(20, 10)).to(dtype)


def step(model, optimizer, seed=0, size=1e-2):
    generator = torch.Generator().manual_seed(seed)
    for param in model.parameters():
        param.grad = (size * torch.randn(param.shape, generator=generator)).to(param.dtype)
    optimizer.step()


def weights(model):
    return [param.detach().clone() for param in model.parameters()]


@both
@each_kernel
@pytest.mark.parametrize("p", [1.01, 1.1, 1.5, 1.75, 3.0, 10.0])
def test_a_step_of_length_zero_changes_no_bit(kind, fused, p):
    """torch.distributed.checkpoint makes an optimizer's state by such a step."""
    model = layers()
    before = weights(model)
    optimizer = kind(model.parameters(), lr=0.0, p=p, fused=fused)
    for param in model.parameters():
        param.grad = torch.zeros_like(param)
    optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(before, weights(model), strict=True))


@both
@each_kernel
def test_a_checkpoint_of_tensors_that_began_at_zero_fits_a_model_that_was_loaded_first(kind, fused):
    def make():
        model = layers()
        nn.init.zeros_(model[1].weight)
        return model, kind(model.parameters(), lr=0.01, p=1.1, scale="tensor", fused=fused)

    model, optimizer = make()
    with pytest.warns(UserWarning, match="begin at zero"):
        step(model, optimizer)
    saved = copy.deepcopy((model.state_dict(), dcp.get_optimizer_state_dict(model, optimizer)))
    step(model, optimizer, seed=1)
    other, resumed = make()
    other.load_state_dict(saved[0])
    dcp.set_optimizer_state_dict(other, resumed, saved[1])
    step(other, resumed, seed=1)
    assert all(torch.equal(a, b) for a, b in zip(weights(model), weights(other), strict=True))


@both
@each_kernel
@pytest.mark.filterwarnings("ignore:.*begin at zero")
def test_the_state_has_the_same_keys_whatever_the_weights_are(kind, fused):
    """Else a state that is made before the weights are loaded has no place for what a checkpoint holds."""
    states = []
    for start in (nn.init.ones_, nn.init.zeros_):
        model = layers()
        start(model[1].weight)
        optimizer = kind(model.parameters(), lr=0.01, p=1.1, scale="tensor", fused=fused)
        step(model, optimizer)
        states.append([set(optimizer.state[param]) for param in model.parameters()])
    assert states[0] == states[1]


@each_kernel
@pytest.mark.filterwarnings("ignore:.*begin at zero")
def test_which_p_came_first_does_not_matter_to_a_tensor_that_began_at_zero(fused):
    """It has no size of its own, whatever p it met first, so p = 1.1 is p = 2 for it."""
    param = nn.Parameter(torch.zeros(3))
    optimizer = MirrorAdamW([param], lr=0.1, p=2.0, trust=None, weight_decay=0.0, fused=fused)
    for p in (2.0, 1.1):
        optimizer.param_groups[0]["p"] = p
        param.grad = torch.ones(3)
        optimizer.step()
    torch.testing.assert_close(param.detach(), torch.full((3,), -0.2), rtol=1e-5, atol=0)


@both
@each_kernel
@pytest.mark.parametrize("apart", ["of a group", "in two groups", "of two types"])
@pytest.mark.parametrize("wrong", ["state", "gradient"])
def test_a_step_that_fails_has_moved_nothing(kind, wrong, apart, fused):
    """What is wrong with the last tensor keeps the first from moving."""
    last = torch.ones(4, dtype=torch.float64 if apart == "of two types" else torch.float32)
    params = [nn.Parameter(torch.ones(4)), nn.Parameter(last)]
    groups = [{"params": [param]} for param in params] if apart == "in two groups" else params
    optimizer = kind(groups, lr=0.1, p=1.1, scale="tensor", fused=fused)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    if wrong == "gradient":
        params[1].grad.untyped_storage().resize_(0)
    else:
        optimizer.state[params[1]]["exp_avg" if kind is MirrorAdamW else "dual"] = torch.zeros(3)
        optimizer.resync()
    before, state = [param.detach().clone() for param in params], copy.deepcopy(optimizer.state_dict()["state"])
    with pytest.raises(ValueError, match="shape"):
        optimizer.step()
    assert all(torch.equal(a, b.detach()) for a, b in zip(before, params, strict=True))
    after = optimizer.state_dict()["state"]
    assert all(torch.equal(state[k][n], after[k][n]) for k in state for n in state[k])


@pytest.mark.parametrize(
    "parametrize",
    [
        parametrizations.weight_norm,
        parametrizations.spectral_norm,
        parametrizations.orthogonal,
        pytest.param(nn.utils.weight_norm, marks=pytest.mark.filterwarnings("ignore::FutureWarning")),
    ],
    ids=["weight_norm", "spectral_norm", "orthogonal", "old weight_norm"],
)
@pytest.mark.filterwarnings("ignore:`torch.nn.utils.weight_norm`:FutureWarning")
def test_parametrized_matrices_are_matrices_and_their_gains_are_not(parametrize):
    model = nn.Sequential(parametrize(nn.Linear(8, 8)), nn.Linear(8, 8))
    p = {name: g["p"] for g in MirrorAdamW(model).param_groups for name in g["param_names"]}
    matrices = [name for name, param in model.named_parameters() if param.shape == (8, 8)]
    assert {name for name in p if p[name] == 1.5} == set(matrices)


@pytest.mark.parametrize("clone", [copy.deepcopy, lambda x: pickle.loads(pickle.dumps(x))], ids=["deepcopy", "pickle"])
def test_a_copy_remembers_that_p_was_not_given(clone):
    optimizer = clone(MirrorAdamW(layers().parameters()))
    optimizer.add_param_group({"params": [nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2))]})
    assert [group["p"] for group in optimizer.param_groups] == [1.5, 2.0, 1.5, 2.0]


@each_kernel
def test_decay_beyond_one_turns_weights_round_as_adamw_does(fused):
    param = nn.Parameter(torch.tensor([0.5, -0.25]))
    param.grad = torch.zeros(2)
    MirrorAdamW([param], lr=1.0, p=1.1, weight_decay=1.5, fused=fused).step()
    torch.testing.assert_close(param.detach(), torch.tensor([-0.25, 0.125]), rtol=1e-5, atol=0)


def test_a_model_may_be_given_to_mirror_descent():
    optimizer = MirrorDescent(nn.TransformerEncoderLayer(8, 2), lr=0.1, p=1.1)
    assert [(g["name"], g["p"], len(g["params"])) for g in optimizer.param_groups] == [
        ("matrices", 1.1, 4),
        ("rest", 2.0, 8),
    ]


@both
def test_states_of_the_version_before_load(kind):
    """They held a scale, no mark of a start other than zero, and second moments in the type of the weights."""
    options = {"lr": 0.01, "p": 1.1, "scale": "tensor", "trust": 0.5} | (
        {"moments": "tensor"} if kind is MirrorAdamW else {}
    )
    model = layers()
    optimizer = kind(model.parameters(), **options)
    step(model, optimizer)
    old = copy.deepcopy(optimizer.state_dict())
    for state in old["state"].values():
        state["scale"] = torch.tensor(2.0, dtype=torch.float64)
        del state["zero_start"]
        if "exp_avg_sq" in state:
            state["exp_avg_sq"] = state["exp_avg_sq"].float()
    other = copy.deepcopy(model)
    resumed = kind(other.parameters(), **options)
    resumed.load_state_dict(old)
    step(model, optimizer, seed=1)
    step(other, resumed, seed=1)
    for a, b in zip(weights(model), weights(other), strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-8)


@each_kernel
@pytest.mark.parametrize(("dtype", "p"), [(torch.bfloat16, 1.75), (torch.float16, 1.5), (torch.float32, 10.0)])
@pytest.mark.parametrize("options", [{"clip": 0.5}, {"normalize": "tensor"}], ids=str)
def test_norms_of_gradients_have_the_digits_of_the_dual_variables(dtype, p, options, fused):
    param = nn.Parameter(torch.linspace(0.1, 1, 3001).to(dtype))
    param.grad = (0.1 * torch.randn(3001, generator=torch.Generator().manual_seed(0))).to(dtype)
    before, g = param.detach().double() ** (p - 1), param.grad.double()
    optimizer = MirrorDescent([param], lr=0.1, p=p, fused=fused, **options)
    optimizer.step()
    length = float(torch.linalg.vector_norm(g, 2 if "clip" in options else p / (p - 1)))
    change = 0.1 * g * (0.5 if "clip" in options else 1.0) / (length + 1e-6 * ("clip" in options))
    u = optimizer.state[param]["dual"]
    units = (u.double() - (before - change)).abs() / (before + change.abs()) / torch.finfo(u.dtype).eps
    assert float(units.max()) < 24


@each_kernel
@pytest.mark.parametrize("first", [0, 1])
def test_sizes_need_not_be_known_of_all_tensors_that_step_together(first, fused):
    params = [nn.Parameter(torch.ones(3)), nn.Parameter(torch.ones(4))]
    optimizer = MirrorAdamW(params, lr=0.1, p=1.5, fused=fused)
    params[first].grad = torch.ones_like(params[first])
    optimizer.step()  # with trust and scale, so that its size is taken
    optimizer.param_groups[0].update(scale=None, trust=None)
    for param in params:
        param.grad = torch.ones_like(param)
    before = [param.detach().clone() for param in params]
    optimizer.step()
    assert all(bool((a != b).all()) for a, b in zip(before, params, strict=True))


@each_kernel
def test_a_parameter_that_is_turned_round_in_place_is_seen_to_be(fused):
    param = nn.Parameter(torch.arange(1.0, 10).view(3, 3) / 10)
    optimizer = MirrorDescent([param], lr=0.1, p=1.5, fused=fused)
    param.grad = torch.zeros(3, 3)
    optimizer.step()
    param.data = param.data.t()
    expected = reference_step(param.detach(), torch.ones(3, 3).triu(), 0.1, 1.5)
    param.grad = torch.ones(3, 3).triu()
    optimizer.step()
    torch.testing.assert_close(param.detach().double(), expected, rtol=1e-6, atol=0)


@both
@each_kernel
def test_a_parameter_that_has_shrunk_is_refused_before_anything_moves(kind, fused):
    params = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(10))]
    optimizer = kind(params, lr=0.1, p=1.5, fused=fused)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    memory = params[1].data
    params[1].data = memory[:3]
    params[1].grad = torch.ones(3)
    before = [params[0].detach().clone(), memory.clone()]
    with pytest.raises(ValueError, match=r"shape \(10,\) for a parameter of shape \(3,\)"):
        optimizer.step()
    assert torch.equal(params[0], before[0])
    assert torch.equal(memory, before[1])


@each_kernel
def test_entries_that_share_memory_are_refused_before_anything_moves(fused):
    params = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(1).expand(4))]
    for param in params:
        param.grad = torch.ones(4)
    with pytest.raises(ValueError, match="share memory"):
        MirrorDescent(params, lr=0.1, p=1.5, fused=fused).step()
    assert torch.equal(params[0], torch.ones(4))


def test_weights_of_several_types_are_counted_together_under_a_target():
    torch.manual_seed(0)
    params = [nn.Parameter(torch.randn(4, 4)), nn.Parameter(torch.randn(4, 4).double())]
    optimizer = MirrorAdamW(params, lr=0.1, p=2.0, sparsity=0.5, total_steps=1)
    for param in params:
        param.grad = torch.randn_like(param)
    optimizer.step()
    assert sum(int((param == 0).sum()) for param in params) == 16


def calls(act):
    """How many functions are called, which does not depend on the machine as time does."""
    count = 0

    def look(frame, event, argument):
        nonlocal count
        count += event in ("call", "c_call")

    sys.setprofile(look)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


@each_kernel
@pytest.mark.parametrize(
    ("kind", "name", "values"),
    [(MirrorAdamW, "betas", ((0.9, 0.999), (0.8, 0.99))), (MirrorDescent, "momentum", (0.9, 0.8))],
    ids=["betas", "momentum"],
)
def test_a_schedule_that_changes_an_option_at_every_step_leaves_what_is_known_of_the_tensors(kind, name, values, fused):
    params = [nn.Parameter(torch.ones(3)) for _ in range(50)]
    for param in params:
        param.grad = torch.ones(3)
    optimizer = kind(params, lr=0.01, p=1.5, fused=fused, **{name: values[0]})
    optimizer.step()
    optimizer.step()
    usual = calls(optimizer.step)
    optimizer.param_groups[0][name] = values[1]
    assert calls(optimizer.step) < 1.3 * usual + 200


@both
@each_kernel
@pytest.mark.parametrize(
    "turns", [(slice(49), slice(50)), (slice(25), slice(25, 50))], ids=["one comes and goes", "halves take turns"]
)
def test_gradients_that_come_and_go_leave_what_is_known_of_the_tensors(kind, turns, fused):
    """As those of experts, and of a layer that is skipped: once all have stepped, nothing is prepared anew."""
    params = [nn.Parameter(torch.ones(3)) for _ in range(50)]
    optimizer = kind(params, lr=0.01, p=1.5, fused=fused)

    def receive(turn):
        optimizer.zero_grad()
        for param in params[turn]:
            param.grad = torch.ones(3)

    for turn in 2 * turns:
        receive(turn)
        optimizer.step()
    usual = calls(optimizer.step)
    for turn in turns:
        receive(turn)
        assert calls(optimizer.step) < 1.3 * usual + 200


@each_kernel
@pytest.mark.parametrize(
    ("kind", "options"),
    [(MirrorAdamW, {}), (MirrorAdamW, {"moments": "tensor"}), (MirrorDescent, {"normalize": "running"})],
    ids=str,
)
def test_gradients_that_come_and_go_change_no_bit(kind, options, fused):
    """Each tensor has counts, sizes and norms of its own, also in a step that only some of them take."""
    models = [[nn.Parameter(torch.full((2 + k, 3), 0.1 * (k + 1))) for k in range(5)] for _ in range(2)]
    optimizers = [kind(params, lr=0.01, p=1.1, scale="tensor", fused=fused, **options) for params in models]
    for turn, chosen in enumerate([(0, 1, 2, 3, 4), (3, 1), (4,), (0, 2, 4), (1, 2, 3, 4), (0, 1, 2, 3, 4)]):
        for params, optimizer in zip(models, optimizers, strict=True):
            optimizer.zero_grad()
            generator = torch.Generator().manual_seed(turn)
            for k in chosen:
                params[k].grad = torch.randn(params[k].shape, generator=generator)
        optimizers[1].resync()  # prepares all anew
        for optimizer in optimizers:
            optimizer.step()
        for ours, theirs in zip(*models, strict=True):
            assert torch.equal(ours, theirs)


@each_kernel
@pytest.mark.parametrize(
    ("name", "value"), [("weight_decay", 5.0), ("clip", 0.01), ("trust", 1e-4), ("maximize", True), ("lr", 0.5)]
)
def test_a_group_that_was_replaced_says_nothing_any_more(name, value, fused):
    models = [layers() for _ in range(2)]
    optimizers = [MirrorAdamW(model.parameters(), lr=0.1, p=1.1, fused=fused) for model in models]
    for model, optimizer in zip(models, optimizers, strict=True):
        step(model, optimizer)
    unchanged = copy.deepcopy((models[0], optimizers[0]))
    optimizers[1].param_groups = [dict(group) for group in optimizers[1].param_groups]
    for model, optimizer in zip(models, optimizers, strict=True):
        optimizer.param_groups[0][name] = value
        step(model, optimizer, seed=1)
    step(*unchanged, seed=1)
    ours, theirs, before = (weights(model)[0] for model in (models[1], models[0], unchanged[0]))
    assert torch.equal(ours, theirs)
    assert not torch.equal(ours, before)


@both
@each_kernel
def test_gradients_are_let_go_when_the_step_is_taken(kind, fused):
    """Else the next ones need memory beside them."""
    model = layers()
    optimizer = kind(model.parameters(), lr=0.01, p=1.1, fused=fused)
    for _ in range(2):
        step(model, optimizer)
    grads = [weakref.ref(param.grad) for param in model.parameters()]
    optimizer.zero_grad()
    gc.collect()
    assert [grad() for grad in grads] == [None] * len(grads)


@each_kernel
@pytest.mark.parametrize("p", [1.5, 2.0])
def test_a_gradient_of_another_shape_is_refused_before_anything_moves(p, fused):
    params = [nn.Parameter(torch.ones(4)), nn.Parameter(torch.ones(4, 6))]
    for param in params:
        param.grad = torch.ones_like(param)
    params[1].data = torch.ones(6, 4)
    with pytest.raises(ValueError, match=r"shape \(6, 4\) on cpu has a gradient of shape \(4, 6\)"):
        MirrorDescent(params, lr=0.1, p=p, fused=fused).step()
    assert torch.equal(params[0], torch.ones(4))


@pytest.mark.skipif(not hasattr(torch.Tensor, "grad_dtype"), reason="this torch has gradients of the weight's type")
def test_gradients_with_more_digits_than_their_weights_are_taken_as_they_are():
    duals = []
    for fused in (None, False):
        params = [nn.Parameter((torch.arange(1, 100) / 99).bfloat16()) for _ in range(2)]
        params[0].grad_dtype = torch.float32
        for param in params:
            param.grad = torch.linspace(0.001, 1, 99).to(param.grad_dtype)
        optimizer = MirrorDescent(params, lr=0.1, p=1.1, clip=1.0, fused=fused)
        optimizer.step()
        duals.append([optimizer.state[param]["dual"] for param in params])
    for ours, theirs in zip(*duals, strict=True):
        torch.testing.assert_close(ours, theirs, rtol=1e-6, atol=1e-7)


@both
@each_kernel
@pytest.mark.parametrize(
    "options", [{}, {"p": 1.5, "clip": None}, {"sparsity": 0.5, "total_steps": 1, "p": 2.0}], ids=str
)
def test_the_default_device_says_nothing_about_a_step(kind, options, fused):
    models = [layers() for _ in range(2)]
    for model, device in zip(models, ("cpu", "meta"), strict=True):
        optimizer = kind(model.parameters(), lr=0.1, fused=fused, **options)
        grads = [torch.full_like(param, 0.1) for param in model.parameters()]
        with torch.device(device):
            for param, grad in zip(model.parameters(), grads, strict=True):
                param.grad = grad
            optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(*map(weights, models), strict=True))


@each_kernel
def test_moments_that_are_refused_leave_those_that_were(fused):
    params = [nn.Parameter(torch.ones(4, 4)), nn.Parameter(torch.ones(4, dtype=torch.float64))]
    optimizer = MirrorAdamW(params, lr=0.1, p=1.5, fused=fused)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    before = copy.deepcopy(optimizer.state_dict()["state"])
    optimizer.param_groups[0]["moments"] = "matrix"
    with pytest.raises(ValueError, match="moments='matrix' needs matrices"):
        optimizer.step()
    after = optimizer.state_dict()["state"]
    assert [set(state) for state in before.values()] == [set(state) for state in after.values()]


@each_kernel
def test_a_count_that_somebody_wrote_as_a_number_is_taken(fused):
    params = [nn.Parameter(torch.ones(4)) for _ in range(2)]
    optimizer = MirrorAdamW(params, lr=0.1, p=1.5, fused=fused)
    for param in params:
        param.grad = torch.ones_like(param)
    optimizer.step()
    optimizer.state[params[0]]["step"] = 1
    optimizer.step()
    assert [float(optimizer.state[param]["step"]) for param in params] == [2.0, 2.0]
    assert torch.equal(*params)
