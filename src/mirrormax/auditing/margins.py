"""How far a head leads with what it selects, and how far the best weights for the same data would.

A head with weights W and selected tokens α has the realised margin

    min_{i, t ≠ α_i} (x_iα − x_it)ᵀ W z_i / ‖W‖_p,

and no weights have more than the optimal margin 1/‖W_mm‖_p of the ℓp-AttSVM. Since α is W's own argmax, W itself
separates the data; only tokens that tie (copies of one another) make a problem inseparable, and then the soft
margin is solved instead: with J(V) = ‖V‖_p^p / p + C Σ max(0, 1 − margin_it(V)) on data scaled to rows of norm at
most 1, the ratio is J(W_soft) / min_s J(sW).

What is exact, and what is not:

* p = 2 is solved in the coordinates spanned by the sampled x_α − x_t and z. The Frobenius norm does not change
  under rotations of either side, and W_mm lies in the span, so that nothing is lost. Other p have norms that
  depend on the coordinates: these are solved in the model's own.
* Of every row the ``rivals`` tokens of highest logit are kept. The realised margin on the sample is then exact,
  and fewer rivals can only raise the optimal margin: **the ratio is a lower bound** of that with all rivals.
* Rows are a uniform sample. More rows can only lower both margins. A sample that is small beside d is easy to
  separate widely, and so the ratio also depends on its size: compare ratios at one size, or with controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar

from mirrormax.geometry import cosine, directional_divergence, lp_norm
from mirrormax.svm import att_svm

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TIE = 1e-9
"""Leads below this share of ‖x_α − x_t‖‖z‖‖W‖ are ties; rounding in float64 is a millionth of it."""

NO_WEIGHTS = "the head's weights are zero, so that it selects nothing"
NO_SEPARATION = "the tokens are all alike, so that no weights prefer any"


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """Rows of one head: the selected token first, then its strongest rivals."""

    X: Array  # (n, K + 1, d)
    z: Array  # (n, e)
    mask: Bools  # (n, K + 1)
    tokens: npt.NDArray[np.intp]  # (n, K + 1) their places in the sequence
    W: Array  # (d, e) the head's own weights

    @property
    def rivals(self) -> Bools:
        return self.mask[:, 1:]

    @cached_property
    def differences(self) -> Array:
        """x_α − x_t of every rival, (n, K, d), zero where there is none."""
        return np.where(self.rivals[..., None], self.X[:, :1] - self.X[:, 1:], 0.0)

    @cached_property
    def sizes(self) -> Array:
        """‖x_α − x_t‖ ‖z‖, (n, K)."""
        return np.asarray(np.linalg.norm(self.differences, axis=-1) * np.linalg.norm(self.z, axis=-1)[:, None])

    def leads(self, W: Array) -> Array:
        """(x_α − x_t)ᵀ W z, (n, K), +inf where there is no rival."""
        values = np.einsum("nkd,nd->nk", self.differences, self.z @ W.T)
        return np.where(self.rivals, values, np.inf)


@dataclass(frozen=True, eq=False)
class Margins:
    """A head beside the best weights for one p."""

    p: float
    problem: str  # "hard", "soft", or "none" where there is nothing to measure: the numbers are NaN then
    status: str
    constraints: int
    norm: float  # ‖W‖_p
    margin: float  # realised, on the sample
    quantile_margin: float  # the quantile over rows of each row's smallest lead / ‖W‖_p
    optimal_margin: float  # 1/‖W_mm‖_p, or 1/‖W_soft‖_p
    ratio: float
    quantile_ratio: float  # quantile_margin over that of W_mm; above 1 possible, as W_mm cares for the smallest only
    divergence: float  # D(W_mm, W) of the directions: 0 the same, 1 unrelated, 2 opposite
    cosine: float
    in_span: float  # p = 2: ‖P_x W P_z‖/‖W‖, the share of W that this sample can see; NaN for other p
    support: Bools  # (n, K + 1) tokens on the margin of W_mm
    best: Array | None  # (d, e) W_mm or W_soft; None where there is nothing to measure


@dataclass(frozen=True, eq=False)
class Task:
    """A head's problem, every p to solve it for, and the p of which W_mm is wanted whole, if any."""

    problem: HeadProblem
    exponents: tuple[float, ...]
    C: float
    quantile: float
    whole: float | None


def measure_all(task: Task) -> Mapping[float, Margins]:
    """The answers to every p; W_mm, which may be as large as a layer, only where it is wanted."""
    answers = {}
    for p in task.exponents:
        margins = measure(task.problem, p, C=task.C, quantile=task.quantile)
        answers[p] = margins if p == task.whole else replace(margins, best=None)
    return answers


