"""Attention SVMs in norms whose unit balls have a barrier: min ‖W‖ s.t. A W ≥ b (and B W = 0 at equality rows).

With F a barrier of a unit ball, F → ∞ at its boundary, two kinds of norms are solved on the central path of μ → 0: by
the barrier of *their own* ball (spectral, largest row: :mod:`mirrormax.svm.solvers.own_ball`), or by that of the *dual
norm's* (nuclear norm: spectral ball; sum of rows: largest row; k-support norm: ℓ2 norm of the k largest entries), here:
max bᵀλ over ‖Aᵀλ‖_* ≤ 1, λ ≥ 0, by Newton's method on

    Φ(λ) = −bᵀλ + μ F(Aᵀλ) − μ Σ log λ,

whose derivative in U = Aᵀλ is W = μ F'(U): the barrier brings its own primal weights. After a step dλ the linearised
weights meet A W = b + (μ/λ)(1 − dλ/λ), so they are feasible as soon as the step is short, whatever rounding did to F.

W and λ are the certificate: ‖W‖ at smallest margin 1 against bᵀλ/‖Aᵀλ‖_*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from mirrormax.svm._types import FLOOR, Answer, Unit
from mirrormax.svm.feasibility import judge, judge_general
from mirrormax.svm.norms import Norm
from mirrormax.svm.rows import Array, Bools, Factor, make_rows
from mirrormax.svm.solvers.own_ball import OWN_BALLS, RankOne, by_own_ball

SHRINK = 0.15  # of μ, after a Newton step that was nearly full
CLOSE = 0.5  # squared Newton decrement below which μ may shrink


class Ball(Protocol):
    """The barrier F of a unit ball at a matrix U (D, D), with further variables of its own or none."""

    value: float  # ∞ outside
    gradient: Array  # F'(U), (D, D)
    inner: Array  # F' in the further variables, (k,)

    def stretched(self, E: Array) -> Array:
        """F''(U) E, for a stack of matrices (r, D, D)."""
        ...

    def mixed(self, E: Array) -> Array:
        """The derivative of ``inner`` along each of a stack of matrices, (r, k)."""
        ...

    def curvature(self) -> Array:
        """F'' in the further variables, (k, k)."""
        ...


class SpectralBall:
    """F(U) = −log det(I − UᵀU), in the coordinates of U's singular vectors, which keep 1 − σ to the last digit."""

    inner = np.zeros(0)

    def __init__(self, U: Array) -> None:
        self.P, sigma, self.Qt = np.linalg.svd(U)
        self.sigma, self.room = sigma, (1 - sigma) * (1 + sigma)
        inside = bool((self.room > 0).all())
        self.value = float(-np.log(self.room).sum()) if inside else np.inf
        self.gradient = (self.P * (2 * sigma / self.room)) @ self.Qt

    def stretched(self, E: Array) -> Array:
        E = self.P.T @ E @ self.Qt.T
        weight = 2 / np.multiply.outer(self.room, self.room)
        both = weight * (E + np.multiply.outer(self.sigma, self.sigma) * E.swapaxes(-1, -2))
        return np.asarray(self.P @ both @ self.Qt)

    def mixed(self, E: Array) -> Array:
        return np.zeros((len(E), 0))

    def curvature(self) -> Array:
        return np.zeros((0, 0))


class RowsBall:
    """F(U) = −Σ_i log(1 − ‖u_i‖²) over the rows u_i."""

    inner = np.zeros(0)

    def __init__(self, U: Array) -> None:
        self.U = U
        self.length = (U**2).sum(axis=1)
        self.room = 1 - self.length
        inside = bool((self.room > 0).all())
        self.value = float(-np.log(self.room).sum()) if inside else np.inf
        self.gradient = 2 * U / self.room[:, None]

    def stretched(self, E: Array) -> Array:
        along = (E * self.U).sum(axis=-1, keepdims=True)
        room = self.room[:, None]
        return np.asarray(2 * E / room + 4 * self.U * along / room**2)

    def mixed(self, E: Array) -> Array:
        return np.zeros((len(E), 0))

    def curvature(self) -> Array:
        return np.zeros((0, 0))


