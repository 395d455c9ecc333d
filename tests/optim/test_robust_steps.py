"""scale, trust and clip: steps that fit every tensor and cannot blow up."""

import math

import pytest
import torch
from optimizer_table import parameters, run, set_gradients
from torch import nn

from mirrormax.geometry import ElasticNet, Hypentropy, as_potential
from mirrormax.optim import MirrorAdamW, MirrorDescent

both = pytest.mark.parametrize("kind", [MirrorDescent, MirrorAdamW])


@pytest.mark.parametrize("p", [1.05, 1.1, 1.5, 2.0, 3.0, Hypentropy(0.1), ElasticNet(0.0, 0.5)], ids=str)
@pytest.mark.parametrize("size", [0.02, 1.0])
def test_a_scaled_step_moves_weights_of_typical_size_as_sgd_does(p, size):
    param = nn.Parameter(size * torch.tensor([1.0, -1.0, 1.0, -1.0], dtype=torch.float64))
    before, param.grad = param.detach().clone(), torch.tensor([1.0, -2.0, 0.5, 3.0], dtype=torch.float64)
    MirrorDescent([param], lr=1e-7, p=p, scale="tensor").step()
    torch.testing.assert_close(param.detach() - before, -1e-7 * param.grad, rtol=1e-3, atol=0)


@both
def test_the_size_of_a_tensor_is_taken_once_and_kept_in_the_state(kind):
    param = nn.Parameter(torch.tensor([3.0, -4.0]))
    optimizer = kind([param], lr=0.1, p=1.5, scale="tensor")
    for _ in range(3):
        param.grad = torch.ones(2)
        optimizer.step()
        with torch.no_grad():
            param.mul_(2)
    assert float(optimizer.state[param]["size"]) == pytest.approx(math.sqrt(12.5))


@both
@pytest.mark.parametrize("p", [1.1, 1.5, 2.0, 3.0])
@pytest.mark.parametrize("options", [{}, {"fused": False}, {"capturable": True}], ids=str)
def test_no_weight_grows_by_more_than_the_trust_allows(kind, p, options):
    params = parameters()
    optimizer = kind(params, lr=50.0, p=p, trust=0.25, clip=None, weight_decay=0.0, **options)
    sizes = [float(param.detach().square().mean().sqrt()) for param in params]
    for step in range(4):
        before = [param.detach().abs().clone() for param in params]
        set_gradients(params, seed=step)
        optimizer.step()
        growth = [(param.detach().abs() - w) / size for param, w, size in zip(params, before, sizes, strict=True)]
        assert max(float(g.max()) for g in growth) == pytest.approx(0.25, rel=1e-4)
        psi = as_potential(p)
        for param in params:
            if "dual" in optimizer.state[param]:
                torch.testing.assert_close(optimizer.state[param]["dual"], psi.mirror_map(param.detach()))


@both
@pytest.mark.parametrize("options", [{}, {"fused": False}, {"capturable": True}], ids=str)
def test_clipping_is_torchs_own(kind, options):
    params, other = parameters(), parameters()
    ours = kind(params, lr=0.01, p=1.5, clip=0.2, **options)
    theirs = kind(other, lr=0.01, p=1.5, clip=None, **options)
    for step in range(3):
        set_gradients(params, seed=step)
        set_gradients(other, seed=step)
        norm = nn.utils.clip_grad_norm_(other, 0.2)
        assert norm > 0.2
        ours.step()
        theirs.step()
    for a, b in zip(params, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-6, atol=1e-9)


def test_each_group_has_its_own_clip_of_one_common_norm():
    params = [nn.Parameter(torch.zeros(1)) for _ in range(3)]
    for param, g in zip(params, (3.0, 4.0, 100.0), strict=True):
        param.grad = torch.tensor([g])
    groups = [{"params": [params[0]], "clip": 1.0}, {"params": [params[1]], "clip": 2.5}, {"params": [params[2]]}]
    MirrorDescent(groups, lr=1.0, p=2.0).step()
    assert [float(param.detach()) for param in params] == pytest.approx([-0.6, -2.0, -100.0], rel=1e-5)


@both
def test_tensors_that_begin_at_zero_are_trained_with_p_2_and_named(kind):
    torch.manual_seed(0)
    layer = nn.ModuleDict({"lora_A": nn.Linear(4, 2, bias=False), "lora_B": nn.Linear(2, 4, bias=False)})
    nn.init.zeros_(layer["lora_B"].weight)
    optimizer = kind(layer.named_parameters(), lr=0.01, p=1.1, scale="tensor", clip=None)
    x = torch.ones(3, 4)

    def step():
        optimizer.zero_grad()
        (layer["lora_B"](layer["lora_A"](x)) - 1).square().mean().backward()
        optimizer.step()

    with pytest.warns(UserWarning, match=r"begin at zero.*p = 2 instead: lora_B.weight\."):
        step()
    for _ in range(50):
        step()
    w = layer["lora_B"].weight
    assert float(w.detach().abs().mean()) > 0.01
    assert optimizer.state[w].keys() == optimizer.state[layer["lora_A"].weight].keys()
    twin = kind(layer.named_parameters(), lr=0.01, p=1.1, scale="tensor", clip=None)
    twin.load_state_dict(optimizer.state_dict())
    step()
    torch.testing.assert_close(optimizer.state[w]["dual"], w.detach())


@both
def test_weights_under_a_threshold_may_begin_at_zero(kind):
    param = nn.Parameter(torch.zeros(3))
    optimizer = kind([param], lr=0.1, p=ElasticNet(0.05), scale="tensor", trust=0.5)
    for _ in range(20):
        param.grad = param.detach() - torch.tensor([1.0, 0.0, -1.0])
        optimizer.step()
    assert param[0] > 0.1
    assert param[1] == 0


