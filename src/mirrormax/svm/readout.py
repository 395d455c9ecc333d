"""What the readout adds: margins of labels and classes over the chosen tokens.

Once every sample has chosen its token x_i, the readout turns to the ℓp SVM without offset of
these: v of min ‖v‖_p s.t. y_i x_iᵀv ≥ 1, or V of min ‖V‖_p s.t. (v_{y_i} − v_c)ᵀ x_i ≥ 1 for all c ≠ y_i, which is the
same with the rows (e_{y_i} − e_c) ⊗ x_i in R^{C·d}.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrormax._arrays import as_array, as_tensor
from mirrormax.geometry import Potential
from mirrormax.problem import Problem, broadcast, takes_problem
from mirrormax.svm.api import lp_svm, spread
from mirrormax.svm.rows import Array
from mirrormax.svm.solution import NotSolvedError, Solution, as_given, device_of, raise_if_failed


@takes_problem
def label_margin(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    mask: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
    throw: bool = True,
) -> np.float64 | NDArray[np.float64] | Tensor:
    """1/‖v‖_p of the ℓp SVM on the chosen tokens x_{iα_i}, with X ``(..., n, T, d)``, y and alpha ``(..., n)``.

    Zero where no v separates them, a chosen token at the origin included. ``mask`` is that of :func:`att_svm`:
    it must leave every chosen token in, and what stands at the others is never read. A margin that was not found to
    ``tol`` raises :class:`NotSolvedError`, whose ``solution`` has the other members of the batch; with ``throw=False``
    it is NaN, and the others are what they are.

    >>> round(float(label_margin([[[0.0, 3.0], [1.0, 1.0]]], [1], [0])), 6)
    3.0
    """
    problem = Problem(X=X, y=y, alpha=alpha, mask=mask).numpy()
    points = _chosen(problem)
    silent = np.asarray(~np.any(points, axis=-1))
    # A token at the origin has margin 0; the others of its problem do not matter then.
    solution = lp_svm(np.where(silent[..., None], 1.0, points), problem.y, p=p, tol=tol, throw=False)
    zero = np.asarray(solution.infeasible) | silent.any(axis=-1)
    known = np.asarray(solution.optimal) | zero
    failed = np.argwhere(np.atleast_1d(~known))
    if throw and len(failed):
        text = np.atleast_1d(np.array(solution.status, dtype=object))[tuple(failed[0])].replace(", or give C", "")
        where = f"problem {', '.join(map(str, failed[0]))}: " if np.ndim(zero) else ""
        raise NotSolvedError(
            f"{len(failed)} of {known.size} label margins are not known; {where}{text}; use throw=False to keep the "
            "others, and NaN for these.",
            solution,
        )
    return as_given(np.where(zero, 0.0, np.where(known, solution.margin, np.nan)), device_of(X, y, alpha))


@takes_problem
def label_excess(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    mask: ArrayLike | Tensor | None = None,
) -> NDArray[np.float64] | Tensor:
    """ξ_i = y_i x_{iα_i}ᵀv − min_j y_j x_{jα_j}ᵀv ≥ 0 of the ℓp SVM v of the chosen tokens, ‖v‖_p = 1; (..., n).

    Zero at label support vectors. Tokens that no readout separates raise :class:`~mirrormax.svm.InfeasibleError`.

    >>> label_excess([[[0.0, 3.0], [1.0, 1.0]], [[0.0, 5.0], [1.0, 1.0]]], [1, 1], [0, 0]).round(6)
    array([0., 2.])
    """
    problem = Problem(X=X, y=y, alpha=alpha, mask=mask).numpy()
    points, labels = _chosen(problem), np.broadcast_to(problem.y, (*problem.batch_shape, problem.y.shape[-1]))
    solution = lp_svm(points, labels, p=p, tol=1e-11, throw=False)
    margins = labels * (points @ solution.v[..., None])[..., 0]
    return _excess(solution, margins, device_of(X, y, alpha))


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
        p: as for :func:`att_svm`.
        tol: as for :func:`att_svm`.
        throw: as for :func:`att_svm`.

    The :class:`Solution` has ``V`` ``(..., C, d)``; its ``dual`` and ``support`` are ``(..., n, C)``, zero at y.

    >>> solution = class_svm([[2.0, 0.0], [0.0, 2.0], [-2.0, -2.0]], [0, 1, 2], classes=3)
    >>> solution.V.round(3) + 0.0
    array([[ 0.333, -0.167],
           [-0.167,  0.333],
           [-0.167, -0.167]])
    """
    points, labels, shape = _checked_classes(X, y, classes)
    n, d = points.shape[-2:]
    others = np.arange(classes - 1) + (np.arange(classes - 1) >= labels[..., None])
    signs = np.eye(classes)[labels][..., None, :] - np.eye(classes)[others]
    rows = (signs[..., None] * points[..., None, None, :]).reshape(*shape, n * (classes - 1), classes * d)
    answer = lp_svm(rows, np.ones(rows.shape[:-1]), p=p, tol=tol, throw=False)
    arrays = {name: getattr(answer, name) for name in ("margin", "gap", "violation", "iterations", "unique")}
    arrays |= {name: spread(getattr(answer, name), others, classes) for name in ("dual", "support", "doubt")}
    arrays["weights"] = answer.weights.reshape(*shape, classes, d)
    given: dict[str, Any] = {name: as_given(np.asarray(array), device_of(X, y)) for name, array in arrays.items()}
    solution: Solution = replace(answer, **given, name="V", about=answer.about.replace("lp_svm", "class_svm"))
    if throw:
        raise_if_failed(solution)
    return solution


def class_excess(
    X: ArrayLike | Tensor, y: ArrayLike | Tensor, *, classes: int, p: ArrayLike | Tensor | Potential = 2
) -> NDArray[np.float64] | Tensor:
    """ξ_i ≥ 0, (..., n): how far sample i's margin, min_c (v_{y_i} − v_c)ᵀ x_i, is above the smallest one.

    For V of :func:`class_svm` scaled to ‖V‖_p = 1; :func:`~mirrormax.svm.joint_limit` takes it as ``excess``. Classes
    that no V separates raise :class:`~mirrormax.svm.InfeasibleError`.
    """
    points, labels, _ = _checked_classes(X, y, classes)
    solution = class_svm(points, labels, classes=classes, p=p, tol=1e-11, throw=False)
    f = points @ np.swapaxes(solution.V, -1, -2)
    own = np.take_along_axis(f, labels[..., None], -1)
    margins = np.where(np.arange(classes) == labels[..., None], np.inf, own - f).min(-1)
    return _excess(solution, margins, device_of(X, y))


def _chosen(problem: Problem) -> Array:
    """x_iα, (..., n, d)."""
    shape = problem.batch_shape
    X = np.broadcast_to(problem.X, (*shape, *problem.X.shape[-3:]))
    alpha = np.broadcast_to(problem.alpha, (*shape, problem.alpha.shape[-1]))
    return np.asarray(np.take_along_axis(X, alpha[..., None, None], -2)[..., 0, :])


def _excess(solution: Solution, margins: Array, device: torch.device | None) -> NDArray[np.float64] | Tensor:
    """ξ (..., n): margins of samples under weights at minimum margin 1, less the smallest, for weights of norm 1."""
    if not np.all(np.asarray(solution.gap) <= 1e-7):
        raise_if_failed(solution)
    return as_given(np.maximum((margins - 1) * np.asarray(solution.margin)[..., None], 0.0), device)


def _checked_classes(X: Any, y: Any, classes: int) -> tuple[NDArray[np.float64], NDArray[np.int64], tuple[int, ...]]:
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
