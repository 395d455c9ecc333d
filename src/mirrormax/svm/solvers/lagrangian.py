"""One problem with very many rows: an augmented Lagrangian at p = 2, its steps by conjugate gradients.

For min ½‖w‖² s.t. A w ≥ b, multipliers λ ≥ 0 and a penalty σ, every stage minimises

    φ(w) = ½‖w‖² + (1/2σ) Σ_r [λ_r + σ(b_r − a_r·w)]₊²,      λ⁺(w) = [λ + σ(b − A w)]₊,      ∇φ = g = w − Aᵀλ⁺(w),

and then takes λ ← λ⁺(w), the best multipliers for this w. The stages converge for every σ, the faster the larger it is;
the gap is that of (w, λ⁺). φ is convex and piecewise quadratic: with J = {λ⁺ > 0} its Newton step is

    (I/σ + A_J A_Jᵀ) μ = −A_J g,      dw = −(g + A_Jᵀ μ),

followed by the minimum of φ along dw, which costs no product. Only the rows J enter the system, and only as products
with tokens and queries: memory is linear in the rows. Conjugate gradients solve it to a share of ‖g‖, with one of two
preconditioners:

- few rows: the matrix itself, (x_r·x_s)(z_i·z_j) + I/σ, two Gram matrices multiplied entry by entry;
- many rows: its diagonal blocks, one per sample, ‖z_i‖² X_i X_iᵀ + I/σ, all in single precision; the gradient, from
  which the next step starts, never is.

Another p begins with p = 2, solved roughly. Where few rows are active there, interior points on a few times as many
rows follow, and rows that their answer violates join them; where many are, :class:`Newton` is asked.

If nothing separates the data, λ⁺/σ tends to the least-squares slack [b − A w]₊, and Aᵀ of that is zero: Farkas'
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrs

from mirrormax.svm._types import Answer, HardMargin, Verdict
from mirrormax.svm.linalg import lower_factor
from mirrormax.svm.rows import Array, BlockRows, FlatRows
from mirrormax.svm.solvers.large import SMALLEST_SET, Newton, nearest, solve_on_working_set

STAGES = 200
STEPS = 400  # of Newton in all stages together
STAGE_STEPS = 30
CG_STEPS = 150
SHARE = 0.2  # of the last move of λ: how small the gradient has to be for the next one
FIRST_SHARE = 0.1
SYSTEM = 0.1, 0.03, 1e-6  # of the gradient, at most and at least: how well the system is solved
ROUGH = 0.03  # the gap at which p = 2 is left for another p
FEW_ACTIVE = 400  # at p = 2: interior points on a few times as many rows are then the quicker way to another p
WIDER = 3
FEW_ROWS = 2000  # up to here the preconditioner couples the samples
SLOW = 0.3  # a stage that leaves more of the last move than this wants a larger σ
GROWTH = ((1, 10.0), (2, 4.0), (4, 2.0), (8, 1.3))  # of σ after a stage with at most so many steps
HALVINGS, NEARLY, LONGEST = 25, 0.1, 64.0  # of the search along a step: at most, to which share of the slope, how far
REFUTED = 1e-5  # |Aᵀλ| over |A|ᵀλ at which λ is worth a proof that nothing separates
DOUBTFUL, HOPELESS = 1e4, 1e14  # a σ from which on separability is asked for, and at which to stop


class Lagrangian:
    """Newton's method on augmented Lagrangians, by conjugate gradients."""

    name = "lagrangian"
    takes = "one problem with at least 300 rows"
    batched = False

    def accepts(self, problem: HardMargin) -> bool:
        return len(problem) == 1 and isinstance(problem.rows, BlockRows | FlatRows)

    def solve(self, problem: HardMargin, tol: float) -> Answer:
        p = float(problem.p[0, 0])
        first = solve_lagrangian(problem.at(2.0), tol if p == 2 else ROUGH)
        if p == 2 or not np.isfinite(first.gap[0]):
            return first
        active = int((first.lam > 0).sum())
        if active > FEW_ACTIVE:
            answer = Newton().solve(problem, tol)
        else:
            count = max(WIDER * active, SMALLEST_SET)
            start = np.union1d(nearest(problem, first.w, count), np.flatnonzero(first.lam[0] > 0))
            answer = solve_on_working_set(problem, start, tol, count // 2, first.w)
        answer.iterations += first.iterations
        return answer


def solve_lagrangian(problem: HardMargin, tol: float) -> Answer:
    """One problem at p = 2, with a verdict where no weights were found that separate."""
    scaled, direction = problem.dual_start()
    run = Run(scaled, tol)
    best = run.solve(direction)
    answer = Answer.of(best.w, best.lam, best.gap, run.steps)
    if not np.isfinite(best.gap):
        answer.verdicts[0] = best.verdict(scaled)
    return answer


@dataclass
class Best:
    """The weights and multipliers with the smallest gap so far; the last ones while no weights separate."""

    w: Array
    lam: Array
    gap: float = np.inf

    def verdict(self, problem: HardMargin) -> Verdict:
        """Not feasible if Aᵀλ is all but zero, to be proved by others; else undecided."""
        size = problem.rows.absolute().adj(self.lam)
        ratio = float((np.abs(problem.rows.adj(self.lam)) / np.where(size > 0, size, np.inf)).max())
        total = max(float(self.lam.sum()), 1e-300)
        return Verdict(False if ratio <= REFUTED else None, self.w[0], self.lam[0] / total, ratio)


class Run:
    """One problem at p = 2, scaled so that its weights are near 1."""

    def __init__(self, problem: HardMargin, tol: float) -> None:
        self.problem, self.rows, self.tol = problem, problem.rows, tol
        self.steps = 0

    def solve(self, direction: Array) -> Best:
        """Stage after stage, until the gap is at most ``tol`` or nothing is gained; w begins as Aᵀ ``direction``."""
        gain = self.problem.gain
        w = self.rows.adj(direction)
        v = self.rows.fwd(w)
        lam, sigma, last = np.zeros_like(direction), 1.0, 0.0
        self.best = Best(w, lam)
        for _ in range(STAGES):
            for k in range(STAGE_STEPS):
                new = self.multipliers(v, lam, sigma)
                image = self.rows.adj(new)
                gradient = w - image
                total = max(float((new * gain).sum()), 1e-300)
                residual = float(np.abs(gradient * w).sum()) / total
                move = float((np.abs(new - lam) * gain).sum()) / total
                if self.note(w, v, new, image) or self.steps >= STEPS:
                    return self.best
                if k and residual < min(SHARE * move, FIRST_SHARE):
                    break
                dw = newton_direction(self.rows.subset(np.flatnonzero(new[0] > 0)), gradient, sigma, residual)
                dv = self.rows.fwd(dw)
                length = self.zero_slope(w, v, dw, dv, lam, sigma)
                w, v = w + length * dw, v + length * dv
                self.steps += 1
            v = self.rows.fwd(w)  # the sums of many steps have rounded
            lam = new
            if move > SLOW * last:
                sigma *= next((growth for most, growth in GROWTH if k <= most), 1.0)
            last = move
            if sigma > HOPELESS or (sigma > DOUBTFUL and not self.separable()):
                break
        return self.best

    def separable(self) -> bool:
        """False once the multipliers all but refute it."""
        return bool(np.isfinite(self.best.gap)) or self.best.verdict(self.problem).feasible is None

    def multipliers(self, v: Array, lam: Array, sigma: float) -> Array:
        """λ⁺ = [λ + σ(b − v)]₊; rows that do not exist have b < 0 and v = 0."""
        return np.maximum(lam + sigma * (self.problem.b - v), 0.0)

    def note(self, w: Array, v: Array, lam: Array, image: Array) -> bool:
        """Keep this pair if its gap is the best; whether that is good enough."""
        margin = float(self.problem.smallest_margin(v)[0])
        if margin > 0:
            norms = float(np.linalg.norm(w) * np.linalg.norm(image))
            gap = 1 - float((self.problem.gain * lam).sum()) * margin / max(norms, 1e-300)
            if gap < self.best.gap:
                self.best = Best(w, lam, gap)
        elif not np.isfinite(self.best.gap):
            self.best = Best(w, lam)
        return self.best.gap <= self.tol

    def zero_slope(self, w: Array, v: Array, dw: Array, dv: Array, lam: Array, sigma: float) -> float:
        """The t at which φ(w + t dw) is least: a zero of an increasing function, by false position and bisection."""
        start, square = float((w * dw).sum()), float((dw * dw).sum())

        def slope(t: float) -> float:
            return start + t * square - float((self.multipliers(v + t * dv, lam, sigma) * dv).sum())

        low, high = 0.0, 1.0
        at_low, at_high = slope(0.0), slope(1.0)
        size = abs(at_low)
        while at_high < -NEARLY * size and high < LONGEST:
            low, at_low, high = high, at_high, 2 * high
            at_high = slope(high)
        t, value = high, at_high
        for k in range(HALVINGS):
            if abs(value) <= NEARLY * size or not at_low < 0 < at_high:
                break
            t = 0.5 * (low + high) if k % 2 else low - at_low * (high - low) / (at_high - at_low)
            value = slope(t)
            if value < 0:
                low, at_low = t, value
            else:
                high, at_high = t, value
        return t


def newton_direction(part: Any, gradient: Array, sigma: float, residual: float) -> Array:
    """dw (1, N) = −(g + Aᵀμ) for the rows of ``part``."""
    if not part.m:
        return -gradient
    share, most, least = SYSTEM
    rows, precondition = part, coupled
    if part.m > FEW_ROWS:
        rows = FlatRows(part.x.astype(np.float32), part.owner, part.z.astype(np.float32))
        precondition = by_sample
    dtype = rows.x.dtype
    shift = dtype.type(1 / sigma)
    right = -part.fwd(gradient).astype(dtype)
    tol = min(most, max(share * residual, least))
    mu = conjugate_gradients(lambda y: shift * y + rows.fwd(rows.adj(y)), right, precondition(rows, sigma), tol)
    return np.asarray(-(gradient + part.adj(mu.astype(np.float64))))


def conjugate_gradients(apply: Callable[[Any], Any], right: Any, precondition: Callable[[Any], Any], tol: float) -> Any:
    """K⁻¹ right for right (1, m), to a relative residual of ``tol``."""
    x, residual = np.zeros_like(right), right
    target = tol * np.linalg.norm(right)
    z = precondition(residual)
    direction, inner = z, np.vdot(residual, z)
    for _ in range(CG_STEPS):
        if not np.linalg.norm(residual) > target:
            break
        image = apply(direction)
        length = inner / np.vdot(direction, image)
        if not np.isfinite(length):
            break
        x, residual = x + length * direction, residual - length * image
        z = precondition(residual)
        inner, before = np.vdot(residual, z), inner
        direction = z + (inner / before) * direction
    return x


def coupled(rows: FlatRows, sigma: float) -> Callable[[Array], Array]:
    """The inverse of A Aᵀ + I/σ."""
    z = rows.z[rows.present]
    matrix = (rows.x @ rows.x.T) * (z @ z.T)[rows.place][:, rows.place]
    matrix.ravel()[:: rows.m + 1] += 1 / sigma
    lower = lower_factor(matrix)
    return lambda right: dpotrs(lower, right[0], lower=1)[0][None]


def by_sample(rows: FlatRows, sigma: float) -> Callable[[Any], Any]:
    """The inverse of the diagonal blocks of A Aᵀ + I/σ, one per sample."""
    z = rows.z[rows.present]
    width = int((rows.stops - rows.starts).max())
    slot = np.arange(rows.m) - rows.starts[rows.place]
    blocks = np.zeros((len(z), width, rows.d), dtype=rows.x.dtype)
    blocks[rows.place, slot] = rows.x
    matrices = (blocks @ blocks.swapaxes(1, 2)) * (z * z).sum(axis=1)[:, None, None]
    np.einsum("bii->bi", matrices)[...] += rows.x.dtype.type(1 / sigma)
    inverse = np.linalg.inv(matrices)

    def precondition(right: Any) -> Any:
        padded = np.zeros((len(z), width, 1), dtype=right.dtype)
        padded[rows.place, slot, 0] = right[0]
        return (inverse @ padded)[rows.place, slot, 0][None]

    return precondition
