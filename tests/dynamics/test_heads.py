"""Several heads and classes: steps against autograd and against ``simulate``, limits against the attention SVM."""

from importlib.util import find_spec

import numpy as np
import pytest
import torch

from mirrormax.dynamics import SimulationOptions, Trajectory, simulate, simulate_heads
from mirrormax.svm import att_svm

from .problems import ragged_mask, settings, sphere_batch


def sphere(rng, *shape):
    points = rng.standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def several(*batch, heads=2, classes=3, n=4, T=5, d=6, seed=0):
    rng = np.random.default_rng(seed)
    return (
        sphere(rng, *batch, n, T, d),
        rng.integers(0, classes, (*batch, n)),
        sphere(rng, *batch, n, d),
        sphere(rng, *batch, heads, classes, d),
    )


def two_classes(y, v):
    return ((y + 1) / 2).astype(int), np.stack([-v / 2, v / 2], -2)


@pytest.mark.parametrize("normalize", ["tensor", None])
def test_one_head_with_two_classes_is_the_binary_run(normalize):
    X, y, z, v = sphere_batch(3)
    labels, V = two_classes(y, v)
    mask = ragged_mask(3, 6, 8)
    given = {"p": [1.5, 2, 1.75], "lr": [0.1, 0.2, 0.1], "steps": 150, "mask": mask, "record": 4}
    a = simulate(X, y, z, v, normalize=normalize, **given, options=SimulationOptions(backend="tensor"))
    b = simulate_heads(X, labels, z, V[:, None], normalize=normalize, **given)
    np.testing.assert_allclose(b.W[:, :, 0], a.W, rtol=1e-9, atol=1e-12)
    for name in ("loss", "norm", "mass", "log_rest", "label_margins", "selected"):
        np.testing.assert_allclose(getattr(b, name)[:, :, 0], getattr(a, name), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("normalize", ["tensor", "global", None])
@pytest.mark.parametrize("p", [1.5, 3])
def test_steps_are_those_of_autograd(p, normalize):
    X, y, z, V = several()
    W0 = np.random.default_rng(1).standard_normal((2, 6, 6))
    run = simulate_heads(
        X,
        y,
        z,
        V,
        **settings(p=p, lr=0.1, lr_v=0.05, steps=6, normalize=normalize, train_readout=True, W0=W0, record="all"),
    )
    tokens, queries = torch.tensor(X), torch.tensor(z)
    duals = [t.sign() * t.abs() ** (p - 1) for t in (torch.tensor(W0), torch.tensor(V))]
    for k in range(7):
        W, V_k = (u.sign() * u.abs() ** (1 / (p - 1)) for u in duals)
        np.testing.assert_allclose(run.W[k], W, rtol=1e-8, atol=1e-10)
        np.testing.assert_allclose(run.V[k], V_k, rtol=1e-8, atol=1e-10)
        W, V_k = W.requires_grad_(), V_k.requires_grad_()
        s = torch.einsum("ntd,hde,ne->hnt", tokens, W, queries).softmax(-1)
        loss = torch.nn.functional.cross_entropy(torch.einsum("hcd,ntd,hnt->nc", V_k, tokens, s), torch.tensor(y))
        loss.backward()
        assert run.loss[k] == pytest.approx([loss.item()] * 2)
        q = p / (p - 1)
        for j, (g, rate) in enumerate(((W.grad, 0.1), (V_k.grad, 0.05))):
            axes = (1, 2) if normalize == "tensor" else (0, 1, 2)
            norm = g.abs().pow(q).sum(axes, keepdim=True) ** (1 / q) if normalize else 1.0
            duals[j] = duals[j] - rate * g / norm


@pytest.mark.parametrize("train_readout", [False, True])
@pytest.mark.parametrize("normalize", ["tensor", "global", None])
def test_the_kernel_equals_tensors(normalize, train_readout):
    pytest.importorskip("numba")
    X, y, z, V = several(3)
    X[0, 1, 2] = X[0, 1, 3]  # tokens that gain the same
    W0 = np.random.default_rng(1).standard_normal((3, 2, 6, 6))
    given = {"normalize": normalize, "train_readout": train_readout, "mask": ragged_mask(3, 4, 5), "W0": W0}
    given |= {"p": [1.75, 2, 3], "lr": [0.1, 0.2, 0.3], "steps": 60, "record": 4}
    a, b = (
        simulate_heads(X, y, z, V, **given, options=SimulationOptions(backend=backend))
        for backend in ("tensor", "numba")
    )
    assert b.config["backend"] == "numba"
    for name in ("W", "loss", "norm", "log_rest", "label_margins", *(["V", "readout_norm"] if train_readout else [])):
        np.testing.assert_allclose(getattr(b, name), getattr(a, name), rtol=1e-7, atol=1e-10)
    np.testing.assert_array_equal(b.selected, a.selected)
    np.testing.assert_array_equal(b.updates, a.updates)


def test_runs_that_overflow_or_have_nothing_to_learn_stop(backend):
    X, y, z, V = several(2)
    V[1] = 0.0  # every token is as good as another
    run = simulate_heads(X, y, z, V, lr=1e307, p=1.25, steps=8, options=SimulationOptions(backend=backend))
    assert run.status.tolist() == [["nonfinite"] * 2, ["stationary"] * 2]
    assert np.isfinite(run.W).all()


def test_heads_are_the_last_axis_of_trials(tmp_path):
    X, y, z, V = several(3)
    run = simulate_heads(X, y, z, V, steps=20, train_readout=True, p=[1.5, 2, 1.5], record=3)
    assert run.batch_shape == (3, 2)
    assert run.alpha.shape == (3, 2, 4)
    assert run.V.shape[1:] == (3, 2, 3, 6)
    one = simulate_heads(X[1], y[1], z[1], V[1], steps=20, train_readout=True, p=2, record=3)
    np.testing.assert_allclose(run[1].W, one.W)
    np.testing.assert_allclose(run[..., 1].W[:, 1], one.W[:, 1])
    assert run[..., 1].batch_shape == (3,)
    run.save(tmp_path / "run.npz")
    read = Trajectory.load(tmp_path / "run.npz")
    np.testing.assert_array_equal(read.V, run.V)
    assert read.config == run.config


def test_each_head_turns_to_the_attention_svm_of_its_own_tokens_and_norms_go_by_the_rule():
    backend = "numba" if find_spec("numba") else "tensor"
    X, y, z, v = sphere_batch(3, n=3, T=4, d=6)
    labels, _ = two_classes(y, v)
    V = np.stack([two_classes(y, np.roll(v, h, -1))[1] for h in range(2)], 1)
    off = {}
    for normalize in ("tensor", "global"):
        run = simulate_heads(
            X,
            labels,
            z,
            V,
            lr=0.2,
            steps=1500,
            normalize=normalize,
            record=2,
            options=SimulationOptions(backend=backend),
        )
        svm = att_svm(X[:, None], z[:, None], run.alpha, p=2)
        assert np.median(run.divergence_to(svm.W)[-1]) < 0.005
        lead = run.norm[-1] * np.asarray(svm.margin)
        off[normalize] = [np.abs(np.log(a[:, 0] / a[:, 1])).max() for a in (run.norm[-1], lead)]
    assert off["tensor"][0] < 0.05 < off["tensor"][1]
    assert off["global"][1] < 0.05 < off["global"][0]


def test_divergence_is_recorded_head_by_head_and_saturated_steps_keep_their_length():
    X, y, z, V = several(2)
    W = np.random.default_rng(3).standard_normal((2, 2, 6, 6))
    run = simulate_heads(X, y, z, V, W0=1e4 * W, steps=5, record="all", options=SimulationOptions(references=W))
    np.testing.assert_allclose(run.divergence["reference"], run.divergence_to(W))
    moved = np.linalg.norm(np.diff(run.W, axis=0).reshape(5, 2, 2, -1), axis=-1)
    np.testing.assert_allclose(moved, 0.1, rtol=1e-8)


def test_tensors_come_back_as_tensors():
    X, y, z, V = several()
    run = simulate_heads(torch.tensor(X), torch.tensor(y), z, V, steps=3)
    assert isinstance(run.W, torch.Tensor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"backend": "c"}, "backend"),
        ({"normalize": "each"}, "normalize must be"),
        ({"weights": "none"}, "weights"),
        ({"lr_v": 0.1}, "lr_v"),
        ({"lr": 0.0}, "lr must be a finite number greater than 0, got 0.0"),
        ({"references": np.ones((6, 6))}, r"references.* has the shape \(6, 6\)"),
        ({"W0": np.ones((1, 6, 6))}, r"W must have the shape"),
        ({"y": [0, 1, 2, 5]}, "y must hold the classes 0 to 2"),
    ],
)
def test_bad_input_is_named(change, message):
    X, y, z, V = several()
    given = {"X": X, "y": y, "z": z, "V": V, "steps": 2, **change}
    with pytest.raises(ValueError, match=message):
        simulate_heads(**settings(**given))
