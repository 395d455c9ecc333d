"""One problem with very many rows: an augmented Lagrangian, its steps by conjugate gradients.

For min ψ(w) = (1/p)‖w‖_p^p s.t. A w ≥ b, multipliers λ ≥ 0 and a penalty σ, every stage minimises

    φ(w) = ψ(w) + (1/2σ) Σ_r [λ_r + σ(b_r − a_r·w)]₊²,      λ⁺(w) = [λ + σ(b − A w)]₊,      ∇φ = g = ∇ψ(w) − Aᵀλ⁺(w),

and then takes λ ← λ⁺(w), the best multipliers for this w. The stages converge for every σ, the faster the larger it is;
the gap is that of (w, λ⁺). φ is convex: with J = {λ⁺ > 0} and D = 1/ψ''(w) its Newton step is

    (I/σ + A_J D A_Jᵀ) μ = −A_J D g,      dw = −D (g + A_Jᵀ μ),

followed by the minimum of φ along dw, which costs no product. Only the rows J enter the system, and only as products
with tokens and queries: memory is linear in the rows. Many rows are taken in single
precision; the gradient, from which the next step starts, never is. For p > 2, D is infinite at w = 0; the secant of ∇ψ
between w and the weights that λ⁺ asks for, ∇ψ*(Aᵀλ⁺), takes its place.

Another p begins with p = 2, solved roughly. Where many rows are active there, the same method goes on with p. Where few
are, as in heads of trained models, the rows near the margin are enough: interior points on them, with systems that are
never written out, first roughly, then with the rows that came near, until no row outside is violated. What is left of a
problem that is not too large goes to :func:`solve_newton`.

If nothing separates the data, λ⁺/σ tends to the least-squares slack [b − A w]₊, and Aᵀ of that is zero: Farkas'
certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np

from mirrormax.svm._types import Answer, HardMargin, Verdict
from mirrormax.svm.feasibility import judge
from mirrormax.svm.rows import Array, BlockRows, FlatRows
from mirrormax.svm.solvers.interior import solve_interior
from mirrormax.svm.solvers.large import SMALLEST_SET, nearest, solve_newton
from mirrormax.svm.systems import conjugate_gradients, coupled

STAGES = 200
STEPS = 400  # of Newton in all stages together
STAGE_STEPS = 30
CG_STEPS = 150
SHARE = 0.2  # of the last move of λ: how small the gradient has to be for the next one
FIRST_SHARE = 0.1
SYSTEM = 0.1, 0.03, 1e-6  # of the gradient, at most and at least: how well the system is solved at p = 2
CURVED = 0.05, 0.01, 1e-6  # the same at other p
ROUGH = 0.03  # the gap at which p = 2 is left for another p
FEW_ACTIVE = 2500  # at p = 2: rows near the margin are then the quicker way to another p
WIDER = 1.5  # times the active rows to begin with
NEAR = 0.5  # above the smallest margin: rows that join after the rough round
ROUNDS = 20
INSIDE = 0.01  # of the mean multiplier: how far from zero a round begins
FEW_ROWS = 2000  # up to here the preconditioner couples the samples
SLOW = 0.3  # a stage that leaves more of the last move than this wants a larger σ
GROWTH = ((1, 10.0), (2, 4.0), (4, 2.0), (8, 1.3))  # of σ after a stage with at most so many steps
CURVED_RANGE = (1.2, 4.0)  # of p, where many rows are active
NEWTON_ROWS = 30_000  # up to here :func:`solve_newton` may be asked for what is left
PATIENCE = 40  # steps in which the gap has to halve at least once
CURVED_GROWTH = 4.0  # at most, where p is not 2
SMALLEST = 1e-6  # of the largest weight, as far as curvature goes
HALVINGS, NEARLY, LONGEST = 25, 0.1, 64.0  # of the search along a step: at most, to which share of the slope, how far
JUDGED_ROWS, JUDGED_SHARE = 2000, 1e-3  # the largest multipliers, at most so many and so much smaller, go to phase 0
REFUTED = 1e-5  # |Aᵀλ| over |A|ᵀλ at which λ is worth a proof that nothing separates
DOUBTFUL, HOPELESS = 1e4, 1e14  # a σ from which on separability is asked for, and at which to stop


def is_structured(problem: HardMargin) -> bool:
    """Whether :func:`solve_lagrangian` takes it: one problem whose rows are not written out."""
    return len(problem) == 1 and isinstance(problem.rows, BlockRows | FlatRows)


def solve_lagrangian(problem: HardMargin, tol: float) -> Answer:
    """Newton's method on augmented Lagrangians, by conjugate gradients."""
    p = float(problem.p[0, 0])
    first = solve_euclidean(problem.at(2.0), tol if p == 2 else ROUGH)
    if p == 2 or not np.isfinite(first.gap[0]):
        return first
    if int((first.lam > 0).sum()) <= FEW_ACTIVE:
        answer = solve_near_margin(problem, first, tol)
    elif CURVED_RANGE[0] <= p <= CURVED_RANGE[1]:
        answer = solve_from(problem, first, tol)
    else:
        answer = Answer.empty(1, problem.rows.size, problem.rows.m)
    if answer.gap[0] > tol and (problem.rows.m <= NEWTON_ROWS or not np.isfinite(answer.gap[0])):
        other = solve_newton(problem, tol)
        answer = other if other.gap[0] < answer.gap[0] or not np.isfinite(answer.gap[0]) else answer
        if not np.isfinite(answer.gap[0]):
            answer = solve_interior(problem, tol)
    answer.iterations += first.iterations
    return answer


