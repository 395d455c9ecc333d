"""One problem with many rows: a working set of those that matter, and Newton's method with few Cholesky factors.

:func:`solve_working_set`, for few dimensions: solve on some rows, look at all of them, add the violated ones, repeat.

:func:`solve_newton`, for many dimensions: a quasi-Newton run on the dual, f(λ) = (1/q)‖Aᵀλ‖_q^q − bᵀλ over λ ≥ 0, finds
nearly all active rows at the price of matrix-vector products. It stalls at a gap near 1e-8, so the last digits come
from

- p ≤ 2: projected Newton on the free rows {λ > 0 or ∇f < 0}, usually one or two systems;
- p > 2: semismooth Newton in weights and multipliers, on the equations

      sign(w)|w|^{p−1} = Aᵀλ,        min(λ, A w − b) = 0.

  At a guess, the rows F = {λ > A w − b} (λ in units of its largest) are taken as active, the others get λ = 0, and
  a Newton step for what is left solves (A_F D A_Fᵀ) dλ = b_F − A_F w + A_F D rd, dw = D(A_Fᵀ dλ − rd), with
  rd = sign(w)|w|^{p−1} − A_Fᵀλ_F and D = 1/((p−1)|w|^{p−2}). One factorisation of the active rows per step, and a
  handful of steps from a good guess; so large p is reached through smaller ones.

Where this fails, interior points on the rows near the margin, extended until no row outside is violated.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import minimize

from mirrormax.svm._types import Answer, HardMargin
from mirrormax.svm.loop import DualPoint, PrimalPoint
from mirrormax.svm.rows import Array, Index
from mirrormax.svm.solvers.interior import solve_hard, solve_interior
from mirrormax.svm.systems import Factor

GUESS_RANGE = (1.1, 3.0)  # the p at which the quasi-Newton run is quick
NEWTON_STEPS = 25
LARGEST_SYSTEM = 8000
STEEPEST_CLIMB = 12.0  # the largest p for semismooth Newton
NEAR = 1.04  # times the smallest margin: rows that may be active
CLIMB_STEPS = 15
CLIMB_HALVINGS = 6
GROWTH = 1.8  # of p from stage to stage, less where that fails
SMALLEST_GROWTH = 1.2
STAGE_GAP = 1e-3  # of all stages but the last
SMALLEST = 1e-7  # of the largest weight, as far as curvature goes
ROUNDS = 40
SMALLEST_SET = 100  # rows to begin with where few dimensions would do with fewer
LARGEST_COMPANY = 50  # rows that join beside a violated one


def solve_working_set(problem: HardMargin, tol: float) -> Answer:
    """Interior points on a few times as many rows as there are weights."""
    size = problem.rows.size
    first = nearest(problem, problem.rows.adj(problem.gain), max(4 * size, SMALLEST_SET))
    return solve_on_working_set(problem, first, tol, max(size, SMALLEST_SET // 2))


def solve_newton(problem: HardMargin, tol: float) -> Answer:
    """A quasi-Newton guess and its last digits."""
    p = float(problem.p[0, 0])
    guess_p = float(np.clip(p, *GUESS_RANGE))
    scaled, start = problem.at(guess_p).dual_start()
    guess, steps = quasi_newton(scaled, start)
    if p <= 2:
        lam, gap, more = projected_newton(scaled.at(p), guess[None], tol)
        if gap <= tol:
            return Answer.of(problem.mirror(lam), lam, gap, steps + more)
    w = problem.at(guess_p).mirror(guess[None])
    margins = problem.margins(problem.rows.fwd(w))[0]
    smallest = margins.min()
    if not smallest > 0:  # infeasible, or too hard for the quasi-Newton run
        return Answer.empty(1, problem.rows.size, problem.rows.m)
    if 2 < p <= STEEPEST_CLIMB:
        climbed = climb(problem, Answer.of(w, guess[None], np.inf, steps), guess_p, tol)
        if climbed is not None:
            return climbed
    near = np.flatnonzero((margins < NEAR * smallest) | ((guess > 0) & (problem.b[0] > 0)))
    answer = solve_on_working_set(problem, near, tol, problem.rows.m // 10, w)
    answer.iterations += steps
    return answer


def quasi_newton(problem: HardMargin, lam: Array, limit: int = 1000) -> tuple[Array, int]:
    """λ (m,) with projected gradient near 1e-4, for one scaled problem, and the iterations taken."""
    q = float(problem.q[0, 0])
    rows, b = problem.rows, problem.b[0]

    def objective(lam: Array) -> tuple[float, Array]:
        u = rows.adj(lam[None])
        w = np.abs(u) ** (q - 2) * u if q >= 2 else np.sign(u) * np.abs(u) ** (q - 1)
        return float((u * w).sum() / q - b @ lam), rows.fwd(w)[0] - b

    # SciPy asks for the bounds one by one; rows that do not exist are pinned at zero.
    bounds = [(0.0, None) if exists else (0.0, 0.0) for exists in b > 0]
    minimum = minimize(
        objective,
        np.where(b > 0, lam[0], 0.0),
        jac=True,
        method="L-BFGS-B",
        bounds=bounds,
        options={"maxiter": limit, "maxcor": 20, "gtol": 1e-4, "ftol": 1e-13, "maxfun": 2 * limit},
    )
    return np.asarray(minimum.x), int(minimum.nit)


def projected_newton(problem: HardMargin, lam: Array, tol: float) -> tuple[Array, float, int]:
    """λ (1, m), its relative gap and the Newton steps taken, for one problem with p ≤ 2."""
    point = DualPoint.at(problem, lam)
    best, best_gap = lam, float(point.relative_gap(problem)[0])
    for step in range(NEWTON_STEPS):
        if best_gap <= tol:
            return best, best_gap, step
        gradient = point.v - problem.b
        free = np.flatnonzero(((point.lam > 0) | (gradient < 0))[0] & (problem.b[0] > 0))
        if not 0 < len(free) <= LARGEST_SYSTEM:
            break
        new = _projected_step(problem, point, gradient, free)
        if new is None:
            break
        point = new
        gap = float(point.relative_gap(problem)[0])
        if gap < best_gap:
            best, best_gap = point.lam, gap
    return best, best_gap, NEWTON_STEPS


def _projected_step(problem: HardMargin, point: DualPoint, gradient: Array, free: Index) -> DualPoint | None:
    """max(λ + a d, 0) with d the Newton direction on the free rows, and a from an Armijo search."""

    def value(at: DualPoint) -> float:
        return float((at.u * at.w).sum() / problem.q[0, 0] - (problem.b * at.lam).sum())

    matrix = problem.rows.subset(free).gram(point.curvature)
    # Rows that depend on each other leave the system singular; a trace of the diagonal picks one solution.
    np.einsum("bii->bi", matrix)[...] *= 1 + 1e-13
    direction = np.zeros_like(point.lam)
    direction[0, free] = Factor(matrix).solve(-gradient[:, free])[0]
    before, length = value(point), 1.0
    for _ in range(25):
        new = DualPoint.at(problem, np.maximum(point.lam + length * direction, 0.0))
        promised = float((gradient * (new.lam - point.lam)).sum())
        if value(new) <= before + 1e-4 * promised + 1e-15 * abs(before):
            return new
        length *= 0.5
    return None


def climb(problem: HardMargin, answer: Answer, p: float, tol: float) -> Answer | None:
    """The answer at the p of the problem, from one at a smaller ``p``; None on failure."""
    target, growth = float(problem.p[0, 0]), GROWTH
    while True:
        stage_p = min(target, growth * p)
        stage = semismooth_newton(problem.at(stage_p), answer, tol if stage_p == target else STAGE_GAP)
        if stage is not None:
            answer, p = stage, stage_p
            if p == target:
                return answer
        elif growth < SMALLEST_GROWTH or p >= target:
            return None
        else:
            growth = growth**0.5


def semismooth_newton(problem: HardMargin, guess: Answer, tol: float) -> Answer | None:
    """One with a relative gap of ``tol``, from a guess with A w > 0; None if it does not arrive."""
    smallest = problem.smallest_margin(problem.rows.fwd(guess.w))
    p = float(problem.p[0, 0])
    if not smallest[0] > 0:
        return None
    # At this scale w has entries near 1, and the powers of any p are harmless.
    kappa = float((np.abs(guess.w) ** p).mean() ** (1 / p)) / smallest
    scaled = problem.scaled(kappa)
    w = guess.w / (smallest * kappa)
    lam = guess.lam * (np.abs(w) ** p).sum() / (problem.gain * guess.lam).sum()
    for step in range(CLIMB_STEPS):
        positive = np.maximum(lam, 0.0)
        if PrimalPoint.at(scaled, w, positive).relative_gap(scaled)[0] <= tol:
            return Answer.of(w, positive, tol, int(guess.iterations[0]) + step)
        moved = _step(scaled, w, lam)
        if moved is None:
            return None
        w, lam = moved
    return None


def _step(problem: HardMargin, w: Array, lam: Array) -> tuple[Array, Array] | None:
    """A Newton step, halved until the residual falls."""
    p, slack = float(problem.p[0, 0]), problem.rows.fwd(w) - problem.b
    exists = problem.b > 0
    active = np.flatnonzero(((lam / lam.max() > slack) & exists)[0])
    if not 0 < len(active) <= LARGEST_SYSTEM:
        return None
    rows = problem.rows.subset(active)
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
    before, length = _residual(problem, w, lam), 1.0
    for _ in range(CLIMB_HALVINGS):
        new_w, new_lam = w + length * dw, lam + length * dlam
        if _residual(problem, new_w, new_lam) < (1 - 0.1 * length) * before:
            return new_w, new_lam
        length *= 0.5
    return None


def _residual(problem: HardMargin, w: Array, lam: Array) -> float:
    """How far both equations are from holding, each relative to its own size."""
    gradient = np.sign(w) * np.abs(w) ** (float(problem.p[0, 0]) - 1)
    stationarity = np.linalg.norm(gradient - problem.rows.adj(lam)) / np.linalg.norm(gradient)
    rest = np.where(problem.b > 0, np.minimum(lam / lam.max(), problem.rows.fwd(w) - problem.b), 0.0)
    return float(stationarity + np.linalg.norm(rest) / np.sqrt(max(1, int((lam > 0).sum()))))


def solve_on_working_set(problem: HardMargin, start: Index, tol: float, grow: int, w: Array | None = None) -> Answer:
    """One problem, from the rows ``start``; the worst ``grow`` violated rows, or half as many as there are, join.

    ``w`` (1, N) with A w > 0 saves p > 2 the search for such a start. Weights that are best for some rows and violate
    none of the others are best for all, and multipliers that refute some rows refute all; so the answer is that of the
    whole problem.
    """
    chosen = np.unique(start)
    answer = Answer.empty(1, problem.rows.size, problem.rows.m)
    for k in range(ROUNDS):
        part = problem.subset(chosen)
        # The rows that join make the margin much thinner than a start from all-ones would find.
        small = solve_hard(part, tol) if k and w is None else solve_interior(part, tol, w)
        answer.iterations += small.iterations
        answer.w, answer.lam, answer.gap = small.w, np.zeros_like(problem.b), small.gap
        answer.lam[0, chosen] = small.lam[0]
        verdict = small.verdicts[0]
        if verdict is not None and not verdict.feasible:
            answer.verdicts[0] = verdict.spread(chosen, problem.rows.m)
            return answer
        # Below half-way between b and the aim a row counts as violated.
        margins = problem.margins(problem.rows.fwd(answer.w))[0]
        short = margins / margins[chosen].min() - 1
        short[chosen] = np.inf
        violated = int((short < -0.05 * tol).sum())
        if not violated:
            return answer
        # Where few are violated their neighbours come along: a round for one or two more rows costs as much as any.
        count = max(min(violated, max(grow, len(chosen) // 2)), min(problem.rows.size, LARGEST_COMPANY))
        count = min(count, int((short < np.inf).sum()))
        chosen = np.union1d(chosen, np.argpartition(short, count - 1)[:count])
    return answer


def nearest(problem: HardMargin, w: Array, count: int) -> Index:
    """The ``count`` rows with the smallest margins under w (1, N)."""
    margins = problem.margins(problem.rows.fwd(w))[0]
    count = min(count, int((problem.b > 0).sum()))
    return np.argsort(margins)[:count]
