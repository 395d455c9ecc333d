"""Interior points for batches, with phase 0 for the problems that do not converge; two solvers of small problems.

:func:`solve_interior` takes any problem, :func:`solve_active_set` is for p = 2. :func:`solve_extended` is for data that
double precision solves only by luck: where features of very different size separate the data (1e6 beside 1e-6), A D Aᵀ
has lost the faint ones to rounding before it is factored. The interior point of :mod:`mirrormax.svm.loop` therefore
takes its steps there from the whole system

    [ H  −Aᵀ  ] [dw]   [ −rd ]
    [ A   Δ   ] [dλ] = [ c/λ ],        Δ = diag(s/λ),  H = (p−1) max(|w|, floor)^{p−2},

brought to one scale by powers of two and solved by elimination with pivots in ``numpy.longdouble``. It serves every
p that is not very near 1, and costs (m + N)³: a last resort.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np
from scipy.linalg import solve_triangular
from scipy.optimize import nnls

from mirrormax.svm._types import Answer, HardMargin, Verdict, project
from mirrormax.svm.feasibility import judge, judge_general
from mirrormax.svm.loop import CURVATURE_FLOOR, DualPoint, Move, PrimalPoint, follow, solve_dual
from mirrormax.svm.rows import Array, DenseRows, dot, p_norm
from mirrormax.svm.systems import Elimination, Long, System

START_GAP = 0.2  # how well p = 2 is solved for a strictly feasible start at p > 2
ROUGH = 1e-6  # a gap that rounding may be to blame for; a larger one is worth another start
INSIDE = (0.1, 1.0, 0.01)  # of their mean: how far phase 0's multipliers are moved from zero, for a start at p ≤ 2
GUESSED_SLACK = 0.1  # the smallest slack that a guess at p ≤ 2 begins with
START_ROOM = 1.05  # that start's distance from the boundary
CONTINUATION = 1.5  # how fast p grows where one jump failed
LARGEST_ACTIVE_SET = 128  # rows; beyond, interior points are quicker
SMALLEST_RIGHT_SIDE = 1e-3  # a row with less would lose its digits in the normal matrix
RAISED = 0.1  # how far inside the rows with b ≤ 0 a start for p > 2 should be, where there are any
LARGEST_SYSTEM = 260  # rows and weights together in extended precision; one step then takes about a tenth of a second
LONG_STEPS = 100
LONG_PATIENCE = 15
LONG_ROOM = 1.2  # the start's distance from the boundary


def solve_interior(
    problem: HardMargin, tol: float, start: Array | None = None, multipliers: Array | None = None
) -> Answer:
    """Solve every problem to a relative gap of ``tol``: in the multipliers for p ≤ 2, in the weights for p > 2.

    ``start`` (B, N) are weights with A w > 0, if there are any, for p > 2; ``multipliers`` (B, m), all positive,
    are a guess for p ≤ 2.
    """
    p = problem.p[:, 0]
    answer = Answer.empty(len(p), problem.rows.size, problem.rows.m)
    for members, solve, guess in ((np.flatnonzero(p <= 2), _low, multipliers), (np.flatnonzero(p > 2), _high, start)):
        if len(members):
            part = problem if len(members) == len(p) else problem.take(members)
            answer.put(members, solve(part, tol, None if guess is None else guess[members]))
    for k in np.flatnonzero(answer.gap > tol):
        own = np.array([k])
        answer.put(own, _patiently(problem.take(own), tol, answer.take(own)))
    return answer


def solve_hard(problem: HardMargin, tol: float) -> Answer:
    """One problem known to be hard: with phase 0 before the first step, and the start that it gives."""
    answer = _patiently(problem, tol, Answer.empty(1, problem.rows.size, problem.rows.m))
    if answer.verdicts[0].feasible is False or answer.gap[0] <= ROUGH:
        return answer
    other = solve_interior(problem, tol)
    return other if other.gap[0] < answer.gap[0] else answer


def is_small_euclidean(problem: HardMargin) -> bool:
    """Whether :func:`solve_active_set` takes it: one problem, p = 2, few rows of similar size."""
    b = problem.b[0][problem.b[0] > 0]
    small = 0 < len(b) <= LARGEST_ACTIVE_SET and bool(b.min() >= SMALLEST_RIGHT_SIDE)
    return len(problem) == 1 and problem.equal is None and float(problem.p[0, 0]) == 2 and small


def solve_active_set(problem: HardMargin, tol: float) -> Answer:
    """p = 2 as nonnegative least squares in the m × m Cholesky factor of its normal matrix: all but exact."""
    lam = active_set(problem)
    if lam is not None:
        gap = float(DualPoint.at(problem, lam).relative_gap(problem)[0])
        if gap <= tol:
            return Answer.of(problem.mirror(lam), lam, gap, 0)
    return solve_interior(problem, tol)


def is_small(problem: HardMargin) -> bool:
    """Whether :func:`solve_extended` takes it: one problem with few rows and weights."""
    rows = int((problem.exact > 0).sum())
    return problem.equal is None and rows + problem.rows.size <= LARGEST_SYSTEM and len(problem) == 1


def solve_extended(problem: HardMargin, tol: float, start: Array | None = None) -> Answer:
    """One problem with the whole system in ``numpy.longdouble``, from weights (N,) with A w > 0 or phase 0."""
    answer = Answer.empty(1, problem.rows.size, problem.rows.m)
    exists, p = problem.exact[0] > 0, float(problem.p[0, 0])
    if start is None:
        verdict = judge(problem.rows, exists.astype(np.float64))
        answer.verdicts[0] = verdict
        if not verdict.feasible:
            return answer
        start = verdict.w
    part = problem.subset(np.flatnonzero(exists))
    b: Long = part.exact.astype(np.longdouble)
    w: Long = start[None].astype(np.longdouble)
    rows = DenseRows(part.rows.dense().astype(np.longdouble))
    w = w / (rows.fwd(w) / b).min()
    # A power of two, at which w has entries near 1: nothing is rounded on the way there and back.
    size = p_norm(w, problem.p[:, 0])[0] / w.size ** (1 / p)
    kappa = np.ldexp(np.longdouble(1.0), int(np.frexp(size)[1]))
    scaled = HardMargin(DenseRows(rows.matrix * kappa), b, b, problem.p, b > 0)
    point = WholePoint.at(scaled, LONG_ROOM * w / kappa, np.ones_like(b))
    lam = 0.1 * (np.abs(point.w) ** p).sum() / (b.size * point.s)
    best = follow(scaled, WholePoint.at(scaled, point.w, lam), tol, LONG_STEPS, LONG_PATIENCE)
    # Multipliers with the same ratios stay the same when they are rounded.
    answer.w, answer.iterations = (best.w * kappa).astype(np.float64), best.iterations
    answer.lam[0, exists] = (best.lam[0] / best.lam.max()).astype(np.float64)
    return answer


def active_set(problem: HardMargin) -> Array | None:
    """λ (1, m) of a problem that :func:`solve_active_set` takes, or None where it fails.

    With rows a_r/b_r the least-squares problem of phase 0 is that of p = 2 itself.
    """
    keep = np.flatnonzero(problem.b[0] > 0)
    b = problem.b[0, keep]
    gram = problem.rows.gram(np.ones((1, problem.rows.size)))[0]
    gram = (gram if len(keep) == len(gram) else gram[np.ix_(keep, keep)]) / (b[:, None] * b)
    gram = gram / gram.diagonal().max() + 1
    np.einsum("ii->i", gram)[...] *= 1 + 1e-13
    try:
        lower = np.linalg.cholesky(gram)
        multipliers = nnls(lower.T, solve_triangular(lower, np.ones(len(keep)), lower=True))[0]
    except (RuntimeError, np.linalg.LinAlgError):
        return None
    lam = np.zeros_like(problem.b)
    lam[0, keep] = multipliers / b
    return lam if lam.any() else None


def _low(problem: HardMargin, tol: float, guess: Array | None) -> Answer:
    """p ≤ 2: in the multipliers."""
    answer = solve_dual(*problem.dual_start(guess), tol, slack=1.0 if guess is None else GUESSED_SLACK)
    return replace(answer, w=problem.mirror(answer.lam))


def _high(problem: HardMargin, tol: float, start: Array | None) -> Answer:
    """p > 2: p = 2 roughly, for a strictly feasible start, then in the weights."""
    answer = Answer.empty(len(problem), problem.rows.size, problem.rows.m)
    if start is None:  # exact for one small problem, rough for a batch
        euclid = problem.at(2.0)
        if problem.equal is not None:
            more = np.where(problem.above & (problem.exact <= 0), RAISED, 0.0)
            euclid = replace(euclid, b=problem.b + more, exact=problem.exact + more)
        lam = active_set(euclid) if is_small_euclidean(euclid) else None
        if lam is None:
            rough = solve_dual(*euclid.dual_start(), START_GAP)
            lam, answer.iterations = rough.lam, rough.iterations
        start = project(problem.rows, problem.equal, problem.rows.adj(lam))
    smallest = problem.smallest_margin(problem.rows.fwd(start))
    room = smallest > 0
    if problem.equal is not None:  # as :func:`_from_start` scales it, in the rows with b ≤ 0 too
        slack = problem.rows.fwd(START_ROOM * start / smallest[:, None]) - problem.b
        room &= (problem.inequalities(slack, 1.0) > 0).all(axis=1)
    inside = np.flatnonzero(room)
    if len(inside):
        part = problem if len(inside) == len(problem) else problem.take(inside)
        first = _from_start(part, start[inside] / smallest[inside, None], tol)
        answer.put(inside, replace(first, iterations=first.iterations + answer.iterations[inside]))
    return answer


def _patiently(problem: HardMargin, tol: float, answer: Answer) -> Answer:
    """One hard problem, from what phase 0 says of it: a proof that nothing separates, or better starts."""
    verdict, low = judge_problem(problem), bool(problem.p[0, 0] <= 2)
    if verdict.feasible:
        for other in _low_again(problem, verdict, tol) if low else _high_again(problem, verdict, tol):
            steps = answer.iterations + other.iterations
            answer = replace(other if other.gap[0] < answer.gap[0] else answer, iterations=steps)
            if answer.gap[0] <= (ROUGH if low else tol):
                break
    answer.verdicts[0] = verdict
    return answer


def judge_problem(problem: HardMargin) -> Verdict:
    """Phase 0 of one problem."""
    if problem.equal is None:
        return judge(problem.rows, (problem.b[0] > 0).astype(np.float64))
    return judge_general(problem.rows, problem.gain[0], problem.exists[0], problem.equal[0])


def _low_again(problem: HardMargin, verdict: Verdict, tol: float) -> Iterator[Answer]:
    """p ≤ 2: phase 0 solved p = 2; its multipliers, moved inside, have the scale that all-ones did not have."""
    for inside in INSIDE:
        weights = (verdict.lam + inside * np.abs(verdict.lam).mean())[None]
        answer = solve_dual(*problem.dual_start(weights), tol, limit=200)
        yield replace(answer, w=problem.mirror(answer.lam))


def _high_again(problem: HardMargin, verdict: Verdict, tol: float) -> Iterator[Answer]:
    """p > 2: from starts with some distance from every row, else through smaller p."""
    smallest = problem.smallest_margin(problem.rows.fwd(verdict.w[None]))[:, None]
    # Rows with b ≤ 0 allow to make weights shorter, but not longer.
    central = verdict.w[None] / (smallest if problem.equal is None else np.maximum(smallest, START_ROOM))
    yield _from_start(problem, central, tol)
    if problem.equal is None:
        rough = problem.rows.adj(solve_dual(*problem.at(2.0).dual_start(), START_GAP).lam)
        smallest = problem.smallest_margin(problem.rows.fwd(rough))[:, None]
        if smallest > 0:
            yield _from_start(problem, rough / smallest, tol)
    start, p, target, steps = central, 2.0, float(problem.p[0, 0]), np.zeros(1, dtype=np.intp)
    while p < target:
        p = min(target, CONTINUATION * p)
        answer = _from_start(problem.at(p), start, tol)
        steps = steps + answer.iterations
        w = answer.w / problem.smallest_margin(problem.rows.fwd(answer.w))[:, None]
        start = w + 0.2 * central if problem.equal is None else 0.8 * w + 0.2 * central
    yield replace(answer, iterations=steps)


def _from_start(problem: HardMargin, w: Array, tol: float) -> Answer:
    """p > 2: in the weights, from A w ≥ b, at the scale where w has entries near 1."""
    kappa = p_norm(w, problem.p[:, 0])[:, None] / w.shape[1] ** (1 / problem.p)
    problem, w = problem.scaled(kappa[:, 0]), START_ROOM * w / kappa
    start = PrimalPoint.at(problem, w, np.ones_like(problem.b))
    mu = 0.1 * dot(start.power * w, w)[:, None] / problem.count()
    lam = problem.inequalities(mu / problem.inequalities(start.s, 1.0))
    return follow(problem, PrimalPoint.at(problem, w, lam), tol, limit=150, patience=25)


class WholePoint(PrimalPoint):
    """A point in the weights whose steps come from the whole system, in extended precision and for every p."""

    @classmethod
    def at(cls, problem: HardMargin, w: Array, lam: Array) -> WholePoint:
        rows, steep = problem.rows, np.maximum(np.abs(w), 1e-300) ** (problem.p - 2)
        return cls(lam, rows.fwd(w) - problem.b, w, rows.adj(lam), steep)

    def weight(self, problem: HardMargin) -> Array:
        p, share = problem.p, dot(self.lam, self.s)[:, None] / self.w.shape[1]
        floor = CURVATURE_FLOOR * np.minimum(1.0, share) ** (1 / p)
        return np.asarray(1 / ((p - 1) * np.maximum(np.abs(self.w), floor) ** (p - 2)))

    def system(self, problem: HardMargin, weight: Array, gap: Array) -> Elimination:
        A = problem.rows.dense()[0]
        return Elimination(np.block([[np.diag(1 / weight[0]), -A.T], [A, np.diag((self.s / self.lam)[0])]]))

    def direction(self, problem: HardMargin, factor: System, weight: Array, target: Array, residual: Array) -> Move:
        move = factor.solve(np.concatenate([-residual, target], axis=1))
        dw, dlam = move[:, : weight.shape[1]], move[:, weight.shape[1] :]
        return Move(dlam, problem.rows.fwd(dw), dw)

    def beyond(self, problem: HardMargin, weight: Array, move: Move, reach: Array) -> Array:
        return np.zeros_like(self.w)
