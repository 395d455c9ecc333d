"""Which method for which problem: hard margins at scale 1, one problem or a batch of them."""

from __future__ import annotations

import numpy as np

from mirrormax.svm.dual_ipm import Batch
from mirrormax.svm.interior import AIM, Answer, mirror, solve_interior
from mirrormax.svm.large import GUESS_RANGE, projected_newton, quasi_newton
from mirrormax.svm.rows import Array
from mirrormax.svm.scaling import Unit, dual_start
from mirrormax.svm.semismooth import climb
from mirrormax.svm.working_set import nearest, solve_on_working_set

MANY_ROWS = 300  # from here on one problem at a time with few factorisations beats interior points
STEEPEST_CLIMB = 12.0  # the largest p for semismooth Newton
CHUNK = 256  # members at once: more gains nothing
LARGEST_CHUNK = 4_000_000  # numbers in the Gram matrices of a chunk, and in what they are made of
SMALLEST_SET = 100  # rows to begin with where few dimensions would do with fewer
FEW_DIMENSIONS = 256  # up to here interior points on a few times as many rows are quick
NEAR = 1.04  # times the smallest margin: rows that may be active


def solve(unit: Unit, p: Array, tol: float) -> Answer:
    """Solve every member; p (B,). Members that do not converge are judged for feasibility."""
    n, per_sample, d = unit.x.shape[1:]
    m = n * per_sample
    answer = Answer.empty(len(p), d * unit.z.shape[-1], m)
    many = m >= MANY_ROWS
    chunk = 1 if many else min(CHUNK, max(1, LARGEST_CHUNK // (m * (m + n * d))))
    for start in range(0, len(p), chunk):
        members = np.arange(start, min(start + chunk, len(p)))
        part = unit if len(members) == len(p) else unit.take(members)
        # Trial steps may overflow near p = 1; such a step is refused like any other bad one.
        with np.errstate(all="ignore"):
            if many:
                found = _solve_one(part.flat_batch(p[members], tol), AIM * tol)
            else:
                found = solve_interior(part.batch(p[members], tol), AIM * tol)
        answer.put(members, found)
    return answer


def _solve_one(batch: Batch, tol: float) -> Answer:
    """One problem with many rows: few dimensions by a working set, else a quasi-Newton guess and its last digits."""
    rows = batch.rows
    if rows.m > 4 * rows.size and rows.size <= FEW_DIMENSIONS:
        first = nearest(batch, rows.adj(batch.gain), max(4 * rows.size, SMALLEST_SET))
        return solve_on_working_set(batch, first, tol, max(rows.size, SMALLEST_SET // 2))
    p = float(batch.p[0, 0])
    guess_p = np.full_like(batch.p, np.clip(p, *GUESS_RANGE))
    scaled, start = dual_start(Batch(rows, batch.b, batch.exact, guess_p))
    guess, steps = quasi_newton(scaled, start)
    if p <= 2:
        answer = _newton(Batch(scaled.rows, batch.b, batch.exact, batch.p), guess[None], tol, steps)
        if answer is not None:
            return answer
    w = mirror(Batch(rows, batch.b, batch.exact, guess_p), guess[None])
    margins = batch.rows.fwd(w)[0] * batch.per_margin[0] + batch.beyond[0]
    smallest = margins.min()
    if not smallest > 0:  # infeasible, or too hard for the quasi-Newton run
        return solve_interior(batch, tol)
    if 2 < p <= STEEPEST_CLIMB:
        found = climb(batch, w, guess[None], float(guess_p[0, 0]), tol)
        if found is not None:
            return Answer(found[0], found[1], np.array([steps + found[2]], dtype=np.intp))
    near = np.flatnonzero((margins < NEAR * smallest) | ((guess > 0) & (batch.b[0] > 0)))
    answer = solve_on_working_set(batch, near, tol, rows.m // 10, w)
    answer.iterations += steps
    return answer


def _newton(batch: Batch, lam: Array, tol: float, steps: int) -> Answer | None:
    """The last digits at p ≤ 2, or None where projected Newton did not reach them."""
    lam, gap, more = projected_newton(batch, lam, tol)
    if gap > tol:
        return None
    answer = Answer.empty(1, batch.rows.size, batch.rows.m)
    answer.w, answer.lam = mirror(batch, lam), lam
    answer.iterations[:] = steps + more
    return answer
