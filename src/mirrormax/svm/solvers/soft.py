"""Soft margins: min (1/p)‖W‖_p^p + C Σ_r ξ_r s.t. A W ≥ 1 − ξ, ξ ≥ 0, for data that no W separates.

Its dual is max 1ᵀλ − (1/q)‖Aᵀλ‖_q^q over 0 ≤ λ ≤ C, and the certificate is the gap between the two. With
unit rows â_r = a_r/c_r and W = κw the problem becomes one with right-hand sides b_r = 1/(c_r κ) and caps
C c_r κ^{1−p}, in which w has entries near 1; λ_r = l_r κ^{p−1}/c_r.

One interior point serves all p, problem by problem. The unknowns are 0 < λ < cap, s > 0, ξ > 0 with

    A w − s + ξ = b,    sign(w)|w|^{p−1} = Aᵀλ,    λ∘s = μ,    (cap − λ)∘ξ = μ → 0;

for p ≤ 2, w is the mirror image of Aᵀλ and the first equation has a residual; for p > 2, w is free, the
first equation holds exactly and the second has a residual.

On data that nothing separates, λ is of the size of C and Aᵀλ of that of 1: at C = 1e9 double precision leaves Aᵀλ
seven digits, and the mirror map of p < 2 makes few of these. A small problem that is not solved is therefore taken up
again in ``numpy.longdouble``, rows, unknowns and elimination alike. The certificate needs no such care: an error of λ
enters D only by its product with the margins.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.svm._types import Certificate, norms
from mirrormax.svm.loop import CURVATURE_FLOOR
from mirrormax.svm.rows import (
    EPS,
    Array,
    BlockRows,
    DenseRows,
    Factor,
    Index,
    Rows,
    ThinFactor,
    longest_step,
    make_rows,
)
from mirrormax.svm.solution import p_norm, support_tolerance
from mirrormax.svm.solvers.interior import LARGEST_SYSTEM, Elimination

LIMIT = 150
BACKTRACKS = 12
STALLED = 20
LARGEST_LOG_CAP, LARGEST_LONG_CAP = 18.0, 27.0
FEWEST_THIN_ROWS = 60
LONGER = (0, 4, 32, 256, 2048, 1e5, 1e7)  # ε by which weights may grow to be rid of slacks that rounding made


@dataclass
class Capped:
    """One problem at scale 1: b and cap of shape (1, m)."""

    rows: Rows
    b: Array
    cap: Array
    p: float

    @property
    def low(self) -> bool:
        return self.p <= 2

    @property
    def q(self) -> float:
        return self.p / (self.p - 1)


@dataclass
class State:
    """λ, s, ξ of shape (1, m), w (1, N), u = Aᵀλ and v = A w."""

    lam: Array
    s: Array
    xi: Array
    w: Array
    u: Array
    v: Array


def solve_soft(
    rows: BlockRows, exists: npt.NDArray[np.bool_], p: Array, C: Array, tol: float
) -> tuple[Certificate, Index]:
    """Certificates and iterations for original rows; ``exists`` (B, m), p and C (B,)."""
    size, m = exists.shape
    w, lam = np.zeros((size, rows.size)), np.zeros((size, m))
    iterations = np.zeros(size, dtype=np.intp)
    with np.errstate(all="ignore"):
        for k in range(size):
            w[k], lam[k], iterations[k] = _solve_one(rows.x[k], rows.z[k], exists[k], float(p[k]), float(C[k]), tol)
        return _certify(rows, exists, w, lam, p, C), iterations


def _solve_one(
    x: Array, z: Array, exists: npt.NDArray[np.bool_], p: float, C: float, tol: float
) -> tuple[Array, Array, int]:
    c = (norms(x) * norms(z)[:, None]).reshape(-1)
    # A zero row has ξ = 1 and λ = C whatever W is.
    lam = np.where(exists, C, 0.0)
    live = np.flatnonzero(exists & (c > 0))
    if not len(live):
        return np.zeros(x.shape[-1] * z.shape[-1]), lam, 0
    unit_x = np.where(c > 0, 1 / np.where(c > 0, c, 1.0), 0.0).reshape(x.shape[:-1])[..., None] * x
    z_norm = norms(z)[:, None]
    rows = make_rows((unit_x * z_norm[..., None])[None], (z / np.where(z_norm > 0, z_norm, 1.0))[None])
    best = (np.zeros(rows.size), lam, np.inf)
    steps = 0
    scales = [(scale, False) for scale in _scales(rows, np.where(exists, c, 0.0), p, C)]
    if rows.m + rows.size <= LARGEST_SYSTEM:
        scales += [(scale, True) for scale, _ in scales]
    for log_kappa, long in scales:
        problem = _capped(rows, np.where(exists, c, 0.0), p, C, log_kappa, long)
        state, more = _interior(problem, tol)
        steps += more
        trial = lam.copy()
        trial[live] = np.clip(state.lam[0, live] * np.exp((p - 1) * log_kappa) / c[live], 0.0, C)
        w = state.w[0].astype(np.float64)
        original = BlockRows(x[None], z[None])
        # Slacks that are rounding of zero cost C each; weights longer by a few ε have none.
        for longer in LONGER:
            weights = np.exp(log_kappa) * w * (1 + longer * EPS)
            exact = _certify(original, exists[None], weights[None], trial[None], np.array([p]), np.array([C]))
            if exact.gap[0] < best[2]:
                best = (weights, trial, float(exact.gap[0]))
            if best[2] <= 0.1 * tol:
                break
        if best[2] <= tol:
            break
    return best[0], best[1], steps


def _capped(rows: Rows, c: Array, p: float, C: float, log_kappa: float, long: bool) -> Capped:
    """The problem at scale κ. Caps beyond reach are lowered to one that, left unused, changes nothing."""
    exists = c > 0
    log_c = np.log(np.where(exists, c, 1.0))
    b = np.where(exists, np.exp(-log_c - log_kappa), -1.0)
    largest = LARGEST_LONG_CAP if long else LARGEST_LOG_CAP
    cap = np.where(exists, np.exp(np.minimum(np.log(C) + log_c + (1 - p) * log_kappa, largest)), 1.0)
    if long:
        return Capped(DenseRows(_long(rows.dense())), _long(b[None]), _long(cap[None]), p)
    return Capped(rows, b[None], cap[None], p)


def _scales(rows: Rows, c: Array, p: float, C: float) -> list[float]:
    """log κ to try, κ near max|W|: the smaller of the hard margin's guess and the W of λ = C, then others between.

    When C is so small that W is nothing beside the hard margin's, a κ that far down would only lose digits.
    """
    exists = c > 0
    inverse = np.where(exists, 1 / np.where(exists, c, 1.0), 0.0)
    u = np.abs(rows.adj(exists[None].astype(np.float64)))
    largest = max(float(u.max()), 1e-8)
    effective = max(float(((u / largest) ** (p / (p - 1))).sum()), 1e-8)
    hard = float(np.log(1.5 * inverse.sum() / (largest * effective)))
    capped = (np.log(C) + np.log(max(float(np.abs(rows.adj(c[None])).max()), 1e-300))) / (p - 1)
    first = max(min(hard, capped), hard - 18.0)
    top = min(max(hard, capped), hard + 18.0)
    return [first, 0.5 * (first + top), top, 0.75 * first + 0.25 * top, 0.25 * first + 0.75 * top]


def _interior(problem: Capped, tol: float) -> tuple[State, int]:
    """The best state found, by relative gap."""
    lam = np.minimum(0.5 * problem.cap, 1 / max(1.0, float(np.abs(problem.rows.adj(np.ones_like(problem.b))).max())))
    state = _evaluate(problem, lam, None)
    if problem.low:
        state.xi = np.maximum(problem.b - state.v, 0.0) + np.maximum(np.abs(problem.b), 1.0)
        state.s = state.v - problem.b + state.xi
    else:
        state = _centred(problem, state.w, 0.3 * float((np.abs(state.w) ** problem.p).sum()) / lam.shape[1])
    best, best_gap, since = state, np.inf, 0
    for step in range(LIMIT):
        gap = _gap(problem, state)
        since = 0 if gap < 0.9 * best_gap or gap > 0.9 else since + 1
        if gap < best_gap:
            best, best_gap = state, gap
        if gap <= 0.5 * tol or since > STALLED:
            return best, step
        state = _advance(problem, state, gap)
    return best, LIMIT


def _evaluate(problem: Capped, lam: Array, w: Array | None) -> State:
    """A state without slacks; for p ≤ 2, and at the start, w is the mirror image of Aᵀλ."""
    u = problem.rows.adj(lam)
    if w is None:
        w = np.sign(u) * np.abs(u) ** (problem.q - 1)
    return State(lam, lam, lam, w, u, problem.rows.fwd(w))


def _gap(problem: Capped, state: State) -> float:
    """1 − D/P at (w, λ) with the best ξ for w."""
    exists = problem.b > 0
    xi = np.maximum(problem.b - state.v, 0.0)
    primal = (np.abs(state.w) ** problem.p).sum() / problem.p + (problem.cap * xi)[exists].sum()
    dual = (problem.b * state.lam)[exists].sum() - (np.abs(state.u) ** problem.q).sum() / problem.q
    gap = 1 - dual / max(primal, 1e-300)
    return float(gap) if np.isfinite(gap) else np.inf


def _advance(problem: Capped, state: State, gap: float) -> State:
    """One predictor-corrector step."""
    rows, lam, s, xi = problem.rows, state.lam, state.s, state.xi
    room = problem.cap - lam
    complementarity = max(float((lam * s + room * xi).sum()), 1e-300)
    mu = complementarity / (2 * lam.shape[1])
    weight, dual_residual = _curvature(problem, state, complementarity)
    residual = state.v - s + xi - problem.b
    factor = _factor(rows, weight, s / lam + xi / room)

    def direction(c1: Array, c2: Array, r: Array, rd: Array) -> tuple[Array, Array, Array, Array]:
        dlam = factor.solve(c1 / lam - c2 / room + rows.fwd(weight * rd) - r)
        return dlam, (c1 - s * dlam) / lam, (c2 + xi * dlam) / room, weight * (rows.adj(dlam) - rd)

    dlam, ds, dxi, dw = direction(-lam * s, -room * xi, residual, dual_residual)
    reach = min(1.0, float(longest_step((lam, dlam), (room, -dlam), (s, ds), (xi, dxi))[0]))
    ahead = float(((lam + reach * dlam) * (s + reach * ds) + (room - reach * dlam) * (xi + reach * dxi)).sum())
    size = np.abs(state.w * dual_residual).sum() + np.abs(lam * residual).sum()
    sigma = float(np.clip((ahead / complementarity) ** 3, 1e-8, 1.0))
    sigma = max(sigma, 0.3) if size > 2 * complementarity else sigma
    c1 = sigma * mu - lam * s - reach**2 * dlam * ds
    c2 = sigma * mu - room * xi + reach**2 * dlam * dxi
    beyond = _second_order(problem, state, reach * dw, reach * rows.adj(dlam), weight)
    if problem.low:
        dlam, ds, dxi, dw = direction(c1, c2, residual + rows.fwd(beyond), dual_residual)
    else:
        dlam, ds, dxi, dw = direction(c1, c2, residual, dual_residual + beyond)
    fraction = 1 - float(np.clip(0.1 * gap, 1e-6, 0.01))
    length = min(1.0, fraction * float(longest_step((lam, dlam), (room, -dlam), (s, ds), (xi, dxi))[0]))
    for _ in range(BACKTRACKS):
        new = _evaluate(problem, lam + length * dlam, None if problem.low else state.w + length * dw)
        new.s, new.xi = s + length * ds, xi + length * dxi
        if _acceptable(problem, new, size, length) and size <= 20 * complementarity:
            return new
        length *= 0.6
    if problem.low:
        return _dual_safeguard(problem, state, factor, mu)
    return _primal_safeguard(problem, state.w, mu)


class LongFactor:
    """K⁻¹ in extended precision, for one K (1, m, m)."""

    def __init__(self, matrices: Array) -> None:
        self.elimination = Elimination(matrices[0])

    def solve(self, right: Array) -> Array:
        """K⁻¹ right, for right (1, m)."""
        return np.asarray(self.elimination.solve(right))


def _factor(rows: Rows, weight: Array, diagonal: Array) -> Factor | ThinFactor | LongFactor:
    """Of A diag(weight) Aᵀ + diag(diagonal), by the shorter side of A where that is much shorter."""
    if weight.dtype == np.longdouble:
        matrices = rows.gram(weight)
        np.einsum("bii->bi", matrices)[...] += diagonal
        return LongFactor(matrices)
    if rows.m > max(FEWEST_THIN_ROWS, 2 * rows.size):
        return ThinFactor(rows.dense()[0], weight[0], diagonal[0])
    matrices = rows.gram(weight)
    np.einsum("bii->bi", matrices)[...] += diagonal
    return Factor(matrices)


def _centred(problem: Capped, w: Array, t: float) -> State:
    """λ, s, ξ with s − ξ = A w − b, λs = t and (cap − λ)ξ = t: one quadratic equation per row, its stable root."""
    v = problem.rows.fwd(w)
    slack, cap = v - problem.b, problem.cap
    root = np.hypot(cap * slack, 2 * t)
    # ξ and s are symmetric under slack → −slack; the larger one is free of cancellation, the product gives the other.
    larger = (2 * t + cap * np.abs(slack) + root) / (2 * cap)
    smaller = larger - np.abs(slack)
    smaller = np.where(smaller > 1e-3 * larger, smaller, t * larger / (cap * larger - t))
    s, xi = np.where(slack > 0, larger, smaller), np.where(slack > 0, smaller, larger)
    lam = np.where(slack > 0, t / s, cap - t / xi)
    return State(lam, s, xi, w, problem.rows.adj(lam), v)


def _primal_safeguard(problem: Capped, w: Array, t: float) -> State:
    """A Newton step with line search on (1/p)‖w‖_p^p plus the barrier's smoothed hinge of A w − b, and its centre."""

    def merit(at: State) -> float:
        hinge = problem.cap * at.xi - t * np.log(at.xi) - t * np.log(at.s)
        return float((np.abs(at.w) ** problem.p).sum() / problem.p + hinge.sum())

    rows = problem.rows
    at = _centred(problem, w, t)
    room = problem.cap - at.lam
    weight, residual = _curvature(problem, at, 2 * t * at.lam.shape[1])
    factor = _factor(rows, weight, at.s / at.lam + at.xi / room)
    dw = weight * (rows.adj(factor.solve(rows.fwd(weight * residual))) - residual)
    before, slope, length = merit(at), float((residual * dw).sum()), 1.0
    for _ in range(40):
        new = _centred(problem, w + length * dw, t)
        if merit(new) <= before + 1e-4 * length * slope:
            return new
        length *= 0.5
    return at


