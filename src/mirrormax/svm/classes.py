"""The ℓp SVM of several classes, to which a readout turns: min ‖V‖_p s.t. (v_{y_i} − v_c)ᵀ x_i ≥ 1 for all c ≠ y_i.

It is the ℓp SVM without offset of the rows (e_{y_i} − e_c) ⊗ x_i in R^{C·d}, and has its certificate.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrormax._checks import as_array, as_tensor
from mirrormax.geometry import Potential
from mirrormax.problem import broadcast
from mirrormax.svm.api import _device, lp_svm
from mirrormax.svm.solution import Solution, raise_if_failed


def class_svm(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    classes: int,
    p: ArrayLike | Tensor | Potential = 2,
    tol: float = 1e-9,
    throw: bool = True,
) -> Solution:
    """min ‖V‖_p s.t. (v_{y_i} − v_c)ᵀ x_i ≥ 1 for all i and c ≠ y_i.

    Args:
        X: points ``(..., n, d)``, for example the attended tokens; those of several heads side by side, (..., n, H·d),
            for heads that are normalised together.
        y: classes 0, …, C − 1, ``(..., n)``.
        classes: C, at least 2.
        p: any number above 1, or an :class:`~mirrormax.geometry.Lp`; or one number per problem of the batch.
        tol: the relative duality gap to reach.
        throw: raise :class:`InfeasibleError` or :class:`NotSolvedError` when a problem fails.

    The :class:`Solution` has ``V`` ``(..., C, d)``; its ``dual`` and ``support`` are ``(..., n, C)``, zero at y.

    >>> solution = class_svm([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]], [0, 1, 2], classes=3)
    >>> solution.V.round(3) + 0.0
    array([[ 0.333, -0.167],
           [-0.167,  0.333],
           [-0.167, -0.167]])
    """
    points, labels, shape = _checked(X, y, classes)
    n, d = points.shape[-2:]
    others = np.arange(classes - 1) + (np.arange(classes - 1) >= labels[..., None])
    signs = np.eye(classes)[labels][..., None, :] - np.eye(classes)[others]
    rows = (signs[..., None] * points[..., None, None, :]).reshape(*shape, n * (classes - 1), classes * d)
    found = lp_svm(rows, np.ones(rows.shape[:-1]), p=p, tol=tol, throw=False)
    device = _device(X, y)

    def out(array: Any) -> Any:
        return array if device is None else torch.from_numpy(np.array(array)).to(device)

    def by_class(array: NDArray[Any]) -> Any:
        whole = np.zeros((*shape, n, classes), dtype=array.dtype)
        np.put_along_axis(whole, others, array.reshape(others.shape), -1)
        return out(whole)

    solution: Solution = replace(
        found,
        weights=out(found.weights.reshape(*shape, classes, d)),
        dual=by_class(np.asarray(found.dual)),
        support=by_class(np.asarray(found.support)),
        **{name: out(getattr(found, name)) for name in ("margin", "gap", "violation", "iterations")},
        name="V",
        about=found.about.replace("lp_svm", "class_svm"),
    )
    if throw:
        raise_if_failed(solution)
    return solution


def class_excess(
    X: ArrayLike | Tensor, y: ArrayLike | Tensor, *, classes: int, p: ArrayLike | Tensor | Potential = 2
) -> NDArray[np.float64] | Tensor:
    """ξ_i ≥ 0, (..., n): how far sample i's margin, min_c (v_{y_i} − v_c)ᵀ x_i, is above the smallest one.

    For V of :func:`class_svm` scaled to ‖V‖_p = 1; :func:`joint_limit` takes it as ``excess``. Classes that no V
    separates raise :class:`~mirrormax.svm.InfeasibleError`.
    """
    points, labels, _ = _checked(X, y, classes)
    solution = class_svm(points, labels, classes=classes, p=p, tol=1e-11, throw=False)
    if not np.all(np.asarray(solution.gap) <= 1e-7):
        raise_if_failed(solution)
    f = points @ np.swapaxes(solution.V, -1, -2)
    own = np.take_along_axis(f, labels[..., None], -1)
    margins = np.where(np.arange(classes) == labels[..., None], np.inf, own - f).min(-1)
    excess: NDArray[np.float64] = np.maximum((margins - 1) * np.asarray(solution.margin)[..., None], 0.0)
    device = _device(X, y)
    return excess if device is None else torch.from_numpy(excess).to(device)


def _checked(X: Any, y: Any, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[int, ...]]:
    """Points (..., n, d) and classes (..., n), broadcast to one batch, and its shape."""
    if isinstance(classes, bool) or not isinstance(classes, (int, np.integer)) or classes < 2:
        raise ValueError(f"classes must be a whole number of at least 2, got {classes!r}.")
    points, labels = as_array(as_tensor("X", X).double()), as_array(as_tensor("y", y))
    if points.ndim < 2 or labels.ndim < 1 or points.shape[-2:-1] != labels.shape[-1:]:
        raise ValueError(f"X must be (..., n, d) and y (..., n), got {points.shape} and {labels.shape}.")
    if ((labels < 0) | (labels >= classes) | (labels != np.floor(labels))).any():
        raise ValueError(f"y must hold the classes 0 to {classes - 1}, got {labels.min():g} to {labels.max():g}.")
    shape = broadcast(points.shape[:-2], labels.shape[:-1])
    whole = np.broadcast_to(points, (*shape, *points.shape[-2:]))
    return whole, np.broadcast_to(labels, (*shape, labels.shape[-1])).astype(np.int64), shape
