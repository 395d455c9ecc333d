"""Proofs, from the original data and the arrays that are returned: that weights are optimal, or that there are none.

**Optimality** (:func:`certify`): weights at minimum margin 1 and multipliers, ‖w‖ against 1ᵀλ/‖Aᵀλ‖_*. With equality
rows and other right-hand sides (:func:`certify_general`): ‖w‖_p against bᵀλ/‖Aᵀλ + Bᵀν‖_q.

**Feasibility**, phase 0 (:func:`judge`, :func:`confirm`): does any w satisfy A w > 0?
Either answer comes with its proof.

min ½‖w‖² + ½β² s.t. A w + β ≥ 1 always has a solution (β = 1). If some w separates, so does the
solution's w; if not, then w = Aᵀλ = 0 there, and λ ≥ 0, 1ᵀλ = 1 is a Farkas certificate: any W with
A W ≥ 1 would give 0 = ⟨Aᵀλ, W⟩ = λᵀA W ≥ 1. Its dual is the nonnegative least-squares problem
min ‖[Aᵀ; 1ᵀ]λ − e_last‖, solved by active sets when small and as a p = 2 problem otherwise.

Both proofs are measured against rounding alone, entry by entry: A w > 0 must exceed ε|A||w|, and |Aᵀλ| must be
within a few ε of |A|ᵀλ, the size of the sums that make it. No fixed threshold would do: a feature of size 1e-11 may
be all that separates the data. Such features are found by scaling the columns of A to one size, which changes w
but not whether there is one. What passes neither test is undecided.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
from scipy.optimize import nnls

from mirrormax.svm._types import Certificate, HardMargin, Verdict, norms, project
from mirrormax.svm.loop import solve_dual
from mirrormax.svm.rows import EPS, Array, BlockRows, Bools, Equilibrated, Rows, WithOffset, rounding

SUPPORT_TOLERANCE = 1e-4
REFUTED = 8 * EPS  # of |A|ᵀλ, for multipliers rounded to double precision and sums in extended precision
CANDIDATE = 1e-12  # the same before the last refinement
LARGEST_ACTIVE_SET = 2_000_000
POLISH = 8
EQUILIBRATE = 3

Norm = Callable[[Array], Array]


def certify(rows: BlockRows, c: Array, w: Array, lam: Array, norm: Norm, dual_norm: Norm, tol: float) -> Certificate:
    """Scale w to minimum margin 1 and compare ‖w‖ with 1ᵀλ/‖Aᵀλ‖_*.

    ``c`` (B, m) are the norms of the rows, 0 where none exists; ``lam`` the multipliers of unit rows.
    """
    exists = c > 0
    w, margins = _at_margin_one(rows, exists, w)
    smallest = np.where(exists, margins, np.inf).min(axis=1)
    unit = np.where(exists, np.maximum(lam, 0), 0.0)
    likely = _complementary(unit, margins, c)
    every = np.divide(unit, c, out=np.zeros_like(c), where=exists)
    dual, lower = _lower_bound(rows, np.where(likely, every, 0.0), dual_norm)
    upper = norm(w)
    gap = 1 - lower / np.maximum(upper, 1e-300)
    if (gap > tol).any():
        # Multipliers where the slack is larger are rounding of zero as a rule; where they matter they stay.
        kept, bound = _lower_bound(rows, every, dual_norm)
        better = (bound > lower) & (gap > tol)
        dual, lower = np.where(better[:, None], kept, dual), np.where(better, bound, lower)
        gap = 1 - lower / np.maximum(upper, 1e-300)
    # A margin of 1 that rounding alone could have made is no margin; one that exceeds it by far is.
    error = rounding(rows, w)
    usable = (smallest > 0) & ((error < 1) | (margins - error >= 1) | ~exists).all(axis=1)
    usable &= np.isfinite(upper) & (upper > 0)
    # Weak duality leaves a negative gap to rounding alone; anything more is no proof of anything.
    # And what rounding cannot tell from zero is not zero.
    gap = np.where(usable & (gap > -1e-11), np.maximum(gap, EPS), np.inf)
    violation = np.where(usable, np.maximum(1 - smallest, 0), np.inf)
    margin = np.where(usable, 1 / np.maximum(upper, 1e-300), 0.0)
    support = exists & (margins <= smallest[:, None] * (1 + support_tolerance(gap)[:, None]))
    return Certificate(w, dual, margin, gap, violation, support)


def certify_general(
    rows: BlockRows, c: Array, right: Array, equal: Bools, w: Array, lam: Array, p: Array, tol: float
) -> Certificate:
    """The same for A w ≥ b and B w = 0: right-hand sides b ``right`` and equality rows ``equal``, both (B, m).

    w is projected on B w = 0 and scaled to min A w/b = 1 over b > 0, and ‖w‖_p is compared with
    bᵀλ/‖Aᵀλ + Bᵀν‖_q. Scaling cannot mend the other rows: ``violation`` is by how much they are missed, each
    relative to the size of its own sum, and weights that miss one by more than ``tol`` prove nothing.
    """
    exists = c > 0
    above, equal = exists & ~equal, exists & equal
    b = np.where(above, right, 0.0)
    w = project(rows, equal, w)
    for _ in range(2):
        margins = rows.fwd(w)
        smallest = np.divide(margins, b, out=np.full_like(b, np.inf), where=b > 0).min(axis=1, keepdims=True)
        w = w / np.where(smallest > 0, smallest, 1.0)
    margins, size = rows.fwd(w), rows.absolute().fwd(np.abs(w))
    missed = np.where(above, b - margins, np.abs(margins)) / np.maximum(np.maximum(np.abs(b), size), 1e-300)
    violation = np.where(above | equal, missed, 0.0).max(axis=1, initial=0.0)
    unit = np.where(above, np.maximum(lam, 0), np.where(equal, lam, 0.0))
    every = np.divide(unit, c, out=np.zeros_like(c), where=exists)

    def bound(dual: Array) -> tuple[Array, Array]:
        length = p_norm(rows.adj(dual), p / (p - 1))
        dual = dual / np.where(length > 0, length, 1.0)[:, None]
        return dual, np.asarray((b * dual).sum(axis=1))

    upper = p_norm(w, p)
    dual, lower = bound(np.where(equal | _complementary(unit, margins - b + 1, c), every, 0.0))
    whole, other = bound(every)  # as above: small multipliers stay where they matter
    better = (other > lower) & (1 - lower / np.maximum(upper, 1e-300) > tol)
    dual, lower = np.where(better[:, None], whole, dual), np.where(better, other, lower)
    gap = 1 - lower / np.maximum(upper, 1e-300)
    # As above: a margin that rounding alone could have made is no margin.
    error = rounding(rows, w)
    usable = (smallest[:, 0] > 0) & ((error < b) | (margins - error >= b) | ~(b > 0)).all(axis=1)
    usable &= (violation <= tol) & np.isfinite(upper) & (upper > 0) & (gap > -1e-8)
    gap = np.where(usable, np.maximum(gap, EPS), np.inf)
    near = support_tolerance(gap)[:, None]
    support = above & (margins - b <= near * np.maximum(1.0, np.abs(b)))
    margin = np.where(usable, 1 / np.maximum(upper, 1e-300), 0.0)
    return Certificate(w, dual, margin, gap, np.where(usable, violation, np.inf), support)


def support_tolerance(gap: Array) -> Array:
    """How far from 1 an active margin may be, (B,): weights within a relative gap are exact to about its root.

    Never below the tolerance of :func:`mirrormax.attention.support_tokens`, so that both name the same tokens.
    """
    return np.asarray(np.maximum(np.sqrt(np.minimum(gap, 1.0)), SUPPORT_TOLERANCE))


def p_norm(w: Array, p: Array) -> Array:
    """‖w‖_p over the last axis with one p per problem (B,), at any scale."""
    largest = np.abs(w).max(axis=-1, initial=0.0, keepdims=True)
    safe = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    norm: Array = safe[:, 0] * ((np.abs(w) / safe) ** p[:, None]).sum(axis=-1) ** (1 / p)
    return norm


def _at_margin_one(rows: BlockRows, exists: npt.NDArray[np.bool_], w: Array) -> tuple[Array, Array]:
    for _ in range(2):  # the second time for the rounding of the first
        margins = rows.fwd(w)
        smallest = np.where(exists, margins, np.inf).min(axis=1, keepdims=True)
        w = w / np.where(smallest > 0, smallest, 1.0)
    return w, rows.fwd(w)


def _complementary(unit: Array, margins: Array, c: Array) -> npt.NDArray[np.bool_]:
    """λ_r m/Σλ ≥ slack_r, both of unit rows: complementarity leaves one of the two at zero."""
    smallest = np.where(c > 0, c, np.inf).min(axis=1, keepdims=True)
    b = np.divide(smallest, c, out=np.zeros_like(c), where=c > 0)
    share = unit * unit.shape[1] / np.maximum(unit.sum(axis=1, keepdims=True), 1e-300)
    active: npt.NDArray[np.bool_] = (c > 0) & (share > 0) & (share >= np.abs(margins - 1) * b)
    return active


def _lower_bound(rows: BlockRows, lam: Array, dual_norm: Norm) -> tuple[Array, Array]:
    """λ scaled to ‖Aᵀλ‖ = 1, and then its sum."""
    size = dual_norm(rows.adj(lam))
    lam = lam / np.where(size > 0, size, 1.0)[:, None]
    lower: Array = lam.sum(axis=1)
    return lam, lower


def judge(rows: Rows, exists: Array) -> Verdict:
    """Whether one problem (batch of 1) with unit rows is feasible; ``exists`` (m,) is 1 for its rows, else 0.

    "Not feasible" is to be confirmed on the original data, see :func:`confirm`.
    """
    plain = _judge(rows, exists)
    if plain.feasible is not None:
        return plain
    level = _equilibrated(rows, exists)
    found = _judge(level, exists)
    lam, w = found.lam * level.row[0], found.w * level.column[0]
    if found.feasible and _separates(rows, w, exists):
        return Verdict(True, w, lam, found.residual)
    if found.feasible is False:
        return Verdict(False, w, lam / lam.sum(), found.residual)
    return plain


def judge_general(rows: Rows, b: Array, exists: Bools, equal: Bools) -> Verdict:
    """Whether one problem A w ≥ b, B w = 0 is feasible; b, ``exists`` and ``equal`` are (m,).

    min ‖[Aᵀ; bᵀ]λ + [Bᵀ; 0]ν − e_last‖ over λ ≥ 0 and ν leaves the residual (w, −β) with A w ≥ β b, B w = 0 and
    ‖w‖² = β(1 − β). So w/β is feasible where β > 0, and of smallest Euclidean norm; otherwise w = 0 and bᵀλ = 1: then
    Aᵀλ + Bᵀν = 0 is a Farkas certificate, since any feasible W would give 0 = ⟨Aᵀλ + Bᵀν, W⟩ ≥ bᵀλ = 1.
    """
    above, level = np.flatnonzero(exists & ~equal), np.flatnonzero(exists & equal)
    matrix = rows.dense()[0]
    columns = np.concatenate([matrix[above].T, b[above][None]])
    between = np.concatenate([matrix[level].T, np.zeros((1, len(level)))])
    basis = np.linalg.qr(between)[0] if len(level) else np.zeros((rows.size + 1, 0))
    aim = np.append(np.zeros(rows.size), 1.0)
    try:
        # ν is free: everything is seen in what the equality rows leave.
        found = nnls(columns - basis @ (basis.T @ columns), aim)[0]
    except RuntimeError:
        return Verdict(None, np.zeros(rows.size), np.zeros(rows.m), np.inf)
    lam = np.zeros(rows.m)
    lam[above] = found
    lam[level] = np.linalg.lstsq(between, aim - columns @ found, rcond=None)[0] if len(level) else 0.0
    w = rows.adj(lam[None])[0]
    beta = 1 - float(b[above] @ found)
    w = project(rows, (equal & exists)[None], w[None])[0] / max(beta, 1e-300)
    margins, error = rows.fwd(w[None])[0], rounding(rows, w[None])[0]
    if beta > 0 and (margins - b >= -error)[above].all() and (margins - error > 0)[above[b[above] > 0]].all():
        return Verdict(True, w, lam, 1.0)
    lam, ratio = _polish(rows, lam, equal)
    total = float(b @ lam)
    if not total > 0:
        return Verdict(None, w, lam, np.inf)
    return Verdict(False if ratio <= CANDIDATE else None, w, lam / total, ratio)


def confirm(
    verdict: Verdict, x: Array, z: Array, exists: Array, right: Array | None = None, equal: Bools | None = None
) -> Verdict:
    """The verdict on multipliers of unit rows, tested on the data: rows x (n, R, d), z (n, e), ``exists`` (n R,).

    λ is refined with sums in extended precision, rounded to the multipliers of the original rows, and tested as
    they are returned. A verdict that fails becomes undecided.
    """
    long_x: Any = x.astype(np.longdouble)
    long_z: Any = z.astype(np.longdouble)
    x_norm, z_norm = norms(long_x), norms(long_z)
    long_x = long_x / np.where(x_norm > 0, x_norm, np.inf)[..., None]
    long_z = long_z / np.where(z_norm > 0, z_norm, np.inf)[..., None]
    c = (x_norm * z_norm[:, None]).reshape(-1)
    c = np.where(exists > 0, c, 0.0)
    rows = BlockRows(long_x[None], long_z[None])
    lam, _ = _polish(rows, verdict.lam.astype(np.longdouble), equal)
    original = np.divide(lam, c, out=np.zeros_like(c), where=c > 0)
    total = original.sum() if right is None else (original * right).sum()
    if not total > 0:
        return Verdict(None, verdict.w, verdict.lam, np.inf)
    rounded = (original / total).astype(np.float64)
    again = (rounded * c)[None]
    bound = rows.absolute().adj(np.abs(again))
    ratio = float(np.divide(np.abs(rows.adj(again)), bound, out=np.zeros_like(bound), where=bound > 0).max())
    return Verdict(False if ratio <= REFUTED else None, verdict.w, rounded, ratio)


def _interior(rows: Rows, exists: Array) -> Array:
    """The same multipliers by interior points."""
    b = np.where(exists > 0, 1.0, -1.0)[None]
    problem = HardMargin(WithOffset(rows, exists[None]), b, b, np.array([[2.0]]))
    lam = solve_dual(problem, np.full_like(b, 1 / max(exists.sum(), 1.0)), tol=1e-15)[0]
    return np.asarray(lam[0])


def _judge(rows: Rows, exists: Array) -> Verdict:
    lam = None
    if rows.m * rows.size <= LARGEST_ACTIVE_SET:
        matrix = np.concatenate([rows.dense()[0].T, exists[None]])
        try:
            lam = nnls(matrix, np.append(np.zeros(rows.size), 1.0))[0]
        except RuntimeError:  # cycling on degenerate rows
            lam = None
    verdict = None if lam is None else _verdict(rows, lam * exists, exists)
    if verdict is None or verdict.feasible is None:
        verdict = _verdict(rows, _interior(rows, exists) * exists, exists)
    return verdict


def _verdict(rows: Rows, lam: Array, exists: Array) -> Verdict:
    w = rows.adj(lam[None])[0]
    if _separates(rows, w, exists):
        return Verdict(True, w, lam, 1.0)
    lam, ratio = _polish(rows, lam)
    total = lam.sum()
    if not total > 0:
        return Verdict(None, w, lam, np.inf)
    return Verdict(False if ratio <= CANDIDATE else None, w, lam / total, ratio)


def _separates(rows: Rows, w: Array, exists: Array) -> bool:
    """Whether A w > 0 in every row beyond what rounding could have done."""
    room = rows.fwd(w[None]) - rounding(rows, w[None])
    return bool((room[0][exists > 0] > 0).all())


def _equilibrated(rows: Rows, exists: Array) -> Equilibrated:
    """Columns, then rows, divided by their sums a few times over."""
    size = rows.absolute()
    row, column = exists[None].copy(), np.ones((1, rows.size))
    for _ in range(EQUILIBRATE):
        sums = size.adj(row)
        column = np.where(sums > 0, 1 / np.where(sums > 0, sums, 1.0), 1.0)
        sums = size.fwd(column)
        row = np.where((sums > 0) & (exists > 0), 1 / np.where(sums > 0, sums, 1.0), 0.0)
    return Equilibrated(rows, row, column)


def _polish(rows: Rows, lam: Array, equal: Bools | None = None) -> tuple[Array, float]:
    """Relative corrections of λ on its support until |Aᵀλ| is rounding of |A|ᵀ|λ| in every entry; λ and their ratio.

    Residuals are computed in the precision of the rows, corrections by least squares in double precision. The
    multipliers of ``equal`` rows may have either sign.
    """
    largest = np.abs(lam).max(initial=0.0)
    free = np.zeros(len(lam), dtype=bool) if equal is None else equal
    current = np.where((lam > 1e-6 * largest) | (free & (np.abs(lam) > 1e-6 * largest)), lam, 0.0)
    best, best_ratio = lam, np.inf
    size = rows.absolute()
    for _ in range(POLISH):
        support = np.flatnonzero(current)
        if not len(support):
            break
        u, bound = rows.adj(current[None]), size.adj(np.abs(current)[None])
        safe = np.where(bound > 0, bound, np.inf)
        relative = (u / safe)[0]
        ratio = float(np.abs(relative).max())
        if ratio < best_ratio:
            best, best_ratio = current, ratio
        if ratio <= EPS / 8:
            break
        share = current[support].astype(np.float64)
        part = rows.subset(support)
        if len(support) * rows.size <= LARGEST_ACTIVE_SET:
            matrix = (part.dense()[0].T * share / safe[0][:, None]).astype(np.float64)
            step = np.linalg.lstsq(matrix, relative.astype(np.float64), rcond=1e-13)[0]
        else:
            gram = part.gram((1 / safe**2).astype(np.float64))[0] * share * share[:, None]
            right = share * part.fwd((relative / safe[0])[None].astype(np.float64))[0]
            step = np.linalg.lstsq(gram.astype(np.float64), right.astype(np.float64), rcond=1e-13)[0]
        current = current.copy()
        current[support] = np.where((step < 1) | free[support], current[support] * (1 - step), 0.0)
    return best, best_ratio
