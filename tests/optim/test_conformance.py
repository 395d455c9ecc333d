"""What torch's own optimizer tests ask, of every row of the table."""

import copy
import io
import math
import pickle

import pytest
import torch
from optimizer_table import ROWS, parameters, run, set_gradients

from mirrormax import MirrorDescent
from mirrormax.geometry import Hypentropy, as_potential
from mirrormax.optim import MirrorAdamW

every_row = pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
# A type asks for kernels of its own, the same for many rows: every row in float64, one of each kind in the others.
KINDS = ("p=1.1", "p=1.75", "squared p=1.5", "hypentropy", "sgd with all", "held", "LinBreg by row", "AdamW")
KINDS += ("Adam p=1.25 held",)
of_each_kind = pytest.mark.parametrize("row", [row for row in ROWS if row.name in KINDS], ids=lambda row: row.name)
in_every_type = pytest.mark.parametrize(
    ("row", "dtype"),
    [
        pytest.param(row, dtype, id=f"{row.name}-{dtype}")
        for dtype in (torch.float64, torch.float32, torch.bfloat16, torch.float16)
        for row in ROWS
        if dtype == torch.float64 or row.name in KINDS
    ],
)


def plainly(row, params, steps):
    """The documented formulas in float64, one after another, with u kept between the steps."""
    options = {"weight_decay": 0.0, "scale": None, "trust": None, "clip": None, **row.options}
    if row.kind is MirrorAdamW:
        defaults = {"weight_decay": 0.01, "scale": "tensor", "trust": 0.5, "clip": 1.0, "moments": "entry"}
        options = {"betas": (0.9, 0.999), "eps": 1e-8, **defaults, **row.options}
    psi = row.potential
    tensors = [PlainTensor(psi, param.detach().double(), options) for param in params]
    for step in range(steps):
        set_gradients(params, seed=100 + step)
        gradients = [param.grad.double() * (-1 if options.get("maximize") else 1) for param in params]
        if options["clip"]:
            length = math.sqrt(sum(float((g * g).sum()) for g in gradients))
            gradients = [g * min(1.0, options["clip"] / (length + 1e-6)) for g in gradients]
        if options.get("normalize"):
            norms = [psi.dual_norm(g, tuple(range(g.ndim))) for g in gradients]
            if options["normalize"] == "global":
                norms = [psi.dual_norm(torch.stack(norms))] * len(norms)
            gradients = [g / (norm + 2.2e-16) for g, norm in zip(gradients, norms, strict=True)]
        for tensor, g in zip(tensors, gradients, strict=True):
            (tensor.adam if row.kind is MirrorAdamW else tensor.descend)(g, row.lr, step + 1)
    return [tensor.w for tensor in tensors]


class PlainTensor:
    def __init__(self, psi, w, options):
        self.psi, self.w, self.options, self.dims = psi, w.clone(), options, tuple(range(w.ndim))
        self.u = psi.mirror_map(self.w, self.dims)
        self.m, self.v = torch.zeros_like(w), 0.0
        self.size = float((w**2).mean() ** 0.5)
        s = torch.tensor(self.size, dtype=torch.float64, requires_grad=True)
        (slope,) = torch.autograd.grad(psi.mirror_map(s.reshape(1)).sum(), s)
        self.factor = float(slope) if options["scale"] else 1.0

    def descend(self, g, eta, t):
        mu, options = self.options.get("momentum", 0), self.options
        d = self.factor * g + options["weight_decay"] * self.u
        self.m = mu * self.m + d
        if mu:
            d = d + mu * self.m if options.get("nesterov") else self.m
        self.write(self.u - eta * d)

    def adam(self, g, eta, t):
        options, (first, second) = self.options, self.options["betas"]
        self.m = first * self.m + (1 - first) * g
        self.v = second * self.v + (1 - second) * (g**2 if options["moments"] == "entry" else (g**2).mean())
        m, v = self.m / (1 - first**t), self.v / (1 - second**t)
        shrunk = self.psi.mirror_map(self.w * (1 - eta * options["weight_decay"]), self.dims)
        u = shrunk + (self.u - self.psi.mirror_map(self.w, self.dims))
        self.write(u - eta * self.factor * m / (v.sqrt() + options["eps"]))

    def write(self, u):
        before, self.u, self.w = self.w, u, self.psi.inverse_map(u, self.dims)
        if self.options["trust"]:
            limit = before.abs() + self.options["trust"] * self.size
            held = self.w.abs() > limit
            self.w = torch.where(held, limit * self.w.sign(), self.w)
            everywhere = held if self.psi.separable else held.any()
            self.u = torch.where(everywhere, self.psi.mirror_map(self.w, self.dims), u)


@every_row
@pytest.mark.parametrize("options", [{}, {"fused": False}], ids=str)
def test_steps_are_the_documented_formulas(row, options):
    expected = plainly(row, parameters(), steps=5)
    params = parameters()
    run(row(params, **options), params, steps=5)
    for param, w in zip(params, expected, strict=True):
        torch.testing.assert_close(param.detach(), w, rtol=1e-10, atol=1e-13)