def _dual_safeguard(problem: Capped, state: State, factor: Factor | ThinFactor | LongFactor, t: float) -> State:
    """A descent step on (1/q)‖Aᵀλ‖_q^q − bᵀλ − t Σ log λ(cap − λ), and slacks to match."""

    def merit(at: State) -> float:
        barrier = problem.b * at.lam + t * np.log(at.lam) + t * np.log(problem.cap - at.lam)
        return float((np.abs(at.u) ** problem.q).sum() / problem.q - barrier.sum())

    lam, room = state.lam, problem.cap - state.lam
    gradient = state.v - problem.b - t / lam + t / room
    dlam = factor.solve(-gradient)
    length = min(1.0, 0.99 * float(longest_step((lam, dlam), (room, -dlam))[0]))
    before, slope = merit(state), float((gradient * dlam).sum())
    for _ in range(40):
        new = _evaluate(problem, lam + length * dlam, None)
        if merit(new) <= before + 1e-4 * length * slope + 1e-14 * abs(before):
            break
        length *= 0.5
    s, xi = t / new.lam, t / (problem.cap - new.lam)
    missing = new.v - problem.b - s + xi
    new.s, new.xi = np.clip(s + missing, s, 10 * s), np.clip(xi - missing, xi, 10 * xi)
    return new


