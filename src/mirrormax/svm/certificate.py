"""The proof that comes with an answer, computed from the original data and the arrays that are returned."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mirrormax.svm._types import Members, project
from mirrormax.svm.rows import EPS, Array, BlockRows, Bools, rounding
from mirrormax.svm.support import Sharpened, unsure

SUPPORT_TOLERANCE = 1e-4
SHARP = 1e-12  # a gap that is rounding
LARGEST_SYSTEM = 2**20  # entries of the rows with a multiplier, of which each step takes the singular values


@dataclass
class Certificate(Members):
    """Weights (B, N) at minimum margin 1, multipliers (B, m) with dual norm 1, and what they prove, (B,).

    The multipliers of equality rows stand among the others, with their signs. ``doubt`` (B, m) are the rows of which
    neither the weights nor the multipliers tell whether they are in ``support``.
    """

    weights: Array
    dual: Array
    margin: Array
    gap: Array
    violation: Array
    support: Bools
    doubt: Bools

    def refute(self, k: int, lam: Array) -> None:
        """Put a Farkas certificate λ (m,) in the place of what problem k has."""
        self.dual[k], self.support[k], self.weights[k] = lam, lam != 0, np.nan
        self.margin[k], self.gap[k], self.violation[k] = 0.0, np.inf, np.inf


@dataclass(frozen=True)
class Certifier:
    """From weights (B, N) and multipliers of unit rows (B, m) to what they prove of A W ≥ b, B W = 0.

    W is scaled to min A W/b = 1 over b > 0, and ‖W‖ compared with bᵀλ/‖Aᵀλ‖_*.

    ``c`` (B, m) are the norms of the rows, 0 where none exists; ``p`` (B,) the power to which the norm is uniformly
    convex, where that is more than 2. b is 1, or ``right`` (B, m); the rows ``equal`` (B, m) ask B w = 0, on which w is
    projected.
    """

    rows: BlockRows
    c: Array
    norm: Callable[[Array], Array]
    dual_norm: Callable[[Array], Array]
    p: Array
    tol: float
    right: Array | None = None
    equal: Bools | None = None

    def __call__(self, w: Array, lam: Array) -> Certificate:
        proof = self._proof(w, lam)
        return proof if self.right is not None else self._settled(proof)

    def _proof(self, w: Array, lam: Array) -> Certificate:
        rows, c, tol, right = self.rows, self.c, self.tol, self.right
        exists = c > 0
        level = np.zeros_like(exists) if self.equal is None else exists & self.equal
        above = exists & ~level
        b = np.where(above, 1.0 if right is None else right, 0.0)
        w = project(rows, level, w)
        for _ in range(2):  # the second time for the rounding of the first
            margins = rows.fwd(w)
            smallest = np.divide(margins, b, out=np.full_like(b, np.inf), where=b > 0).min(axis=1, keepdims=True)
            w = w / np.where(smallest > 0, smallest, 1.0)
        margins = rows.fwd(w)
        unit = np.where(above, np.maximum(lam, 0), np.where(level, lam, 0.0))
        every = np.divide(unit, c, out=np.zeros_like(c), where=exists)
        # λ_r m/Σλ ≥ slack_r, both of unit rows: complementarity leaves one of the two at zero.
        size = np.divide(np.where(exists, c, np.inf).min(axis=1, keepdims=True), c, out=np.zeros_like(c), where=exists)
        share = unit * unit.shape[1] / np.maximum(unit.sum(axis=1, keepdims=True), 1e-300)
        likely = level | (exists & (share > 0) & (share >= np.abs(margins - b) * size))
        dual, lower = self._lower_bound(np.where(likely, every, 0.0), b)
        upper = self.norm(w)
        gap = 1 - lower / np.maximum(upper, 1e-300)
        if (gap > tol).any():
            # Multipliers where the slack is larger are rounding of zero as a rule; where they matter they stay.
            kept, bound = self._lower_bound(every, b)
            better = (bound > lower) & (gap > tol)
            dual, lower = np.where(better[:, None], kept, dual), np.where(better, bound, lower)
            gap = 1 - lower / np.maximum(upper, 1e-300)
        # Scaling cannot mend rows with b ≤ 0: weights that miss one by more than ``tol`` of its own sum prove nothing.
        missed = np.where(above, b - margins, np.abs(margins))
        if right is not None:
            missed = missed / np.maximum(np.maximum(np.abs(b), rows.absolute().fwd(np.abs(w))), 1e-300)
        violation = np.where(exists, missed, 0.0).max(axis=1, initial=0.0)
        # A margin of 1 that rounding alone could have made is no margin; one that exceeds it by far is.
        error = rounding(rows, w)
        usable = (smallest[:, 0] > 0) & ((error < b) | (margins - error >= b) | ~(b > 0)).all(axis=1)
        usable &= np.isfinite(upper) & (upper > 0) & ((right is None) | (violation <= tol))
        # Weak duality leaves a negative gap to rounding alone (of the other rows too, with right-hand sides); anything
        # more is no proof of anything. And what rounding cannot tell from zero is not zero.
        usable &= gap > (-1e-11 if right is None else -1e-8)
        gap = np.where(usable, np.maximum(gap, EPS), np.inf)
        violation = np.where(usable, violation, np.inf)
        margin = np.where(usable, 1 / np.maximum(upper, 1e-300), 0.0)
        support = above & (margins - b <= support_tolerance(gap)[:, None] * np.maximum(1.0, np.abs(b)))
        return Certificate(w, dual, margin, gap, violation, support, np.zeros_like(support))

    def _lower_bound(self, lam: Array, b: Array) -> tuple[Array, Array]:
        """λ scaled to ‖Aᵀλ‖_* = 1, and then bᵀλ."""
        size = self.dual_norm(self.rows.adj(lam))
        lam = lam / np.where(size > 0, size, 1.0)[:, None]
        return lam, (b * lam).sum(axis=1)

    def _settled(self, proof: Certificate) -> Certificate:
        """The same with (*) of :mod:`mirrormax.svm.support` solved where it is unclear which rows are active.

        That are rows without a multiplier as near to the end of the support as the weights are to the best. What stays
        unclear is said in ``doubt``.
        """
        unclear = np.zeros_like(proof.support)
        members = np.flatnonzero((self.p > 2) & (proof.gap <= self.tol))
        if len(members):
            rows, part = self.rows.take(members), proof.take(members)
            tolerance = support_tolerance(part.gap)[:, None]
            beyond = np.abs(rows.fwd(part.weights) - 1 - tolerance)
            near = beyond <= tolerance / 2 + unsure(rows, part.weights, part.dual, self.p[members])
            unclear[members] = near & (self.c[members] > 0) & (part.dual == 0)
        w, lam = proof.weights.copy(), proof.dual * self.c
        changed, left = np.zeros(len(w), dtype=bool), unclear.copy()
        for k in np.flatnonzero(unclear.any(axis=1)).tolist():
            if (proof.dual[k] > 0).sum() * w.shape[1] > LARGEST_SYSTEM:
                continue
            own = self.rows.take(np.array([k]))
            sharp = Sharpened(own, self.c[k] > 0, w[k], proof.dual[k], float(self.p[k]))
            if sharp.solved:
                changed[k], w[k], lam[k] = True, sharp.w, sharp.lam * self.c[k]
                left[k] = sharp.unclear(SUPPORT_TOLERANCE)
        if changed.any():
            sharper = self._proof(w, lam)
            better = np.flatnonzero(changed & (sharper.gap <= np.maximum(proof.gap, SHARP)))
            unclear[better] = left[better]
            proof.put(better, sharper.take(better))
        return replace(proof, doubt=unclear)


def support_tolerance(gap: Array) -> Array:
    """How far from 1 an active margin may be, (B,): weights within a relative gap are exact to about its root.

    For p > 2 it is a higher root, but there :class:`Certifier` says what is in doubt. Never below the tolerance of
    :func:`mirrormax.attention.support_tokens`, so that both name the same tokens.
    """
    return np.asarray(np.maximum(np.sqrt(np.minimum(gap, 1.0)), SUPPORT_TOLERANCE))