@of_each_kind
def test_float32_steps_are_the_formulas_to_single_precision(row):
    expected = plainly(row, parameters(torch.float32), steps=5)
    params = parameters(torch.float32)
    run(row(params), params, steps=5)
    for param, w in zip(params, expected, strict=True):
        psi = row.potential
        # The step is exact in the dual variable; near a zero of u, w = ∇ψ*(u) magnifies its last bit.
        ours = psi.mirror_map(param.detach().double(), tuple(range(w.ndim)))
        theirs = psi.mirror_map(w, tuple(range(w.ndim)))
        torch.testing.assert_close(ours, theirs, rtol=1e-4, atol=1e-6)


@of_each_kind
def test_a_convex_loss_is_minimised(row):
    params = parameters()
    sign = -1 if row.options.get("maximize") else 1
    start, end = minimise(row(params), params, distance=0.3, sign=sign)
    assert end < (0.2 if row.options.get("weight_decay") else 0.1) * start


@pytest.mark.parametrize("p", [1.01, 1.1, 1.5, 2.0, 3.0, 6.0, 50.0])
@pytest.mark.parametrize("size", [0.05, 4.0])
def test_the_rule_for_the_step_size_works_at_every_p_and_size(p, size):
    """lr = (p-1) s^{p-2} times that of gradient descent, for weights of size s."""
    generator = torch.Generator().manual_seed(0)
    params = [torch.nn.Parameter(size * (1 + 0.02 * torch.randn(10, generator=generator, dtype=torch.float64)))]
    optimizer = MirrorDescent(params, lr=0.1 * (p - 1) * size ** (p - 2), p=p)
    start, end = minimise(optimizer, params, distance=0.02 * size)
    assert end < 1e-3 * start


def minimise(optimizer, params, distance, sign=1):
    """400 steps on half the squared distance to points that lie ``distance`` away; loss before and after."""
    generator = torch.Generator().manual_seed(1)
    targets = [p.detach() + distance * torch.randn(p.shape, generator=generator, dtype=p.dtype) for p in params]

    def gradients():
        return [param.detach() - target for param, target in zip(params, targets, strict=True)]

    def loss():
        return sum(float(g.square().sum()) for g in gradients()) / 2

    start = loss()
    for _ in range(400):
        for param, g in zip(params, gradients(), strict=True):
            param.grad = sign * g
        optimizer.step()
    return start, loss()


@in_every_type
def test_a_resumed_run_is_bitwise_the_same_run(row, dtype):
    params = parameters(dtype)
    optimizer = row(params)
    run(optimizer, params, steps=3)
    buffer = io.BytesIO()
    torch.save({"weights": [p.detach() for p in params], "optimizer": optimizer.state_dict()}, buffer)
    run(optimizer, params, steps=3, first=3)

    buffer.seek(0)
    saved = torch.load(buffer, weights_only=True)
    resumed = parameters(dtype, seed=9)
    other = row(resumed)
    other.load_state_dict(saved["optimizer"])
    with torch.no_grad():
        for param, weight in zip(resumed, saved["weights"], strict=True):
            param.copy_(weight)
    run(other, resumed, steps=3, first=3)
    for a, b in zip(params, resumed, strict=True):
        assert torch.equal(a, b)


@every_row
@pytest.mark.parametrize(
    "clone", [copy.deepcopy, lambda pair: pickle.loads(pickle.dumps(pair))], ids=["deepcopy", "pickle"]
)
def test_copies_go_on_like_the_original(row, clone):
    params = parameters()
    optimizer = row(params)
    run(optimizer, params, steps=2)
    twin, twin_params = clone((optimizer, params))
    run(optimizer, params, steps=2, first=2)
    run(twin, twin_params, steps=2, first=2)
    for a, b in zip(params, twin_params, strict=True):
        assert torch.equal(a, b)


@in_every_type
def test_dtypes_are_kept_and_state_has_at_least_32_bits(row, dtype):
    params = parameters(dtype)
    optimizer = row(params)
    run(optimizer, params, steps=2)
    assert all(param.dtype == dtype for param in params)
    for state in optimizer.state.values():
        assert all(value.dtype.itemsize >= 4 for value in state.values())


@every_row
def test_parameters_without_gradient_are_left_alone(row):
    params = parameters()
    optimizer = row(params)
    before = params[0].detach().clone()
    set_gradients(params, seed=0)
    params[0].grad = None
    optimizer.step()
    assert torch.equal(params[0], before)
    assert not optimizer.state.get(params[0])
    assert not torch.equal(params[1], parameters()[1])


@every_row
def test_gradients_are_never_written(row):
    params = parameters()
    set_gradients(params, seed=0)
    before = [param.grad.clone() for param in params]
    versions = [param.grad._version for param in params]
    row(params).step()
    assert all(torch.equal(param.grad, g) for param, g in zip(params, before, strict=True))
    assert [param.grad._version for param in params] == versions