def _curvature(problem: Capped, state: State, complementarity: float) -> tuple[Array, Array]:
    """D and the residual of stationarity."""
    if problem.low:
        return (problem.q - 1) * np.abs(state.u) ** (problem.q - 2), np.zeros_like(state.w)
    power = np.abs(state.w) ** (problem.p - 2)
    floor = CURVATURE_FLOOR * min(1.0, complementarity / state.w.shape[1]) ** (1 / problem.p)
    return 1 / ((problem.p - 1) * np.maximum(power, floor ** (problem.p - 2))), power * state.w - state.u


def _second_order(problem: Capped, state: State, dw: Array, du: Array, weight: Array) -> Array:
    """What the mirror map (p ≤ 2) or its inverse (p > 2) does beyond its derivative, limited to its own size."""
    base, move, power = (state.u, du, problem.q) if problem.low else (state.w, dw, problem.p)
    value = np.abs(base) ** (power - 2) * base
    linear = move * (weight if problem.low else 1 / weight)
    limit = np.abs(value) + np.abs(linear)
    moved = base + move
    clipped: Array = np.clip(np.abs(moved) ** (power - 2) * moved - value - linear, -limit, limit)
    return clipped


def _acceptable(problem: Capped, new: State, before: float, length: float) -> bool:
    complementarity = float((new.lam * new.s + (problem.cap - new.lam) * new.xi).sum())
    residual = new.v - new.s + new.xi - problem.b
    rd = np.zeros_like(new.w) if problem.low else np.abs(new.w) ** (problem.p - 2) * new.w - new.u
    size = float(np.abs(new.w * rd).sum() + np.abs(new.lam * residual).sum())
    return size <= max(complementarity, (1 - 0.05 * length) * before)


