"""Attention SVMs by a barrier F of the norm's own unit ball (spectral, largest row), a batch of problems at once.

max s over A W ≥ s b, B W = 0, ‖W‖ ≤ 1, by Newton's method on the central path of μ → 0,

    μ F'(W) = Aᵀλ,    bᵀλ = 1,    λ ∘ y = μ,    y = A W − s b.

W is eliminated with the inverse of F'', which is known in closed form: for F(W) = −log det(I − WᵀW), in the coordinates
of W's singular vectors, entries (i, j) and (j, i) meet in 2 × 2 systems,

    F''⁻¹ E = (1 − σ_i²)(1 − σ_j²)/(2(1 − σ_i²σ_j²)) (E_ij − σ_iσ_j E_ji),

and for F(W) = −Σ_i log(1 − ‖w_i‖²) each row has its own rank-one correction. What is left is as large as there are
rows: (diag(y/λ) + A F''⁻¹ Aᵀ/μ) λ⁺ = μ/λ + A F''⁻¹ F' + b ds, bordered by bᵀλ⁺ = 1. μ shrinks when the step was short
in the local norm of F; the step after that is along the tangent of the path, F'' weighing the μ before it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np

from mirrormax.svm._types import FLOOR
from mirrormax.svm.norms import Norm
from mirrormax.svm.rows import Array, Bools, Factor, Index

SHRINK = 0.2  # of μ, when the step was short
CLOSE = 1.0  # squared length of a step in the local norm, below which it is short
STALLED = 40  # steps without a better gap after which more of them will not help


class SpectralBall:
    """−log det(I − WᵀW) at W (B, D, D), in the coordinates of the singular vectors."""

    def __init__(self, W: Array) -> None:
        self.P, self.sigma, self.Qt = np.linalg.svd(W)
        self.room = (1 - self.sigma) * (1 + self.sigma)
        self.norm = self.sigma[:, 0]
        self.gradient = np.zeros_like(W)
        np.einsum("bii->bi", self.gradient)[...] = 2 * self.sigma / self.room
        sigma, room = self.sigma[:, :, None], self.room[:, :, None]
        self.product = sigma * self.sigma[:, None]
        self.weight = room * self.room[:, None] / (2 * (room + sigma**2 * self.room[:, None]))

    def rows(self, x: Array, z: Array) -> Array:
        """x_r z_rᵀ in the coordinates, (B, m, D, D)."""
        left, right = x @ self.P, z @ self.Qt.swapaxes(1, 2)
        return np.asarray(left[..., :, None] * right[..., None, :])

    def shrunk(self, E: Array) -> Array:
        """F''⁻¹ E of a stack (B, r, D, D) of coordinates."""
        return np.asarray(self.weight[:, None] * (E - self.product[:, None] * E.swapaxes(-1, -2)))

    def back(self, E: Array) -> Array:
        """(B, D, D) from its coordinates."""
        return np.asarray(self.P @ E @ self.Qt)

    @staticmethod
    def size(W: Array) -> Array:
        """‖W‖, from WᵀW: good enough to stay inside, at a third of the time of singular values."""
        return np.asarray(np.sqrt(np.linalg.eigvalsh(W.swapaxes(1, 2) @ W)[:, -1]))


class RowsBall:
    """−Σ_i log(1 − ‖w_i‖²) over the rows of W (B, D, D)."""

    def __init__(self, W: Array) -> None:
        self.W = W[:, None]
        length = (self.W**2).sum(axis=-1, keepdims=True)
        self.room = 1 - length
        self.norm = np.sqrt(length.max(axis=(1, 2, 3)))
        self.turn = 2 / (self.room + 2 * length)
        self.gradient = (2 * self.W / self.room)[:, 0]

    def rows(self, x: Array, z: Array) -> Array:
        return np.asarray(x[..., :, None] * z[..., None, :])

    def shrunk(self, E: Array) -> Array:
        along = (E * self.W).sum(axis=-1, keepdims=True)
        return np.asarray(self.room / 2 * (E - self.turn * self.W * along))

    def back(self, E: Array) -> Array:
        return E

    @staticmethod
    def size(W: Array) -> Array:
        return np.asarray(np.linalg.norm(W, axis=-1).max(axis=-1))


OWN_BALLS: dict[str, type[SpectralBall] | type[RowsBall]] = {"spectral": SpectralBall, "rows-max": RowsBall}


@dataclass
class RankOne:
    """Unit rows x_r z_rᵀ, x and z (B, m, D), right-hand sides (B, m), which exist, and which are equalities."""

    x: Array
    z: Array
    exact: Array
    exists: Bools
    equal: Bools

    def take(self, members: Index | Bools) -> RankOne:
        return RankOne(self.x[members], self.z[members], self.exact[members], self.exists[members], self.equal[members])

    def fwd(self, W: Array) -> Array:
        return np.asarray(((self.x @ W) * self.z).sum(axis=-1))


def by_own_ball(rows: RankOne, W: Array, norm: Norm, tol: float, limit: int) -> tuple[Array, Array, Index]:
    """The best pair (W, λ) by relative gap of every problem from feasible weights W (B, D, D), and steps taken."""
    ball_of = OWN_BALLS[norm.name]
    above = rows.exists & ~rows.equal
    aim = np.where(above, rows.exact + FLOOR * tol, 0.0)
    W = 0.5 / ball_of.size(W)[:, None, None] * W
    v = rows.fwd(W)
    s = 0.5 * np.where(aim > 0, v / np.where(aim > 0, aim, 1.0), np.inf).min(axis=1)
    y = np.where(above, v - s[:, None] * aim, 1.0)
    mu = nu = 1 / (aim / y).sum(axis=1)
    lam = np.where(above, mu[:, None] / y, 0.0)
    best_W, best_lam, best_gap = W.copy(), lam.copy(), np.full(len(W), np.inf)
    steps, since = np.zeros(len(W), dtype=np.intp), np.zeros(len(W), dtype=np.intp)
    left = np.arange(len(W))
    for _ in range(limit):
        ball = ball_of(W)
        T = ball.rows(rows.x, rows.z)
        G = ball.shrunk(T).reshape(*T.shape[:2], -1)
        flat = T.reshape(G.shape)
        divisor = np.where(above, lam, 1.0)
        matrix = flat @ G.swapaxes(1, 2) / nu[:, None, None]
        # A row that does not exist is zero and keeps its multiplier at zero.
        np.einsum("bii->bi", matrix)[...] += np.where(above, y / divisor, np.where(rows.exists, 0.0, 1.0))
        factor = Factor(matrix)
        missing = np.where(above, mu[:, None] / divisor - y, np.where(rows.exists, -v, 0.0))
        pull = ((lam[:, None] @ flat).reshape(W.shape) - mu[:, None, None] * ball.gradient) / nu[:, None, None]
        base = factor.solve(missing - (G @ pull.reshape(len(W), -1, 1))[..., 0])
        turn = factor.solve(aim)
        ds = (1 - (aim * (lam + base)).sum(axis=1)) / (aim * turn).sum(axis=1)
        dlam = base + ds[:, None] * turn
        pull = pull + (dlam[:, None] @ flat).reshape(W.shape) / nu[:, None, None]
        move = ball.shrunk(pull[:, None])[:, 0]
        dW, new = ball.back(move), lam + dlam
        gap = _gap(rows, above, aim, v, ball.norm, new, norm)
        since[left] = np.where((gap < 0.9 * best_gap[left]) | (gap > 0.9), 0, since[left] + 1)
        better = gap < best_gap[left]
        put = left[better]
        best_W[put], best_lam[put], best_gap[put] = W[better], new[better], gap[better]
        steps[left] += 1
        short = (move * pull).sum(axis=(1, 2)) < CLOSE
        dy = np.where(above, rows.fwd(dW) - ds[:, None] * aim, 0.0)
        reach = np.minimum(_reach(y, dy), _reach(lam, np.where(above, dlam, 0.0)))
        length = np.minimum(1.0, 0.9 * np.minimum(reach, _room(ball_of.size, W, dW)))
        W, s, lam = W + length[:, None, None] * dW, s + length * ds, lam + length[:, None] * dlam
        v = rows.fwd(W)
        y = np.where(above, v - s[:, None] * aim, 1.0)
        nu, mu = mu, np.where(short & (length > 0.8), SHRINK * mu, mu)
        going = (
            (best_gap[left] > tol) & (since[left] <= STALLED) & (y > 0).all(axis=1) & np.isfinite(W).all(axis=(1, 2))
        )
        if not going.all():
            left, rows, above, aim = left[going], rows.take(going), above[going], aim[going]
            W, s, lam, v, y, mu, nu = (part[going] for part in (W, s, lam, v, y, mu, nu))
        if not len(left):
            break
    return best_W, best_lam, steps


def _gap(rows: RankOne, above: Bools, aim: Array, v: Array, size: Array, lam: Array, norm: Norm) -> Array:
    """1 − lb/ub with ub = ‖W‖/min(A W/b) and lb = bᵀλ/‖Aᵀλ‖_*."""
    positive = above & (rows.exact > 0)
    margin = np.where(positive, 2 * v / np.where(positive, rows.exact + aim, 1.0), np.inf).min(axis=1)
    lam = np.where(rows.equal & rows.exists, lam, np.where(above, np.maximum(lam, 0), 0.0))
    dual = norm.duals((rows.x * lam[..., None]).swapaxes(1, 2) @ rows.z)
    lower = (np.where(above, rows.exact, 0.0) * lam).sum(axis=1) / np.maximum(dual, 1e-300)
    gap = 1 - lower * margin / size
    return np.asarray(np.where((margin > 0) & np.isfinite(gap), gap, np.inf))


def _reach(x: Array, dx: Array) -> Array:
    """How far x > 0 (B, m) may go along dx and stay so, (B,)."""
    return np.asarray(np.where(dx < 0, -x / np.where(dx < 0, dx, -1.0), np.inf).min(axis=1))


def _room(size: Callable[[Array], Array], W: Array, dW: Array) -> Array:
    """A length (B,) along dW that stays in the ball."""
    length, outside = np.full(len(W), 1.12), np.arange(len(W))
    for _ in range(60):
        tried = W[outside] + length[outside, None, None] * dW[outside]
        outside = outside[~(size(np.nan_to_num(tried)) < 1)]
        if not len(outside):
            break
        length[outside] *= 0.8
    return length