class TopBall:
    """The ℓ2 norm of the k largest entries, at most 1: some t and ν ≥ 0 have kt + Σν ≤ 1 and ν_j + t ≥ u_j².

    F(U; t, ν) = −log(1 − kt − Σν) − Σ log(ν_j + t − u_j²) − Σ log ν_j; the further variables are (t, ν).
    """

    def __init__(self, U: Array, k: int, inner: Array) -> None:
        self.U, self.k, self.at = U, k, inner
        t, nu = inner[0], inner[1:]
        self.rest = 1 - k * t - nu.sum()
        self.apart = nu + t - U.ravel() ** 2
        inside = bool(self.rest > 0 and (self.apart > 0).all() and (nu > 0).all())
        self.value = float(-np.log(self.rest) - np.log(self.apart).sum() - np.log(nu).sum()) if inside else np.inf
        self.gradient = 2 * U / self.apart.reshape(U.shape)
        self.cost = np.append(float(k), np.ones(len(nu)))  # of (t, ν) in kt + Σν
        push = 1 / self.apart
        self.inner = self.cost / self.rest - np.append(push.sum(), push + 1 / nu)

    @staticmethod
    def start(U: Array, k: int) -> Array:
        """(t, ν) inside, for a U of norm 1/2."""
        squares = np.sort(U.ravel() ** 2)[::-1]
        t = squares[min(k, len(squares)) - 1] + 0.25 / k
        return np.append(t, np.maximum(U.ravel() ** 2 - t, 0) + 0.25 / U.size)

    def stretched(self, E: Array) -> Array:
        apart = self.apart.reshape(self.U.shape)
        return np.asarray((2 / apart + 4 * self.U**2 / apart**2) * E)

    def mixed(self, E: Array) -> Array:
        move = -2 * (self.U * E).reshape(len(E), -1) / self.apart**2
        return np.concatenate([move.sum(axis=1, keepdims=True), move], axis=1)

    def curvature(self) -> Array:
        push = 1 / self.apart**2
        matrix = np.diag(np.append(push.sum(), push + 1 / self.at[1:] ** 2))
        matrix[0, 1:] = matrix[1:, 0] = push
        return np.asarray(matrix + np.multiply.outer(self.cost, self.cost) / self.rest**2)


BALLS: dict[str, type[SpectralBall] | type[RowsBall]] = {"nuclear": SpectralBall, "rows-sum": RowsBall}


def solve_barrier(unit: Unit, norm: Norm, tol: float, limit: int = 200) -> Answer:
    """Weights and multipliers of every problem; infeasible ones with their verdict."""
    size, n, per_sample, d = unit.x.shape
    e = unit.z.shape[-1]
    exact, exists = unit.exact, unit.c.reshape(size, -1) > 0
    equal = np.zeros_like(exists) if unit.equal is None else unit.equal & exists
    wide = max(d, e)  # zeros beside a matrix change none of these norms
    square = replace(norm, shape=(wide, wide))
    x = _padded(unit.x.reshape(size, -1, d), wide)
    z = _padded(np.repeat(unit.z, per_sample, axis=1), wide)
    answer = Answer.empty(size, d * e, n * per_sample)
    for k in range(size):
        one = unit.take(np.array([k]))
        rows = make_rows(one.x, one.z)
        if unit.right is None:
            verdict = judge(rows, exists[k].astype(np.float64))
        else:
            verdict = judge_general(rows, exact[k], exists[k], equal[k])
        answer.verdicts[k] = verdict
        if verdict.feasible and norm.name not in OWN_BALLS:
            keep = np.flatnonzero(exists[k])
            problem = _Problem(x[k, keep], z[k, keep], exact[k, keep], equal[k, keep], square, tol, limit)
            W, lam, answer.iterations[k] = problem.by_dual_ball(verdict.lam[keep])
            answer.w[k], answer.lam[k, keep] = W[:d, :e].reshape(-1), lam
    feasible = np.array([k for k, verdict in answer.verdicts.items() if verdict.feasible], dtype=np.intp)
    if norm.name in OWN_BALLS and len(feasible):
        start = np.zeros((len(feasible), wide, wide))
        start[:, :d, :e] = np.stack([answer.verdicts[k].w.reshape(d, e) for k in feasible.tolist()])
        constraints = RankOne(x[feasible], z[feasible], exact[feasible], exists[feasible], equal[feasible])
        W, answer.lam[feasible], answer.iterations[feasible] = by_own_ball(constraints, start, square, tol, limit)
        answer.w[feasible] = W[:, :d, :e].reshape(len(feasible), -1)
    answer.verdicts = {k: verdict for k, verdict in answer.verdicts.items() if not verdict.feasible}
    return answer


def _padded(rows: Array, wide: int) -> Array:
    return np.pad(rows, ((0, 0), (0, 0), (0, wide - rows.shape[-1])))


@dataclass
class _Best:
    """The best pair (W, λ) so far by relative gap."""

    W: Array
    lam: Array
    gap: float = np.inf
    since: int = 0

    def look(self, W: Array, lam: Array, gap: float) -> None:
        self.since = 0 if gap < 0.9 * self.gap or gap > 0.9 else self.since + 1
        if gap < self.gap:
            self.W, self.lam, self.gap = W, lam, gap


