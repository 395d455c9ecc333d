"""Attention SVMs in ℓ1 and ℓ∞: linear programmes, solved by HiGHS, whose multipliers are the certificate.

    max s   s.t.   A W ≥ s b,   B W = 0,   ‖W‖ ≤ 1

is as good as min ‖W‖ s.t. A W ≥ b, and smaller: for ℓ∞ the norm is a bound on every variable, for ℓ1 (W = W⁺ − W⁻,
both at least 0) it is one more row.

HiGHS stops at 1e-10, which is much for a row with a small b. Its active rows R and the entries F that are not at a
bound say which equations hold exactly: M (w_F, s) = r and Mᵀ(λ_R, t) = (0, −1) with M = [A_RF, −b_R], and one more row
[sign w_F, 0] for ℓ1. Solving these gives w and λ their last digits.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from mirrormax.svm._types import Answer, Unit
from mirrormax.svm.norms import Norm
from mirrormax.svm.rows import Array, Bools
from mirrormax.svm.solvers.interior import judge_problem

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def solve_linear(unit: Unit, norm: Norm, tol: float) -> Answer:
    """Weights and multipliers of every problem, one after the other; infeasible ones with their verdict."""
    answer = Answer.empty(len(unit.c), int(np.prod(norm.shape)), unit.c[0].size)
    for k in range(len(unit.c)):
        problem = unit.take(np.array([k])).problem(np.array([2.0]), tol)
        keep = np.flatnonzero(problem.exists[0])
        A, b, equal = problem.rows.dense()[0][keep], problem.gain[0, keep], ~problem.above[0, keep]
        result = _programme(A, b, equal, norm.name)
        if result is None:
            answer.verdicts[k] = judge_problem(problem)
            continue
        pairs = [result[:2], _polished(A, b, equal, norm.name, *result[:2])]
        answer.w[k], answer.lam[k, keep] = min(pairs, key=lambda pair: _gap(A, b, equal, norm, *pair))
        answer.iterations[k] = result[2]
    return answer


def _programme(A: Array, b: Array, equal: Bools, name: str) -> tuple[Array, Array, int] | None:
    """w, λ and the number of iterations; None if no w has a positive s."""
    N = A.shape[1]
    scale = np.where(b > 0, b, 1.0)  # where b is positive it becomes 1, or HiGHS would not see the small ones
    A, b = A / scale[:, None], b / scale
    above = np.column_stack([-A[~equal], b[~equal]])
    level = np.column_stack([A[equal], np.zeros(equal.sum())])
    if name == "linf":
        bounds: list[tuple[float | None, float | None]] = [(-1.0, 1.0)] * N + [(None, None)]
        limit = np.zeros(len(above))
    else:
        above, level = (np.column_stack([m[:, :N], -m[:, :N], m[:, N:]]) for m in (above, level))
        above = np.vstack([above, np.append(np.ones(2 * N), 0.0)])
        limit = np.append(np.zeros(len(above) - 1), 1.0)
        bounds = [(0.0, None)] * (2 * N) + [(None, None)]
    cost = np.append(np.zeros(above.shape[1] - 1), -1.0)
    result = linprog(cost, above, limit, level, np.zeros(len(level)), bounds, options=TIGHT)
    if result.x is None or not result.x[-1] > 0:
        return None
    w = result.x[:N] if name == "linf" else result.x[:N] - result.x[N : 2 * N]
    lam = np.zeros(len(b))
    lam[~equal] = np.maximum(-result.ineqlin.marginals[: int((~equal).sum())], 0)
    lam[equal] = result.eqlin.marginals
    return w, lam / scale, int(result.nit)


def _polished(A: Array, b: Array, equal: Bools, name: str, w: Array, lam: Array) -> tuple[Array, Array]:
    """w and λ by the smallest change that makes the equations of the active rows and free entries exact."""
    active = np.flatnonzero(equal | (lam > 0))
    free = np.flatnonzero(w if name == "l1" else np.abs(w) < 1)
    w, lam = w.copy(), lam.copy()
    M = np.column_stack([A[np.ix_(active, free)], -b[active]])
    if name == "l1":
        M = np.vstack([M, np.append(np.sign(w[free]), 0.0)])
    margin = float((A @ w)[active] @ b[active] / (b[active] @ b[active]))
    t = np.full(len(M) - len(active), -np.abs(lam @ A).max())
    for _ in range(2):  # the second time for the rounding of the first
        missing = np.concatenate([b[active] * margin - A[active] @ w, 1 - np.abs(w).sum() + 0 * t])
        step = np.linalg.lstsq(M, missing, rcond=1e-13)[0]
        w[free], margin = w[free] + step[:-1], margin + step[-1]
        dual = np.append(np.zeros(len(free)), -1.0) - M.T @ np.concatenate([lam[active], t])
        step = np.linalg.lstsq(M.T, dual, rcond=1e-13)[0]
        lam[active], t = lam[active] + step[: len(active)], t + step[len(active) :]
    return w, np.where(equal, lam, np.maximum(lam, 0.0))


def _gap(A: Array, b: Array, equal: Bools, norm: Norm, w: Array, lam: Array) -> float:
    """1 − (min A w/b)(bᵀλ)/(‖w‖ ‖Aᵀλ‖_*), infinite where another row is missed."""
    v = A @ w
    smallest = float((v / np.where(b > 0, b, 1.0))[~equal & (b > 0)].min())
    missed = np.where(equal, np.abs(v), np.where(b > 0, 0.0, b * smallest - v)).max()
    gap = 1 - smallest * float(b @ lam) / float((norm.sizes(w) * norm.duals(lam @ A))[0])
    return gap if smallest > 0 and missed <= 1e-9 * max(smallest, np.abs(v).max()) else np.inf