def measure(problem: HeadProblem, p: float, *, C: float, quantile: float, tol: float = 1e-6) -> Margins:
    """Solve the ℓp-AttSVM of a head's own selection and compare the head with it."""
    leads = problem.leads(problem.W)
    norm = _norm(problem.W, p)
    if norm == 0:
        return _nothing(problem, p, norm, NO_WEIGHTS)
    solution, kind = _solve(problem, leads, p, C, tol)
    best: Array = solution.W
    best_norm = _norm(best, p)
    if best_norm == 0:
        return _nothing(problem, p, norm, NO_SEPARATION)
    own = leads.min(1)
    ideal = problem.leads(best).min(1)
    finite = np.isfinite(own)
    margin = float(own.min()) / norm
    ratio = margin * best_norm if kind == "hard" else _soft_ratio(problem, best, p, C)
    quantiles = [float(np.quantile(side[finite], quantile)) for side in (own / norm, ideal / best_norm)]
    return Margins(
        p=p,
        problem=kind,
        status=solution.status,
        constraints=int(problem.rivals.sum()),
        norm=norm,
        margin=margin,
        quantile_margin=quantiles[0],
        optimal_margin=1 / best_norm,
        ratio=ratio,
        quantile_ratio=quantiles[0] / quantiles[1] if quantiles[1] > 0 else np.nan,
        divergence=float(directional_divergence(torch.from_numpy(best), torch.from_numpy(problem.W), p)),
        cosine=float(cosine(torch.from_numpy(best), torch.from_numpy(problem.W))),
        in_span=solution.in_span,
        support=solution.support,
        best=best,
    )


def _norm(W: Array, p: float) -> float:
    return float(lp_norm(torch.from_numpy(W), p))


def _nothing(problem: HeadProblem, p: float, norm: float, status: str) -> Margins:
    names = (
        "margin",
        "quantile_margin",
        "optimal_margin",
        "ratio",
        "quantile_ratio",
        "divergence",
        "cosine",
        "in_span",
    )
    return Margins(
        p=p,
        problem="none",
        status=status,
        constraints=int(problem.rivals.sum()),
        norm=norm,
        **dict.fromkeys(names, np.nan),
        support=np.zeros_like(problem.mask),
        best=None,
    )


@dataclass(frozen=True, eq=False)
class _Solution:
    W: Array
    support: Bools
    status: str
    in_span: float = np.nan


def _solve(problem: HeadProblem, leads: Array, p: float, C: float, tol: float) -> tuple[_Solution, str]:
    sizes = problem.sizes
    tied = problem.rivals & (leads <= TIE * sizes * np.linalg.norm(problem.W))
    if not tied.any():
        hard = _hard(problem, p, tol)
        if hard is not None:
            return hard, "hard"
    # Scaled to rows of norm at most 1, so that one C means the same in every layer.
    unit = float(sizes.max()) or 1.0
    X, alpha = problem.X / unit, np.zeros(len(problem.X), dtype=int)
    soft = att_svm(X, problem.z, alpha, p=p, mask=problem.mask, tol=tol, C=C, throw=False)
    return _Solution(np.asarray(soft.W) / unit, np.asarray(soft.support), str(soft.status)), "soft"


def _hard(problem: HeadProblem, p: float, tol: float) -> _Solution | None:
    """The hard margin, or None where the solver finds no weights."""
    if p != 2:
        solution = _att_svm(problem, p, tol)
        return solution and _Solution(np.asarray(solution.W), np.asarray(solution.support), str(solution.status))
    left, right = span(problem.differences.reshape(-1, problem.W.shape[0])), span(problem.z)
    own = _within(_within(problem.W, right).T, left).T
    reduced = HeadProblem(_within(problem.X, left), _within(problem.z, right), problem.mask, problem.tokens, own)
    solution = _att_svm(reduced, p, tol)
    if solution is None:
        return None
    W = np.asarray(solution.W)
    W = W if right is None else W @ right.T
    W = W if left is None else left @ W
    share = float(np.linalg.norm(own) / np.linalg.norm(problem.W))
    return _Solution(W, np.asarray(solution.support), str(solution.status), share)


def _within(x: Array, basis: Array | None) -> Array:
    """The coordinates of rows x (…, d) in a basis (d, r)."""
    return x if basis is None else x @ basis


def _att_svm(problem: HeadProblem, p: float, tol: float) -> Any:
    alpha = np.zeros(len(problem.X), dtype=int)
    solution = att_svm(problem.X, problem.z, alpha, p=p, mask=problem.mask, tol=tol, throw=False)
    return solution if np.isfinite(solution.gap) else None


def span(rows: Array) -> Array | None:
    """An orthonormal basis (d, r) of the space of some rows (m, d); None where that is the whole space."""
    m, d = rows.shape
    factor = np.linalg.qr(rows, mode="r") if m > d else rows  # of the same singular values
    sizes = np.linalg.svd(factor, compute_uv=False)
    kept = sizes > sizes[0] * max(m, d) * np.finfo(np.float64).eps
    if kept.sum() == d:
        return None
    return np.asarray(np.linalg.svd(factor, full_matrices=False)[2][kept].T)


def _soft_ratio(problem: HeadProblem, best: Array, p: float, C: float) -> float:
    """J(W_soft)/min_s J(sW), on data scaled to rows of norm at most 1."""
    unit = float(problem.sizes.max()) or 1.0

    def price(W: Array, scale: float) -> float:
        missing = np.maximum(1 - scale * problem.leads(W)[problem.rivals], 0.0)
        return float((scale * unit * _norm(W, p)) ** p / p + C * missing.sum())

    # At the best scale the first term alone is below J(0) = C m.
    largest = (p * C * problem.rivals.sum()) ** (1 / p) / (unit * _norm(problem.W, p))
    own = minimize_scalar(lambda s: price(problem.W, s), bounds=(0.0, largest), method="bounded")
    return price(best, 1.0) / min(float(own.fun), price(problem.W, 0.0))
