"""Regularisation paths: their points are optimal, and their limits are the max-margin solutions."""

from __future__ import annotations

from itertools import product

import numpy as np
import pytest
import torch

from mirrormax.attention import LOGISTIC, LOSSES, Loss, risk, scaled_gradient
from mirrormax.data import sphere_problem
from mirrormax.dynamics import joint_regularization_path, regularization_path
from mirrormax.dynamics.paths.minimisation import (
    Excess,
    HeadLoss,
    attended,
    minimize_on_sphere,
    norm,
    on_sphere,
    residual,
)
from mirrormax.svm import att_svm, lp_svm

from .problems import ragged_mask, sphere_batch

P = sphere_problem(1)


@pytest.mark.parametrize("loss", ["logistic", "exponential", "correlation"])
@pytest.mark.parametrize("size", [0.3, 10.0, 40.0])
def test_log_excess_is_that_of_the_risk(loss: str, size: float) -> None:
    mask = ragged_mask(6, 8)
    objective = Excess(P.X, P.y, P.z, P.v, mask, LOSSES[loss])
    W = size * att_svm(P.X, P.z, objective.alpha, p=2, mask=mask).W
    W = W + np.random.default_rng(0).standard_normal((10, 10))
    best = LOSSES[loss](torch.from_numpy(objective.best)).mean().item()
    value, gradient = objective(W)
    if size < 20:  # beyond, the difference has no digits left
        assert np.exp(value) == pytest.approx(
            risk(P.X, P.y, P.z, P.v, W=W, loss=loss, mask=mask) - best, rel=1e-4 if size > 1 else 1e-9
        )
    scaled, log_scale = scaled_gradient(P.X, P.y, P.z, P.v, W=W, loss=loss, mask=mask)
    assert np.allclose(gradient, scaled * np.exp(log_scale - value), rtol=1e-9, atol=1e-12 * np.abs(gradient).max())


def test_log_excess_keeps_its_digits_at_any_radius() -> None:
    objective = Excess(P.X, P.y, P.z, 1e4 * P.v, np.ones((6, 8), dtype=bool), LOGISTIC)
    W = att_svm(P.X, P.z, objective.alpha, p=2).W
    values = [objective(1e5 * scale * W)[0] for scale in (1.0, 2.0)]
    assert values[1] - values[0] == pytest.approx(-1e5, rel=1e-6)
    numeric = (objective(1e5 * W * (1 + 1e-6))[0] - objective(1e5 * W * (1 - 1e-6))[0]) / 2e-6
    assert (objective(1e5 * W)[1] * 1e5 * W).sum() == pytest.approx(numeric, rel=1e-5)


def test_head_loss_and_its_gradient() -> None:
    xi = attended(P.X, P.z, np.eye(10), np.ones((6, 8), dtype=bool))
    head = HeadLoss(xi, P.y)
    value, gradient = head(3 * P.v)
    assert value == pytest.approx(np.log(risk(P.X, P.y, P.z, 3 * P.v, W=np.eye(10))))
    for k in range(10):
        step = 1e-6 * np.eye(10)[k]
        assert gradient[k] == pytest.approx((head(3 * P.v + step)[0] - head(3 * P.v - step)[0]) / 2e-6, abs=1e-7)
    svm = lp_svm(xi, P.y, p=2).v
    assert head(1e6 * svm)[0] == pytest.approx(-1e6, rel=1e-4)


@pytest.mark.parametrize("p", [1.2, 2.0, 5.0])
def test_residual_is_zero_at_the_linear_minimiser_and_two_opposite(p: float) -> None:
    g = np.random.default_rng(0).standard_normal((4, 4))
    w = on_sphere(-g, 7.0, p)
    assert norm(w, p) == pytest.approx(7)
    assert residual(g, w, 7.0, p) == pytest.approx(0, abs=1e-12)
    assert residual(1e-200 * g, -w, 7.0, p) == pytest.approx(2)


def test_minimisation_on_the_sphere_finds_the_nearest_point() -> None:
    target = np.random.default_rng(0).standard_normal((3, 3))
    point = minimize_on_sphere(lambda w: (((w - target) ** 2).sum() / 2, w - target), np.ones((3, 3)), 0.5, 2.0)
    assert np.allclose(point.w, 0.5 * target / np.linalg.norm(target), atol=1e-8)
    assert point.residual < 1e-12


