"""What the readout adds: margins of labels and classes over the chosen tokens, and W trained together with the readout.

**Labels and classes.** Once every sample has chosen its token x_i, the readout turns to the ℓp SVM without offset of
these: v of min ‖v‖_p s.t. y_i x_iᵀv ≥ 1, or V of min ‖V‖_p s.t. (v_{y_i} − v_c)ᵀ x_i ≥ 1 for all c ≠ y_i, which is the
same with the rows (e_{y_i} − e_c) ⊗ x_i in R^{C·d}.

**Both together.** W goes to the attention SVM, relaxed far from the label margin. With a_it = (x_iα − x_it)z_iᵀ the
pull on row (i, t) is e^{−⟨a_it, W⟩} times the slope of the loss, e^{−(label margin of i)}. Both norms grow. With
ρ = lim ‖v‖/‖W‖ and ξ_i ≥ 0 the excess of sample i's label margin over the smallest one (of the ℓp SVM v of the selected
tokens, ‖v‖_p = 1), a sample needs that much less margin of attention:

    max t   s.t.   ⟨a_it, W⟩ + ρ ξ_i ≥ t,   ‖W‖_p ≤ 1.

This is the attention SVM if and only if every sample is a label support vector, ξ = 0. Scaled by σ = 1/t it reads
min ‖W‖_p s.t. ⟨a_it, W⟩ ≥ 1 − ρ ξ_i ‖W‖_p: with N(σ) = min ‖W‖_p s.t. ⟨a_it, W⟩ ≥ 1 − ρ ξ_i σ, the solution is that of
N(σ) = σ. N is convex and falls, with N' = −ρ ξᵀλ, so that Newton's method climbs to the root from the left.

**Certificate.** λ ≥ 0 with ‖Aᵀλ‖_q + ρ ξᵀλ = 1 proves ‖W‖_p ≥ 1ᵀλ for every W that meets the rows, since then
1ᵀλ ≤ λᵀA W + ρ ξᵀλ ‖W‖_p ≤ ‖W‖_p.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import torch
from numpy.typing import ArrayLike, NDArray
from torch import Tensor

from mirrormax._arrays import as_array, as_tensor
from mirrormax._checks import number
from mirrormax.geometry import Potential
from mirrormax.problem import Problem, broadcast, takes_problem
from mirrormax.svm.api import att_svm, check_exponents, flat, lp_svm, per_problem, shown, spread
from mirrormax.svm.rows import Array, Bools
from mirrormax.svm.solution import (
    NotSolvedError,
    Solution,
    as_given,
    device_of,
    p_norm,
    raise_if_failed,
    support_tolerance,
)

ROUNDS = 40
INNER = 0.1  # of the tolerance, for the problems on the way


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
    margin: np.float64 | NDArray[np.float64] | Tensor = as_given(
        np.where(zero, 0.0, np.where(known, solution.margin, np.nan)), device_of(X, y, alpha)
    )
    return margin


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
    points, labels, shape = _checked_classes(X, y, classes)
    n, d = points.shape[-2:]
    others = np.arange(classes - 1) + (np.arange(classes - 1) >= labels[..., None])
    signs = np.eye(classes)[labels][..., None, :] - np.eye(classes)[others]
    rows = (signs[..., None] * points[..., None, None, :]).reshape(*shape, n * (classes - 1), classes * d)
    answer = lp_svm(rows, np.ones(rows.shape[:-1]), p=p, tol=tol, throw=False)

    def out(array: Any) -> Any:
        return as_given(np.asarray(array), device_of(X, y))

    solution: Solution = replace(
        answer,
        weights=out(answer.weights.reshape(*shape, classes, d)),
        dual=out(spread(np.asarray(answer.dual), others, classes)),
        support=out(spread(np.asarray(answer.support), others, classes)),
        **{name: out(getattr(answer, name)) for name in ("margin", "gap", "violation", "iterations")},
        name="V",
        about=answer.about.replace("lp_svm", "class_svm"),
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
    points, labels, _ = _checked_classes(X, y, classes)
    solution = class_svm(points, labels, classes=classes, p=p, tol=1e-11, throw=False)
    f = points @ np.swapaxes(solution.V, -1, -2)
    own = np.take_along_axis(f, labels[..., None], -1)
    margins = np.where(np.arange(classes) == labels[..., None], np.inf, own - f).min(-1)
    return _excess(solution, margins, device_of(X, y))


@takes_problem
def joint_limit(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    ratio: ArrayLike | Tensor = 1.0,
    excess: ArrayLike | Tensor | None = None,
    mask: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
    throw: bool = True,
) -> Solution:
    """The direction of W under joint training of W and v that selects ``alpha``: the relaxed attention SVM

        min ‖W‖_p   s.t.   (x_{iα_i} − x_{it})ᵀ W z_i ≥ 1 − ρ ξ_i ‖W‖_p   for all i and t ≠ α_i.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are a batch of problems, and broadcast. A
            :class:`~mirrormax.problem.Problem` may take the place of X, y, z (and alpha, if it has one).
        y: labels ±1, ``(..., n)``.
        z: queries ``(..., n, d)``.
        alpha: the selected token of each sample, ``(..., n)``.
        p: as for :func:`att_svm`.
        ratio: ρ = lim ‖v‖/‖W‖, or one per problem: 1 for normalised steps of one length, lr_v/lr in general; 0 is the
            attention SVM itself. The end of a run has ``run.readout_norm[-1] / run.norm[-1]``.
        excess: ξ ``(..., n)``, if it is not to be that of :func:`label_excess`: for several classes or heads that of
            :func:`class_excess`. y is not read then.
        mask: booleans ``(..., n, T)``, True where a token is present.
        tol: the relative duality gap to reach.
        throw: raise :class:`InfeasibleError` or :class:`NotSolvedError` when a problem fails.

    The :class:`Solution` is that of :func:`att_svm` with other rows: ``W`` has min ⟨a_it, W⟩ + ρ ξ_i ‖W‖_p = 1, its
    ``margin`` is t = 1/‖W‖_p, ``dual`` λ has ‖Aᵀλ‖_q + ρ ξᵀλ = 1 and ``gap`` is 1 − 1ᵀλ/‖W‖_p. A sample with
    ρ ξ_i > t need never select. Infeasible means that the samples at the label margin cannot all select.

    >>> import numpy as np
    >>> X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-9.0, 0.0], [0.0, -1.0]]])
    >>> solution = joint_limit(X, [1, -1], X[:, 0], [0, 0])
    >>> solution.samples, (solution.W / solution.W[0, 0]).round(6) + 0.0  # the second sample has label margin to spare
    (array([ True, False]), array([[ 1. ,  0. ],
           [-0.2,  0. ]]))
    """
    problem = Problem(X=X, y=y if excess is None else None, z=z, alpha=alpha, mask=mask).numpy()
    tol = number("tol", tol, above=0.0, below=1.0)
    n = problem.X.shape[-3]
    if excess is None:
        spare = np.asarray(label_excess(problem.X, problem.y, problem.alpha, p=p, mask=problem.mask))
    else:
        spare = as_array(as_tensor("excess", excess).double())
        if spare.shape[-1:] != (n,) or not (spare >= 0).all() or not np.isfinite(spare).all():
            raise ValueError(f"excess must hold finite numbers of at least 0, (..., n) with n = {n}, got {excess!r}.")
    shape = broadcast(problem.batch_shape, spare.shape[:-1])
    exponents, rho = check_exponents(p, shape), per_problem(ratio, "ratio", shape)
    if not ((rho >= 0) & np.isfinite(rho)).all():
        raise ValueError(f"ratio must be a finite number of at least 0, got {ratio!r}; 1 is that of normalised steps.")
    whole = _Relaxed(problem, shape, exponents, rho, spare, tol)
    solution = whole.solve(f"joint_limit, p={shown(p)}, ratio={shown(ratio)}", device_of(X, y, z, alpha))
    if throw:
        raise_if_failed(solution)
    return solution


class _Relaxed:
    """A batch of B relaxed problems, and Newton's method on N(σ) = σ for all of them at once."""

    def __init__(
        self, problem: Problem, shape: tuple[int, ...], p: Array, rho: Array, excess: Array, tol: float
    ) -> None:
        n, T = problem.X.shape[-3:-1]
        self.shape, self.p, self.tol = shape, p, tol
        present = np.ones((n, T), dtype=bool) if problem.mask is None else problem.mask
        self.X, self.mask = flat(problem.X, shape, 3), flat(present, shape, 2)
        self.z, self.alpha = flat(problem.z, shape, 2), flat(problem.alpha, shape, 1)
        self.spare = rho[:, None] * flat(excess, shape, 1)  # ρ ξ
        self.rows = self.mask & (np.arange(T) != self.alpha[..., None])
        chosen = np.take_along_axis(self.X, self.alpha[..., None, None], 2)
        self.leads = np.where(self.rows[..., None], chosen - self.X, 0.0)

    def solve(self, about: str, device: torch.device | None) -> Solution:
        size = len(self.p)
        W, dual = np.full((size, *self.X.shape[-1:] * 2), np.nan), np.zeros(self.rows.shape)
        gap, iterations = np.full(size, np.inf), np.zeros(size, dtype=np.intp)
        status = np.full(size, "", dtype=object)
        sigma, alive = self._start(status, dual)
        for _ in range(ROUNDS):
            members = np.flatnonzero(alive)
            if not len(members):
                break
            solution = self._at(members, sigma[members])
            iterations[members] += solution.iterations
            new_gap, weights, multipliers = self._certify(members, solution.W, solution.dual)
            better = new_gap < gap[members]
            put = members[better]
            W[put], dual[put], gap[put] = weights[better], multipliers[better], new_gap[better]
            norm = p_norm(np.nan_to_num(solution.W.reshape(len(members), -1)), self.p[members])
            fall = (self.spare[members, :, None] * solution.dual).sum((-2, -1))
            step = np.where(np.isfinite(solution.gap), (norm + fall * sigma[members]) / (1 + fall), 2 * sigma[members])
            stuck = np.abs(step / np.maximum(sigma[members], 1e-300) - 1) < 1e-15
            alive[members] = (gap[members] > self.tol) & ~stuck
            sigma[members] = step
        for k in np.flatnonzero(status == ""):
            status[k] = (
                "optimal"
                if gap[k] <= self.tol
                else f"stopped at relative gap {gap[k]:.1e}, above tol={self.tol:g}; accept it with a larger tol, "
                "bring the samples to one scale, or take a p nearer to 2"
            )
        return self._package(W, dual, gap, iterations, status, about, device)

    def _start(self, status: Any, dual: Array) -> tuple[Array, Bools]:
        """σ to the left of the root, and which problems have one; the others are refuted by the label support vectors.

        Where the attention SVM itself is feasible, σ = 0 is such a start: its own solution is the first iterate.
        """
        sigma, alive = np.zeros(len(self.p)), np.ones(len(self.p), dtype=bool)
        plain = self._at(np.arange(len(self.p)), sigma)
        for k in np.flatnonzero(~np.isfinite(np.asarray(plain.gap))):
            needed = self.mask[k] & (
                (self.spare[k] == 0)[:, None] | (np.arange(self.mask.shape[-1]) == self.alpha[k, :, None])
            )
            core = None
            if (needed & self.rows[k]).any():
                core = att_svm(
                    self.X[k], self.z[k], self.alpha[k], p=self.p[k], mask=needed, tol=INNER * self.tol, throw=False
                )
            if core is not None and not np.isfinite(core.gap):
                status[k], dual[k], alive[k] = core.status, core.dual, False
            else:
                sigma[k] = 1.0 / float(self.spare[k].max()) if core is None else 1 / float(core.margin)
        return sigma, alive

    def _at(self, members: Any, sigma: Array) -> Solution:
        """The problems with right-hand sides 1 − ρ ξ_i σ."""
        right = np.broadcast_to((1 - self.spare[members] * sigma[:, None])[..., None], self.rows[members].shape)
        # A problem without any right-hand side above zero is solved by W = 0: σ is too large, and a half is not.
        idle = ~((right > 0) & self.rows[members]).any((1, 2))
        if idle.any():
            sigma[idle] /= 2
            return self._at(members, sigma)
        same = (right == 1).all()
        return att_svm(
            self.X[members],
            self.z[members],
            self.alpha[members],
            rhs=None if same else right,
            p=self.p[members],
            mask=self.mask[members],
            tol=INNER * self.tol,
            throw=False,
        )

    def _certify(self, members: Any, W: Array, dual: Array) -> tuple[Array, Array, Array]:
        """The gap of the relaxed problem, W at minimum relaxed margin 1, and λ at ‖Aᵀλ‖_q + ρ ξᵀλ = 1."""
        p, rows, spare = self.p[members], self.rows[members], self.spare[members]
        size = p_norm(W.reshape(len(W), -1), p)
        unit = W / np.where(size > 0, size, 1.0)[:, None, None]
        margins = np.einsum("bntd,bde,bne->bnt", self.leads[members], unit, self.z[members]) + spare[..., None]
        t = np.where(rows, margins, np.inf).min((1, 2))
        pull = np.einsum("bnt,bntd,bne->bde", dual, self.leads[members], self.z[members])
        bound = p_norm(pull.reshape(len(W), -1), p / (p - 1)) + (spare[..., None] * dual).sum((1, 2))
        multipliers = dual / np.where(bound > 0, bound, 1.0)[:, None, None]
        with np.errstate(all="ignore"):
            gap = np.where((t > 0) & np.isfinite(size), 1 - t * multipliers.sum((1, 2)), np.inf)
            weights = unit / np.where(t > 0, t, np.nan)[:, None, None]
        return np.where(gap > -1e-8, np.maximum(gap, np.finfo(float).eps), np.inf), weights, multipliers

    def _package(
        self, W: Array, dual: Array, gap: Array, iterations: Any, status: Any, about: str, device: torch.device | None
    ) -> Solution:
        size = p_norm(W.reshape(len(W), -1), self.p)
        margins = np.einsum("bntd,bde,bne->bnt", self.leads, W, self.z) + self.spare[..., None] * size[:, None, None]
        near = 1 + support_tolerance(gap)[:, None, None]
        with np.errstate(invalid="ignore"):
            support = np.where(np.isfinite(gap)[:, None, None], self.rows & (margins <= near), dual > 0)
            margin = np.where(np.isfinite(gap), 1 / size, 0.0)
            violation = np.where(
                np.isfinite(gap), np.maximum(1 - np.where(self.rows, margins, np.inf).min((1, 2)), 0), np.inf
            )

        def out(array: Any) -> Any:
            return as_given(array.reshape((*self.shape, *array.shape[1:])), device)

        texts = status[0] if not self.shape else status.reshape(self.shape).tolist()
        return Solution(
            out(W), out(margin), out(gap), out(violation), out(dual), out(support), texts, out(iterations), "W", about
        )


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
    excess: NDArray[np.float64] | Tensor = as_given(
        np.maximum((margins - 1) * np.asarray(solution.margin)[..., None], 0.0), device
    )
    return excess


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
