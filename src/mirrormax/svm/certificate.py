"""The proof of optimality, computed from the original data and the arrays that are returned."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import numpy.typing as npt

from mirrormax.svm._types import Certificate
from mirrormax.svm.rows import EPS, Array, BlockRows, rounding

SUPPORT_TOLERANCE = 1e-4

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


def support_tolerance(gap: Array) -> Array:
    """How far from 1 an active margin may be, (B,): weights within a relative gap are exact to about its root.

    Never below the tolerance of :func:`mirrormax.attention.support_tokens`, so that both name the same tokens.
    """
    return np.asarray(np.maximum(np.sqrt(np.minimum(gap, 1.0)), SUPPORT_TOLERANCE))


def p_norm(w: Array, p: Array) -> Array:
    """‖w‖_p over the last axis with one p a member (B,), at any scale."""
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
