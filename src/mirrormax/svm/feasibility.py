"""Phase 0: does any w satisfy A w > 0? Either answer comes with its proof.

min ½‖w‖² + ½β² s.t. A w + β ≥ 1 always has a solution (β = 1). If some w separates, so does the
solution's w; if not, then w = Aᵀλ = 0 there, and λ ≥ 0, 1ᵀλ = 1 is a Farkas certificate: any W with
A W ≥ 1 would give 0 = ⟨Aᵀλ, W⟩ = λᵀA W ≥ 1. Its dual is the nonnegative least-squares problem
min ‖[Aᵀ; 1ᵀ]λ − e_last‖, solved by active sets when small and as a p = 2 problem otherwise.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from scipy.optimize import nnls

from mirrormax.svm.dual_ipm import Batch, solve_dual
from mirrormax.svm.rows import Array, Index, Rows

INFEASIBLE = 1e-10  # ‖Aᵀλ‖/1ᵀλ for unit rows; feasible problems gave 1e-4 and more, infeasible ones 3e-16
LARGEST_ACTIVE_SET = 2_000_000
POLISH = 6


@dataclass
class Verdict:
    """``feasible`` with w (N,), A w > 0; or not, with λ (m,), Aᵀλ = 0; or undecided (None) with the best λ."""

    feasible: bool | None
    w: Array
    lam: Array
    residual: float

    def spread(self, rows: Index, m: int) -> Verdict:
        """The same about a problem of m rows of which these were looked at."""
        lam = np.zeros(m)
        lam[rows] = self.lam
        return Verdict(self.feasible, self.w, lam, self.residual)


class WithOffset:
    """[A, 1]: rows with one more feature that is 1 everywhere a row exists."""

    def __init__(self, rows: Rows, exists: Array) -> None:
        self.rows, self.exists = rows, exists
        self.m, self.size = rows.m, rows.size + 1

    def fwd(self, w: Array) -> Array:
        return self.rows.fwd(w[:, :-1]) + w[:, -1:] * self.exists

    def adj(self, lam: Array) -> Array:
        return np.concatenate([self.rows.adj(lam), (lam * self.exists).sum(axis=1, keepdims=True)], axis=1)

    def gram(self, weight: Array) -> Array:
        offset = self.exists[:, :, None] * self.exists[:, None, :]
        return self.rows.gram(weight[:, :-1]) + weight[:, -1][:, None, None] * offset

    def take(self, members: Index) -> WithOffset:
        return WithOffset(self.rows.take(members), self.exists[members])

    def scaled(self, kappa: Array) -> WithOffset:
        return WithOffset(self.rows.scaled(kappa), self.exists * kappa[:, None])

    def dense(self) -> Array:
        return np.concatenate([self.rows.dense(), self.exists[:, :, None]], axis=2)

    def subset(self, keep: Index) -> WithOffset:
        return WithOffset(self.rows.subset(keep), self.exists[:, keep])


def judge(rows: Rows, exists: Array) -> Verdict:
    """Whether one problem (batch of 1) with unit rows is feasible; ``exists`` (m,) is 1 for its rows, else 0."""
    lam = None
    if rows.m * rows.size <= LARGEST_ACTIVE_SET:
        matrix = np.concatenate([rows.dense()[0].T, exists[None]])
        try:
            lam = nnls(matrix, np.append(np.zeros(rows.size), 1.0))[0]
        except RuntimeError:  # cycling on degenerate rows
            lam = None
    verdict = None if lam is None else _verdict(rows, lam * exists, exists)
    if verdict is None or verdict.feasible is None:
        verdict = _verdict(rows, _interior(rows, exists) * exists, exists)
    return verdict


def _interior(rows: Rows, exists: Array) -> Array:
    """The same multipliers by interior points."""
    b = np.where(exists > 0, 1.0, -1.0)[None]
    batch = Batch(WithOffset(rows, exists[None]), b, b, np.array([[2.0]]))
    lam = solve_dual(batch, np.full_like(b, 1 / max(exists.sum(), 1.0)), tol=1e-15)[0]
    return np.asarray(lam[0])


def _verdict(rows: Rows, lam: Array, exists: Array) -> Verdict:
    w = rows.adj(lam[None])
    if (rows.fwd(w)[0][exists > 0] > 0).all():
        return Verdict(True, w[0], lam, float(np.linalg.norm(w) / lam.sum()))
    lam = _polish(rows, lam)
    total = lam.sum()
    if not total > 0:
        return Verdict(None, w[0], lam, np.inf)
    residual = float(np.linalg.norm(rows.adj(lam[None])) / total)
    return Verdict(False if residual < INFEASIBLE else None, w[0], lam / total, residual)


def _polish(rows: Rows, lam: Array) -> Array:
    """Least-squares corrections on the support of λ until Aᵀλ is zero to rounding."""
    support = np.flatnonzero(lam > 1e-6 * lam.max(initial=0.0))
    if not len(support):
        return lam
    best, best_size = lam, float(np.linalg.norm(rows.adj(lam[None])))
    gram = None
    current = np.zeros_like(lam)
    current[support] = lam[support]
    for _ in range(POLISH):
        u = rows.adj(current[None])
        size = float(np.linalg.norm(u))
        if size < best_size and (current >= 0).all():
            best, best_size = current.copy(), size
        if size < 1e-16 * current.sum():
            break
        if gram is None:
            gram = rows.gram(np.ones((1, rows.size)))[0][np.ix_(support, support)]
        current[support] -= np.linalg.lstsq(gram, rows.fwd(u)[0][support], rcond=1e-13)[0]
    return best
