"""The nuclear-norm attention SVM: min ‖W‖_* s.t. A W ≥ b, the bias of weights trained as W = K Qᵀ.

Its dual, max bᵀλ s.t. ‖Aᵀλ‖_op ≤ 1, λ ≥ 0, is solved by Newton's method on the barrier function

    Φ(λ) = −bᵀλ − μ log det(I − UᵀU) − μ Σ log λ,    U = Aᵀλ,

whose derivative in U is W = 2μ U(I − UᵀU)⁻¹: the barrier brings its own primal weights. With
L = (I − UUᵀ)⁻¹, R = (I − UᵀU)⁻¹, G = UᵀL, the derivative of W along E is 2μ(L E R + Gᵀ Eᵀ Gᵀ), and rank-one
rows make its matrix 2μ[(x_rᵀL x_s)(z_rᵀR z_s) + (z_rᵀG x_s)(z_sᵀG x_r)].

After a Newton step dλ the linearised weights meet A W = b + (μ/λ)(1 − dλ/λ), so they are feasible as soon as
the step is short, whatever rounding did to I − UᵀU. They and λ are the certificate.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from mirrormax.svm._types import FLOOR, Answer, Unit
from mirrormax.svm.feasibility import judge
from mirrormax.svm.rows import Array, Factor, make_rows

LIMIT = 200
SHRINK = 0.15  # of μ, after a Newton step that was nearly full
STALLED = 50  # steps without a better gap after which more of them will not help
CLOSE = 0.5  # squared Newton decrement below which μ may shrink


def nuclear_norm(w: Array, shape: tuple[int, int, int]) -> Array:
    """The sum of singular values of each (d, e) matrix."""
    values: Array = np.linalg.svd(np.nan_to_num(w.reshape(shape)), compute_uv=False).sum(axis=-1)
    return values


def spectral_norm(u: Array, shape: tuple[int, int, int]) -> Array:
    """The largest singular value of each (d, e) matrix."""
    values: Array = np.linalg.svd(np.nan_to_num(u.reshape(shape)), compute_uv=False).max(axis=-1)
    return values


def solve_nuclear(unit: Unit, tol: float) -> Answer:
    """Weights and multipliers of every problem, one after the other; infeasible ones with their verdict."""
    size, n, per_sample, d = unit.x.shape
    e = unit.z.shape[-1]
    exact = unit.exact
    answer = Answer.empty(size, d * e, n * per_sample)
    with np.errstate(all="ignore"):
        for k in range(size):
            one = unit.take(np.array([k]))
            keep = np.flatnonzero(exact[k] > 0)
            verdict = judge(make_rows(one.x, one.z), (exact[k] > 0).astype(np.float64))
            if not verdict.feasible:
                answer.verdicts[k] = verdict
                continue
            owner = np.repeat(np.arange(n), per_sample)[keep]
            problem = _Problem(one.x[0].reshape(-1, d)[keep], one.z[0][owner], exact[k, keep], tol)
            # Phase 0 solved p = 2: its multipliers, moved inside, are a start of the right scale.
            start = verdict.lam[keep] + 0.1 * verdict.lam[keep].mean()
            w, lam, answer.iterations[k] = problem.solve(start)
            answer.w[k], answer.lam[k, keep] = w.reshape(-1), lam
    return answer


@dataclass
class _Barrier:
    """λ, U and what the derivatives of the barrier need of them."""

    lam: Array
    U: Array
    W: Array
    left: Array
    right: Array
    cross: Array
    value: float


class _Problem:
    """One feasible problem with unit rows x_r z_rᵀ: x (m, d), z (m, e), b (m,)."""

    def __init__(self, x: Array, z: Array, b: Array, tol: float) -> None:
        self.x, self.z, self.exact, self.tol = x, z, b, tol
        self.b = b + FLOOR * tol

    def solve(self, start: Array) -> tuple[Array, Array, int]:
        """The best pair (W, λ) by relative gap, and the number of Newton steps."""
        m, d, e = len(self.b), self.x.shape[1], self.z.shape[1]
        lam = start * (0.5 / np.linalg.norm(self.adj(start), 2))
        mu = float(self.b @ lam) / (m + 2 * min(d, e))
        best_w, best_lam, best_gap, since = self.adj(lam), lam, np.inf, 0
        at = self.barrier(lam, mu)
        for step in range(LIMIT):
            dlam, decrement = self.newton(at, mu)
            E = self.adj(dlam)
            W = at.W + 2 * mu * (at.left @ E @ at.right + at.cross.T @ E.T @ at.cross.T)
            gap = self.gap(W, lam)
            since = 0 if gap < 0.9 * best_gap or gap > 0.9 else since + 1
            if gap < best_gap:
                best_w, best_lam, best_gap = W, lam, gap
            if gap <= self.tol or since > STALLED:
                return best_w, best_lam, step
            at = self.line_search(at, dlam, decrement, mu)
            lam = at.lam
            if decrement < CLOSE:
                mu *= SHRINK
                at = self.barrier(lam, mu)
        return best_w, best_lam, LIMIT

    def fwd(self, W: Array) -> Array:
        margins: Array = np.einsum("rd,de,re->r", self.x, W, self.z, optimize=True)
        return margins

    def adj(self, lam: Array) -> Array:
        return np.asarray(self.x.T @ (lam[:, None] * self.z))

    def barrier(self, lam: Array, mu: float) -> _Barrier:
        """Everything at λ through the singular values of U, which keep 1 − σ to the last digit there is."""
        U = self.adj(lam)
        P, sigma, Qt = np.linalg.svd(U, full_matrices=True)
        rank = len(sigma)
        room = (1 - sigma) * (1 + sigma)
        left = np.concatenate([1 / room, np.ones(P.shape[0] - rank)])
        right = np.concatenate([1 / room, np.ones(Qt.shape[0] - rank)])
        ratio = sigma / room
        W = (P[:, :rank] * (2 * mu * ratio)) @ Qt[:rank]
        cross = (Qt[:rank].T * ratio) @ P[:, :rank].T
        inside = bool((room > 0).all() and (lam > 0).all())
        value = float(-self.b @ lam - mu * np.log(room).sum() - mu * np.log(lam).sum()) if inside else np.inf
        return _Barrier(lam, U, W, (P * left) @ P.T, (Qt.T * right) @ Qt, cross, value)

    def newton(self, at: _Barrier, mu: float) -> tuple[Array, float]:
        """dλ, and the squared Newton decrement in units of μ."""
        gradient = self.fwd(at.W) - self.b - mu / at.lam
        cross = self.z @ at.cross @ self.x.T
        matrix = 2 * mu * ((self.x @ at.left @ self.x.T) * (self.z @ at.right @ self.z.T) + cross * cross.T)
        np.einsum("ii->i", matrix)[...] += mu / at.lam**2
        dlam = Factor(matrix[None]).solve(-gradient[None])[0]
        return dlam, float(-gradient @ dlam) / mu

    def line_search(self, at: _Barrier, dlam: Array, decrement: float, mu: float) -> _Barrier:
        length = min(1.0, 0.99 / max(float((-dlam / at.lam).max()), 1e-300))
        for _ in range(40):
            new = self.barrier(at.lam + length * dlam, mu)
            if new.value <= at.value - 1e-4 * length * mu * decrement + 1e-13 * abs(at.value):
                return new
            length *= 0.6
        return at

    def gap(self, W: Array, lam: Array) -> float:
        """1 − lb/ub with ub = ‖W‖_*/min(A W/b) and lb = bᵀλ/‖Aᵀλ‖_op."""
        margin = float((self.fwd(W) * 2 / (self.exact + self.b)).min())
        if not margin > 0:
            return np.inf
        upper = float(np.linalg.svd(W, compute_uv=False).sum()) / margin
        gap = 1 - float(self.exact @ lam) / float(np.linalg.norm(self.adj(lam), 2)) / upper
        return gap if np.isfinite(gap) else np.inf