def _certify(rows: BlockRows, exists: npt.NDArray[np.bool_], w: Array, lam: Array, p: Array, C: Array) -> Certificate:
    """P and D of the original problem at the arrays returned.

    C multiplies every error of a slack, so that margins are computed in extended precision, and what the rounding
    of the rows x_iα − x_it may have cost is charged as slack.
    """
    exact = BlockRows(_long(rows.x), _long(rows.z))
    long_w, long_lam = _long(w), _long(lam)
    margins = exact.fwd(long_w)
    charged = np.maximum(1 - margins + EPS * exact.absolute().fwd(np.abs(long_w)), 0)
    xi = np.where(exists, charged, 0.0)
    q = p / (p - 1)
    norm = p_norm(long_w, p)
    primal = norm**p / p + C * xi.sum(axis=1)
    dual = long_lam.sum(axis=1) - p_norm(exact.adj(long_lam), q) ** q / q
    tiny = np.finfo(np.longdouble).tiny
    gap = np.asarray(1 - dual / np.maximum(primal, tiny), dtype=np.float64)
    # Below zero only by rounding; anything more is no proof of anything.
    gap = np.where(np.isfinite(gap) & (gap > -1e-11), np.maximum(gap, 0.0), np.inf)
    support = exists & (margins <= 1 + support_tolerance(gap)[:, None])
    margin = np.where(norm > 0, 1 / np.where(norm > 0, norm, 1.0), np.inf).astype(np.float64)
    violation = np.where(exists, np.maximum(1 - margins, 0), 0.0).max(axis=1).astype(np.float64)
    return Certificate(w, lam, margin, gap, violation, support)


def _long(array: Array) -> Any:
    return array.astype(np.longdouble)
