"""One small problem in extended precision, for data that double precision solves only by luck.

Where features of very different size separate the data (1e6 beside 1e-6), A D Aᵀ has lost the faint ones to rounding
before it is factored. The interior point of :mod:`mirrormax.svm.loop` therefore takes its steps here from the
whole system

    [ H  −Aᵀ  ] [dw]   [ −rd ]
    [ A   Δ   ] [dλ] = [ c/λ ],        Δ = diag(s/λ),  H = (p−1) max(|w|, floor)^{p−2},

brought to one scale by powers of two and solved by elimination with pivots in ``numpy.longdouble``. It serves every
p that is not very near 1, and costs (m + N)³: a last resort for small problems.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirrormax.svm._types import Answer, HardMargin
from mirrormax.svm.feasibility import judge
from mirrormax.svm.rows import Array

LARGEST_SYSTEM = 260  # rows and weights together; one step then takes about a tenth of a second
LIMIT = 100
STALLED = 15
BACKTRACKS = 30
FLOOR = 0.9  # as in method B
ROOM = 1.2  # the start's distance from the boundary

Long = Any  # numpy.longdouble arrays


class Extended:
    """The interior point in the weights, with the whole system instead of A D Aᵀ, in ``numpy.longdouble``."""

    name = "extended"
    takes = f"one problem with at most {LARGEST_SYSTEM} rows and weights together"
    batched = False

    def accepts(self, problem: HardMargin) -> bool:
        return (
            problem.kinds is None
            and int((problem.exact > 0).sum()) + problem.rows.size <= LARGEST_SYSTEM
            and len(problem) == 1
        )

    def solve(self, problem: HardMargin, tol: float, start: Array | None = None) -> Answer:
        """One problem, from weights (N,) with A w > 0; those of phase 0 if none are given."""
        answer = Answer.empty(1, problem.rows.size, problem.rows.m)
        exists = problem.exact[0] > 0
        if start is None:
            verdict = judge(problem.rows, exists.astype(np.float64))
            answer.verdicts[0] = verdict
            if not verdict.feasible:
                return answer
            start = verdict.w
        matrix, b = problem.rows.dense()[0, exists], problem.exact[0, exists]
        answer.w[0], answer.lam[0, exists], answer.iterations[0] = solve_extended(
            matrix, b, float(problem.p[0, 0]), start, tol
        )
        return answer


def solve_extended(matrix: Array, b: Array, p: float, w: Array, tol: float) -> tuple[Array, Array, int]:
    """Weights (N,) and multipliers (m,) of min ‖w‖_p s.t. A w ≥ b, from A w > 0, and the iterations taken."""
    A, b = matrix.astype(np.longdouble), b.astype(np.longdouble)
    w = w.astype(np.longdouble)
    w = w / (A @ w / b).min()
    # A power of two, at which w has entries near 1: nothing is rounded on the way there and back.
    kappa = np.ldexp(np.longdouble(1.0), int(np.frexp(_norm(w, p) / len(w) ** (1 / p))[1]))
    A, w = A * kappa, ROOM * w / kappa
    s = A @ w - b
    lam = 0.1 * (np.abs(w) ** p).sum() / (len(b) * s)
    best, best_gap, since = (w, lam), np.inf, 0
    step = 0
    while step < LIMIT:
        gap = _gap(A, b, p, w, lam)
        since = 0 if gap < 0.9 * best_gap else since + 1
        if gap < best_gap:
            best, best_gap = (w, lam), gap
        if gap <= tol or since > STALLED:
            break
        w, lam, step = *_advance(A, b, p, w, lam), step + 1
    # Multipliers with the same ratios stay the same when they are rounded.
    w, lam = best[0] * kappa, best[1] / best[1].max()
    return w.astype(np.float64), lam.astype(np.float64), step


def _advance(A: Long, b: Long, p: float, w: Long, lam: Long) -> tuple[Long, Long]:
    """A predictor-corrector step, shortened until it lowers the residual or stays near the central path."""
    size, s = len(w), A @ w - b
    complementarity = lam @ s
    mu = complementarity / len(lam)
    floor = FLOOR * min(1.0, complementarity / size) ** (1 / p)
    hessian = (p - 1) * np.maximum(np.abs(w), floor) ** (p - 2)
    residual = _gradient(w, p) - lam @ A
    system = Elimination(np.block([[np.diag(hessian), -A.T], [A, np.diag(s / lam)]]))

    def direction(target: Long) -> tuple[Long, Long, Long]:
        move = system.solve(np.concatenate([-residual, target / lam]))
        return move[:size], move[size:], A @ move[:size]

    dw, dlam, ds = direction(-s * lam)
    reach = _reach(lam, dlam, s, ds)
    sigma = np.clip(((lam + reach * dlam) @ (s + reach * ds) / complementarity) ** 3, 1e-8, 1.0)
    if np.abs(residual) @ np.abs(w) > 2 * complementarity:
        sigma = max(sigma, 0.3)
    dw, dlam, ds = direction(sigma * mu - s * lam - reach**2 * ds * dlam)
    length = 0.99 * _reach(lam, dlam, s, ds)
    before = np.sqrt(residual @ residual)
    for _ in range(BACKTRACKS):
        new_w, new_lam = w + length * dw, lam + length * dlam
        after, slack = _gradient(new_w, p) - new_lam @ A, A @ new_w - b
        shrunk = np.sqrt(after @ after) <= (1 - 0.05 * length) * before
        if (slack > 0).all() and (shrunk or np.abs(after) @ np.abs(new_w) <= new_lam @ slack):
            return new_w, new_lam
        length *= 0.7
    return w, lam


class Elimination:
    """P R M C = L U for a square M, with R and C powers of two that bring all rows and columns to one size."""

    def __init__(self, matrix: Long) -> None:
        self.row, self.column = _equilibrate(np.abs(matrix))
        self.factors = self.row[:, None] * matrix * self.column
        self.order = np.arange(len(matrix))
        for k in range(len(matrix) - 1):
            pivot = k + int(np.argmax(np.abs(self.factors[k:, k])))
            if self.factors[pivot, k] == 0:
                continue
            self.factors[[k, pivot]], self.order[[k, pivot]] = self.factors[[pivot, k]], self.order[[pivot, k]]
            share = self.factors[k + 1 :, k] / self.factors[k, k]
            self.factors[k + 1 :, k] = share
            self.factors[k + 1 :, k + 1 :] -= share[:, None] * self.factors[k, k + 1 :]

    def solve(self, right: Long) -> Long:
        x = (self.row * right)[self.order]
        for k in range(len(x)):
            x[k + 1 :] -= self.factors[k + 1 :, k] * x[k]
        for k in reversed(range(len(x))):
            x[k] /= self.factors[k, k]
            x[:k] -= self.factors[:k, k] * x[k]
        return self.column * x


def _equilibrate(size: Long) -> tuple[Long, Long]:
    row, column = np.ones(len(size), dtype=size.dtype), np.ones(len(size), dtype=size.dtype)
    for _ in range(6):
        for axis, scale in ((1, row), (0, column)):
            largest = (row[:, None] * size * column).max(axis=axis)
            scale *= np.where(largest > 0, np.ldexp(np.longdouble(1.0), -(np.frexp(largest)[1] // 2)), 1.0)
    return row, column


def _gradient(w: Long, p: float) -> Long:
    return np.sign(w) * np.abs(w) ** (p - 1)


def _norm(x: Long, p: float) -> Any:
    largest = np.abs(x).max()
    return largest * ((np.abs(x) / largest) ** p).sum() ** (1 / p)


def _gap(A: Long, b: Long, p: float, w: Long, lam: Long) -> float:
    """1 − lb/ub with ub = ‖w‖_p / min(A w / b) and lb = bᵀλ / ‖Aᵀλ‖_q."""
    gap = 1 - float(b @ lam * (A @ w / b).min() / (_norm(w, p) * _norm(lam @ A, p / (p - 1))))
    return gap if np.isfinite(gap) else np.inf


def _reach(lam: Long, dlam: Long, s: Long, ds: Long) -> Any:
    """The longest step up to 1 that keeps λ and s from falling below zero."""
    steepest = min((dlam / lam).min(), (ds / s).min())
    return min(1.0, -1 / steepest) if steepest < 0 else np.longdouble(1.0)
