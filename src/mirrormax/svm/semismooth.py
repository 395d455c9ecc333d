"""The last digits at p > 2 with many rows (method C): semismooth Newton in weights and multipliers.

The optimality conditions of min (1/p)‖w‖_p^p s.t. A w ≥ b are the equations

    sign(w)|w|^{p−1} = Aᵀλ,        min(λ, A w − b) = 0.

At a guess, the rows F = {λ > A w − b} (λ in units of its largest) are taken as active, the others get λ = 0, and
a Newton step for what is left solves (A_F D A_Fᵀ) dλ = b_F − A_F w + A_F D rd, dw = D(A_Fᵀ dλ − rd), with
rd = sign(w)|w|^{p−1} − A_Fᵀλ_F and D = 1/((p−1)|w|^{p−2}). One factorisation of the active rows a step, and a
handful of steps from a good guess; so large p is reached through smaller ones.
"""

from __future__ import annotations

import numpy as np

from mirrormax.svm.dual_ipm import Batch
from mirrormax.svm.linalg import Factor
from mirrormax.svm.primal_ipm import evaluate, relative_gap
from mirrormax.svm.rows import Array

STEPS = 15
HALVINGS = 6
LARGEST_SYSTEM = 8000
GROWTH = 1.8  # of p from stage to stage, less where that fails
SMALLEST_GROWTH = 1.2
STAGE_GAP = 1e-3  # of all stages but the last
SMALLEST = 1e-7  # of the largest weight, as far as curvature goes


def climb(batch: Batch, w: Array, lam: Array, p: float, tol: float) -> tuple[Array, Array, int] | None:
    """w and λ at the p of the batch, from those at a smaller ``p``, and the steps taken; None on failure."""
    target, steps, growth = float(batch.p[0, 0]), 0, GROWTH
    while True:
        stage_p = min(target, growth * p) if p < target else target
        stage = Batch(batch.rows, batch.b, batch.exact, np.full_like(batch.p, stage_p))
        found = semismooth_newton(stage, w, lam, tol if stage_p == target else STAGE_GAP)
        if found is None and (growth < SMALLEST_GROWTH or p >= target):
            return None
        if found is None:
            growth = growth**0.5
            continue
        w, lam, p, steps = found[0], found[1], stage_p, steps + found[2]
        if p == target:
            return w, lam, steps


def semismooth_newton(batch: Batch, w: Array, lam: Array, tol: float) -> tuple[Array, Array, int] | None:
    """w (1, N) and λ (1, m) with a relative gap of ``tol``, from a guess with A w > 0; None if it does not arrive."""
    smallest = batch.smallest_margin(batch.rows.fwd(w))
    p = float(batch.p[0, 0])
    if not smallest[0] > 0:
        return None
    # At this scale w has entries near 1, and the powers of any p are harmless.
    kappa = float((np.abs(w) ** p).mean() ** (1 / p)) / smallest
    scaled = Batch(batch.rows.scaled(kappa), batch.b, batch.exact, batch.p)
    w = w / (smallest * kappa)
    lam = lam * (np.abs(w) ** p).sum() / (batch.gain * lam).sum()
    for step in range(STEPS):
        if relative_gap(scaled, evaluate(scaled, w, np.maximum(lam, 0.0)))[0] <= tol:
            return w, np.maximum(lam, 0.0), step
        moved = _step(scaled, w, lam)
        if moved is None:
            return None
        w, lam = moved
    return None


def _step(batch: Batch, w: Array, lam: Array) -> tuple[Array, Array] | None:
    """A Newton step, halved until the residual falls."""
    p, slack = float(batch.p[0, 0]), batch.rows.fwd(w) - batch.b
    exists = batch.b > 0
    active = np.flatnonzero(((lam / lam.max() > slack) & exists)[0])
    if not 0 < len(active) <= LARGEST_SYSTEM:
        return None
    rows = batch.rows.subset(active)
    gradient = np.sign(w) * np.abs(w) ** (p - 1)
    rd = gradient - rows.adj(lam[:, active])
    # Where the residual is large beside the weight, the weight it asks for is the better place for the curvature.
    place = np.maximum(np.abs(w), 0.5 * np.abs(rd) ** (1 / (p - 1)))
    weight = 1 / ((p - 1) * np.maximum(place, SMALLEST * np.abs(w).max()) ** (p - 2))
    matrix = rows.gram(weight)
    np.einsum("bii->bi", matrix)[...] *= 1 + 1e-13
    step = Factor(matrix).solve(rows.fwd(weight * rd) - slack[:, active])
    dw = weight * (rows.adj(step) - rd)
    dlam = -lam
    dlam[0, active] = step[0]
    before, length = _residual(batch, w, lam), 1.0
    for _ in range(HALVINGS):
        new_w, new_lam = w + length * dw, lam + length * dlam
        if _residual(batch, new_w, new_lam) < (1 - 0.1 * length) * before:
            return new_w, new_lam
        length *= 0.5
    return None


def _residual(batch: Batch, w: Array, lam: Array) -> float:
    """How far both equations are from holding, each relative to its own size."""
    gradient = np.sign(w) * np.abs(w) ** (float(batch.p[0, 0]) - 1)
    stationarity = np.linalg.norm(gradient - batch.rows.adj(lam)) / np.linalg.norm(gradient)
    rest = np.where(batch.b > 0, np.minimum(lam / lam.max(), batch.rows.fwd(w) - batch.b), 0.0)
    return float(stationarity + np.linalg.norm(rest) / np.sqrt(max(1, int((lam > 0).sum()))))
