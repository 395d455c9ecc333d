"""Which method for which problem: hard margins at scale 1, one problem or a batch of them."""

from __future__ import annotations

import numpy as np

from mirrormax.svm.dual_ipm import Batch
from mirrormax.svm.interior import AIM, Answer, mirror, solve_interior
from mirrormax.svm.large import GUESS_RANGE, projected_newton, quasi_newton
from mirrormax.svm.rows import Array
from mirrormax.svm.scaling import Unit, dual_start
from mirrormax.svm.working_set import nearest, solve_on_working_set

MANY_ROWS = 200  # from here on one problem at a time, with few factorisations, beats a batch of interior points
NEAR = 1.04  # times the smallest margin: rows that may be active


def solve(unit: Unit, p: Array, tol: float) -> Answer:
    """Solve every member; p (B,). Members that do not converge are judged for feasibility."""
    # Trial steps may overflow near p = 1; such a step is refused like any other bad one.
    with np.errstate(all="ignore"):
        if unit.c[0].size < MANY_ROWS:
            return solve_interior(unit.batch(p, tol), AIM * tol)
        answer = Answer.empty(len(p), unit.x.shape[-1] * unit.z.shape[-1], unit.c[0].size)
        for k in range(len(p)):
            one = unit.take(np.array([k]))
            answer.put(k, _solve_one(one.flat_batch(p[[k]], tol), AIM * tol))
        return answer


def _solve_one(batch: Batch, tol: float) -> Answer:
    rows = batch.rows
    if rows.m > 4 * rows.size:
        return solve_on_working_set(batch, nearest(batch, rows.adj(batch.gain), 4 * rows.size), tol, rows.size)
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
    near = np.flatnonzero((margins < NEAR * smallest) | ((guess > 0) & (batch.b[0] > 0)))
    answer = solve_on_working_set(batch, near, tol, rows.m // 10)
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