@pytest.mark.parametrize("p", [1.75, 2.0, 3.0])
def test_path_tends_to_the_attention_svm(p: float) -> None:
    path = regularization_path(P.X, P.y, P.z, P.v, p=p, radii=10.0 * 4.0 ** np.arange(5), random_starts=1)
    D = path.divergence_to(att_svm(P.X, P.z, path.alpha, p=p).W)
    assert (np.diff(D) < 0).all()
    assert D[-1] < 1e-3
    assert path.residual.max() < 1e-9
    assert np.allclose([norm(W, p) for W in path.W], path.radii)
    assert (np.diff(path.log_excess) < 0).all()


def test_path_points_are_optimal_by_the_gradient_of_the_risk() -> None:
    path = regularization_path(P.X, P.y, P.z, P.v, p=3, radii=[2.0, 200.0], random_starts=0)
    for R, W in zip(path.radii, path.W, strict=True):
        g = scaled_gradient(P.X, P.y, P.z, P.v, W=W).scaled
        assert residual(g, W, R, 3) < 1e-9


@pytest.mark.parametrize("p", [1.1, 1.01])
def test_path_points_are_first_order_optimal_near_one(p: float) -> None:
    path = regularization_path(sphere_problem(1, 3, 3, 4), p=p, radii=[10.0], random_starts=0, starts="others")
    assert path.residual.max() < 1e-8


def test_long_steps_near_one_do_not_overflow() -> None:
    path = regularization_path(sphere_problem(1, 3, 3, 4), p=1.01, radii=[1000.0])
    assert path.residual.max() < 1e-8


def test_more_starts_never_give_a_higher_risk() -> None:
    arguments = (P.X, P.y, P.z, P.v)
    one, more = (regularization_path(*arguments, radii=[5.0, 20.0], random_starts=k) for k in (0, 3))
    assert (more.log_excess <= one.log_excess + 1e-9).all()


def test_the_search_from_everywhere_is_as_low_as_its_parts() -> None:
    problem = sphere_problem(1, 3, 3, 4)
    every, svm, others = (
        regularization_path(problem, p=1.1, radii=[3.0, 100.0], starts=starts).log_excess
        for starts in ("all", "svm", "others")
    )
    assert (every <= np.minimum(svm, others) + 1e-9).all()


def test_unknown_starts_are_refused() -> None:
    with pytest.raises(ValueError, match="starts"):
        regularization_path(P.X, P.y, P.z, P.v, radii=[5.0], starts="none")


def test_paths_of_a_batch_equal_those_of_its_problems() -> None:
    X, y, z, v = sphere_batch(2, n=3, T=4, d=4)
    batch = regularization_path(X, y, z, v, p=2, radii=[1.0, 30.0], random_starts=0)
    assert batch.W.shape == (2, 2, 4, 4)
    for k in range(2):
        alone = regularization_path(X[k], y[k], z[k], v[k], p=2, radii=[1.0, 30.0], random_starts=0)
        assert np.allclose(batch.W[:, k], alone.W, rtol=1e-6)
        assert np.array_equal(batch.alpha[k], alone.alpha)


def test_paths_answer_tensors_with_tensors() -> None:
    X, y, z, v = (torch.from_numpy(a[0]) for a in sphere_batch(1, n=2, T=3, d=3))
    path = regularization_path(X, y, z, v, p=2, radii=[1.0], random_starts=0)
    assert isinstance(path.W, torch.Tensor)
    assert isinstance(path.divergence_to(torch.eye(3, dtype=torch.float64)), torch.Tensor)


def test_joint_path_tends_to_both_max_margin_solutions() -> None:
    path = joint_regularization_path(P.X, P.y, P.z, p=2, radii=10.0 * 4.0 ** np.arange(6), random_starts=1)
    chosen = P.X[np.arange(6), path.alpha]
    D = path.divergence_to(att_svm(P.X, P.z, path.alpha, p=2).W)
    D_v = path.readout_divergence_to(lp_svm(chosen, P.y, p=2).v)
    for divergence in (D, D_v):
        assert (np.diff(divergence) < 0).all()
        assert divergence[-1] < 1e-3
    assert max(path.residual.max(), path.readout_residual.max()) < 1e-8
    assert np.allclose(np.linalg.norm(path.v, axis=-1), path.readout_radii)
    assert np.allclose(path.log_excess[0], np.log(risk(P.X, P.y, P.z, path.v[0], W=path.W[0])))


