"""The ℓp SVM of several classes against two classes, its own certificate, and cvxpy."""

import numpy as np
import pytest
import torch

from mirrormax.svm import InfeasibleError, class_excess, class_svm, joint_limit, label_excess, lp_svm


def points(*batch, n=7, d=5, classes=3, seed=0):
    rng = np.random.default_rng(seed)
    y = rng.integers(0, classes, (*batch, n))
    return np.eye(d)[y] + 0.4 * rng.standard_normal((*batch, n, d)), y


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_multipliers_prove_the_norm(p):
    X, y = points(2)
    solution = class_svm(X, y, classes=3, p=p)
    q = p / (p - 1)
    for k in range(2):
        f = X[k] @ solution.V[k].T
        margins = np.take_along_axis(f, y[k][:, None], -1) - f
        assert np.where(np.arange(3) == y[k][:, None], np.inf, margins).min() == pytest.approx(1)
        pull = np.zeros((3, 5))
        for i, c in np.argwhere(solution.dual[k] > 0):
            pull[y[k][i]] += solution.dual[k][i, c] * X[k][i]
            pull[c] -= solution.dual[k][i, c] * X[k][i]
        bound = solution.dual[k].sum() / (np.abs(pull) ** q).sum() ** (1 / q)
        assert bound == pytest.approx((np.abs(solution.V[k]) ** p).sum() ** (1 / p), rel=1e-8)
        assert solution.margin[k] * bound == pytest.approx(1, rel=1e-8)
    assert solution.samples.shape == (2, 7)


def test_two_classes_are_the_binary_svm():
    X, y = points(classes=2)
    V, v = class_svm(X, y, classes=2, p=3).V, lp_svm(X, 2 * y - 1, p=3).v
    np.testing.assert_allclose(V[1], v / 2, atol=1e-6)
    np.testing.assert_allclose(V[0], -v / 2, atol=1e-6)


def test_the_excess_is_that_of_two_classes_and_serves_the_joint_limit():
    X, y = points(classes=2, seed=3)
    tokens = np.stack([X, np.roll(X, 1, -1)], -2)
    alpha, labels = np.zeros(7, dtype=int), 2 * y - 1
    excess = class_excess(X, y, classes=2)
    # ‖(−v/2, v/2)‖₂ = ‖v‖/√2, so that at norm one margins are √2 as large.
    np.testing.assert_allclose(excess, np.sqrt(2) * label_excess(tokens, labels, alpha), atol=1e-6)
    assert excess.max() > 0.1
    a, b = joint_limit(tokens, y, X, alpha, excess=excess / np.sqrt(2)), joint_limit(tokens, labels, X, alpha)
    np.testing.assert_allclose(a.W, b.W, atol=1e-6)


def test_classes_that_nothing_separates_and_bad_input_are_named():
    with pytest.raises(InfeasibleError):
        class_svm([[1.0], [1.0]], [0, 1], classes=3)
    with pytest.raises(ValueError, match="classes must be a whole number of at least 2, got 1"):
        class_svm([[1.0]], [0], classes=1)
    with pytest.raises(ValueError, match="y must hold the classes 0 to 2, got 0 to 3"):
        class_svm([[1.0], [2.0]], [0, 3], classes=3)
    with pytest.raises(ValueError, match=r"X must be \(..., n, d\) and y \(..., n\)"):
        class_svm([[1.0], [2.0]], [0, 1, 2], classes=3)


def test_tensors_come_back_as_tensors():
    X, y = points()
    solution = class_svm(torch.tensor(X), y, classes=3, p=3)
    assert all(isinstance(getattr(solution, name), torch.Tensor) for name in ("V", "gap", "support", "doubt", "unique"))
    assert solution.doubt.shape == solution.support.shape == solution.dual.shape == (*y.shape, 3)
    assert isinstance(class_excess(torch.tensor(X), y, classes=3), torch.Tensor)