def grid():
    """13 step sizes, from a thousandth to a thousand times what is sensible."""
    return [10.0**k for k in torch.linspace(-4, 2, 13).tolist()]


class Tiny(nn.Module):
    """Eight rows of eight pixels as tokens, two layers of attention with norms."""

    def __init__(self):
        super().__init__()
        self.embed = nn.Linear(8, 16)
        self.places = nn.Parameter(0.1 * torch.randn(8, 16))
        layer = nn.TransformerEncoderLayer(16, 2, 32, 0.0, batch_first=True)
        self.blocks = nn.TransformerEncoder(layer, 2, enable_nested_tensor=False)
        self.head = nn.Linear(16, 10)

    def forward(self, x):
        return self.head(self.blocks(self.embed(x.unflatten(1, (8, 8))) + self.places).mean(1))


def perceptron():
    return nn.Sequential(nn.Linear(64, 32), nn.ReLU(), nn.Linear(32, 32), nn.ReLU(), nn.Linear(32, 10))


KINDS = {
    "descent": (MirrorDescent, {}),
    "entry": (MirrorAdamW, {"moments": "entry"}),
    "tensor": (MirrorAdamW, {"moments": "tensor"}),
}


def stays_in_the_numbers(make, kind, p, steps):
    from sklearn.datasets import load_digits

    images, labels = (torch.tensor(x) for x in load_digits(return_X_y=True))
    images = images[:500].float() / 16
    chosen, options = KINDS[kind]
    for lr in grid():
        torch.manual_seed(0)
        net = make()
        optimizer = chosen(net.parameters(), lr=lr, p=p, scale="tensor", trust=0.5, clip=1.0, **options)
        for step in range(steps):
            batch = slice(50 * (step % 10), 50 * (step % 10) + 50)
            optimizer.zero_grad()
            loss = nn.functional.cross_entropy(net(images[batch]), labels[batch])
            loss.backward()
            optimizer.step()
            assert math.isfinite(float(loss.detach())), (p, lr, step)
        assert all(bool(torch.isfinite(param).all()) for param in net.parameters()), (p, lr)


@pytest.mark.parametrize("kind", ["descent", "entry"])
@pytest.mark.parametrize("p", [1.05, 1.5, 3.0])
def test_no_step_size_makes_a_network_leave_the_numbers(kind, p):
    stays_in_the_numbers(perceptron, kind, p, steps=30)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:these tensors begin at zero")
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("p", [1.05, 1.1, 1.2, 1.25, 1.4, 1.5, 1.75, 2.0, 2.5, 3.0])
@pytest.mark.parametrize("make", [perceptron, Tiny], ids=["perceptron", "transformer"])
def test_nor_any_of_them_in_the_whole_grid_with_attention_and_for_longer(make, kind, p):
    stays_in_the_numbers(make, kind, p, steps=200)


def test_without_them_such_a_step_size_does():
    """The test above can fail: plain mirror descent near p = 1 leaves the numbers."""
    torch.manual_seed(0)
    param = nn.Parameter(torch.randn(20))
    optimizer = MirrorDescent([param], lr=1.0, p=1.1)
    for _ in range(10):
        optimizer.zero_grad()
        (5 * param.square()).sum().backward()
        optimizer.step()
    assert not bool(torch.isfinite(param).all())


REFUSED = [
    ({"scale": "layer"}, ValueError, "scale must be None or 'tensor', got 'layer'"),
    ({"trust": 0.0}, ValueError, "trust must be a finite number greater than 0, got 0"),
    ({"clip": -1}, ValueError, "clip must be a finite number greater than 0, got -1"),
    ({"clip": "1"}, TypeError, "clip must be a number, got '1'"),
    ({"capturable": 1}, TypeError, "capturable must be True or False"),
    ({"capturable": True, "compile": True}, ValueError, "compile=True and capturable=True .* choose one"),
    ({"p": 100.0}, ValueError, "p must be at most 80 in an optimizer, got 100.0"),
]


@both
@pytest.mark.parametrize(("options", "error", "message"), REFUSED, ids=str)
def test_bad_options_are_refused(kind, options, error, message):
    with pytest.raises(error, match=message):
        kind([nn.Parameter(torch.ones(2))], **{"lr": 0.1, "p": 1.5, **options})


def test_clipping_what_is_normalised_is_refused():
    with pytest.raises(ValueError, match=r"normalize='tensor' divides .* leaves clip=1 nothing to do"):
        MirrorDescent([nn.Parameter(torch.ones(2))], lr=0.1, p=1.5, normalize="tensor", clip=1.0)


@both
def test_a_capturable_step_asks_for_no_number(kind):
    from torch.utils._python_dispatch import TorchDispatchMode

    class NoNumbers(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            assert func not in (torch.ops.aten._local_scalar_dense.default, torch.ops.aten.is_nonzero.default), func
            return func(*args, **(kwargs or {}))

    params, other = parameters(), parameters()
    options = {"p": 1.5, "scale": "tensor", "trust": 0.1, "clip": 0.3}
    captured = kind(params, lr=torch.tensor(0.05, dtype=torch.float64), capturable=True, **options)
    run(captured, params, steps=1)
    with NoNumbers():
        run(captured, params, steps=3, first=1)
    run(kind(other, lr=0.05, **options), other, steps=4)
    for a, b in zip(params, other, strict=True):
        torch.testing.assert_close(a, b, rtol=1e-5, atol=1e-7)
