"""Solve on the rows that matter, look at all of them, add the violated ones, repeat."""

from __future__ import annotations

import numpy as np

from mirrormax.svm._types import Answer, HardMargin
from mirrormax.svm.rows import Array, Index
from mirrormax.svm.solvers.interior import Interior

ROUNDS = 40
SMALLEST_SET = 100  # rows to begin with where few dimensions would do with fewer


class WorkingSet:
    """Interior points on a few times as many rows as there are weights."""

    name = "working-set"
    takes = "any problem, one at a time"
    batched = False

    def accepts(self, problem: HardMargin) -> bool:
        return True

    def solve(self, problem: HardMargin, tol: float) -> Answer:
        size = problem.rows.size
        first = nearest(problem, problem.rows.adj(problem.gain), max(4 * size, SMALLEST_SET))
        return solve_on_working_set(problem, first, tol, max(size, SMALLEST_SET // 2))


def solve_on_working_set(problem: HardMargin, start: Index, tol: float, grow: int, w: Array | None = None) -> Answer:
    """One problem (problem of 1), from the rows ``start``; at least the ``grow`` most violated rows join a round.

    ``w`` (1, N) with A w > 0 saves p > 2 the search for such a start.

    Weights that are best for some rows and violate none of the others are best for all, and multipliers
    that refute some rows refute all; so the answer is that of the whole problem.
    """
    chosen = np.unique(start)
    answer = Answer.empty(1, problem.rows.size, problem.rows.m)
    for _ in range(ROUNDS):
        small = Interior().solve(problem.subset(chosen), tol, w)
        answer.iterations += small.iterations
        answer.w, answer.lam, answer.gap = small.w, np.zeros_like(problem.b), small.gap
        answer.lam[0, chosen] = small.lam[0]
        answer.verdicts = {k: verdict.spread(chosen, problem.rows.m) for k, verdict in small.verdicts.items()}
        if any(not verdict.feasible for verdict in small.verdicts.values()):
            return answer
        # Below half-way between b and the aim a row counts as violated.
        margins = problem.margins(problem.rows.fwd(answer.w))[0]
        short = margins / margins[chosen].min() - 1
        short[chosen] = 0.0
        violated = np.flatnonzero(short < -0.05 * tol)
        if not len(violated):
            return answer
        worst = violated[np.argsort(short[violated])[: max(grow, len(chosen) // 2)]]
        chosen = np.union1d(chosen, worst)
    return answer


def nearest(problem: HardMargin, w: Array, count: int) -> Index:
    """The ``count`` rows with the smallest margins under w (1, N)."""
    margins = problem.margins(problem.rows.fwd(w))[0]
    count = min(count, int((problem.b > 0).sum()))
    return np.argsort(margins)[:count]
