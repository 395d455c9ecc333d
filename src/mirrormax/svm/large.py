"""Many rows in many dimensions (method C): few Cholesky factors, each of the rows that matter.

A quasi-Newton run on the dual, f(λ) = (1/q)‖Aᵀλ‖_q^q − bᵀλ over λ ≥ 0, finds nearly all active rows at the
price of matrix-vector products. It stalls at a gap near 1e-8, so the last digits come from

- p ≤ 2: projected Newton on the free rows {λ > 0 or ∇f < 0}, usually one or two systems;
- p > 2: interior points on the rows near the margin, extended until no row outside is violated.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from mirrormax.svm.dual_ipm import Batch, Iterate, evaluate, relative_gap
from mirrormax.svm.linalg import Factor
from mirrormax.svm.rows import Array, Index

GUESS_RANGE = (1.1, 4.0)  # the p at which the quasi-Newton run is quick
NEWTON_STEPS = 25
LARGEST_SYSTEM = 8000


def quasi_newton(batch: Batch, lam: Array, limit: int = 1000) -> tuple[Array, int]:
    """λ (m,) with projected gradient near 1e-4, for one scaled problem, and the iterations taken."""
    q = float(batch.q[0, 0])
    rows, b = batch.rows, batch.b[0]

    def objective(lam: Array) -> tuple[float, Array]:
        u = rows.adj(lam[None])
        w = np.abs(u) ** (q - 2) * u if q >= 2 else np.sign(u) * np.abs(u) ** (q - 1)
        return float((u * w).sum() / q - b @ lam), rows.fwd(w)[0] - b

    # SciPy asks for the bounds one by one; rows that do not exist are pinned at zero.
    bounds = [(0.0, None) if exists else (0.0, 0.0) for exists in b > 0]
    found = minimize(
        objective,
        np.where(b > 0, lam[0], 0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": limit, "maxcor": 20, "gtol": 1e-4, "ftol": 1e-13, "maxfun": 2 * limit},
    )
    return np.asarray(found.x), int(found.nit)


def projected_newton(batch: Batch, lam: Array, tol: float) -> tuple[Array, float, int]:
    """λ (1, m), its relative gap and the Newton steps taken, for one problem with p ≤ 2."""
    point = evaluate(batch, lam)
    best, best_gap = lam, float(relative_gap(batch, point)[0])
    for step in range(NEWTON_STEPS):
        if best_gap <= tol:
            return best, best_gap, step
        gradient = point.v - batch.b
        free = np.flatnonzero(((point.lam > 0) | (gradient < 0))[0] & (batch.b[0] > 0))
        if not 0 < len(free) <= LARGEST_SYSTEM:
            break
        new = _projected_step(batch, point, gradient, free)
        if new is None:
            break
        point = new
        gap = float(relative_gap(batch, point)[0])
        if gap < best_gap:
            best, best_gap = point.lam, gap
    return best, best_gap, NEWTON_STEPS


def _projected_step(batch: Batch, point: Iterate, gradient: Array, free: Index) -> Iterate | None:
    """max(λ + a d, 0) with d the Newton direction on the free rows, and a from an Armijo search."""

    def value(at: Iterate) -> float:
        return float((at.u * at.w).sum() / batch.q[0, 0] - (batch.b * at.lam).sum())

    matrix = batch.rows.subset(free).gram(point.curvature)
    # Rows that depend on each other leave the system singular; a trace of the diagonal picks one solution.
    np.einsum("bii->bi", matrix)[...] *= 1 + 1e-13
    direction = np.zeros_like(point.lam)
    direction[0, free] = Factor(matrix).solve(-gradient[:, free])[0]
    before, length = value(point), 1.0
    for _ in range(25):
        new = evaluate(batch, np.maximum(point.lam + length * direction, 0.0))
        promised = float((gradient * (new.lam - point.lam)).sum())
        if value(new) <= before + 1e-4 * promised + 1e-15 * abs(before):
            return new
        length *= 0.5
    return None
