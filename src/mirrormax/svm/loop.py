"""One predictor-corrector loop, and the two interior points that go through it.

For a batch of problems min (1/p)‖w‖_p^p s.t. A w ≥ b, q = p/(p−1), every step solves a system with the matrix
A D Aᵀ + diag(s/λ) for a direction towards λ∘s = c, first c = 0 (the predictor), then a c that the predictor suggests.

**p ≤ 2, in the multipliers** (:class:`DualPoint`). The dual max bᵀλ − (1/q)‖Aᵀλ‖_q^q is smooth. The unknowns are
λ > 0 and the slack s > 0 of v − s = b, v = A w, w = sign(u)|u|^{q−1}, u = Aᵀλ: w is stationary by construction and λ
alone carries the certificate. D = (q−1)|u|^{q−2}, and the residual is v − s − b.

**p > 2, in the weights** (:class:`PrimalPoint`). There the dual's curvature is infinite at u = 0, the primal's is not.
The unknowns are w and λ > 0; s = A w − b > 0 is kept exact, from a strictly feasible start. 1/D = (p−1)|w|^{p−2},
bounded below, and the residual is sign(w)|w|^{p−1} − Aᵀλ.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TypeVar

import numpy as np

from mirrormax.svm._types import Answer, HardMargin, Members
from mirrormax.svm.rows import Array, Bools, FlatRows, Index, dot, longest_step, power
from mirrormax.svm.systems import MANY_PAIRS, Factor, Implicit, System

BACKTRACKS = 6
HALVINGS = 40
ACCURACY = 0.01, 1e-6, 1e-12  # of the gap, at most and at least: how well a system that is not written out is solved
CURVATURE_FLOOR = 0.9  # tuned: 1.5 and more fails at p = 10, 0.1 and less is slow

P = TypeVar("P", "DualPoint", "PrimalPoint")
D = TypeVar("D", bound="DualPoint")


def solve_dual(problem: HardMargin, lam: Array, tol: float, limit: int = 60, slack: float = 1.0) -> Answer:
    """p ≤ 2: the best multipliers seen, from a positive start ``lam``.

    ``slack`` is the smallest that a row begins with; where ``lam`` is a good guess, less than 1 saves steps.
    """
    point = DualPoint.at(problem, lam)
    point.s = problem.inequalities(np.maximum(point.v - problem.b, slack))
    return follow(problem, point, tol, limit, patience=12)


def follow(problem: HardMargin, point: P, tol: float, limit: int, patience: int) -> Answer:
    """Step until every problem is done, or no longer makes progress."""
    progress = Progress(tol, patience, point.w, point.lam)
    for step in range(limit + 1):
        gap = point.relative_gap(problem)
        done = progress.record(step, gap, point.w, point.lam)
        if step == limit or done.all():
            break
        # Dropping problems copies the rows of the others: worth it once a few are done.
        if done.sum() * 16 >= len(done):
            keep = progress.retire(done)
            problem, point, gap = problem.take(keep), point.take(keep), gap[keep]
        point = advance(problem, point, gap)
    return progress.best


def advance(problem: HardMargin, point: P, gap: Array) -> P:
    """One predictor-corrector step of every problem; where it fails, a safeguarded one."""
    # An equality row has no slack and a multiplier of any sign: no step is too long for it.
    lam, s = point.multipliers(problem), point.s
    bounded = problem.inequalities(s, 1.0)
    complementarity = dot(lam, s)[:, None]
    mu = complementarity / problem.count()
    weight = point.weight(problem)
    factor = point.system(problem, weight, gap)
    residual = point.residual(problem)
    rho = point.error(residual)[:, None] / complementarity

    move = point.direction(problem, factor, weight, -s, residual)
    pull = point.pull(problem, move.lam)
    reach = np.minimum(longest_step((lam, pull), (bounded, move.s)), 1.0)[:, None]
    ahead = dot(lam + reach * pull, s + reach * move.s)[:, None] / complementarity
    sigma = np.minimum(np.maximum(ahead**2, 1e-8), 1.0)
    sigma = np.maximum(sigma, np.where(rho > 20, 1.0, np.where(rho > 2, 0.3, 0.0)))

    target = problem.inequalities((sigma * mu - reach**2 * move.s * pull) / lam - s)
    beyond = point.beyond(problem, weight, move, reach)
    move = point.direction(problem, factor, weight, target, residual + beyond)
    fraction = 1 - np.minimum(np.maximum(0.1 * gap, 1e-6), 0.01)
    length = np.minimum(1.0, fraction * longest_step((lam, point.pull(problem, move.lam)), (bounded, move.s)))
    new, failed = _line_search(problem, point, move, length, residual)
    if point.slack_is_free:
        failed |= rho[:, 0] > 20
    if failed.any():
        members = np.flatnonzero(failed)
        t = np.where(rho > 2, mu, 0.5 * mu)
        if point.guarded_from_centre:
            point = point.centred(problem, t)
            weight, residual = point.weight(problem), point.residual(problem)
            factor = point.system(problem, weight, gap)
        target = problem.inequalities(t / point.multipliers(problem) - point.s)
        move = point.direction(problem, factor, weight, target, residual)
        new.put(members, _safeguard(problem.take(members), point.take(members), move.take(members), t[members]))
    return new


def _line_search(problem: HardMargin, point: P, move: Move, length: Array, residual: Array) -> tuple[P, Bools]:
    """The first of a few step lengths that reduces the residual or keeps it below complementarity."""

    def attempt(problem: HardMargin, point: P, move: Move, length: Array, size: Array) -> tuple[P, Bools]:
        new = point.moved(problem, move, length[:, None])
        after = new.residual(problem)
        shrunk = np.sqrt(dot(after, after)) <= (1 - 0.05 * length) * size
        failed = ~(shrunk | (new.error(after) <= dot(new.multipliers(problem), new.s)))
        return new, failed if point.slack_is_free else failed | ~(problem.inequalities(new.s, 1.0) > 0).all(axis=1)

    size = np.sqrt(dot(residual, residual))
    new, failed = attempt(problem, point, move, length, size)
    for _ in range(BACKTRACKS):
        if not failed.any():
            break
        members = np.flatnonzero(failed)
        length[members] *= 0.6
        parts = problem.take(members), point.take(members), move.take(members), length[members], size[members]
        shorter, failed[members] = attempt(*parts)
        new.put(members, shorter)
    return new, failed


def _safeguard(problem: HardMargin, point: P, move: Move, t: Array) -> P:
    """A descent step on the barrier function of the point's unknowns, and the others to match.

    Without it p ≤ 1.05 stalls: the linear model of |u|^{q−1} is good only very near u.
    """
    length = np.minimum(1.0, 0.99 * longest_step(point.guarded(problem, move)))
    before, slope = point.barrier(problem, t), point.slope(problem, move, t)
    for _ in range(HALVINGS):
        new = point.moved(problem, move, length[:, None])
        missed = ~(new.barrier(problem, t) <= before + 1e-4 * length * slope + 1e-14 * np.abs(before))
        if not missed.any():
            break
        length = np.where(missed, 0.5 * length, length)
    if missed.any():  # rounding is all that is left to gain: stay, and let the outer loop see no progress
        stay = np.flatnonzero(missed)
        new.put(stay, point.take(stay))
    return new.centred(problem, t)


@dataclass
class Move(Members):
    """A direction for λ, s and w."""

    lam: Array
    s: Array
    w: Array


@dataclass
class Point(Members):
    """What the two kinds of points have in common: pairs λ∘s that go to zero, u = Aᵀλ, a system for the next step."""

    lam: Array
    s: Array
    w: Array
    u: Array
    guarded_from_centre = False  # whether a safeguarded step wants λ∘s = t before it

    def multipliers(self, problem: HardMargin) -> Array:
        """The positive numbers whose products with the slacks go to zero; 1 at equality rows."""
        return problem.inequalities(self.lam, 1.0)

    def pull(self, problem: HardMargin, dlam: Array) -> Array:
        """Their direction."""
        return problem.inequalities(dlam)

    def system(self, problem: HardMargin, weight: Array, gap: Array) -> System:
        """What solves systems with A diag(D) Aᵀ + diag(s/λ), D (B, N) the weight, well enough for this gap."""
        rows, diagonal = problem.rows, self.s / self.multipliers(problem)
        if isinstance(rows, FlatRows) and len(rows.present) ** 2 * rows.size > MANY_PAIRS:
            share, most, least = ACCURACY
            return Implicit(rows, weight, diagonal, min(most, max(share * float(gap.min()), least)))
        return Factor(rows.gram(weight), diagonal)


@dataclass
class DualPoint(Point):
    """Multipliers and slacks, with w = sign(u)|u|^{q−1}, its derivative, and v = A w."""

    curvature: Array
    v: Array
    slack_is_free = True  # so that a step from far off the central path is not trusted, and s > 0 by its length

    @classmethod
    def at(cls: type[D], problem: HardMargin, lam: Array) -> D:
        """The point of these multipliers; its slack is left for the caller."""
        u = problem.rows.adj(lam)
        steep = power(u, problem.q - 2)
        w = steep * u
        return cls(lam, np.empty_like(lam), w, u, (problem.q - 1) * steep, problem.rows.fwd(w))

    def relative_gap(self, problem: HardMargin) -> Array:
        """1 − lb/ub = 1 − (bᵀλ)(min v/b)/⟨u, w⟩, over the rows that exist (b > 0)."""
        lower, energy = dot(problem.gain, self.lam), dot(self.u, self.w)
        ratio = lower * problem.smallest_margin(self.v) / np.maximum(energy, 1e-300)
        return problem.gap_of(ratio, self.v)

    def weight(self, problem: HardMargin) -> Array:
        return self.curvature

    def residual(self, problem: HardMargin) -> Array:
        return self.v - self.s - problem.b

    def error(self, residual: Array) -> Array:
        return dot(np.abs(self.lam), np.abs(residual))

    def direction(self, problem: HardMargin, factor: System, weight: Array, target: Array, residual: Array) -> Move:
        dlam = factor.solve(target - residual)
        return Move(dlam, target - self.s * dlam / problem.inequalities(self.lam, 1.0), dlam)

    def beyond(self, problem: HardMargin, weight: Array, move: Move, reach: Array) -> Array | float:
        """A times what the mirror map does beyond its derivative along Aᵀdλ, limited to its own size."""
        if (problem.q == 2).all():
            return 0.0
        du = reach * problem.rows.adj(move.lam)
        return problem.rows.fwd(_second_order(self.u, du, problem.q, self.w, weight * du))

    def moved(self, problem: HardMargin, move: Move, length: Array) -> DualPoint:
        new = self.at(problem, self.lam + length * move.lam)
        new.s = self.s + length * move.s
        return new

    def guarded(self, problem: HardMargin, move: Move) -> tuple[Array, Array]:
        return self.multipliers(problem), self.pull(problem, move.lam)

    def barrier(self, problem: HardMargin, t: Array) -> Array:
        """(1/q)‖Aᵀλ‖_q^q − bᵀλ − t Σ log λ, of soft margins λ(cap − λ)."""
        logarithms = np.log(self.multipliers(problem)).sum(axis=1)
        return np.asarray(dot(self.u, self.w) / problem.q[:, 0] - dot(problem.b, self.lam) - t[:, 0] * logarithms)

    def slope(self, problem: HardMargin, move: Move, t: Array) -> Array:
        inward = t * self.pull(problem, move.lam) / self.multipliers(problem)
        return np.asarray(dot(self.v - problem.b, move.lam) - inward.sum(axis=1))

    def centred(self, problem: HardMargin, t: Array) -> DualPoint:
        centre = t / problem.inequalities(self.lam, 1.0)
        self.s = problem.inequalities(np.clip(self.v - problem.b, centre / 10, 10 * centre))
        return self


@dataclass
class PrimalPoint(Point):
    """Multipliers, strictly feasible weights and their slacks; ``power`` is |w|^{p−2}."""

    power: Array
    slack_is_free = False

    @classmethod
    def at(cls, problem: HardMargin, w: Array, lam: Array) -> PrimalPoint:
        rows = problem.rows
        return cls(lam, problem.inequalities(rows.fwd(w) - problem.b), w, rows.adj(lam), power(w, problem.p - 2))

    def relative_gap(self, problem: HardMargin) -> Array:
        """1 − lb/ub with ub = ‖w‖_p / min(A w / b) and lb = bᵀλ / ‖Aᵀλ‖_q, over the rows that exist (b > 0)."""
        p = problem.p[:, 0]
        norm = dot(self.power * self.w, self.w) ** (1 / p)
        dual_norm = power(self.u, problem.q).sum(axis=1) ** (1 - 1 / p)
        lower = dot(problem.gain, self.lam)
        v = self.s + problem.b
        ratio = lower * problem.smallest_margin(v) / np.maximum(norm * dual_norm, 1e-300)
        return problem.gap_of(ratio, v)

    def weight(self, problem: HardMargin) -> Array:
        p, share = problem.p, dot(self.multipliers(problem), self.s)[:, None] / self.w.shape[1]
        floor = (CURVATURE_FLOOR * np.minimum(1.0, share) ** (1 / p)) ** (p - 2)
        return np.asarray(1 / ((p - 1) * np.maximum(self.power, floor)))

    def residual(self, problem: HardMargin) -> Array:
        return self.power * self.w - self.u

    def error(self, residual: Array) -> Array:
        return dot(np.abs(residual), np.abs(self.w))

    def direction(self, problem: HardMargin, factor: System, weight: Array, target: Array, residual: Array) -> Move:
        rows = problem.rows
        dlam = factor.solve(target + rows.fwd(weight * residual))
        dw = weight * (rows.adj(dlam) - residual)
        return Move(dlam, problem.inequalities(rows.fwd(dw)), dw)

    def beyond(self, problem: HardMargin, weight: Array, move: Move, reach: Array) -> Array:
        """What the gradient of the norm does beyond its derivative along dw, limited to its own size."""
        dw = reach * move.w
        return _second_order(self.w, dw, problem.p, self.power * self.w, dw / weight)

    def moved(self, problem: HardMargin, move: Move, length: Array) -> PrimalPoint:
        return self.at(problem, self.w + length * move.w, self.lam + length * move.lam)

    def guarded(self, problem: HardMargin, move: Move) -> tuple[Array, Array]:
        return problem.inequalities(self.s, 1.0), move.s

    def barrier(self, problem: HardMargin, t: Array) -> Array:
        """(1/p)‖w‖_p^p − t Σ log s."""
        energy = dot(self.power * self.w, self.w) / problem.p[:, 0]
        return np.asarray(energy - (t * np.log(problem.inequalities(self.s, 1.0))).sum(axis=1))

    def slope(self, problem: HardMargin, move: Move, t: Array) -> Array:
        inward = t / problem.inequalities(self.s, 1.0) * move.s
        return np.asarray((self.power * self.w * move.w).sum(axis=1) - inward.sum(axis=1))

    def centred(self, problem: HardMargin, t: Array) -> PrimalPoint:
        centre = t / problem.inequalities(self.s, 1.0)
        self.lam = np.where(problem.inequalities(self.s) > 0, np.clip(self.lam, centre / 10, 10 * centre), self.lam)
        self.u = problem.rows.adj(self.lam)
        return self


def _second_order(at: Array, move: Array, exponent: Array, value: Array, linear: Array) -> Array:
    """sign(x)|x|^{exponent−1} at x + dx, less its value and its linear part, limited to the size of these."""
    moved = at + move
    limit = np.abs(value) + np.abs(linear)
    beyond = power(moved, exponent - 2) * moved - value - linear
    return np.asarray(np.minimum(np.maximum(beyond, -limit), limit))


class Progress:
    """Keeps, for every problem, the answer with the smallest relative gap, and the iterations it took.

    A problem is done when its gap is at most ``tol``, or has not become clearly better for ``patience``
    iterations. An infeasible point (gap above 1) cannot be said to stall.
    """

    def __init__(self, tol: float, patience: int, w: Array, lam: Array) -> None:
        self.tol, self.patience = tol, patience
        self.best = Answer(w.copy(), lam.copy(), np.zeros(len(w), dtype=np.intp), np.full(len(w), np.inf))
        self._alive, self._since = np.arange(len(w)), np.zeros(len(w), dtype=np.intp)

    def record(self, step: int, gap: Array, w: Array, lam: Array) -> Bools:
        """Take note of a new iterate of the problems at work; which of them are done."""
        best, alive, before = self.best, self._alive, self.best.gap[self._alive]
        better = gap < before
        best.w[alive[better]], best.lam[alive[better]] = w[better], lam[better]
        best.iterations[alive[before > self.tol]] = step
        best.gap[alive] = np.minimum(gap, before)
        self._since = np.where((gap < 0.9 * before) | (gap > 1), 0, self._since + 1)
        return (best.gap[alive] <= self.tol) | (self._since > self.patience)

    def retire(self, done: Bools) -> Index:
        """The positions of the problems that are not done, at which work goes on."""
        keep = np.flatnonzero(~done)
        self._alive, self._since = self._alive[keep], self._since[keep]
        return keep
