"""Soft margins: min (1/p)‖W‖_p^p + C Σ_r ξ_r s.t. A W ≥ 1 − ξ, ξ ≥ 0, for data that no W separates.

Its dual is max 1ᵀλ − (1/q)‖Aᵀλ‖_q^q over 0 ≤ λ ≤ C, and the certificate is the gap between the two. With
unit rows â_r = a_r/c_r and W = κw the problem becomes one with right-hand sides b_r = 1/(c_r κ) and caps
C c_r κ^{1−p}, in which w has entries near 1; λ_r = l_r κ^{p−1}/c_r.

The predictor-corrector loop of :mod:`mirrormax.svm.loop` serves all p, problem by problem, with two pairs of numbers
per row: 0 < λ < cap, s > 0, ξ > 0 with

    A w − s + ξ = b,    sign(w)|w|^{p−1} = Aᵀλ,    λ∘s = μ,    (cap − λ)∘ξ = μ → 0;

for p ≤ 2, w is the mirror image of Aᵀλ and the first equation has a residual; for p > 2, w is free, the
first equation holds exactly and the second has a residual.

On data that nothing separates, λ is of the size of C and Aᵀλ of that of 1: at C = 1e9 double precision leaves Aᵀλ
seven digits, and the mirror map of p < 2 makes few of these. A small problem that is not solved is therefore taken up
again in ``numpy.longdouble``, rows, unknowns and elimination alike. The certificate needs no such care: an error of λ
enters D only by its product with the margins.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from mirrormax.svm._types import Answer, HardMargin, Unit
from mirrormax.svm.certificate import Certificate, support_tolerance
from mirrormax.svm.loop import DualPoint, Move, Point, PrimalPoint, follow
from mirrormax.svm.rows import EPS, Array, BlockRows, Bools, DenseRows, Index, Rows, make_rows, p_norm, power
from mirrormax.svm.solvers.interior import LARGEST_SYSTEM
from mirrormax.svm.systems import Elimination, Factor, System, ThinFactor

LIMIT = 150
STALLED = 20
LARGEST_LOG_CAP, LARGEST_LONG_CAP = 18.0, 27.0
FEWEST_THIN_ROWS = 60
LONGER = (0, 4, 32, 256, 2048, 1e5, 1e7)  # ε by which weights may grow to be rid of slacks that rounding made


class Pairs(Point):
    """What both kinds of points have: s and ξ side by side in ``s`` (1, 2m), whose partners are λ and cap − λ."""

    slack_is_free = True

    def multipliers(self, problem: HardMargin) -> Array:
        return np.concatenate([self.lam, problem.cap - self.lam], axis=1)

    def pull(self, problem: HardMargin, dlam: Array) -> Array:
        return np.concatenate([dlam, -dlam], axis=1)

    def system(self, problem: HardMargin, weight: Array, gap: Array) -> System:
        """Of A diag(weight) Aᵀ + diag(s/λ + ξ/(cap − λ)), by the shorter side of A where that is much shorter."""
        rows, (first, second) = problem.rows, np.split(self.s / self.multipliers(problem), 2, axis=1)
        diagonal = first + second
        if weight.dtype == np.longdouble:
            return Elimination(rows.gram(weight)[0] + np.diag(diagonal[0]))
        if rows.m > max(FEWEST_THIN_ROWS, 2 * rows.size):
            return ThinFactor(rows.dense()[0], weight[0], diagonal[0])
        return Factor(rows.gram(weight), diagonal)

    def _missing(self, problem: HardMargin, v: Array) -> Array:
        """A w − s + ξ − b."""
        s, xi = np.split(self.s, 2, axis=1)
        return v - s + xi - problem.b

    def relative_gap(self, problem: HardMargin) -> Array:
        """1 − D/P (1,) with the best ξ for w."""
        exists, p, q = problem.b > 0, problem.p[0, 0], problem.q[0, 0]
        xi = np.maximum(problem.b - problem.rows.fwd(self.w), 0.0)
        primal = (np.abs(self.w) ** p).sum() / p + (problem.cap * xi)[exists].sum()
        dual = (problem.b * self.lam)[exists].sum() - (np.abs(self.u) ** q).sum() / q
        gap = 1 - dual / max(primal, 1e-300)
        return np.array([float(gap) if np.isfinite(gap) else np.inf])

    def _move(self, problem: HardMargin, factor: System, target: Array, right: Array) -> Move:
        """dλ = K⁻¹(target of λ∘s − target of (cap − λ)∘ξ + right), and the directions of s and ξ."""
        first, second = np.split(target, 2, axis=1)
        dlam = factor.solve(first - second + right)
        return Move(dlam, target - self.s / self.multipliers(problem) * self.pull(problem, dlam), dlam)


class SoftDual(Pairs, DualPoint):
    """p ≤ 2, in the multipliers."""

    def residual(self, problem: HardMargin) -> Array:
        return self._missing(problem, self.v)

    def direction(self, problem: HardMargin, factor: System, weight: Array, target: Array, residual: Array) -> Move:
        return self._move(problem, factor, target, -residual)

    def centred(self, problem: HardMargin, t: Array) -> SoftDual:
        self.s = centre = t / self.multipliers(problem)
        missing = self._missing(problem, self.v)
        self.s = np.clip(centre + np.concatenate([missing, -missing], axis=1), centre, 10 * centre)
        return self


class SoftPrimal(Pairs, PrimalPoint):
    """p > 2, in the weights."""

    guarded_from_centre = True

    @classmethod
    def around(cls, problem: HardMargin, w: Array, t: Array) -> SoftPrimal:
        """λ, s, ξ with s − ξ = A w − b, λs = t and (cap − λ)ξ = t: one quadratic equation per row, its stable root."""
        slack, cap = problem.rows.fwd(w) - problem.b, problem.cap
        root = np.hypot(cap * slack, 2 * t)
        # ξ and s are symmetric under slack → −slack; the larger one has no cancellation, the product gives the other.
        larger = (2 * t + cap * np.abs(slack) + root) / (2 * cap)
        smaller = larger - np.abs(slack)
        smaller = np.where(smaller > 1e-3 * larger, smaller, t * larger / (cap * larger - t))
        s, xi = np.where(slack > 0, larger, smaller), np.where(slack > 0, smaller, larger)
        lam = np.where(slack > 0, t / s, cap - t / xi)
        return cls(lam, np.concatenate([s, xi], axis=1), w, problem.rows.adj(lam), power(w, problem.p - 2))

    def direction(self, problem: HardMargin, factor: System, weight: Array, target: Array, residual: Array) -> Move:
        rows = problem.rows
        right = rows.fwd(weight * residual) - self._missing(problem, rows.fwd(self.w))
        move = self._move(problem, factor, target, right)
        move.w = weight * (rows.adj(move.lam) - residual)
        return move

    def moved(self, problem: HardMargin, move: Move, length: Array) -> SoftPrimal:
        lam, w = self.lam + length * move.lam, self.w + length * move.w
        return SoftPrimal(lam, self.s + length * move.s, w, problem.rows.adj(lam), power(w, problem.p - 2))

    def guarded(self, problem: HardMargin, move: Move) -> tuple[Array, Array]:
        return np.ones_like(self.w), np.zeros_like(self.w)

    def barrier(self, problem: HardMargin, t: Array) -> Array:
        """(1/p)‖w‖_p^p and the smoothed hinge of A w − b: cap ξ − t log ξ − t log s at the centre of w."""
        at = SoftPrimal.around(problem, self.w, t)
        hinge = (problem.cap * np.split(at.s, 2, axis=1)[1]).sum() - t[0] * np.log(at.s).sum()
        return np.asarray((np.abs(self.w) ** problem.p).sum() / problem.p[0] + hinge)

    def slope(self, problem: HardMargin, move: Move, t: Array) -> Array:
        return np.asarray((self.residual(problem) * move.w).sum(axis=1))

    def centred(self, problem: HardMargin, t: Array) -> SoftPrimal:
        return SoftPrimal.around(problem, self.w, t)


def solve_soft(rows: BlockRows, unit: Unit, exists: Bools, p: Array, C: Array, tol: float) -> tuple[Certificate, Index]:
    """Certificates and iterations for original rows and those of one scale; ``exists`` (B, m), p and C (B,)."""
    answer = Answer.empty(len(p), rows.size, rows.m)
    for k in range(len(p)):
        own = np.array([k])
        answer.put(own, _solve_one(rows.take(own), unit.take(own), exists[own], p[own], C[own], tol))
    return _certify(rows, exists, answer.w, answer.lam, p, C), answer.iterations


def _solve_one(rows: BlockRows, unit: Unit, exists: Bools, p: Array, C: Array, tol: float) -> Answer:
    """W and λ of one problem, of the original rows."""
    best, steps = Answer.of(np.zeros((1, rows.size)), np.where(exists, C, 0.0), np.inf, 0), 0
    c = unit.c.reshape(-1)
    live = c > 0
    if not live.any():  # a zero row has ξ = 1 and λ = C whatever W is
        return best
    scaled = make_rows(unit.x, unit.z)
    tries = [(log_kappa, False) for log_kappa in _scales(scaled, c, float(p[0]), float(C[0]))]
    if rows.m + rows.size <= LARGEST_SYSTEM:
        tries += [(log_kappa, True) for log_kappa, _ in tries]
    for log_kappa, long in tries:
        reached = _interior(_capped(scaled, c, float(p[0]), float(C[0]), log_kappa, long), tol)
        steps += int(reached.iterations[0])
        lam = np.where(exists, C, 0.0)
        lam[0, live] = np.clip(reached.lam[0, live] * np.exp((p - 1) * log_kappa) / c[live], 0.0, C)
        # Slacks that are rounding of zero cost C each; weights longer by a few ε have none.
        for longer in LONGER:
            weights = np.exp(log_kappa) * reached.w.astype(np.float64) * (1 + longer * EPS)
            gap = float(_certify(rows, exists, weights, lam, p, C).gap[0])
            if gap < best.gap[0]:
                best = Answer.of(weights, lam, gap, 0)
            if best.gap[0] <= 0.1 * tol:
                break
        if best.gap[0] <= tol:
            break
    best.iterations[0] = steps
    return best


def _capped(rows: Rows, c: Array, p: float, C: float, log_kappa: float, long: bool) -> HardMargin:
    """The problem at scale κ. Caps beyond reach are lowered to one that, left unused, changes nothing."""
    exists = c > 0
    log_c = np.log(np.where(exists, c, 1.0))
    b = np.where(exists, np.exp(-log_c - log_kappa), -1.0)
    largest = LARGEST_LONG_CAP if long else LARGEST_LOG_CAP
    cap = np.where(exists, np.exp(np.minimum(np.log(C) + log_c + (1 - p) * log_kappa, largest)), 1.0)
    b, cap = b[None], cap[None]
    if long:
        rows, b, cap = DenseRows(_long(rows.dense())), _long(b), _long(cap)
    return HardMargin(rows, b, b, np.array([[p]]), b > 0, cap=cap)


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


def _interior(problem: HardMargin, tol: float) -> Answer:
    """The best pair by relative gap."""
    lam = np.minimum(0.5 * problem.cap, 1 / max(1.0, float(np.abs(problem.rows.adj(np.ones_like(problem.b))).max())))
    start = SoftDual.at(problem, lam)
    if problem.p[0, 0] <= 2:
        xi = np.maximum(problem.b - start.v, 0.0) + np.maximum(np.abs(problem.b), 1.0)
        start.s = np.concatenate([start.v - problem.b + xi, xi], axis=1)
        return follow(problem, start, 0.5 * tol, LIMIT, STALLED)
    size = (np.abs(start.w) ** problem.p).sum() / lam.shape[1]
    around = SoftPrimal.around(problem, start.w, np.full((1, 1), 0.3 * size))
    return follow(problem, around, 0.5 * tol, LIMIT, STALLED)


def _certify(rows: BlockRows, exists: Bools, w: Array, lam: Array, p: Array, C: Array) -> Certificate:
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
    return Certificate(w, lam, margin, gap, violation, support, np.zeros_like(support))


def _long(array: Array) -> Any:
    return array.astype(np.longdouble)