@every_row
def test_a_closure_is_evaluated_with_gradients_and_returned(row):
    params = parameters()
    optimizer = row(params)

    def closure():
        optimizer.zero_grad()
        loss = sum(param.square().sum() for param in params)
        loss.backward()
        return loss

    expected = float(sum(param.detach().square().sum() for param in params))
    assert float(optimizer.step(closure).detach()) == pytest.approx(expected)
    assert not torch.equal(params[0], parameters()[0])


@every_row
def test_a_scheduler_moves_the_step_size(row):
    params, other = parameters(), parameters()
    optimizer = row(params)
    scheduler = torch.optim.lr_scheduler.LambdaLR(optimizer, lambda step: 0.5**step)
    run(optimizer, params, steps=1)
    scheduler.step()
    run(optimizer, params, steps=1, first=1)
    by_hand = row(other)
    run(by_hand, other, steps=1)
    by_hand.param_groups[0]["lr"] = row.lr / 2
    run(by_hand, other, steps=1, first=1)
    for a, b in zip(params, other, strict=True):
        assert torch.equal(a, b)


@every_row
def test_a_tensor_step_size_equals_a_number(row):
    params, other = parameters(), parameters()
    run(row(params, lr=torch.tensor(row.lr, dtype=torch.float64)), params, steps=2)
    run(row(other), other, steps=2)
    for a, b in zip(params, other, strict=True):
        assert torch.equal(a, b)


@every_row
def test_a_nan_gradient_makes_nan_weights_as_in_torch(row):
    params = parameters()
    set_gradients(params, seed=0)
    params[0].grad[0, 0] = torch.nan
    row(params).step()
    assert torch.isnan(params[0][0, 0])


@every_row
def test_nonfinite_gradients_are_refused_before_anything_moves(row):
    params = parameters()
    optimizer = row([{"params": params[:2]}, {"params": params[2:], "name": "last"}], error_if_nonfinite=True)
    set_gradients(params, seed=0)
    params[3].grad[0, 0] = torch.inf
    with pytest.raises(RuntimeError, match=r"parameter 1 in group 1 \('last'\) has 1 entries that are NaN or Inf"):
        optimizer.step()
    assert all(torch.equal(a, b) for a, b in zip(params, parameters(), strict=True))
    assert not optimizer.state


@every_row
def test_state_and_groups_are_plain_data(row):
    params = parameters()
    optimizer = row(params)
    run(optimizer, params, steps=1)
    for group in optimizer.state_dict()["param_groups"]:
        for value in group.values():
            assert value is None or isinstance(value, (bool, int, float, str, list, dict, tuple))


def test_every_group_has_its_own_hyperparameters():
    params, alone = parameters(), parameters()
    options = [{"p": 1.1, "lr": 0.02}, {"momentum": 0.9}, {"p": Hypentropy(2.0)}, {"normalize": "tensor", "p": 3}]
    groups = [{"params": [param], **o} for param, o in zip(params, options, strict=True)]
    run(MirrorDescent(groups, lr=0.1, p=1.5), params, steps=3)
    for param, o, whole in zip(alone, options, [parameters() for _ in range(4)], strict=True):
        index = next(i for i, a in enumerate(alone) if a is param)
        optimizer = MirrorDescent([whole[index]], **{"lr": 0.1, "p": 1.5, **o})
        run(optimizer, whole, steps=3)
        assert torch.equal(whole[index], params[index])


def test_a_group_can_be_added_later():
    params = parameters()
    optimizer = MirrorDescent(params[:1], lr=0.1, p=1.5)
    optimizer.add_param_group({"params": params[1:], "p": 3.0, "name": "late"})
    assert as_potential(optimizer.param_groups[1]["p"]).p == 3.0
    run(optimizer, params, steps=1)
    assert all(not torch.equal(a, b) for a, b in zip(params, parameters(), strict=True))


def test_named_parameters_are_accepted():
    model = torch.nn.Linear(2, 2)
    optimizer = MirrorDescent(model.named_parameters(), lr=0.1, p=1.5)
    assert optimizer.param_groups[0]["param_names"] == ["weight", "bias"]


@pytest.mark.parametrize("options", [{}, {"momentum": 0.9}, {"momentum": 0.9, "nesterov": True, "weight_decay": 0.1}])
def test_p_2_is_torch_sgd_exactly(options):
    params, other = parameters(torch.float32), parameters(torch.float32)
    run(MirrorDescent(params, lr=0.1, p=2, **options), params, steps=4)
    run(torch.optim.SGD(other, lr=0.1, **options), other, steps=4)
    for a, b in zip(params, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-7)


def test_one_cycle_may_cycle_the_momentum():
    params = parameters()
    optimizer = MirrorDescent(params, lr=0.1, p=1.5, momentum=0.9)
    scheduler = torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.1, total_steps=5)
    set_gradients(params, seed=0)
    optimizer.step()
    scheduler.step()
    assert optimizer.param_groups[0]["momentum"] < 0.95
