"""Feasibility, phase 0: does any w satisfy A w > 0? Either answer comes with its proof.

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

from contextlib import suppress
from typing import Any

import numpy as np
from scipy.optimize import linprog, nnls

from mirrormax.svm._types import HardMargin, Verdict, norms, project
from mirrormax.svm.loop import solve_dual
from mirrormax.svm.rows import EPS, Array, BlockRows, Bools, Framed, Rows, rounding

REFUTED = 8 * EPS  # of |A|ᵀλ, for multipliers rounded to double precision and sums in extended precision
CANDIDATE = 1e-12  # the same before the last refinement
LARGEST_ACTIVE_SET = 2_000_000
POLISH = 8
EQUILIBRATE = 3


def judge(rows: Rows, exists: Array) -> Verdict:
    """Whether one problem (batch of 1) with unit rows is feasible; ``exists`` (m,) is 1 for its rows, else 0.

    "Not feasible" is to be confirmed on the original data, see :func:`confirm`.
    """
    plain = _judge(rows, exists)
    if plain.feasible is not None:
        return plain
    level = _equilibrated(rows, exists)
    verdict = _judge(level, exists)
    lam, w = verdict.lam * level.row[0], verdict.w * level.column[0]
    if verdict.feasible and _separates(rows, w, exists):
        return Verdict(True, w, lam, verdict.residual)
    if verdict.feasible is False:
        return Verdict(False, w, lam / lam.sum(), verdict.residual)
    return plain


def judge_general(rows: Rows, b: Array, exists: Bools, equal: Bools) -> Verdict:
    """Whether one problem A w ≥ b, B w = 0 is feasible; b, ``exists`` and ``equal`` are (m,).

    min ‖[Aᵀ; bᵀ]λ + [Bᵀ; 0]ν − e_last‖ over λ ≥ 0 and ν leaves the residual (w, −β) with A w ≥ β b, B w = 0 and
    ‖w‖² = β(1 − β). So w/β is feasible where β > 0, and of smallest Euclidean norm; otherwise w = 0 and bᵀλ = 1: then
    Aᵀλ + Bᵀν = 0 is a Farkas certificate, since any feasible W would give 0 = ⟨Aᵀλ + Bᵀν, W⟩ ≥ bᵀλ = 1.

    The weights of the verdict are those with the most room in every row, by a linear programme, if there is any room.
    """
    above, level = np.flatnonzero(exists & ~equal), np.flatnonzero(exists & equal)
    matrix = rows.dense()[0]
    columns = np.concatenate([matrix[above].T, b[above][None]])
    between = np.concatenate([matrix[level].T, np.zeros((1, len(level)))])
    basis = np.linalg.qr(between)[0] if len(level) else np.zeros((rows.size + 1, 0))
    aim = np.append(np.zeros(rows.size), 1.0)
    lam = np.zeros(rows.m)
    with suppress(RuntimeError):  # cycling on degenerate rows
        # ν is free: everything is seen in what the equality rows leave.
        lam[above] = nnls(columns - basis @ (basis.T @ columns), aim)[0]
        lam[level] = np.linalg.lstsq(between, aim - columns @ lam[above], rcond=None)[0] if len(level) else 0.0
    shortest = rows.adj(lam[None])[0] / max(1 - float(b[above] @ lam[above]), 1e-300)
    for w in (_roomiest(matrix[above], b[above], matrix[level]), shortest):
        w = project(rows, (equal & exists)[None], w[None])[0]
        margins, error = rows.fwd(w[None])[0], rounding(rows, w[None])[0]
        if (margins - b >= -error)[above].all() and (margins - error > 0)[above[b[above] > 0]].all():
            return Verdict(True, w, lam, 1.0)
    lam, ratio = _polish(rows, lam, equal)
    total = float(b @ lam)
    if not total > 0:
        return Verdict(None, w, lam, np.inf)
    return Verdict(False if ratio <= CANDIDATE else None, w, lam / total, ratio)


def _roomiest(A: Array, b: Array, B: Array) -> Array:
    """w (N,) of max s ≤ 1 s.t. A w ≥ b + s, B w = 0."""
    cost, ones = np.append(np.zeros(A.shape[1]), -1.0), np.ones((len(A), 1))
    level = np.column_stack([B, np.zeros(len(B))])
    bounds = [*[(None, None)] * A.shape[1], (None, 1.0)]
    point = linprog(cost, np.column_stack([-A, ones]), -b, level, np.zeros(len(B)), bounds).x
    return np.zeros(A.shape[1]) if point is None else np.asarray(point[:-1])


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
    framed = Framed(rows, np.ones((1, rows.m)), np.ones((1, rows.size)), exists[None, :, None])
    problem = HardMargin(framed, b, b, np.array([[2.0]]), b > 0)
    return np.asarray(solve_dual(problem, np.full_like(b, 1 / max(exists.sum(), 1.0)), tol=1e-15).lam[0])


def _judge(rows: Rows, exists: Array) -> Verdict:
    if rows.m * rows.size <= LARGEST_ACTIVE_SET:
        matrix = np.concatenate([rows.dense()[0].T, exists[None]])
        with suppress(RuntimeError):  # cycling on degenerate rows
            lam = nnls(matrix, np.append(np.zeros(rows.size), 1.0))[0]
            verdict = _verdict(rows, lam * exists, exists)
            if verdict.feasible is not None:
                return verdict
    return _verdict(rows, _interior(rows, exists) * exists, exists)


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


def _equilibrated(rows: Rows, exists: Array) -> Framed:
    """Columns, then rows, divided by their sums a few times over."""
    size = rows.absolute()
    row, column = exists[None].copy(), np.ones((1, rows.size))
    for _ in range(EQUILIBRATE):
        sums = size.adj(row)
        column = np.where(sums > 0, 1 / np.where(sums > 0, sums, 1.0), 1.0)
        sums = size.fwd(column)
        row = np.where((sums > 0) & (exists > 0), 1 / np.where(sums > 0, sums, 1.0), 0.0)
    return Framed(rows, row, column, np.zeros((1, rows.m, 0)))


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