@pytest.mark.parametrize(("seed", "p"), [(3, 1.75), (4, 2.0), (7, 3.0)])
def test_no_pair_of_max_margin_solutions_is_lower_than_the_joint_path(seed: int, p: float) -> None:
    """The search from random heads alone ended at 2.5 times the least loss, with a residual of zero."""
    made = sphere_problem(seed, 3, 3, 4)
    path = joint_regularization_path(made.X, made.y, made.z, p=p, radii=[30.0, 300.0], random_starts=1)
    selections = np.array(list(product(range(3), repeat=3)))
    heads = lp_svm(made.X[np.arange(3), selections], made.y, p=p, throw=False)
    weights = att_svm(made.X, made.z, selections, p=p, throw=False)
    for R, r, found in zip(path.radii, path.readout_radii, path.log_excess, strict=True):
        for k in np.flatnonzero(heads.optimal & weights.optimal):
            v, W = r / norm(heads.v[k], p) * heads.v[k], R / norm(weights.W[k], p) * weights.W[k]
            assert np.exp(found) <= risk(made.X, made.y, made.z, v, W=W) * (1 + 1e-9)


def test_no_attention_svm_is_lower_than_the_path() -> None:
    """The best tokens of the first sample lie close together, so that others have the lower risk until R is large."""
    X = np.array([[[1.0, 0.1], [1.0, -0.1], [0.9, 3.0]], [[0.0, 1.0], [-1.0, 0.0], [0.5, -1.0]]])
    y, z, v = np.ones(2), np.array([[0.0, 1.0], [1.0, 0.0]]), np.array([1.0, 0.05])
    path = regularization_path(X, y, z, v, p=2, radii=[1.0, 10.0, 100.0], random_starts=0)
    objective = Excess(X, y, z, v, np.ones((2, 3), dtype=bool), LOGISTIC)
    weights = att_svm(X, z, np.array(list(product(range(3), repeat=2))), p=2, throw=False)
    for R, found in zip(path.radii, path.log_excess, strict=True):
        assert all(found <= objective(R / norm(W, 2) * W)[0] + 1e-9 for W in weights.W[weights.optimal])


@pytest.mark.parametrize(
    ("arguments", "words"),
    [({"radii": [2.0, 1.0]}, "radii"), ({"radii": []}, "radii"), ({"radii": [0.0]}, "radii"), ({"p": 1}, "p must")],
)
def test_paths_refuse_what_is_no_path(arguments: dict[str, object], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        regularization_path(P.X, P.y, P.z, P.v, **arguments)
    with pytest.raises(ValueError, match=words):
        joint_regularization_path(P.X, P.y, P.z, **arguments)


def test_paths_refuse_what_does_not_depend_on_the_weights() -> None:
    with pytest.raises(ValueError, match=r"\bv="):
        regularization_path(P.X, P.y, P.z, None)
    with pytest.raises(ValueError, match="scores the same"):
        regularization_path(P.X, P.y, P.z, 0 * P.v)
    with pytest.raises(ValueError, match="readout_radii"):
        joint_regularization_path(P.X, P.y, P.z, radii=[1.0, 2.0], readout_radii=[1.0])
    with pytest.raises(ValueError, match="random_starts"):
        joint_regularization_path(P.X, P.y, P.z, radii=[1.0], random_starts=0)
    path = regularization_path(P.X, P.y, P.z, P.v, radii=[1.0], random_starts=0)
    with pytest.raises(ValueError, match="joint"):
        path.readout_divergence_to(P.v)


def test_a_loss_of_ones_own_has_a_path() -> None:
    smooth = Loss("root", lambda x: (1 + x * x).sqrt() - x, lambda x: x / (1 + x * x).sqrt() - 1)
    path = regularization_path(P.X, P.y, P.z, P.v, p=2, radii=[100.0], loss=smooth, random_starts=0)
    assert path.residual.max() < 1e-9


@pytest.mark.parametrize("path", [regularization_path, joint_regularization_path])
def test_points_with_a_larger_residual_than_allowed_are_warned_of(path, monkeypatch):
    monkeypatch.setattr("mirrormax.dynamics.paths.attention.WARNED", 0.0)
    with pytest.warns(UserWarning, match="residual"):
        path(sphere_problem(1, 2, 3, 3), p=3, radii=[30.0], random_starts=1)


@pytest.mark.parametrize(
    ("argument", "value"),
    [("radii", value) for value in ("x", "", {}, 1j, 10**400)]
    + [("random_starts", value) for value in (None, np.nan, -1, 2.5, "x", 10**400)],
)
def test_paths_refuse_what_is_no_number_by_name(argument: str, value: object) -> None:
    X, y, z, v = (a[0] for a in sphere_batch(1))
    with pytest.raises((TypeError, ValueError), match=rf"^{argument} must "):
        regularization_path(**{"X": X, "y": y, "z": z, "v": v, argument: value})
