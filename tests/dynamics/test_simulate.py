"""What simulate computes: the paper's update, in every form, and never another trial's."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch

from mirrormax.attention import gradient, predict, scaled_readout_gradient
from mirrormax.dynamics import SimulationOptions, engine, simulate
from mirrormax.geometry import Hypentropy, Lp, SquaredLp, directional_divergence
from mirrormax.optim import reference_dual_norm, reference_step

from .problems import ragged_mask, sphere_batch

EXPONENTS = (1.1, 1.25, 1.75, 2.0, 3.0, 6.0)


def close(a: np.ndarray, b: np.ndarray, rtol: float) -> bool:
    return bool(np.abs(a - b).max() <= rtol * np.abs(b).max())


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("normalize", ["tensor", None])
def test_first_iterates_are_those_of_the_papers_update(p: float, normalize: str | None, backend: str) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    W0 = np.random.default_rng(0).standard_normal((10, 10))
    run = simulate(
        X,
        y,
        z,
        v,
        p=p,
        lr=0.1,
        steps=8,
        normalize=normalize,
        W0=W0,
        record="all",
        options=SimulationOptions(backend=backend),
    )
    W = torch.from_numpy(W0)
    for k in range(9):
        assert close(run.W[k], W.numpy(), 1e-9)
        g = gradient(*(torch.from_numpy(a) for a in (X, y, z, v)), W)
        W = reference_step(W, g / (reference_dual_norm(g, p) + 2.2e-16) if normalize else g, 0.1, p)


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0])
def test_head_and_weights_take_their_own_steps(p: float, backend: str) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    run = simulate(
        X,
        y,
        z,
        v,
        p=p,
        lr=0.1,
        steps=6,
        train_readout=True,
        record="all",
        options=SimulationOptions(lr_v=0.03, backend=backend),
    )
    W, u = torch.zeros(10, 10, dtype=torch.float64), torch.from_numpy(v)
    tensors = [torch.from_numpy(a) for a in (X, y, z)]
    for k in range(7):
        assert np.abs(run.W[k] - W.numpy()).max() <= 1e-9
        assert np.abs(run.v[k] - u.numpy()).max() <= 1e-9
        g, h = gradient(*tensors, u, W), scaled_readout_gradient(*tensors, u, W).scaled
        W = reference_step(W, g / reference_dual_norm(g, p), 0.1, p)
        u = reference_step(u, h / reference_dual_norm(h, p), 0.03, p)


@pytest.mark.parametrize("normalize", ["tensor", None])
def test_factored_steps_equal_autograd(normalize: str | None) -> None:
    X, y, z, v = (torch.from_numpy(a[0]) for a in sphere_batch(1))
    generator = torch.Generator().manual_seed(0)
    K, Q = (torch.randn(10, 3, generator=generator, dtype=torch.float64) / 10**0.5 for _ in range(2))
    run = simulate(
        X, y, z, v, p=3, lr=0.1, steps=5, normalize=normalize, record="all", options=SimulationOptions(factors=(K, Q))
    )
    for k in range(6):
        assert torch.allclose(run.K[k], K, rtol=0, atol=1e-9)
        assert torch.allclose(run.W[k], K @ Q.mT, rtol=0, atol=1e-9)
        factors = K.requires_grad_(), Q.requires_grad_()
        grads = torch.autograd.grad(torch.nn.functional.softplus(-y * predict(X, z, v, W=K @ Q.mT)).mean(), factors)
        grads = [g / reference_dual_norm(g, 3) if normalize else g for g in grads]
        K, Q = (reference_step(w.detach(), g, 0.1, 3) for w, g in zip(factors, grads, strict=True))


@pytest.mark.parametrize("loss", ["logistic", "exponential", "correlation"])
@pytest.mark.parametrize("train_readout", [False, True])
@pytest.mark.parametrize("normalize", [None, "tensor"])
def test_kernel_equals_tensors(loss: str, train_readout: bool, normalize: str | None) -> None:
    pytest.importorskip("numba")
    X, y, z, v = sphere_batch(7, n=5, T=6, d=4)
    settings = {"loss": loss, "train_readout": train_readout, "normalize": normalize, "lr": 0.05, "steps": 60}
    settings["p"] = np.array([1.5, 2.0, 3.0, 1.75, 2.0, 1.2, 2.5])
    settings["W0"] = np.random.default_rng(1).standard_normal((7, 4, 4))
    settings["mask"] = ragged_mask(7, 5, 6)
    a, b = (simulate(X, y, z, v, **settings, options=SimulationOptions(backend=name)) for name in ("numba", "tensor"))
    assert a.config["backend"] == "numba"
    for name in ("W", "loss", "norm", "log_rest", "label_margins") + (("v",) if train_readout else ()):
        ours, theirs = getattr(a, name), getattr(b, name)
        finite = np.isfinite(theirs)
        assert (finite == np.isfinite(ours)).all()
        assert np.abs(ours[finite] - theirs[finite]).max() <= 1e-8 * np.abs(theirs[finite]).max()
    assert (a.alpha == b.alpha).all()


@pytest.mark.parametrize("p", [1.75, 2.0, 3.0])
def test_kernel_and_tensors_end_at_the_same_divergence(p: float) -> None:
    pytest.importorskip("numba")
    X, y, z, v = sphere_batch(4)
    reference = np.random.default_rng(0).standard_normal((10, 10))
    a, b = (
        simulate(X, y, z, v, p=p, steps=600, options=SimulationOptions(references=reference, backend=name)).divergence[
            "reference"
        ]
        for name in ("numba", "tensor")
    )
    assert np.allclose(a[-1], b[-1], rtol=1e-6)


def test_tokens_that_tie_with_the_selected_one_pull_nothing(backend: str) -> None:
    X, y, z, v = sphere_batch(3)
    X = np.concatenate([X, X[:, :, :2]], axis=2)  # the first two tokens of every sequence twice
    run = simulate(X, y, z, v, p=2, steps=300, options=SimulationOptions(backend=backend))
    other = simulate(X, y, z, v, p=2, steps=300, options=SimulationOptions(backend="tensor"))
    assert np.isfinite(run.W).all()
    assert close(run.W[-1], other.W[-1], 1e-8)


def test_a_batch_equals_its_trials_one_by_one(backend: str) -> None:
    X, y, z, v = sphere_batch(6)
    batch = simulate(
        *(a.reshape(2, 3, *a.shape[1:]) for a in (X, y, z, v)),
        p=1.75,
        steps=40,
        options=SimulationOptions(backend=backend),
    )
    for k in range(6):
        alone = simulate(X[k], y[k], z[k], v[k], p=1.75, steps=40, options=SimulationOptions(backend=backend))
        part = batch[divmod(k, 3)]
        assert close(part.W, alone.W, 1e-12)
        assert (part.alpha == alone.alpha).all()
        assert part.status == alone.status == "steps"


def test_p_per_trial_equals_separate_runs(backend: str) -> None:
    X, y, z, v = sphere_batch(4)
    p = np.array([3.0, 1.5, 3.0, 2.0])
    batch = simulate(X, y, z, v, p=p, steps=40, options=SimulationOptions(backend=backend))
    assert [potential.p for potential in batch.potentials()] == p.tolist()
    for k in range(4):
        alone = simulate(X[k], y[k], z[k], v[k], p=p[k], steps=40, options=SimulationOptions(backend=backend))
        assert close(batch[k].W, alone.W, 1e-12)
        assert close(batch[k].norm, alone.norm, 1e-12)


def test_one_problem_under_many_p_broadcasts() -> None:
    X, y, z, v = sphere_batch(3)
    run = simulate(X, y, z, v, p=np.array([[1.5], [2.0]]), steps=5)
    assert run.W.shape[1:] == (2, 3, 10, 10)
    assert close(run[1, 2].W, simulate(X[2], y[2], z[2], v[2], p=2, steps=5).W, 1e-12)


def test_step_sizes_may_differ_by_trial(backend: str) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    run = simulate(X, y, z, v, lr=np.array([0.1, 0.01]), steps=20, p=[2, 2], options=SimulationOptions(backend=backend))
    assert close(run[1].W, simulate(X, y, z, v, lr=0.01, steps=20).W, 1e-12)
    assert run.norm[-1, 0] > 5 * run.norm[-1, 1]


@pytest.mark.parametrize("potential", [SquaredLp(1.5), Hypentropy(0.1)])
def test_any_potential_takes_normalised_steps_of_length_lr(potential: Lp) -> None:
    X, y, z, v = (torch.from_numpy(a[0]) for a in sphere_batch(1))
    run = simulate(X, y, z, v, p=potential, lr=0.1, steps=4, record="all")
    dims = (-2, -1)
    duals = potential.mirror_map(run.W, dims) if potential.separable else torch.stack(
        [potential.mirror_map(w, dims) for w in run.W]
    )  # fmt: skip
    assert torch.allclose(potential.dual_norm(duals.diff(dim=0), dims), torch.tensor(0.1, dtype=torch.float64))


def test_plain_steps_shrink_with_the_gradient_and_normalised_ones_do_not(backend: str) -> None:
    X, y, z, v = sphere_batch(2)
    plain, normalised = (
        simulate(X, y, z, v, lr=0.1, steps=300, normalize=flag, options=SimulationOptions(backend=backend))
        for flag in (None, "tensor")
    )
    assert (plain.norm[-1] < 0.2 * normalised.norm[-1]).all()


def test_tensors_are_answered_with_tensors_and_arrays_with_arrays() -> None:
    arrays = [a[0] for a in sphere_batch(1)]
    run = simulate(*arrays, steps=3)
    other = simulate(*(torch.from_numpy(a) for a in arrays), steps=3)
    assert isinstance(run.W, np.ndarray)
    assert isinstance(other.W, torch.Tensor)
    assert np.array_equal(run.W, other.W.numpy())


def test_the_callers_arrays_are_left_alone(backend: str) -> None:
    X, y, z, v = sphere_batch(2)
    W0 = np.ones((2, 10, 10))
    before = [a.copy() for a in (X, y, z, v, W0)]
    simulate(X, y, z, v, W0=W0, p=2, steps=5, train_readout=True, options=SimulationOptions(backend=backend))
    assert all(np.array_equal(a, b) for a, b in zip((X, y, z, v, W0), before, strict=True))


def test_example_2_selects_the_papers_tokens(backend: str) -> None:
    from mirrormax.data import example2

    problem = example2()
    X, z = problem.X / 2, problem.z / 2
    for p, alpha in ((1.75, [1, 0]), (2, [1, 0]), (3, [0, 0])):
        run = simulate(
            X,
            problem.y,
            z,
            problem.v,
            p=p,
            lr=0.1,
            steps=400,
            train_readout=True,
            options=SimulationOptions(lr_v=0.1, backend=backend),
        )
        assert run.alpha.tolist() == alpha
        assert run.mass[0] == pytest.approx(1 / 3)
        assert run.mass[1] == pytest.approx(1 / 3)
        assert run.mass[run.steps >= 20].min() > 0.99


def test_metrics_say_what_the_weights_say() -> None:
    from mirrormax.attention import attention_weights, risk, selected_tokens

    X, y, z, v = sphere_batch(3)
    reference = np.eye(10)
    run = simulate(X, y, z, v, p=3, steps=50, options=SimulationOptions(references={"eye": reference}))
    for k in (1, -1):
        W = run.W[k]
        s = attention_weights(X, z, W=W)
        assert np.allclose(run.loss[k], risk(X, y, z, v, W=W))
        assert np.allclose(run.mass[k], s.max(-1).mean(-1))
        assert np.allclose(np.exp(run.log_rest[k]), 1 - s.max(-1))
        assert np.array_equal(run.selected[k], selected_tokens(X, z, W=W))
        assert np.allclose(run.norm[k], (np.abs(W) ** 3).sum((-2, -1)) ** (1 / 3))
        assert np.allclose(run.divergence["eye"][k], directional_divergence(reference, W, 3))
    assert np.isnan(run.divergence["eye"][0]).all()
    assert np.array_equal(run.alpha, run.selected[-1])


@pytest.mark.parametrize("large", [False, True])
@pytest.mark.usefixtures("three_threads")
def test_torch_has_one_thread_for_small_problems_and_all_for_large_ones(
    large: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    problem = sphere_batch(2)
    seen = []
    monkeypatch.setattr(engine, "SMALL", problem[0].size - large)
    monkeypatch.setattr(engine.Engine, "_step", lambda self: seen.append(torch.get_num_threads()))
    simulate(*problem, p=2, steps=3, options=SimulationOptions(backend="tensor"))
    assert set(seen) == {3 if large else 1}
    assert torch.get_num_threads() == 3


def test_simulations_in_several_threads_do_not_disturb_each_other_or_torch(backend: str) -> None:
    X, y, z, v = sphere_batch(8)
    expected = simulate(X, y, z, v, p=2, steps=50, options=SimulationOptions(backend=backend)).W
    before = torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with ThreadPoolExecutor(3) as pool:
            runs = list(
                pool.map(
                    lambda _: simulate(X, y, z, v, p=2, steps=50, options=SimulationOptions(backend=backend)).W,
                    range(6),
                )
            )
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert all(close(W, expected, 1e-12) for W in runs)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("y", None), ("z", None), ("v", None), ("p", []), ("options", {})]
    + [("record", value) for value in (np.nan, np.inf, {}, 1j, 10**400, 0, True)],
)
def test_what_is_missing_or_no_number_is_refused_by_name(argument: str, value: object) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    with pytest.raises((TypeError, ValueError), match=rf"^{argument} must "):
        simulate(**{"X": X, "y": y, "z": z, "v": v, "steps": 2, argument: value})
