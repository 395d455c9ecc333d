"""Solve on the rows that matter, look at all of them, add the violated ones, repeat."""

from __future__ import annotations

import numpy as np

from mirrormax.svm.dual_ipm import Batch
from mirrormax.svm.interior import Answer, solve_interior
from mirrormax.svm.rows import Array, Index

ROUNDS = 40


def solve_on_working_set(batch: Batch, start: Index, tol: float, grow: int) -> Answer:
    """One problem (batch of 1), from the rows ``start``; at least the ``grow`` most violated rows join a round.

    Weights that are best for some rows and violate none of the others are best for all, and multipliers
    that refute some rows refute all; so the answer is that of the whole problem.
    """
    chosen = np.unique(start)
    answer = Answer.empty(1, batch.rows.size, batch.rows.m)
    for _ in range(ROUNDS):
        part = Batch(batch.rows.subset(chosen), batch.b[:, chosen], batch.exact[:, chosen], batch.p)
        small = solve_interior(part, tol)
        answer.iterations += small.iterations
        answer.w, answer.lam = small.w, np.zeros_like(batch.b)
        answer.lam[0, chosen] = small.lam[0]
        answer.verdicts = {k: verdict.spread(chosen, batch.rows.m) for k, verdict in small.verdicts.items()}
        if any(not verdict.feasible for verdict in small.verdicts.values()):
            return answer
        # Below half-way between b and the aim a row counts as violated; see Batch.
        margins = batch.rows.fwd(answer.w)[0] * batch.per_margin[0] + batch.beyond[0]
        short = margins / margins[chosen].min() - 1
        short[chosen] = 0.0
        violated = np.flatnonzero(short < -0.05 * tol)
        if not len(violated):
            return answer
        worst = violated[np.argsort(short[violated])[: max(grow, len(chosen) // 2)]]
        chosen = np.union1d(chosen, worst)
    return answer


def nearest(batch: Batch, w: Array, count: int) -> Index:
    """The ``count`` rows with the smallest margins under w (1, N)."""
    margins = batch.rows.fwd(w)[0] * batch.per_margin[0] + batch.beyond[0]
    count = min(count, int((batch.b > 0).sum()))
    return np.argsort(margins)[:count]