@dataclass
class _Problem:
    """One feasible problem with unit rows x_r z_rᵀ: x (m, D), z (m, D), b (m,), equality rows (m,)."""

    x: Array
    z: Array
    exact: Array
    equal: Bools
    norm: Norm
    tol: float
    limit: int
    stalled: int = 50  # steps without a better gap after which more of them will not help

    def __post_init__(self) -> None:
        self.b = np.where(self.equal, 0.0, self.exact + FLOOR * self.tol)
        self.above = ~self.equal
        self.matrices = self.x[:, :, None] * self.z[:, None, :]
        self.flat = self.matrices.reshape(len(self.x), -1)

    def fwd(self, W: Array) -> Array:
        return np.asarray(self.flat @ W.ravel())

    def adj(self, lam: Array) -> Array:
        return np.asarray(self.x.T @ (lam[:, None] * self.z))

    def gap(self, W: Array, lam: Array) -> float:
        """1 − lb/ub with ub = ‖W‖/min(A W/b) and lb = bᵀλ/‖Aᵀλ‖_*."""
        positive = self.exact > 0
        margin = float((self.fwd(W) * 2 / (self.exact + self.b))[positive & self.above].min())
        lam = np.where(self.equal, lam, np.maximum(lam, 0))
        lower = float(self.exact @ np.where(self.equal, 0.0, lam)) / max(self.norm.dual(self.adj(lam)), 1e-300)
        gap = 1 - lower * margin / self.norm.size(W)
        return gap if margin > 0 and np.isfinite(gap) else np.inf

    def by_dual_ball(self, lam: Array) -> tuple[Array, Array, int]:
        """max bᵀλ over Aᵀλ in the dual norm's unit ball, from multipliers of about the right scale."""
        lam = np.where(self.above, lam + 0.1 * np.abs(lam).mean(), lam)
        lam = lam * (0.5 / self.norm.dual(self.adj(lam)))
        inner = np.zeros(0) if self.norm.k is None else TopBall.start(self.adj(lam), self.norm.k)
        mu = float(self.b @ lam) / (len(lam) + 2 * len(self.x[0]) + len(inner))
        best = _Best(self.adj(lam), lam)
        for step in range(self.limit):
            ball = self._ball(lam, inner)
            dlam, dinner, decrement = self._newton(ball, lam, mu)
            E = self.adj(dlam)
            W = mu * (ball.gradient + ball.stretched(E[None])[0])
            if len(inner):
                assert isinstance(ball, TopBall)
                move = dinner[0] + dinner[1:]
                W = W - mu * (2 * ball.U.ravel() * move / ball.apart**2).reshape(W.shape)
            best.look(W, lam, self.gap(W, lam))
            if best.gap <= self.tol or best.since > self.stalled:
                return best.W, best.lam, step
            lam, inner = self._line_search(lam, inner, dlam, dinner, decrement, mu)
            if decrement < CLOSE:
                mu *= SHRINK
        return best.W, best.lam, self.limit

    def _ball(self, lam: Array, inner: Array) -> Ball:
        U = self.adj(lam)
        return BALLS[self.norm.name](U) if self.norm.k is None else TopBall(U, self.norm.k, inner)

    def _newton(self, ball: Ball, lam: Array, mu: float) -> tuple[Array, Array, float]:
        """dλ, the step of the further variables, and the squared Newton decrement in units of μ."""
        m = len(lam)
        per = np.where(self.above, 1 / np.where(self.above, lam, 1.0), 0.0)
        gradient = np.concatenate([mu * self.fwd(ball.gradient) - self.b - mu * per, mu * ball.inner])
        matrix = np.zeros((len(gradient), len(gradient)))
        matrix[:m, :m] = mu * self.flat @ ball.stretched(self.matrices).reshape(m, -1).T
        np.einsum("ii->i", matrix[:m, :m])[...] += mu * per**2
        if len(ball.inner):
            matrix[:m, m:] = mu * ball.mixed(self.matrices)
            matrix[m:, :m] = matrix[:m, m:].T
            matrix[m:, m:] = mu * ball.curvature()
        step = Factor(matrix[None]).solve(-gradient[None])[0]
        return step[:m], step[m:], float(-gradient @ step) / mu

    def _line_search(
        self, lam: Array, inner: Array, dlam: Array, dinner: Array, decrement: float, mu: float
    ) -> tuple[Array, Array]:
        before = self._value(lam, inner, mu)
        length = min(1.0, 0.99 * _reach(lam, np.where(self.above, dlam, 0.0), free=self.equal))
        for _ in range(40):
            value = self._value(lam + length * dlam, inner + length * dinner, mu)
            if value <= before - 1e-4 * length * mu * decrement + 1e-13 * abs(before):
                return lam + length * dlam, inner + length * dinner
            length *= 0.6
        return lam, inner

    def _value(self, lam: Array, inner: Array, mu: float) -> float:
        if not (lam[self.above] > 0).all():
            return np.inf
        barrier = self._ball(lam, inner).value - np.log(lam[self.above]).sum()
        return float(-self.b @ lam + mu * barrier)


def _reach(x: Array, dx: Array, free: Bools | None = None) -> float:
    """How far x > 0 may go along dx and stay so, at most 1e300; ``free`` entries may go anywhere."""
    falls = dx < 0 if free is None else (dx < 0) & ~free
    return float((-x[falls] / dx[falls]).min()) if falls.any() else 1e300
