"""Rules: the steps of torch's own optimizers, limits that the rule's norm decides, and what is refused."""

import numpy as np
import pytest
import torch

from mirrormax.attention import leads, predict
from mirrormax.data import class_problem, sphere_problem
from mirrormax.dynamics import (
    Adam,
    Coordinate,
    Lion,
    Muon,
    Sign,
    SimulationOptions,
    Spectral,
    Trajectory,
    simulate,
    simulate_heads,
)
from mirrormax.optim.reference import ReferenceTensor
from mirrormax.svm import att_svm

from .problems import sphere_batch

STEPS, LR = 100, 0.05


def own_loop(step, W0=None):
    """The weights after every step of ``step(W, gradient)`` on the first problem, gradients by autograd."""
    X, y, z, v = (torch.from_numpy(a[0]) for a in sphere_batch(1))
    W = torch.nn.Parameter(torch.zeros(10, 10, dtype=torch.float64) if W0 is None else torch.from_numpy(W0.copy()))
    path = [W.detach().clone()]
    for _ in range(STEPS):
        W.grad = None
        torch.nn.functional.softplus(-y * predict(X, z, v, W=W)).mean().backward()
        step(W)
        path.append(W.detach().clone())
    return torch.stack(path).numpy()


def simulated(rule, **settings):
    X, y, z, v = (a[0] for a in sphere_batch(1))
    return simulate(X, y, z, v, lr=LR, steps=STEPS, rule=rule, record="all", **settings).W


def with_torch(make, W0=None):
    optimizers = []

    def step(W):
        if not optimizers:
            optimizers.append(make([W]))
        optimizers[0].step()

    return own_loop(step, W0)


def rotation(g):
    U, sigma, Vh = np.linalg.svd(g)
    rank = int((sigma > 1e-12 * sigma[0]).sum())
    return U[:, :rank] @ Vh[:rank]


@pytest.mark.parametrize(
    ("rule", "make"),
    [
        (Adam(), lambda params: torch.optim.Adam(params, lr=LR)),
        (Adam(betas=(0.5, 0.9), eps=1e-3), lambda params: torch.optim.Adam(params, lr=LR, betas=(0.5, 0.9), eps=1e-3)),
        ("adamw", lambda params: torch.optim.AdamW(params, lr=LR)),
        (Adam(weight_decay=1.0), lambda params: torch.optim.AdamW(params, lr=LR, weight_decay=1.0)),
    ],
)
def test_adam_and_adamw_are_those_of_torch(rule, make):
    W0 = np.random.default_rng(0).standard_normal((10, 10))
    np.testing.assert_allclose(simulated(rule, W0=W0), with_torch(make, W0), atol=1e-10)


def test_newton_schulz_muon_is_that_of_torch_up_to_its_bfloat16():
    W0 = 0.1 * np.random.default_rng(0).standard_normal((10, 10))
    theirs = with_torch(lambda params: torch.optim.Muon(params, lr=LR), W0)
    ours = simulated("muon-newton-schulz", W0=W0)
    assert np.abs(ours - theirs).max() < 0.05 * np.abs(theirs).max()


def test_muon_sign_lion_and_coordinate_take_the_steps_of_their_formulas():
    memory = {"m": np.zeros((10, 10))}

    def muon(W):
        g = W.grad.numpy()
        memory["m"] = 0.95 * memory["m"] + 0.05 * g
        W.data.mul_(1 - LR * 0.1).sub_(LR * torch.from_numpy(rotation(0.05 * g + 0.95 * memory["m"])))

    def lion(W):
        g = W.grad.numpy()
        step = np.sign(0.9 * memory["m"] + 0.1 * g)
        memory["m"] = 0.99 * memory["m"] + 0.01 * g
        W.data.sub_(LR * torch.from_numpy(step))

    def coordinate(W):
        place = np.unravel_index(np.abs(W.grad.numpy()).argmax(), (10, 10))
        W.data[place] -= LR * W.grad[place].sign()

    def sign(W):
        W.data.sub_(LR * W.grad.sign())

    for rule, step in (("muon", muon), (Lion(), lion), ("coordinate", coordinate), (Sign(), sign)):
        memory["m"] = np.zeros((10, 10))
        np.testing.assert_allclose(simulated(rule), own_loop(step), atol=1e-9)


@pytest.mark.parametrize("moments", ["entry", "tensor"])
def test_mirror_adamw_is_its_reference(moments):
    W0 = np.random.default_rng(0).standard_normal((10, 10))
    options = {"lr": LR, "betas": (0.9, 0.999), "eps": 1e-8, "weight_decay": 0.1, "moments": moments}
    reference = ReferenceTensor(torch.from_numpy(W0))

    def step(W):
        reference.adapt(W.grad, 1.5, {**options, "scale": None, "trust": None})
        W.data.copy_(reference.w)

    ours = simulated(Adam(weight_decay=0.1, moments=moments), p=1.5, W0=W0)
    np.testing.assert_allclose(ours, own_loop(step, W0), atol=1e-8)


