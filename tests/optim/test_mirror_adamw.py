"""MirrorAdamW against torch's AdamW, AdaBreg and the plain reference; and one object for a whole model."""

import copy

import pytest
import torch
from optimizer_table import PLAIN, parameters, run, set_gradients
from torch import nn

from mirrormax.geometry import ElasticNet, Lp
from mirrormax.optim import MirrorAdamW, MirrorDescent, param_groups, sparse_start

VARIANTS = [{"foreach": False}, {"foreach": True}, {"fused": True}]
OURS = [{}, {"fused": False}, {"capturable": True}]  # compiled: see test_compiled.py


def ordinary(dtype):
    """Tensors that are laid end to end, one that is cut into chunks, a strided one."""
    generator = torch.Generator().manual_seed(0)
    shapes = [(30, 40), (7,), (600, 500), (3, 5), (1,)]
    return [nn.Parameter((0.05 * torch.randn(s, generator=generator, dtype=torch.float64)).to(dtype)) for s in shapes]


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("options", OURS, ids=str)
@pytest.mark.parametrize("maximize", [False, True])
def test_p_2_with_moments_per_entry_is_torchs_adamw(dtype, options, maximize):
    common = {"lr": 1e-2, "betas": (0.8, 0.99), "eps": 1e-6, "weight_decay": 0.1, "maximize": maximize}
    params = ordinary(dtype)
    run(MirrorAdamW(params, p=2.0, moments="entry", **PLAIN, **common, **options), params, steps=5)
    theirs = []
    for variant in VARIANTS:
        theirs.append(ordinary(dtype))
        run(torch.optim.AdamW(theirs[-1], **common, **variant), theirs[-1], steps=5)
    last_bits = 4 * torch.finfo(dtype).eps
    for ours, *torchs in zip(params, *theirs, strict=True):
        spread = max(float((a - torchs[0]).detach().abs().max()) for a in torchs)
        largest = float(ours.detach().abs().max())
        assert max(float((ours - a).detach().abs().max()) for a in torchs) <= spread + last_bits * largest


