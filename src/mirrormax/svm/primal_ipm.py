"""p > 2: a primal-dual interior point in the weights (method B).

For p > 2 the dual's curvature |u|^{q−2} is infinite at u = 0, the primal's is not. The unknowns are w
and λ > 0; the slack s = A w − b > 0 is kept exact, from a strictly feasible start:

    rd = sign(w)|w|^{p−1} − Aᵀλ = 0,        λ∘s = μ → 0.

With H = (p−1)|w|^{p−2}, bounded below, and D = 1/H each Newton step solves
(A D Aᵀ + diag(s/λ)) dλ = c/λ + A D rd;  dw = D (Aᵀdλ − rd);  ds = A dw.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirrormax.svm.dual_ipm import Batch
from mirrormax.svm.linalg import Factor, longest_step, power
from mirrormax.svm.rows import Array, Index

BACKTRACKS = 6
STALLED = 25  # iterations without a better gap after which more of them will not help
FLOOR = 0.9  # tuned: 1.5 and more fails at p = 10, 0.1 and less is slow


@dataclass
class Point:
    """A batch of strictly feasible weights with their multipliers; ``power`` is |w|^{p−2}."""

    w: Array
    lam: Array
    s: Array
    power: Array
    u: Array

    @property
    def residual(self) -> Array:
        return self.power * self.w - self.u

    def take(self, members: Index) -> Point:
        return Point(*(getattr(self, name)[members] for name in self.__dataclass_fields__))

    def put(self, members: Index, other: Point) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name)[members] = getattr(other, name)


def solve_primal(batch: Batch, w: Array, tol: float, limit: int = 150) -> tuple[Array, Array, Array, Index]:
    """Weights (B, N), multipliers (B, m), relative gaps (B,), iterations (B,), from A w > b."""
    size = len(w)
    start = evaluate(batch, w, np.ones_like(batch.b))
    mu = 0.3 * (start.power * w * w).sum(axis=1, keepdims=True) / batch.b.shape[1]
    point = evaluate(batch, w, mu / start.s)
    best_w, best_lam, best_gap = w.copy(), point.lam.copy(), np.full(size, np.inf)
    iterations, since = np.zeros(size, dtype=np.intp), np.zeros(size, dtype=np.intp)
    alive = np.arange(size)
    for step in range(limit + 1):
        gap = relative_gap(batch, point)
        better = gap < best_gap[alive]
        best_w[alive[better]], best_lam[alive[better]] = point.w[better], point.lam[better]
        since[alive] = np.where(gap < 0.9 * best_gap[alive], 0, since[alive] + 1)
        best_gap[alive] = np.minimum(gap, best_gap[alive])
        iterations[alive] = step
        done = (gap <= tol) | (since[alive] > STALLED)
        if step == limit or done.all():
            break
        # Dropping members copies the rows of the others: worth it once a few are done.
        if done.sum() * 16 >= len(done):
            keep = np.flatnonzero(~done)
            alive, batch, point, gap = alive[keep], batch.take(keep), point.take(keep), gap[keep]
        point = advance(batch, point, gap)
    return best_w, best_lam, best_gap, iterations


def evaluate(batch: Batch, w: Array, lam: Array) -> Point:
    """The slack, |w|^{p−2} and Aᵀλ at a point."""
    return Point(w, lam, batch.rows.fwd(w) - batch.b, power(w, batch.p - 2), batch.rows.adj(lam))


def relative_gap(batch: Batch, point: Point) -> Array:
    """1 − lb/ub with ub = ‖w‖_p / min(A w / b) and lb = bᵀλ / ‖Aᵀλ‖_q, over the rows that exist (b > 0)."""
    p = batch.p[:, 0]
    norm = (point.power * point.w * point.w).sum(axis=1) ** (1 / p)
    dual_norm = power(point.u, batch.q).sum(axis=1) ** (1 - 1 / p)
    with np.errstate(invalid="ignore", over="ignore"):
        lower = (batch.gain * point.lam).sum(axis=1)
        gap = 1 - lower * batch.smallest_margin(point.s + batch.b) / np.maximum(norm * dual_norm, 1e-300)
    return np.where(np.isfinite(gap), gap, np.inf)


def advance(batch: Batch, point: Point, gap: Array) -> Point:
    """One predictor-corrector step of every member; where it fails, a safeguarded one."""
    w, lam, s, rows, p = point.w, point.lam, point.s, batch.rows, batch.p
    complementarity = (lam * s).sum(axis=1, keepdims=True)
    floor = (FLOOR * np.minimum(1.0, complementarity / w.shape[1]) ** (1 / p)) ** (p - 2)
    hessian = (p - 1) * np.maximum(point.power, floor)
    inverse = 1 / hessian
    matrices = rows.gram(inverse)
    np.einsum("bii->bi", matrices)[...] += s / lam
    factor = Factor(matrices)
    residual = point.residual
    mu = complementarity / lam.shape[1]
    rho = np.abs(residual * w).sum(axis=1, keepdims=True) / complementarity

    def direction(target: Array, residual: Array) -> tuple[Array, Array, Array]:
        dlam = factor.solve(target / lam + rows.fwd(inverse * residual))
        dw = inverse * (rows.adj(dlam) - residual)
        return dlam, dw, rows.fwd(dw)

    dlam, dw, ds = direction(-s * lam, residual)
    reach = np.minimum(longest_step((lam, dlam), (s, ds)), 1.0)[:, None]
    ahead = ((lam + reach * dlam) * (s + reach * ds)).sum(axis=1, keepdims=True) / complementarity
    sigma = np.clip(ahead**3, 1e-8, 1.0)
    sigma = np.where(rho > 20, 1.0, np.where(rho > 2, np.maximum(sigma, 0.3), sigma))

    linear = reach * hessian * dw
    moved = w + reach * dw
    gradient = point.power * w
    limit = np.abs(gradient) + np.abs(linear)
    beyond = np.clip(power(moved, p - 2) * moved - gradient - linear, -limit, limit)
    dlam, dw, ds = direction(sigma * mu - s * lam - reach**2 * ds * dlam, residual + beyond)
    fraction = 1 - np.clip(0.1 * gap, 1e-6, 0.01)
    length = np.minimum(1.0, fraction * longest_step((lam, dlam), (s, ds)))
    new, failed = _line_search(batch, point, dlam, dw, length, residual)
    if failed.any():
        members = np.flatnonzero(failed)
        t = np.where(rho > 2, mu, 0.5 * mu)
        dlam, dw, ds = direction(t - s * lam, residual)
        moves = (dlam[members], dw[members], ds[members])
        new.put(members, _safeguard(batch.take(members), point.take(members), moves, t[members]))
    return new


def _line_search(
    batch: Batch, point: Point, dlam: Array, dw: Array, length: Array, residual: Array
) -> tuple[Point, npt.NDArray[np.bool_]]:
    """The first of a few step lengths that reduces the residual or keeps it below complementarity."""

    def attempt(batch: Batch, members: Index) -> tuple[Point, npt.NDArray[np.bool_]]:
        step = length[members][:, None]
        new = evaluate(batch, point.w[members] + step * dw[members], point.lam[members] + step * dlam[members])
        after = new.residual
        shrunk = np.linalg.norm(after, axis=1) <= (1 - 0.05 * step[:, 0]) * size[members]
        accepted = shrunk | (np.abs(after * new.w).sum(axis=1) <= (new.lam * new.s).sum(axis=1))
        return new, ~(accepted & (new.s > 0).all(axis=1))

    size = np.linalg.norm(residual, axis=1)
    new, failed = attempt(batch, np.arange(len(length)))
    for _ in range(BACKTRACKS):
        if not failed.any():
            break
        members = np.flatnonzero(failed)
        length[members] *= 0.6
        shorter, failed[members] = attempt(batch.take(members), members)
        new.put(members, shorter)
    return new, failed


def _safeguard(batch: Batch, point: Point, moves: tuple[Array, Array, Array], t: Array) -> Point:
    """A descent step on the barrier function (1/p)‖w‖_p^p − t Σ log s, and multipliers to match."""

    def barrier(at: Point) -> Array:
        energy = (at.power * at.w * at.w).sum(axis=1) / batch.p[:, 0]
        with np.errstate(invalid="ignore", divide="ignore"):
            value: Array = energy - (t * np.log(at.s)).sum(axis=1)
        return value

    dlam, dw, ds = moves
    length = np.minimum(1.0, 0.99 * longest_step((point.s, ds)))
    before = barrier(point)
    slope = (point.power * point.w * dw).sum(axis=1) - (t / point.s * ds).sum(axis=1)
    for _ in range(40):
        new = evaluate(batch, point.w + length[:, None] * dw, point.lam)
        missed = ~(barrier(new) <= before + 1e-4 * length * slope + 1e-14 * np.abs(before))
        if not missed.any():
            break
        length = np.where(missed, 0.5 * length, length)
    if missed.any():  # rounding is all that is left to gain: stay, and let the outer loop see no progress
        stay = np.flatnonzero(missed)
        new.put(stay, point.take(stay))
    new.lam = np.clip(point.lam + length[:, None] * dlam, t / (10 * new.s), 10 * t / new.s)
    new.u = batch.rows.adj(new.lam)
    return new
