"""Attention SVMs in ℓ1 and ℓ∞: linear programmes, solved by HiGHS, whose multipliers are the certificate.

    max s   s.t.   A W ≥ s b,   B W = 0,   ‖W‖ ≤ 1

is as good as min ‖W‖ s.t. A W ≥ b, and smaller: for ℓ∞ the norm is a bound on every variable, for ℓ1 (W = W⁺ − W⁻,
both at least 0) it is one more row.
"""

from __future__ import annotations

import numpy as np
from scipy.optimize import linprog

from mirrormax.svm._types import Answer, Unit
from mirrormax.svm.feasibility import judge, judge_general
from mirrormax.svm.norms import Norm
from mirrormax.svm.rows import Array, Bools, make_rows

TIGHT = {"primal_feasibility_tolerance": 1e-10, "dual_feasibility_tolerance": 1e-10}


def solve_linear(unit: Unit, norm: Norm, tol: float) -> Answer:
    """Weights and multipliers of every problem, one after the other; infeasible ones with their verdict."""
    exact = unit.exact
    answer = Answer.empty(len(exact), int(np.prod(norm.shape)), exact.shape[1])
    for k in range(len(exact)):
        one = unit.take(np.array([k]))
        rows, exists = make_rows(one.x, one.z), unit.c[k].reshape(-1) > 0
        equal = np.zeros_like(exists) if unit.equal is None else unit.equal[k] & exists
        keep = np.flatnonzero(exists)
        result = _programme(rows.dense()[0][keep], exact[k, keep], equal[keep], norm.name)
        if result is None:
            if unit.right is None:
                answer.verdicts[k] = judge(rows, exists.astype(np.float64))
            else:
                answer.verdicts[k] = judge_general(rows, exact[k], exists, equal)
            continue
        answer.w[k], answer.lam[k, keep], answer.iterations[k] = result
    return answer


def _programme(A: Array, b: Array, equal: Bools, name: str) -> tuple[Array, Array, int] | None:
    """w, λ and the number of iterations; None if no w has a positive s."""
    N = A.shape[1]
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
    result = linprog(
        cost,
        above,
        limit,
        level if len(level) else None,
        np.zeros(len(level)) if len(level) else None,
        bounds,
        options=TIGHT,
    )
    if result.x is None or not result.x[-1] > 0:
        return None
    w = result.x[:N] if name == "linf" else result.x[:N] - result.x[N : 2 * N]
    lam = np.zeros(len(b))
    lam[~equal] = np.maximum(-result.ineqlin.marginals[: int((~equal).sum())], 0)
    if len(level):
        lam[equal] = result.eqlin.marginals
    return w, lam, int(result.nit)