def solve_euclidean(problem: HardMargin, tol: float) -> Answer:
    """One problem at p = 2, with a verdict where no weights were found that separate."""
    scaled, direction = problem.dual_start()
    answer = Run(scaled, tol).solve(scaled.rows.adj(direction), np.zeros_like(direction))
    if not np.isfinite(answer.gap[0]):
        verdict = _verdict(scaled, answer)
        # A contradiction among a few rows is one among all, and of few phase 0 has the exact multipliers.
        few = np.argsort(-verdict.lam, kind="stable")[:JUDGED_ROWS]
        few = np.sort(few[verdict.lam[few] > JUDGED_SHARE * verdict.lam.max()])
        if len(few):
            judged = judge(problem.rows.subset(few), np.ones(len(few)))
            verdict = judged.spread(few, problem.rows.m) if judged.feasible is False else verdict
        answer.verdicts[0] = verdict
    return answer


def solve_from(problem: HardMargin, first: Answer, tol: float) -> Answer:
    """One problem at its own p, from weights and multipliers that separate at another."""
    p = problem.p[0, 0]
    w = first.w / problem.smallest_margin(problem.rows.fwd(first.w))[:, None]
    # At this scale w has entries near 1, and λ is such that bᵀλ = ⟨∇ψ(w), w⟩.
    kappa = (np.abs(w) ** p).mean() ** (1 / p)
    w = w / kappa
    lam = first.lam * (np.abs(w) ** p).sum() / (problem.gain * first.lam).sum()
    return Run(problem.scaled(np.array([kappa])), tol).solve(w, lam)


