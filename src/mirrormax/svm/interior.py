"""Batches of hard-margin problems by interior points, with phase 0 for those that do not converge."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from mirrormax.svm.dual_ipm import Batch, evaluate, relative_gap, solve_dual
from mirrormax.svm.feasibility import Verdict, active_set, judge
from mirrormax.svm.primal_ipm import solve_primal
from mirrormax.svm.rows import Array, Index
from mirrormax.svm.scaling import dual_start

AIM = 0.9  # of the tolerance: the certificate is computed again, in other roundings, at the end
START_GAP = 0.2  # how well p = 2 is solved for a strictly feasible start at p > 2
START_ROOM = 1.05  # that start's distance from the boundary
CONTINUATION = 1.5  # how fast p grows where one jump failed


@dataclass
class Answer:
    """Weights w (B, N) and unit-row multipliers (B, m), each up to scale; phase 0's verdicts where it was asked."""

    w: Array
    lam: Array
    iterations: Index
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @classmethod
    def empty(cls, batch: int, size: int, m: int) -> Answer:
        return cls(np.zeros((batch, size)), np.zeros((batch, m)), np.zeros(batch, dtype=np.intp))

    def put(self, members: Index, other: Answer) -> None:
        """Write the answers of these members of the batch into it."""
        self.w[members], self.lam[members], self.iterations[members] = other.w, other.lam, other.iterations
        self.verdicts.update({int(members[k]): verdict for k, verdict in other.verdicts.items()})


def solve_interior(batch: Batch, tol: float, start: Array | None = None) -> Answer:
    """Solve every member to a relative gap of ``tol``; ``start`` (B, N) are weights with A w > 0, if there are any.

    Only p > 2 has a use for them.
    """
    p = batch.p[:, 0]
    answer = Answer.empty(len(p), batch.rows.size, batch.rows.m)
    for members in (np.flatnonzero(p <= 2), np.flatnonzero(p > 2)):
        if len(members):
            part = batch if len(members) == len(p) else batch.take(members)
            if p[members[0]] <= 2:
                _low(part, members, tol, answer)
            else:
                _high(part, members, tol, answer, None if start is None else start[members])
    return answer


def mirror(batch: Batch, lam: Array) -> Array:
    """w = sign(u)|u|^{q−1}, u = Aᵀλ, with max|u| = 1: near p = 1 any other scale would under- or overflow."""
    u = batch.rows.adj(lam)
    u = u / np.maximum(np.abs(u).max(axis=1, keepdims=True), 1e-300)
    return np.asarray(np.abs(u) ** (batch.q - 2) * u)


def _low(batch: Batch, members: Index, tol: float, answer: Answer) -> None:
    """p ≤ 2: the dual interior point, and phase 0 where it did not arrive."""
    exact = active_set(batch) if len(members) == 1 and batch.p[0, 0] == 2 else None
    if exact is not None and relative_gap(batch, evaluate(batch, exact))[0] <= tol:
        answer.w[members], answer.lam[members] = mirror(batch, exact), exact
        return
    lam, gap, iterations = solve_dual(*dual_start(batch), tol)
    answer.w[members], answer.lam[members] = mirror(batch, lam), lam
    answer.iterations[members] = iterations
    for k in np.flatnonzero(gap > tol):
        one = batch.take(np.array([k]))
        verdict = judge(one.rows, (one.b[0] > 0).astype(np.float64))
        answer.verdicts[int(members[k])] = verdict
        if verdict.feasible:
            # Phase 0 solved p = 2: its multipliers, moved inside, have the scale that all-ones did not have.
            weights = (verdict.lam + 0.1 * verdict.lam.mean())[None]
            again, again_gap, more = solve_dual(*dual_start(one, weights), tol, limit=200)
            answer.iterations[members[k]] += more[0]
            if again_gap[0] < gap[k]:
                answer.w[members[k]], answer.lam[members[k]] = mirror(one, again)[0], again[0]


def _high(batch: Batch, members: Index, tol: float, answer: Answer, start: Array | None) -> None:
    """p > 2: p = 2 roughly, for a strictly feasible start, then the primal interior point."""
    w = _rough_start(batch, members, answer) if start is None else start
    smallest = batch.smallest_margin(batch.rows.fwd(w))
    started = np.flatnonzero(smallest > 0)
    retry = np.flatnonzero(~(smallest > 0))
    if len(started):
        part = batch if len(started) == len(members) else batch.take(started)
        gap = _from_start(part, w[started] / smallest[started, None], members[started], tol, answer)
        retry = np.concatenate([retry, started[gap > tol]])
    for k in retry:
        one = batch.take(np.array([k]))
        verdict = judge(one.rows, (one.b[0] > 0).astype(np.float64))
        answer.verdicts[int(members[k])] = verdict
        if verdict.feasible:
            _patiently(one, verdict.w[None], members[[k]], tol, answer)


def _rough_start(batch: Batch, members: Index, answer: Answer) -> Array:
    """Weights that solve p = 2, exactly for one small problem and roughly for a batch."""
    euclid = Batch(batch.rows, batch.b, batch.exact, np.full_like(batch.p, 2.0))
    lam = active_set(euclid) if len(members) == 1 else None
    if lam is None:
        lam, _, answer.iterations[members] = solve_dual(*dual_start(euclid), START_GAP)
    return batch.rows.adj(lam)


def _patiently(batch: Batch, w: Array, member: Index, tol: float, answer: Answer) -> None:
    """One hard problem: from starts with some distance from every row, else through smaller p."""
    central = w / batch.rows.fwd(w)[batch.b > 0].min()
    target = float(batch.p[0, 0])
    if _from_start(batch, central, member, tol, answer)[0] <= tol:
        return
    euclid = Batch(batch.rows, batch.b, batch.exact, np.full_like(batch.p, 2.0))
    rough = batch.rows.adj(solve_dual(*dual_start(euclid), START_GAP)[0])
    smallest = batch.smallest_margin(batch.rows.fwd(rough))[:, None]
    if smallest > 0 and _from_start(batch, rough / smallest, member, tol, answer)[0] <= tol:
        return
    start, p = central, 2.0
    while p < target:
        p = min(target, CONTINUATION * p)
        step = Batch(batch.rows, batch.b, batch.exact, np.full_like(batch.p, p))
        _from_start(step, start, member, tol, answer)
        w = answer.w[member] / batch.smallest_margin(batch.rows.fwd(answer.w[member]))[:, None]
        start = w + 0.2 * central


def _from_start(batch: Batch, w: Array, members: Index, tol: float, answer: Answer) -> Array:
    """The primal interior point from A w ≥ b, at the scale where w has entries near 1; returns the gaps."""
    largest = np.abs(w).max(axis=1, keepdims=True)
    kappa = largest * ((np.abs(w) / largest) ** batch.p).mean(axis=1, keepdims=True) ** (1 / batch.p)
    scaled = Batch(batch.rows.scaled(kappa[:, 0]), batch.b, batch.exact, batch.p)
    w, lam, gap, iterations = solve_primal(scaled, START_ROOM * w / kappa, tol)
    answer.w[members], answer.lam[members] = w, lam
    answer.iterations[members] += iterations
    return gap
