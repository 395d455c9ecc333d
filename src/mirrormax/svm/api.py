"""The ℓp attention SVM and the ℓp SVM, as users call them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from numbers import Real
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.problem import Problem, takes_problem
from mirrormax.svm import checks
from mirrormax.svm.certificate import Certificate, certify, p_norm
from mirrormax.svm.extended import LARGEST_SYSTEM, solve_extended
from mirrormax.svm.feasibility import Verdict, confirm, judge
from mirrormax.svm.interior import AIM, Answer
from mirrormax.svm.nuclear import nuclear_norm, solve_nuclear, spectral_norm
from mirrormax.svm.rows import Array, BlockRows, Index, make_rows, outer_rows
from mirrormax.svm.scaling import Unit, unit_rows
from mirrormax.svm.soft import solve_soft
from mirrormax.svm.solution import NotSolvedError, Solution, raise_if_failed
from mirrormax.svm.solver import solve


@takes_problem
def att_svm(
    X: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    mask: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
    C: ArrayLike | Tensor | None = None,
    norm: Literal["lp", "nuclear"] = "lp",
    throw: bool = True,
) -> Solution:
    """The max-margin attention weights: min ‖W‖_p s.t. (x_{iα_i} − x_{it})ᵀ W z_i ≥ 1 for all i and t ≠ α_i.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are a batch of problems, and broadcast. A
            :class:`~mirrormax.problem.Problem` may take the place of X and z (and alpha, if it has one).
        z: queries ``(..., n, d)``.
        alpha: the chosen token of each sample, integers ``(..., n)``.
        p: any number above 1, or an :class:`~mirrormax.geometry.Lp`; or one number a member of the batch.
        mask: booleans ``(..., n, T)``, True where a token is present.
        tol: the relative duality gap to reach.
        C: soft margin; solves min (1/p)‖W‖_p^p + C Σ_{i,t} ξ_it with margins ≥ 1 − ξ_it, ξ ≥ 0, which always has
            a solution. One number, or one a member. W is then not rescaled.
        norm: ``"lp"``, or ``"nuclear"`` for the sum of singular values, towards which W = K Qᵀ is biased.
        throw: raise :class:`InfeasibleError` or :class:`NotSolvedError` when a member fails.

    Numpy arrays and tensors are both taken, the answer comes back in kind, always float64.

    >>> import numpy as np
    >>> X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]])  # Example 1 of the paper
    >>> solution = att_svm(X, X[:, 0], alpha=[0, 0], p=2)
    >>> solution.W.round(5) + 0.0
    array([[ 0.03846,  0.     ],
           [-0.00769,  0.     ]])
    >>> solution.status
    'optimal'
    """
    data = checks.check_tokens(X, z, alpha, mask)
    kind = checks.norm_name(norm, p, C)
    exponents, tol = checks.exponents(p, data.shape), checks.tolerance(tol)
    penalty = None if C is None else checks.per_member(C, "C", data.shape, above=0.0)
    T = data.X.shape[2]
    rivals = np.arange(T - 1) + (np.arange(T - 1) >= data.alpha[..., None])
    x = np.take_along_axis(data.leads, rivals[..., None], 2)
    exists = np.take_along_axis(data.mask, rivals, -1)
    checks.check_rows(x, data.z, exists, data.shape, soft=C is not None)
    x = np.where(exists[..., None], x, 0.0)
    found = _solve(x, data.z, exists, exponents, tol, penalty, kind)
    about = "att_svm, nuclear norm" if kind == "nuclear" else f"att_svm, p={_shown(p)}"
    about += "" if C is None else f", C={_shown(C)}"
    solution = _package(found, data.shape, rivals, T, "W", about, _device(X, z, alpha))
    if throw:
        raise_if_failed(solution)
    return solution


def lp_svm(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    C: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
    throw: bool = True,
) -> Solution:
    """The max-margin classifier without offset: min ‖v‖_p s.t. y_i x_iᵀv ≥ 1 for all i.

    Args:
        X: points ``(..., n, d)``; leading dimensions are a batch of problems, and broadcast.
        y: labels ±1, ``(..., n)``.
        p: any number above 1, or an :class:`~mirrormax.geometry.Lp`; or one number a member of the batch.
        C: soft margin; solves min (1/p)‖v‖_p^p + C Σ_i ξ_i with margins ≥ 1 − ξ_i, ξ ≥ 0.
        tol: the relative duality gap to reach.
        throw: raise :class:`InfeasibleError` or :class:`NotSolvedError` when a member fails.

    >>> round(float(lp_svm([[2.0, 0.0], [0.0, 2.0]], [1, 1], p=2).margin), 6)
    1.414214
    """
    data = checks.check_labelled(X, y)
    exponents, tol = checks.exponents(p, data.shape), checks.tolerance(tol)
    penalty = None if C is None else checks.per_member(C, "C", data.shape, above=0.0)
    if C is None:
        checks.check_points(data.X, data.shape)
    # One sample whose query is the number 1 and whose rivals are the points: W is then the column v.
    x = (data.y[..., None] * data.X)[:, None]
    exists = np.ones(x.shape[:-1], dtype=bool)
    found = _solve(x, np.ones((len(x), 1, 1)), exists, exponents, tol, penalty, "lp")
    about = f"lp_svm, p={_shown(p)}" + ("" if C is None else f", C={_shown(C)}")
    solution = _package(found, data.shape, None, 0, "v", about, _device(X, y))
    if throw:
        raise_if_failed(solution)
    return solution


@takes_problem
def label_margin(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    mask: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
) -> Any:
    """1/‖v‖_p of the ℓp SVM on the chosen tokens x_{iα_i}, with X ``(..., n, T, d)``, y and alpha ``(..., n)``.

    Zero where no v separates them, a chosen token at the origin included. ``mask`` is that of :func:`att_svm`:
    it must leave every chosen token in, and what stands at the others is never read.

    >>> round(float(label_margin([[[0.0, 3.0], [1.0, 1.0]]], [1], [0])), 6)
    3.0
    """
    problem = Problem(X=X, y=y, alpha=alpha, mask=mask).numpy()
    chosen = np.broadcast_to(problem.alpha, (*problem.batch_shape, problem.alpha.shape[-1]))[..., None, None]
    points = np.take_along_axis(np.broadcast_to(problem.X, (*problem.batch_shape, *problem.X.shape[-3:])), chosen, -2)
    points = points[..., 0, :]
    silent = np.asarray(~np.any(points, axis=-1))
    # A token at the origin has margin 0; the others of its problem do not matter then.
    solution = lp_svm(np.where(silent[..., None], 1.0, points), problem.y, p=p, tol=tol, throw=False)
    zero = np.asarray(solution.infeasible) | silent.any(axis=-1)
    failed = np.argwhere(np.atleast_1d(~(np.asarray(solution.optimal) | zero)))
    if len(failed):
        text = np.atleast_1d(np.array(solution.status, dtype=object))[tuple(failed[0])]
        where = f"member {', '.join(map(str, failed[0]))}: " if np.ndim(zero) else ""
        raise NotSolvedError(f"the label margin is not known; {where}{text}", solution)
    margin = np.where(zero, 0.0, solution.margin)[()]
    device = _device(X, y, alpha)
    return margin if device is None else torch.from_numpy(np.array(margin)).to(device)


def _solve(x: Array, z: Array, exists: Any, p: Array, tol: float, penalty: Array | None, kind: str) -> _Found:
    """Rows x (B, n, R, d) and queries z (B, n, e) to a certificate, verdicts and statuses."""
    with np.errstate(over="ignore"):
        unit = unit_rows(x, z, exists)
    if penalty is None:
        checks.check_range(unit.c, exists)
    rows, c = BlockRows(x, z), unit.c.reshape(len(x), -1)
    shape = (len(x), x.shape[-1], z.shape[-1])
    if penalty is not None:
        certificate, iterations = solve_soft(rows, exists.reshape(len(x), -1), p, penalty, tol)
        return _Found(certificate, Answer(certificate.weights, certificate.dual, iterations), tol, shape, soft=True)
    q = p / (p - 1)
    with np.errstate(all="ignore"):
        if kind == "nuclear":
            answer = solve_nuclear(unit, tol)
            sizes = (lambda w: nuclear_norm(w, shape), lambda u: spectral_norm(u, shape))
        else:
            answer = solve(unit, p, tol)
            sizes = (lambda w: p_norm(w, p), lambda u: p_norm(u, q))
        certificate = certify(rows, c, answer.w, answer.lam, *sizes, tol)
        if _rescue(answer, np.flatnonzero(~np.isfinite(certificate.gap)), unit):
            certificate = certify(rows, c, answer.w, answer.lam, *sizes, tol)
        if kind == "lp":
            certificate = _again(
                answer, certificate, unit, p, tol, lambda: certify(rows, c, answer.w, answer.lam, *sizes, tol)
            )
        for member, verdict in answer.verdicts.items():
            if np.isfinite(certificate.gap[member]):  # weights that separate the data outrank everything
                answer.verdicts[member] = replace(verdict, feasible=True)
            elif not verdict.feasible:
                confirmed = confirm(verdict, x[member], z[member], c[member] > 0)
                answer.verdicts[member] = confirmed
                if confirmed.feasible is False:
                    _refute(certificate, member, confirmed)
    return _Found(certificate, answer, tol, shape)


def _rescue(answer: Answer, members: Index, unit: Unit) -> bool:
    """Give members whose weights do not separate the data those of phase 0, if it has any."""
    changed = False
    for k in members.tolist():
        if k not in answer.verdicts:
            one = unit.take(np.array([k]))
            answer.verdicts[k] = judge(make_rows(one.x, one.z), (one.c.reshape(-1) > 0).astype(np.float64))
        if answer.verdicts[k].feasible:
            answer.w[k], changed = answer.verdicts[k].w, True
    return changed


def _again(
    answer: Answer, certificate: Certificate, unit: Unit, p: Array, tol: float, certified: Callable[[], Certificate]
) -> Certificate:
    """Small members that are separable but above ``tol``, in extended precision where that is better."""
    before = replace(answer, w=answer.w.copy(), lam=answer.lam.copy())
    hard = np.flatnonzero((certificate.gap > tol) & np.isfinite(certificate.gap))
    hard = hard[((unit.c[hard] > 0).sum(axis=(1, 2)) + answer.w.shape[1]) <= LARGEST_SYSTEM]
    for k in hard.tolist():
        exists = unit.c[k].reshape(-1) > 0
        matrix, b = outer_rows(unit.x[[k]], unit.z[[k]])[0, exists], unit.take(np.array([k])).exact[0, exists]
        verdict = answer.verdicts.get(k)
        start = verdict.w if verdict is not None and verdict.feasible else certificate.weights[k]
        answer.w[k], answer.lam[k, exists], steps = solve_extended(matrix, b, float(p[k]), start, AIM * tol)
        answer.iterations[k] += steps
    if not len(hard):
        return certificate
    new = certified()
    worse = hard[~(new.gap[hard] < certificate.gap[hard])]
    if not len(worse):
        return new
    answer.w[worse], answer.lam[worse] = before.w[worse], before.lam[worse]
    return certified()


class _Found:
    """A batch solved: its certificate, its answers, and one status text a member."""

    def __init__(
        self, certificate: Certificate, answer: Answer, tol: float, shape: tuple[int, int, int], soft: bool = False
    ) -> None:
        self.certificate, self.shape = certificate, shape
        self.iterations: Index = answer.iterations
        self.status = [
            _status(float(gap), tol, answer.verdicts.get(k), int(answer.iterations[k]), soft)
            for k, gap in enumerate(certificate.gap)
        ]


def _refute(certificate: Certificate, member: int, verdict: Verdict) -> None:
    """Write the Farkas certificate into an infeasible member."""
    certificate.dual[member] = verdict.lam
    certificate.support[member] = verdict.lam > 0
    certificate.weights[member] = np.nan
    certificate.margin[member], certificate.gap[member], certificate.violation[member] = 0.0, np.inf, np.inf


def _status(gap: float, tol: float, verdict: Verdict | None, iterations: int, soft: bool) -> str:
    if verdict is not None and verdict.feasible is False:
        return (
            "infeasible: no weights meet every margin, proved by multipliers with "
            f"|A'λ| = {verdict.residual:.0e} |A|'λ (see dual and samples); "
            "leave out one of the samples named there, choose other tokens, or give C"
        )
    if gap <= tol:
        return "optimal"
    if verdict is not None and verdict.feasible is None:
        return (
            "stopped: not decided whether any weights separate the data "
            f"(|A'λ| = {verdict.residual:.0e} |A|'λ is more than rounding); "
            "bring the samples and features to one scale, or give C"
        )
    if soft:
        return (
            f"stopped at relative gap {gap:.1e} after {iterations} iterations, above tol={tol:g}; slacks are exact to "
            "C times rounding only, so that double precision may not allow less: accept it with a larger tol, lower C, "
            "or bring the data nearer to 1"
        )
    if not np.isfinite(gap):
        return (
            f"stopped after {iterations} iterations without weights that meet the margins; bring the samples to one "
            "scale, or take a p that is nearer to 2"
        )
    return (
        f"stopped at relative gap {gap:.1e} after {iterations} iterations, above tol={tol:g}; the weights are within "
        "that gap of the best: accept it with a larger tol, bring the samples to one scale, or take a p nearer to 2"
    )


def _package(
    found: _Found,
    shape: tuple[int, ...],
    rivals: Index | None,
    T: int,
    name: str,
    about: str,
    device: torch.device | None,
) -> Solution:
    """Arrays in the shape of the batch, multipliers at their tokens, all in the kind of the input."""
    proof = found.certificate
    size, d, e = found.shape
    dual, support = proof.dual, proof.support
    if rivals is not None:
        dual, support = np.zeros((*rivals.shape[:2], T)), np.zeros((*rivals.shape[:2], T), dtype=bool)
        np.put_along_axis(dual, rivals, proof.dual.reshape(rivals.shape), -1)
        np.put_along_axis(support, rivals, proof.support.reshape(rivals.shape), -1)
    weights = proof.weights.reshape(size, d, e) if name == "W" else proof.weights

    def out(array: Any) -> Any:
        array = array.reshape((*shape, *array.shape[1:]))
        return array[()] if device is None else torch.from_numpy(np.array(array)).to(device)

    status = found.status[0] if not shape else np.array(found.status, dtype=object).reshape(shape).tolist()
    return Solution(
        weights=out(weights),
        margin=out(proof.margin),
        gap=out(proof.gap),
        violation=out(proof.violation),
        dual=out(dual),
        support=out(support),
        status=status,
        iterations=out(found.iterations),
        name=name,
        about=about,
    )


def _device(*arrays: Any) -> torch.device | None:
    """Where the first tensor among them lives; None for numpy throughout."""
    return next((array.device for array in arrays if isinstance(array, torch.Tensor)), None)


def _shown(value: Any) -> str:
    if isinstance(value, Real) or getattr(value, "shape", None) == ():
        return f"{float(value):g}"
    return repr(value) if not hasattr(value, "shape") else "one a member"
