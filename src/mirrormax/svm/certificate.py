"""The proof that comes with an answer, computed from the original data and the arrays that are returned.

**Which rows are active at p > 2**, where the norm is so flat that a small gap says little about the weights.

‖·‖_p^p is uniformly convex of power p: an entry δ that should be zero adds |δ|^p/p, so that weights within a relative
gap ε of the best may have it as large as ε^{1/p}, and a row with margin 1 and multiplier 0 then misses 1 by as much.
What decides are the multipliers. With S the rows that have one,

    |w|^{p−1} sign(w) = A_Sᵀλ,   A_S w = 1                                                                  (*)

is a smooth system, which Newton's method solves to rounding; where a column of A_S is empty, the entry of w is zero and
not nearly so. Rounding is what remains: the entries of A_Sᵀλ are known to r ≈ 10⁻¹⁵, so that those of w may move by
e = |u|^{1/(p−1)} − (|u| − r)^{1/(p−1)}, u = |w|^{p−1}, as far as A_S w = 1 lets them. A sum A_Sᵀλ that cancels to
rounding is taken for zero, and what depends on it is in doubt.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np

from mirrormax.svm._types import Members, project
from mirrormax.svm.rows import EPS, Array, BlockRows, Bools, Rows, p_norm, rounding

SUPPORT_TOLERANCE = 1e-4
SHARP = 1e-12  # a gap that is rounding
LARGEST_SYSTEM = 2**20  # entries of the rows with a multiplier, of which each step takes the singular values
ROUNDING = 8.0  # times EPS: of a sum of a few terms
STEPS = 60
CHANGES = 10  # of the rows in S
LONGEST = 0.5  # of the largest entry: what one step may change
LEAST_CURVATURE = 1e-14  # below, a step would be made of rounding
DEPENDENT = 1e-13  # of the largest singular value: what rounding makes of zero
INEXACT = 1e-12  # of a margin: what rounding makes of 1
SOLVED = 1e-9  # of the larger side of (*)


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
        """The same with (*) solved where it is unclear which rows are active.

        That are rows without a multiplier as near to the end of the support as the weights are to the best. What stays
        unclear is said in ``doubt``.
        """
        unclear = np.zeros_like(proof.support)
        members = np.flatnonzero((self.p > 2) & (proof.gap <= self.tol))
        if len(members):
            rows, part = self.rows.take(members), proof.take(members)
            tolerance = support_tolerance(part.gap)[:, None]
            beyond = np.abs(rows.fwd(part.weights) - 1 - tolerance)
            size, _, error = _errors(rows, part.weights, part.dual, self.p[members])
            near = beyond <= tolerance / 2 + rows.absolute().fwd(size * error)
            unclear[members] = near & (self.c[members] > 0) & (part.dual == 0)
        w, lam = proof.weights.copy(), proof.dual * self.c
        changed, left = np.zeros(len(w), dtype=bool), unclear.copy()
        for k in np.flatnonzero(unclear.any(axis=1)).tolist():
            if (proof.dual[k] > 0).sum() * w.shape[1] > LARGEST_SYSTEM:
                continue
            own, exists, p = self.rows.take(np.array([k])), self.c[k] > 0, float(self.p[k])
            sharper = _sharpened(own, exists, w[k], proof.dual[k], p)
            if sharper is not None:
                changed[k], w[k], lam[k] = True, sharper[0], sharper[1] * self.c[k]
                left[k] = _unclear(own, exists, *sharper, p)
        if changed.any():
            second = self._proof(w, lam)
            better = np.flatnonzero(changed & (second.gap <= np.maximum(proof.gap, SHARP)))
            unclear[better] = left[better]
            proof.put(better, second.take(better))
        return replace(proof, doubt=unclear)


def support_tolerance(gap: Array) -> Array:
    """How far from 1 an active margin may be, (B,): weights within a relative gap are exact to about its root.

    For p > 2 it is a higher root, but there :class:`Certifier` says what is in doubt. Never below the tolerance of
    :func:`mirrormax.attention.support_tokens`, so that both name the same tokens.
    """
    return np.asarray(np.maximum(np.sqrt(np.minimum(gap, 1.0)), SUPPORT_TOLERANCE))


def _errors(rows: Rows, w: Array, lam: Array, p: Array) -> tuple[Array, Array, Array]:
    """‖w‖ (B, 1), and r and e (B, N) for w/‖w‖: nothing known of A_S w = 1, margins may be off by ‖w‖ |A| e.

    Weights (B, N) with smallest margin 1, multipliers (B, m) with ‖Aᵀλ‖_q = 1, p (B,) above 2.
    """
    size, p = p_norm(w, p)[:, None], p[:, None]
    u = np.abs(w / size) ** (p - 1) * np.sign(w)
    residual = np.abs(u - rows.adj(lam)) + ROUNDING * EPS * rows.absolute().adj(np.abs(lam))
    moved = np.abs(u) - residual  # downwards the root moves further
    error = np.abs(w / size) - np.abs(moved) ** (1 / (p - 1)) * np.sign(moved)
    return size, residual, np.maximum(error, 0.0)


def _sharpened(rows: Rows, exists: Bools, w: Array, lam: Array, p: float) -> tuple[Array, Array] | None:
    """Weights (N,) and multipliers (m,) of one problem that solve (*), from weights with smallest margin 1.

    The first guess of S are the rows with a multiplier. None where it does not come to an end.
    """
    active = exists & (lam > 0)
    for _ in range(CHANGES):
        w, positive, left = _stationary(_dense(rows, active), w, p)
        if left > SOLVED:
            break
        missed = exists & ~active & (rows.fwd(w[None])[0] < 1 - INEXACT)
        needless = np.zeros_like(active)
        needless[active] = positive < -INEXACT * np.abs(positive).max(initial=0.0)
        if not (missed | needless).any():
            lam = np.zeros_like(lam)
            lam[active] = np.maximum(positive, 0.0)
            return w, lam
        active = (active | missed) & ~needless
    return None


def _unclear(rows: Rows, exists: Bools, w: Array, lam: Array, p: float) -> Bools:
    """Which rows (m,) without a multiplier may have a margin on either side of 1 + ``SUPPORT_TOLERANCE``.

    By the same bound, A_S w = 1 being given: |A D^{1/2} P D^{1/2}| r, where D = e/r is the slope of the root and P
    the projection on what A_S D^{1/2} maps to zero.
    """
    unit = lam / p_norm(rows.adj(lam[None]), np.array([p / (p - 1)]))
    size, residual, error = (each[0] for each in _errors(rows, w[None], unit[None], np.array([p])))
    root = np.sqrt(np.divide(error, residual, out=np.zeros_like(error), where=residual > 0))
    _, singular, right = np.linalg.svd(_dense(rows, lam > 0) * root, full_matrices=False)
    right = right[singular > DEPENDENT * singular[0]]
    beyond = np.abs(rows.fwd(w[None])[0] - 1 - SUPPORT_TOLERANCE)
    # The bound for A_S w = 1 is the smaller one, and most rows are clear by the other.
    unclear = exists & (lam == 0) & (beyond <= rows.absolute().fwd((size * error)[None])[0])
    if unclear.any():
        wanted = _dense(rows, unclear) * root
        free = wanted - (wanted @ right.T) @ right
        unclear[unclear] = beyond[unclear] <= size * (np.abs(free * root) @ residual)
    return np.asarray(unclear)


def _dense(rows: Rows, chosen: Bools) -> Array:
    """These rows written out, (s, N)."""
    return np.asarray(rows.subset(np.flatnonzero(chosen)).dense()[0])


def _stationary(A: Array, w: Array, p: float) -> tuple[Array, Array, float]:
    """w and λ of any sign that solve (*) for A_S (s, N), and what is left of it; zeros by cancellation are zeros.

    Entries that A_S w = 1 needs are not: without them the sums do not cancel.
    """
    plain = w, lam, left = _newton(A, w, p)
    cancelled = np.abs(A.T @ lam) <= ROUNDING * EPS * (np.abs(A).T @ np.abs(lam))
    if left > SOLVED or not (cancelled & (w != 0)).any():
        return plain
    w, _, left = _newton(np.where(cancelled, 0.0, A), w, p)
    u = (np.abs(w) / np.abs(w).max()) ** (p - 1) * np.sign(w)
    lam = np.linalg.lstsq(A.T, u, rcond=None)[0]
    left = max(left, float(np.abs(A.T @ lam - u).max()))
    return (w, lam, left) if left <= INEXACT else plain


def _newton(A: Array, w: Array, p: float) -> tuple[Array, Array, float]:
    """The same by Newton's method from w, with zeros only where a column is empty.

    A step solves A D Aᵀ dλ = 1 − A w − A D l and adds dw = D (l + Aᵀdλ), with l = Aᵀλ − |w|^{p−2} w and
    D = 1/((p−1)|w|^{p−2}).
    """
    largest = np.abs(w).max()
    A, w = A * largest, np.where(A.any(axis=0), w / largest, 0.0)
    lam = np.linalg.lstsq(A.T, np.abs(w) ** (p - 2) * w, rcond=None)[0]
    best, smallest = (w, lam), np.inf
    for _ in range(STEPS):
        ahead, short = A.T @ lam - np.abs(w) ** (p - 2) * w, 1 - A @ w
        left = max(np.abs(ahead).max(), np.abs(short).max())
        if left < smallest:
            best, smallest = (w, lam), left
        if not left > 4 * EPS:
            break
        root = ((p - 1) * np.maximum(np.abs(w) ** (p - 2), LEAST_CURVATURE)) ** -0.5
        basis, singular, _ = np.linalg.svd(A * root, full_matrices=False)
        basis, singular = basis[:, singular > DEPENDENT * singular[0]], singular[singular > DEPENDENT * singular[0]]
        dlam = basis @ ((basis.T @ (short - A @ (root**2 * ahead))) / singular**2)
        dw = root**2 * (ahead + A.T @ dlam)
        share = min(1.0, LONGEST / max(np.abs(dw).max(), LONGEST))
        w, lam = w + share * dw, lam + share * dlam
    w, lam = best
    return w * largest, lam, float(smallest)
