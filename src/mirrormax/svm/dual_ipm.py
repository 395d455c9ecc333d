"""1 < p ≤ 2: a primal-dual interior point in the multipliers (method A).

For a batch of problems min (1/p)‖w‖_p^p s.t. A w ≥ b, with q = p/(p−1) ≥ 2, the dual
max bᵀλ − (1/q)‖Aᵀλ‖_q^q over λ ≥ 0 is smooth. The unknowns are λ > 0 and the slack s > 0 of

    v − s = b,   v = A w,   w = sign(u)|u|^{q−1},   u = Aᵀλ,        λ∘s = μ → 0,

so w is stationary by construction and λ alone carries the certificate. With D = (q−1)|u|^{q−2} each
Newton step solves (A D Aᵀ + diag(s/λ)) dλ = c/λ − r, r = v − s − b.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirrormax.svm.linalg import Factor, longest_step, power
from mirrormax.svm.rows import Array, Index, Rows

BACKTRACKS = 6
STALLED = 12  # iterations without a better gap after which more of them will not help


@dataclass
class Iterate:
    """A batch of interior points, with what the next step needs of them."""

    lam: Array
    s: Array
    u: Array
    w: Array
    curvature: Array
    v: Array

    def take(self, members: Index) -> Iterate:
        return Iterate(*(getattr(self, name)[members] for name in self.__dataclass_fields__))

    def put(self, members: Index, other: Iterate) -> None:
        for name in self.__dataclass_fields__:
            getattr(self, name)[members] = getattr(other, name)


@dataclass
class Batch:
    """The problems still being worked on: rows, right-hand sides (B, m), exponents p (B, 1).

    The steps aim at ``b``, the certificate is that of ``exact``; see :mod:`mirrormax.svm.scaling`.
    """

    rows: Rows
    b: Array
    exact: Array
    p: Array

    def __post_init__(self) -> None:
        self.q = self.p / (self.p - 1)
        exists = self.exact > 0
        self.gain = np.where(exists, self.exact, 0.0)
        # Half-way to the aim: a row with a tiny b counts as met only with room for the rounding of v.
        self.per_margin = np.where(exists, 2 / (self.exact + self.b), 0.0)
        self.beyond = np.where(exists, 0.0, np.inf)

    def smallest_margin(self, v: Array) -> Array:
        """min v/b over the rows that exist, (B,)."""
        smallest: Array = (v * self.per_margin + self.beyond).min(axis=1)
        return smallest

    def take(self, members: Index) -> Batch:
        return Batch(self.rows.take(members), self.b[members], self.exact[members], self.p[members])


def solve_dual(batch: Batch, lam: Array, tol: float, limit: int = 100) -> tuple[Array, Array, Index]:
    """Multipliers (B, m), their relative gaps (B,) and iterations (B,), from a positive start ``lam``.

    Members whose gap stays above ``tol`` come with the best multipliers seen.
    """
    size = len(lam)
    best, best_gap = lam.copy(), np.full(size, np.inf)
    iterations = np.zeros(size, dtype=np.intp)
    alive = np.arange(size)
    since = np.zeros(size, dtype=np.intp)
    point = evaluate(batch, lam)
    point.s = np.maximum(point.v - batch.b, 1.0)
    for step in range(limit + 1):
        gap = relative_gap(batch, point)
        better = gap < best_gap[alive]
        best[alive[better]] = point.lam[better]
        since[alive] = np.where(gap < 0.9 * best_gap[alive], 0, since[alive] + 1)
        best_gap[alive] = np.minimum(gap, best_gap[alive])
        iterations[alive] = step
        # An infeasible w has no gap to speak of: only feasible ones can be said to stall.
        since[alive[gap > 1]] = 0
        done = (gap <= tol) | (since[alive] > STALLED) | ~np.isfinite(point.v).all(axis=1)
        if step == limit or done.all():
            break
        # Dropping members copies the rows of the others: worth it once a few are done.
        if done.sum() * 16 >= len(done):
            keep = np.flatnonzero(~done)
            alive, batch, point, gap = alive[keep], batch.take(keep), point.take(keep), gap[keep]
        point = advance(batch, point, gap)
    return best, best_gap, iterations


def evaluate(batch: Batch, lam: Array) -> Iterate:
    """u, w, v and the curvature at λ; the slack is left for the caller."""
    u = batch.rows.adj(lam)
    steep = power(u, batch.q - 2)
    w = steep * u
    return Iterate(lam, np.empty_like(lam), u, w, (batch.q - 1) * steep, batch.rows.fwd(w))


def relative_gap(batch: Batch, point: Iterate) -> Array:
    """1 − lb/ub = 1 − (bᵀλ)(min v/b)/⟨u, w⟩, over the rows that exist (b > 0)."""
    energy = (point.u * point.w).sum(axis=1)
    with np.errstate(invalid="ignore", over="ignore"):
        lower = (batch.gain * point.lam).sum(axis=1)
        gap = 1 - lower * batch.smallest_margin(point.v) / np.maximum(energy, 1e-300)
    return np.where(np.isfinite(gap), gap, np.inf)


def advance(batch: Batch, point: Iterate, gap: Array) -> Iterate:
    """One predictor-corrector step of every member; where it fails, a safeguarded one."""
    lam, s, rows = point.lam, point.s, batch.rows
    matrices = rows.gram(point.curvature)
    np.einsum("bii->bi", matrices)[...] += s / lam
    factor = Factor(matrices)
    residual = point.v - s - batch.b
    complementarity = (lam * s).sum(axis=1)
    mu = complementarity / lam.shape[1]
    rho = np.abs(lam * residual).sum(axis=1) / complementarity

    dlam = factor.solve(-s - residual)
    ds = -s - s * dlam / lam
    reach = np.minimum(longest_step((lam, dlam), (s, ds)), 1.0)[:, None]
    ahead = ((lam + reach * dlam) * (s + reach * ds)).sum(axis=1) / complementarity
    sigma = np.clip(ahead**2, 1e-8, 1.0)
    sigma = np.where(rho > 2, np.maximum(sigma, 0.3), sigma)

    target = (sigma * mu)[:, None] - s * lam - reach**2 * ds * dlam
    dlam = factor.solve(target / lam - residual - _second_order(batch, point, reach * dlam))
    ds = (target - s * dlam) / lam
    fraction = 1 - np.clip(0.1 * gap, 1e-6, 0.01)
    length = np.minimum(1.0, fraction * longest_step((lam, dlam), (s, ds)))
    new, failed = _line_search(batch, point, dlam, ds, length, residual)
    failed |= rho > 20
    if failed.any():
        members = np.flatnonzero(failed)
        t = np.where(rho > 2, mu, 0.5 * mu)[:, None]
        dlam = factor.solve((t - s * lam) / lam - residual)
        new.put(members, _safeguard(batch.take(members), point.take(members), dlam[members], t[members]))
    return new


def _second_order(batch: Batch, point: Iterate, dlam: Array) -> Array | float:
    """A times what the mirror map does beyond its derivative along Aᵀdλ, limited to its own size."""
    if (batch.q == 2).all():
        return 0.0
    du = batch.rows.adj(dlam)
    moved = point.u + du
    linear = point.curvature * du
    limit = np.abs(point.w) + np.abs(linear)
    beyond = power(moved, batch.q - 2) * moved - point.w - linear
    return batch.rows.fwd(np.clip(beyond, -limit, limit))


def _line_search(
    batch: Batch, point: Iterate, dlam: Array, ds: Array, length: Array, residual: Array
) -> tuple[Iterate, npt.NDArray[np.bool_]]:
    """The first of a few step lengths that reduces the residual or keeps it below complementarity."""

    def attempt(batch: Batch, members: Index) -> tuple[Iterate, npt.NDArray[np.bool_]]:
        step = length[members][:, None]
        new = evaluate(batch, point.lam[members] + step * dlam[members])
        new.s = point.s[members] + step * ds[members]
        after = new.v - new.s - batch.b
        shrunk = np.linalg.norm(after, axis=1) <= (1 - 0.05 * step[:, 0]) * size[members]
        accepted = shrunk | (np.abs(new.lam * after).sum(axis=1) <= (new.lam * new.s).sum(axis=1))
        return new, ~accepted

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


def _safeguard(batch: Batch, point: Iterate, dlam: Array, t: Array) -> Iterate:
    """A descent step on the barrier function (1/q)‖Aᵀλ‖_q^q − bᵀλ − t Σ log λ, and slacks to match.

    Without it p ≤ 1.05 stalls: the linear model of |u|^{q−1} is good only very near u.
    """

    def barrier(at: Iterate) -> Array:
        energy = (at.u * at.w).sum(axis=1) / batch.q[:, 0]
        value: Array = energy - (batch.b * at.lam + t * np.log(at.lam)).sum(axis=1)
        return value

    length = np.minimum(1.0, 0.99 * longest_step((point.lam, dlam)))
    before = barrier(point)
    slope = ((point.v - batch.b - t / point.lam) * dlam).sum(axis=1)
    for _ in range(40):
        new = evaluate(batch, point.lam + length[:, None] * dlam)
        missed = ~(barrier(new) <= before + 1e-4 * length * slope + 1e-14 * np.abs(before))
        if not missed.any():
            break
        length = np.where(missed, 0.5 * length, length)
    new.s = np.clip(new.v - batch.b, t / (10 * new.lam), 10 * t / new.lam)
    return new