@pytest.mark.parametrize("options", OURS[:2], ids=str)
def test_adabreg_is_what_its_authors_write(options):
    """Bungert et al. 2022, Algorithm 3, in their own symbols: v dual, θ weights, soft thresholding as the prox."""
    lam, delta, tau, (b1, b2), eps = 0.02, 0.5, 0.01, (0.9, 0.999), 1e-8
    params = parameters()
    thetas = [param.detach().clone() for param in params]
    vs = [theta / delta + lam * theta.sign() for theta in thetas]
    m1, m2 = [torch.zeros_like(t) for t in thetas], [torch.zeros_like(t) for t in thetas]
    for k in range(1, 8):
        set_gradients(params, seed=99 + k)
        for i, param in enumerate(params):
            m1[i] = b1 * m1[i] + (1 - b1) * param.grad
            m2[i] = b2 * m2[i] + (1 - b2) * param.grad**2
            vs[i] = vs[i] - tau * (m1[i] / (1 - b1**k)) / ((m2[i] / (1 - b2**k)).sqrt() + eps)
            thetas[i] = (delta * vs[i]).sign() * ((delta * vs[i]).abs() - delta * lam).clamp_min(0)
    net = ElasticNet(lam, delta)
    run(MirrorAdamW(params, lr=tau, p=net, moments="entry", weight_decay=0, **PLAIN, **options), params, steps=7)
    for param, theta in zip(params, thetas, strict=True):
        torch.testing.assert_close(param.detach(), theta, rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("options", [{}, {"capturable": True}], ids=str)
def test_linbreg_is_what_its_authors_write(options):
    lam, delta, tau = 0.05, 2.0, 0.2
    params = parameters()
    thetas = [param.detach().clone() for param in params]
    vs = [theta / delta + lam * theta.sign() for theta in thetas]
    for k in range(5):
        set_gradients(params, seed=100 + k)
        vs = [v - tau * param.grad for v, param in zip(vs, params, strict=True)]
        thetas = [(delta * v).sign() * ((delta * v).abs() - delta * lam).clamp_min(0) for v in vs]
    run(MirrorDescent(params, lr=tau, p=ElasticNet(lam, delta), **options), params, steps=5)
    for param, theta in zip(params, thetas, strict=True):
        torch.testing.assert_close(param.detach(), theta, rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("p", [1.1, 1.5, 2.0, 3.0, ElasticNet(0.01, 0.5)], ids=str)
def test_weight_decay_shrinks_weights_by_the_same_factor_at_every_p(p):
    params = parameters()
    before = [param.detach().clone() for param in params]
    optimizer = MirrorAdamW(params, lr=0.1, p=p, weight_decay=0.5)
    for _ in range(3):
        for param in params:
            param.grad = torch.zeros_like(param)
        optimizer.step()
    for param, w in zip(params, before, strict=True):
        torch.testing.assert_close(param.detach(), w * 0.95**3, rtol=1e-9, atol=0)


class Small(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(11, 8)
        self.position = nn.Parameter(0.1 * torch.randn(5, 8))
        self.blocks = nn.TransformerEncoder(nn.TransformerEncoderLayer(8, 2, 16, 0.0, batch_first=True), 1)
        self.head = nn.Linear(8, 3)

    def forward(self, ids):
        return self.head(self.blocks(self.embed(ids) + self.position).mean(1))


MATRICES = [
    f"blocks.layers.0.{name}"
    for name in ("self_attn.in_proj_weight", "self_attn.out_proj.weight", "linear1.weight", "linear2.weight")
]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_one_object_serves_a_whole_model():
    model = Small()
    optimizer = MirrorAdamW(model, lr=1e-3, p=1.1)
    first, second = optimizer.param_groups
    assert first["param_names"] == MATRICES
    assert (first["p"], first["moments"], second["p"], second["moments"]) == (1.1, "entry", 2.0, "entry")
    assert {"embed.weight", "position", "head.weight", "head.bias"} <= set(second["param_names"])
    groups = param_groups(model, matrices={"p": ElasticNet(1e-3)}, rest={"p": 2.0}, scope="matrices")
    assert [group["name"] for group in groups] == ["matrices", "rest"]
    assert groups[0]["param_names"] == MATRICES


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_without_p_vectors_and_named_embeddings_and_heads_get_adamws_step():
    model = Small()
    for params in (model.named_parameters(), [{"params": list(model.named_parameters())}]):
        first, second = MirrorAdamW(params, lr=1e-3).param_groups
        assert first["param_names"] == MATRICES
        assert first["p"] == 1.5
        assert (second["p"], second["moments"]) == (2.0, "entry")
    first, second = MirrorAdamW(model.parameters(), lr=1e-3).param_groups
    assert all(param.ndim > 1 for param in first["params"])
    assert all(param.ndim < 2 for param in second["params"])
    (only,) = MirrorAdamW(model.parameters(), lr=1e-3, p=1.5).param_groups
    assert len(only["params"]) == len(list(model.parameters()))
    vectors = [nn.Parameter(torch.ones(3))]
    assert [g["p"] for g in MirrorAdamW(vectors).param_groups] == [2.0]


@pytest.mark.filterwarnings("ignore:enable_nested_tensor")
def test_a_whole_model_learns():
    torch.manual_seed(0)
    model = Small()
    optimizer = MirrorAdamW(model, lr=1e-2, p=1.1)
    ids = torch.randint(0, 11, (64, 5))
    labels = ids[:, 0] % 3
    losses = []
    for _ in range(80):
        optimizer.zero_grad()
        loss = nn.functional.cross_entropy(model(ids), labels)
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach()))
    assert losses[-1] < 0.1 * losses[0]


def test_p_may_move_along_a_schedule_and_u_is_read_off_the_weights():
    params = parameters()
    optimizer = MirrorAdamW(params, lr=0.01, p=2.0, weight_decay=0.0)
    for step, p in enumerate((2.0, 1.7, 1.4, 1.1)):
        optimizer.param_groups[0]["p"] = p
        before = [param.detach().clone() for param in params]
        if step:
            optimizer.param_groups[0]["lr"] = 0.0
            run(optimizer, params, steps=1)
            optimizer.param_groups[0]["lr"] = 0.01
            for param, w in zip(params, before, strict=True):
                torch.testing.assert_close(param.detach(), w, rtol=1e-10, atol=0)
        run(optimizer, params, steps=1, first=step)
    for param in params:
        u = optimizer.state[param]["dual"]
        torch.testing.assert_close(Lp(1.1).inverse_map(u), param.detach(), rtol=1e-9, atol=1e-14)


@pytest.mark.parametrize(("before", "after"), [("tensor", "entry"), ("entry", "tensor")])
def test_moments_may_be_taken_by_entry_or_tensor_from_one_step_to_the_next(before, after):
    params = parameters()
    optimizer = MirrorAdamW(params, lr=0.01, p=1.5, moments=before)
    run(optimizer, params, steps=2)
    means = [float(optimizer.state[param]["exp_avg_sq"].mean()) for param in params]
    optimizer.param_groups[0]["moments"] = after
    for param in params:
        param.grad = torch.zeros_like(param)
    optimizer.step()
    for param, mean in zip(params, means, strict=True):
        assert float(optimizer.state[param]["exp_avg_sq"].mean()) == pytest.approx(0.999 * mean, rel=1e-6)


def test_a_sparse_start_keeps_the_share_and_the_mean_square():
    w = nn.Parameter(torch.randn(200, 100))
    before = w.detach().clone()
    sparse_start([w], density=0.1, generator=torch.Generator().manual_seed(0))
    assert float((w != 0).float().mean()) == pytest.approx(0.1, abs=0.01)
    kept = w.detach() != 0
    torch.testing.assert_close(w.detach()[kept], before[kept] * 10**0.5)
    sparse_start([("w", w)], density=1.0, rescale=False)
    assert float((w != 0).float().mean()) == pytest.approx(0.1, abs=0.01)
    for density in (0, 1.5):
        with pytest.raises(ValueError, match="density must be"):
            sparse_start([w], density=density)


def test_a_sparse_start_under_a_threshold_lets_weights_in():
    torch.manual_seed(0)
    x, target = torch.randn(300, 20), torch.zeros(1, 20)
    target[0, :3] = torch.tensor([1.0, -2.0, 0.5])
    w = nn.Parameter(0.1 * torch.randn(1, 20))
    sparse_start([w], density=0.1)
    optimizer = MirrorAdamW([w], lr=0.05, p=ElasticNet(0.5), weight_decay=0.0, moments="tensor")
    for _ in range(300):
        optimizer.zero_grad()
        (x @ (w - target).t()).square().mean().backward()
        optimizer.step()
    assert set(w.detach().nonzero()[:, 1].tolist()) >= {0, 1, 2}
    assert int((w != 0).sum()) < 15


REFUSED = [
    ({"betas": 0.9}, TypeError, r"betas must be two numbers, got 0.9; write betas=\(0.9, 0.999\)"),
    ({"betas": (0.9, 1.0)}, ValueError, "betas must be .* less than 1, got 1.0"),
    ({"eps": -1.0}, ValueError, "eps must be .* got -1.0"),
    ({"moments": "row"}, ValueError, "moments must be .* 'matrix', got 'row'"),
    ({"weight_decay": -1}, ValueError, "weight_decay .* got -1"),
]


@pytest.mark.parametrize(("options", "error", "message"), REFUSED, ids=str)
def test_bad_options_are_refused(options, error, message):
    with pytest.raises(error, match=message):
        MirrorAdamW([nn.Parameter(torch.ones(2))], **options)


def test_a_copy_takes_groups_as_any_optimizer_does():
    params = parameters()
    optimizer = copy.deepcopy(MirrorAdamW(params[:1], lr=0.01))
    optimizer.add_param_group({"params": params[1:2]})
    assert "moments: entry" in repr(optimizer)
