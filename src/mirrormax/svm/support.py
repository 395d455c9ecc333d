"""Which rows are active at p > 2, where the norm is so flat that a small gap says little about the weights.

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

import numpy as np

from mirrormax.svm.rows import EPS, Array, Bools, Rows, p_norm

ROUNDING = 8.0  # times EPS: of a sum of a few terms
STEPS = 60
CHANGES = 10  # of the rows in S
LONGEST = 0.5  # of the largest entry: what one step may change
LEAST_CURVATURE = 1e-14  # below, a step would be made of rounding
DEPENDENT = 1e-13  # of the largest singular value: what rounding makes of zero
INEXACT = 1e-12  # of a margin: what rounding makes of 1
SOLVED = 1e-9  # of the larger side of (*)


def unsure(rows: Rows, w: Array, lam: Array, p: Array) -> Array:
    """How far each margin (B, m) may be from that of the solution, nothing known of A_S w = 1: |A| e.

    Weights (B, N) with smallest margin 1, multipliers (B, m) with ‖Aᵀλ‖_q = 1, p (B,) above 2.
    """
    size, _, error = _errors(rows, w, lam, p)
    return np.asarray(rows.absolute().fwd(size * error))


def _errors(rows: Rows, w: Array, lam: Array, p: Array) -> tuple[Array, Array, Array]:
    """‖w‖ (B, 1), and r and e (B, N) for w/‖w‖."""
    size, p = p_norm(w, p)[:, None], p[:, None]
    u = np.abs(w / size) ** (p - 1) * np.sign(w)
    residual = np.abs(u - rows.adj(lam)) + ROUNDING * EPS * rows.absolute().adj(np.abs(lam))
    moved = np.abs(u) - residual  # downwards the root moves further
    error = np.abs(w / size) - np.abs(moved) ** (1 / (p - 1)) * np.sign(moved)
    return size, residual, np.maximum(error, 0.0)


class Sharpened:
    """Weights (N,) and multipliers (m,) of one problem that solve (*), from weights with smallest margin 1.

    The first guess of S are the rows with a multiplier. ``solved`` says whether it came to an end.
    """

    def __init__(self, rows: Rows, exists: Bools, w: Array, lam: Array, p: float) -> None:
        self.rows, self.exists, self.p, self.w, self.lam, self.solved = rows, exists, p, w, lam, False
        active = exists & (lam > 0)
        for _ in range(CHANGES):
            w, positive, left = _stationary(self._dense(active), w, p)
            missed = exists & ~active & (rows.fwd(w[None])[0] < 1 - INEXACT)
            needless = np.zeros_like(active)
            needless[active] = positive < -INEXACT * np.abs(positive).max(initial=0.0)
            if left > SOLVED or not (missed | needless).any():
                break
            active = (active | missed) & ~needless
        else:
            return
        if left <= SOLVED:
            self.w, self.lam, self.solved = w, np.zeros_like(lam), True
            self.lam[active] = np.maximum(positive, 0.0)

    def unclear(self, tolerance: float) -> Bools:
        """Which rows (m,) without a multiplier may have a margin on either side of 1 + ``tolerance``.

        By the same bound, A_S w = 1 being given: |A D^{1/2} P D^{1/2}| r, where D = e/r is the slope of the root and P
        the projection on what A_S D^{1/2} maps to zero.
        """
        unit = self.lam / p_norm(self.rows.adj(self.lam[None]), np.array([self.p / (self.p - 1)]))
        size, residual, error = (each[0] for each in _errors(self.rows, self.w[None], unit[None], np.array([self.p])))
        root = np.sqrt(np.divide(error, residual, out=np.zeros_like(error), where=residual > 0))
        _, singular, right = np.linalg.svd(self._dense(self.lam > 0) * root, full_matrices=False)
        right = right[singular > DEPENDENT * singular[0]]
        beyond = np.abs(self.rows.fwd(self.w[None])[0] - 1 - tolerance)
        # The bound for A_S w = 1 is the smaller one, and most rows are clear by the other.
        unclear = self.exists & (self.lam == 0) & (beyond <= self.rows.absolute().fwd((size * error)[None])[0])
        if unclear.any():
            wanted = self._dense(unclear) * root
            free = wanted - (wanted @ right.T) @ right
            unclear[unclear] = beyond[unclear] <= size * (np.abs(free * root) @ residual)
        return np.asarray(unclear)

    def _dense(self, chosen: Bools) -> Array:
        """These rows written out, (s, N)."""
        return np.asarray(self.rows.subset(np.flatnonzero(chosen)).dense()[0])


def _stationary(A: Array, w: Array, p: float) -> tuple[Array, Array, float]:
    """w and λ of any sign that solve (*) for A_S (s, N), and what is left of it; zeros by cancellation are zeros.

    Entries that A_S w = 1 needs are not: without them the sums do not cancel.
    """
    found = w, lam, left = _newton(A, w, p)
    cancelled = np.abs(A.T @ lam) <= ROUNDING * EPS * (np.abs(A).T @ np.abs(lam))
    if left > SOLVED or not (cancelled & (w != 0)).any():
        return found
    w, _, left = _newton(np.where(cancelled, 0.0, A), w, p)
    u = (np.abs(w) / np.abs(w).max()) ** (p - 1) * np.sign(w)
    lam = np.linalg.lstsq(A.T, u, rcond=None)[0]
    left = max(left, float(np.abs(A.T @ lam - u).max()))
    return (w, lam, left) if left <= INEXACT else found


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