def test_a_function_of_the_gradient_is_a_rule():
    np.testing.assert_allclose(simulated(lambda direction, log_length: direction), simulated("mirror"), atol=1e-12)
    plain = simulated(lambda direction, log_length: log_length.exp()[..., None, None] * direction)
    np.testing.assert_allclose(plain, simulated("mirror", normalize=None), atol=1e-12)


def test_nothing_underflows_while_gradients_fall_beyond_all_numbers():
    X, y, z, v = (a[0] for a in sphere_batch(1))
    W0 = 2000 * simulate(X, y, z, v, steps=200).W[-1]  # gradients of e^-10000
    for rule in (Sign(0.9), Adam(eps=0.0), Muon(), Lion(), Spectral(), Coordinate()):
        run = simulate(X, y, z, v, W0=W0, steps=20, lr=0.1, rule=rule, options=SimulationOptions(weights="last"))
        assert run.status == "steps"
        assert np.abs(run.W[-1] - W0).max() > 0.09
    stuck = simulate(X, y, z, v, W0=W0, steps=20, lr=0.1, rule=Adam(eps=1e-8))
    assert np.array_equal(stuck.W[-1], W0)  # ε has won


def test_each_rule_is_nearest_to_optimal_in_its_own_norm():
    problem = sphere_problem(1, 3, 4, 5)
    for rule, norm in (("mirror", "l2"), ("sign", "linf"), ("spectral", "spectral"), ("coordinate", "l1")):
        run = simulate(problem, lr=0.05, steps=800, rule=rule, record=2)
        nearest = run.nearest_norm()
        assert nearest.norm == norm
        assert nearest.shortfalls[norm] < 0.2


def test_margins_of_a_run_are_those_of_its_solution_in_every_norm(tmp_path):
    problems = [sphere_problem(seed, 3, 4, 5) for seed in (1, 2)]
    parts = {name: np.stack([getattr(problem, name) for problem in problems]) for name in ("X", "y", "z", "v")}
    batch = simulate(**parts, p=[2, 1.5], lr=0.05, steps=50, record=3)  # trials of several p are sorted inside
    run = batch[1]
    solution = att_svm(problems[1], run.alpha, norm="spectral")
    margins = run.margins("spectral")
    assert margins.largest == pytest.approx(solution.margin)
    lead = leads(problems[1].X, problems[1].z, run.W[-1], run.alpha).min()
    assert margins.reached[-1] == pytest.approx(lead / np.linalg.norm(run.W[-1], 2))
    np.testing.assert_allclose(margins.shortfall, batch.margins("spectral").shortfall[:, 1])
    optimal = simulate(problems[1], W0=solution.W, steps=0)
    assert optimal.margins("spectral").shortfall[-1] == pytest.approx(0, abs=1e-6)
    assert optimal.margins(3).shortfall[-1] > 0.01
    run.save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz")
    with pytest.raises(ValueError, match="problem"):
        read.margins("l1")
    assert read.nearest_norm(["l1", 1.5, "k-support"], k=5, problem=problems[1]).shortfalls.keys() == {
        "l1",
        "1.5",
        "k-support",
    }


def test_heads_have_margins_of_their_own():
    X, y, z, V = class_problem(0, 3, 4, 5, classes=3, heads=2)
    run = simulate_heads(X, y, z, V, steps=60, record=2)
    for head in range(2):
        own = att_svm(X, z, run.alpha[head], norm="linf", throw=False)
        np.testing.assert_allclose(run.margins("linf").largest[head], own.margin if own.optimal else np.nan)


@pytest.mark.parametrize(
    ("rule", "words"),
    [
        ("sgd", "rule"),
        (3, "rule"),
        (lambda g: g, "length"),
        (lambda g, length: g[..., :1], "shape"),
        (lambda g, length: g * float("nan"), "NaN"),
        (Sign(momentum=1.0), "momentum"),
    ],
)
def test_rules_that_cannot_be_meant_are_refused(rule, words):
    with pytest.raises((ValueError, TypeError), match=words):
        simulated(rule)


def test_what_belongs_to_mirror_descent_is_refused_beside_another_rule():
    with pytest.raises(ValueError, match="normalize"):
        simulated("sign", normalize=None)
    with pytest.raises(ValueError, match="numba"):
        simulated("sign", options=SimulationOptions(backend="numba"))