def solve_near_margin(problem: HardMargin, first: Answer, tol: float) -> Answer:
    """One problem at its own p by interior points on the rows near the margin of an answer at p = 2."""
    active = np.flatnonzero(first.lam[0] > 0)
    chosen = np.union1d(nearest(problem, first.w, max(int(WIDER * len(active)), SMALLEST_SET)), active)
    answer, start, aim = first, first.w, max(ROUGH, tol)
    for _ in range(ROUNDS):
        lam = answer.lam[:, chosen]
        small = solve_interior(problem.subset(chosen), aim, start, lam + INSIDE * lam.mean())
        lam = np.zeros_like(problem.b)
        lam[0, chosen] = small.lam[0]
        margins = problem.margins(problem.rows.fwd(small.w))[0]
        inside, smallest = margins[chosen].min(), margins.min()
        gap = 1 - (1 - float(small.gap[0])) * smallest / inside if smallest > 0 else np.inf
        answer = Answer.of(small.w, lam, gap, int(answer.iterations[0] + small.iterations[0]))
        if gap <= tol or (small.gap[0] > aim and aim <= tol and smallest >= inside):
            break
        short = margins / inside - 1
        short[chosen] = np.inf
        if smallest > 0:
            start = small.w
        near = np.flatnonzero(short < NEAR)
        most = max(len(active), len(chosen) // 2)
        chosen = np.union1d(chosen, near[np.argsort(short[near])[:most]])
        aim = tol
    answer.iterations -= first.iterations
    return answer


def _verdict(problem: HardMargin, answer: Answer) -> Verdict:
    """Not feasible if Aᵀλ is all but zero, to be proved by others; else undecided."""
    size = problem.rows.absolute().adj(answer.lam)
    ratio = float((np.abs(problem.rows.adj(answer.lam)) / np.where(size > 0, size, np.inf)).max())
    total = max(float(answer.lam.sum()), 1e-300)
    return Verdict(False if ratio <= REFUTED else None, answer.w[0], answer.lam[0] / total, ratio)


class Run:
    """One problem, scaled so that its weights are near 1; ``best`` has the smallest gap so far, and while no weights
    separate it is the last."""

    def __init__(self, problem: HardMargin, tol: float) -> None:
        self.problem, self.rows, self.tol = problem, problem.rows, tol
        self.p, self.q = float(problem.p[0, 0]), float(problem.q[0, 0])

    def solve(self, w: Array, lam: Array) -> Answer:
        """Stage after stage from weights and multipliers, until the gap is at most ``tol`` or nothing is gained."""
        gain = self.problem.gain
        v = self.rows.fwd(w)
        sigma, last = 1.0, 0.0
        self.best, self.halved = Answer.of(w, lam, np.inf, 0), (0, np.inf)
        for _ in range(STAGES):
            for k in range(STAGE_STEPS):
                new = self.multipliers(v, lam, sigma)
                image = self.rows.adj(new)
                gradient = self.mirror(w, self.p) - image
                total = max(float((new * gain).sum()), 1e-300)
                residual = float(np.abs(gradient * w).sum()) / total
                move = float((np.abs(new - lam) * gain).sum()) / total
                if self.done(w, v, new, image):
                    return self.best
                if k and residual < min(SHARE * move, FIRST_SHARE):
                    break
                part = cast(FlatRows, self.rows.subset(np.flatnonzero(new[0] > 0)))
                dw = self.newton_direction(part, gradient, self.metric(w, image), sigma, residual)
                dv = self.rows.fwd(dw)
                length = self.zero_slope(w, v, dw, dv, lam, sigma)
                w, v = w + length * dw, v + length * dv
                self.best.iterations += 1
            v = self.rows.fwd(w)  # the sums of many steps have rounded
            lam = new
            if move > SLOW * last:
                growth = next((growth for most, growth in GROWTH if k <= most), 1.0)
                sigma *= growth if self.p == 2 else min(growth, CURVED_GROWTH)
            last = move
            doubtful = sigma > DOUBTFUL and not np.isfinite(self.best.gap[0])
            refuted = doubtful and _verdict(self.problem, self.best).feasible is False
            if sigma > HOPELESS or refuted:
                break
        return self.best

    def mirror(self, x: Array, exponent: float) -> Array:
        """sign(x)|x|^{exponent−1}: ∇ψ for p, its inverse for q."""
        return x if exponent == 2 else np.sign(x) * np.abs(x) ** (exponent - 1)

    def metric(self, w: Array, image: Array) -> Array:
        """D (1, N): 1/ψ''(w), for p > 2 the secant of ∇ψ between w and ∇ψ*(Aᵀλ⁺) where these differ."""
        size = np.abs(w)
        derivative = np.maximum(size, SMALLEST * size.max()) ** (2 - self.p) / (self.p - 1)
        if self.p <= 2:
            return np.asarray(derivative)
        u = self.mirror(w, self.p)
        gap = image - u
        apart = np.abs(gap) > 1e-4 * np.maximum(np.abs(u), np.abs(image))
        return np.where(apart, (self.mirror(image, self.q) - w) / np.where(apart, gap, 1.0), derivative)

    def multipliers(self, v: Array, lam: Array, sigma: float) -> Array:
        """λ⁺ = [λ + σ(b − v)]₊; rows that do not exist have b < 0 and v = 0."""
        return np.maximum(lam + sigma * (self.problem.b - v), 0.0)

    def done(self, w: Array, v: Array, lam: Array, image: Array) -> bool:
        """Keep this pair if its gap is the best; whether that is good enough, or hardly better than long ago."""
        margin, steps = float(self.problem.smallest_margin(v)[0]), int(self.best.iterations[0])
        if margin > 0:
            norms = float(np.linalg.norm(w[0], self.p) * np.linalg.norm(image[0], self.q))
            gap = 1 - float((self.problem.gain * lam).sum()) * margin / max(norms, 1e-300)
            if gap < self.best.gap[0]:
                self.best = Answer.of(w, lam, gap, steps)
        elif not np.isfinite(self.best.gap[0]):
            self.best = Answer.of(w, lam, np.inf, steps)
        best, (since, halved) = self.best.gap[0], self.halved
        if not best > 0.5 * halved or not np.isfinite(best):
            self.halved = steps, best
        return bool(best <= self.tol or steps >= STEPS or (self.p != 2 and steps - since > PATIENCE))

    def zero_slope(self, w: Array, v: Array, dw: Array, dv: Array, lam: Array, sigma: float) -> float:
        """The t at which φ(w + t dw) is least: a zero of an increasing function, by false position and bisection."""

        def slope(t: float) -> float:
            pull = float((self.multipliers(v + t * dv, lam, sigma) * dv).sum())
            return float((self.mirror(w + t * dw, self.p) * dw).sum()) - pull

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

    def newton_direction(self, part: FlatRows, gradient: Array, D: Array, sigma: float, residual: float) -> Array:
        """dw (1, N) = −D(g + Aᵀμ) for the rows of ``part``."""
        if not part.m:
            return -D * gradient
        rows, single = part, part.m > FEW_ROWS
        if single:
            rows = FlatRows(part.x.astype(np.float32), part.owner, part.z.astype(np.float32))
        dtype = rows.x.dtype
        weight, shift = D.astype(dtype), dtype.type(1 / sigma)
        share, most, least = SYSTEM if self.p == 2 else CURVED
        mu = conjugate_gradients(
            lambda y: shift * y + rows.fwd(weight * rows.adj(y)),
            -part.fwd(D * gradient).astype(dtype),
            by_sample(rows, weight, 1 / sigma) if single else coupled(rows, weight, 1 / sigma),
            min(most, max(share * residual, least)),
            CG_STEPS,
        )
        return -D * (gradient + part.adj(mu.astype(np.float64)))


def by_sample(rows: FlatRows, weight: Any, shift: float) -> Callable[[Any], Any]:
    """The inverse of the diagonal blocks of A diag(D) Aᵀ + shift, X_i diag(h_ii) X_iᵀ, in the precision of the rows."""
    z = rows.z[rows.present]
    width = int((rows.stops - rows.starts).max())
    slot = np.arange(rows.m) - rows.starts[rows.place]
    blocks = np.zeros((len(z), width, rows.d), dtype=rows.x.dtype)
    blocks[rows.place, slot] = rows.x
    h = (z * z) @ weight.reshape(rows.d, rows.e).T
    matrices = (blocks * h[:, None]) @ blocks.swapaxes(1, 2)
    # Tokens that repeat leave a block singular; a shift that its precision cannot see would leave it so.
    diagonal = np.einsum("bii->bi", matrices)
    least = 4 * width * np.finfo(rows.x.dtype).eps * diagonal.max(axis=1, keepdims=True)
    diagonal += np.maximum(rows.x.dtype.type(shift), least)
    inverse = np.linalg.inv(matrices)

    def precondition(right: Any) -> Any:
        padded = np.zeros((len(z), width, 1), dtype=right.dtype)
        padded[rows.place, slot, 0] = right[0]
        return (inverse @ padded)[rows.place, slot, 0][None]

    return precondition
