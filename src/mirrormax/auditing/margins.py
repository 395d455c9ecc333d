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

A sample that is to *settle* grows: heads are solved on 16 rows, 32, 64, …, each the rows that a smaller sample with the
same seed would have, until ratio and divergence of the median head have moved little twice in a row.
"""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import minimize_scalar
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from mirrormax import _parallel
from mirrormax._parallel import Answer, Item
from mirrormax.auditing.changes import Index
from mirrormax.auditing.collect import Collected
from mirrormax.auditing.options import Progress
from mirrormax.auditing.result import GrowthPoint
from mirrormax.geometry import cosine, directional_divergence, lp_norm
from mirrormax.svm import Solution, att_svm

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]

TIE = 1e-9
"""Leads below this share of ‖x_α − x_t‖‖z‖‖W‖ are ties; rounding in float64 is a millionth of it."""

NO_WEIGHTS = "the head's weights are zero, so that it selects nothing"
NO_SEPARATION = "the tokens are all alike, so that no weights prefer any"
FIRST_ROWS = 16
"""Of a sample that is to settle."""


@dataclass(frozen=True, eq=False)
class HeadProblem:
    """Rows of one head: the selected token first, then its strongest rivals."""

    X: Array  # (n, K + 1, d)
    z: Array  # (n, e)
    mask: Bools  # (n, K + 1)
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
    support: Bools  # (n, K + 1) tokens on the margin of W_mm
    margin: float = np.nan  # realised, on the sample
    quantile_margin: float = np.nan  # the quantile over rows of each row's smallest lead / ‖W‖_p
    optimal_margin: float = np.nan  # 1/‖W_mm‖_p, or 1/‖W_soft‖_p
    ratio: float = np.nan
    quantile_ratio: float = np.nan  # over that of W_mm; above 1 possible, as W_mm cares for the smallest margin
    divergence: float = np.nan  # D(W_mm, W) of the directions: 0 the same, 1 unrelated, 2 opposite
    cosine: float = np.nan
    in_span: float | None = None  # p = 2: ‖P_x W P_z‖/‖W‖, the share of W that this sample can see
    best: Array | None = None  # (d, e) W_mm or W_soft; None where there is nothing to measure

    @property
    def scaled(self) -> Tensor | None:
        """The best weights, of the head's own norm."""
        return None if self.best is None else torch.from_numpy(self.best * self.norm * self.optimal_margin)


Solved = dict[Index, Mapping[float, Margins]]
"""The answers to every p, by layer and head."""


def measure_all(
    problem: HeadProblem, exponents: Sequence[float], whole: float | None, C: float, quantile: float
) -> Mapping[float, Margins]:
    """The answers to every p; W_mm, which may be as large as a layer, for the p ``whole`` only."""
    answers = {}
    for p in exponents:
        margins = measure(problem, p, C=C, quantile=quantile)
        answers[p] = margins if p == whole else replace(margins, best=None)
    return answers


def measure(problem: HeadProblem, p: float, *, C: float, quantile: float) -> Margins:
    """Solve the ℓp-AttSVM of a head's own selection and compare the head with it."""
    leads, norm, constraints = problem.leads(problem.W), _norm(problem.W, p), int(problem.rivals.sum())
    nothing = Margins(p, "none", NO_WEIGHTS, constraints, norm, np.zeros_like(problem.mask))
    if norm == 0:
        return nothing
    kind, solution, best, in_span = _solve(problem, leads, p, C)
    best_norm = _norm(best, p)
    if best_norm == 0:
        return replace(nothing, status=NO_SEPARATION)
    own, ideal = leads.min(1), problem.leads(best).min(1)
    margin = float(own.min()) / norm
    ratio = margin * best_norm if kind == "hard" else _soft_ratio(problem, best, p, C)
    quantiles = [float(np.quantile(side, quantile)) for side in (own / norm, ideal / best_norm)]
    return Margins(
        p=p,
        problem=kind,
        status=str(solution.status),
        constraints=constraints,
        norm=norm,
        support=np.asarray(solution.support),
        margin=margin,
        quantile_margin=quantiles[0],
        optimal_margin=1 / best_norm,
        ratio=ratio,
        quantile_ratio=quantiles[0] / quantiles[1] if quantiles[1] > 0 else np.nan,
        divergence=float(directional_divergence(torch.from_numpy(best), torch.from_numpy(problem.W), p)),
        cosine=float(cosine(torch.from_numpy(best), torch.from_numpy(problem.W))),
        in_span=in_span,
        best=best,
    )


def _norm(W: Array, p: float) -> float:
    return float(lp_norm(torch.from_numpy(W), p))


def _solve(problem: HeadProblem, leads: Array, p: float, C: float) -> tuple[str, Solution, Array, float | None]:
    """The hard margin, or where tokens tie or the solver finds no weights the soft one; its weights, and in_span."""
    sizes, alpha = problem.sizes, np.zeros(len(problem.X), dtype=int)
    tied = problem.rivals & (leads <= TIE * sizes * np.linalg.norm(problem.W))
    settings: dict[str, Any] = {"p": p, "mask": problem.mask, "tol": 1e-6, "throw": False}
    if not tied.any():
        left = span(problem.differences.reshape(-1, problem.W.shape[0])) if p == 2 else None
        right = span(problem.z) if p == 2 else None
        with warnings.catch_warnings():  # a count of support tokens is all that becomes of them here
            warnings.filterwarnings("ignore", ".*in doubt")
            hard = att_svm(_within(problem.X, left), _within(problem.z, right), alpha, **settings)
        if np.isfinite(hard.gap):
            W = np.asarray(hard.W)
            W = W if right is None else W @ right.T
            seen = np.linalg.norm(_within(_within(problem.W, right).T, left)) / np.linalg.norm(problem.W)
            return "hard", hard, W if left is None else left @ W, float(seen) if p == 2 else None
    # Scaled to rows of norm at most 1, so that one C means the same in every layer.
    unit = float(sizes.max()) or 1.0
    soft = att_svm(problem.X / unit, problem.z, alpha, C=C, **settings)
    return "soft", soft, np.asarray(soft.W) / unit, None


def _within(x: Array, basis: Array | None) -> Array:
    """The coordinates of rows x (…, d) in a basis (d, r)."""
    return x if basis is None else x @ basis


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


def solve_heads(collected: Collected, client: Any, tell: Progress) -> tuple[Collected, list[GrowthPoint], Solved]:
    """Every p of every head, and of every control, on as much of the sample as is asked for or as it takes to settle.

    What was collected with that much of the sample, what heads answered on the way, and all answers.
    """
    options, known, grown = collected.options, Solved(), list[GrowthPoint]()
    heads = [(k, h) for k, sums in enumerate(collected.layers) for h in range(sums.layer.heads)]
    if options.settle is not None:
        collected, grown, known = _settled(heads, collected, client, tell)
    indices = [*heads, *((k, -1 - c) for k in range(len(collected.layers)) for c in range(options.controls))]
    exponents = {index: [p for p in options.exponents if p not in known.get(index, {})] for index in indices}
    solved = _solved(exponents, collected, client, partial(tell, "solving"))
    return collected, grown, {index: {**margins, **known.get(index, {})} for index, margins in solved.items()}


def _settled(
    heads: Sequence[Index], collected: Collected, client: Any, tell: Progress
) -> tuple[Collected, list[GrowthPoint], Solved]:
    """As much of the sample as it takes, what heads answered on the way, and their answers for the main p at last."""
    options, grown, size = collected.options, list[GrowthPoint](), FIRST_ROWS
    while True:
        part = collected.first(size)
        rows = len(part.sample.kept)
        solved = _solved(dict.fromkeys(heads, (options.p,)), part, client, partial(tell, f"solving {rows} rows"))
        main = {index: margins[options.p] for index, margins in solved.items()}
        grown += [GrowthPoint(rows, *index, margins.ratio, margins.divergence) for index, margins in main.items()]
        if rows >= len(collected.sample.kept) or max(moved(grown)) <= (options.settle or 0.0):
            return part, grown, solved
        size *= 2


def moved(grown: Sequence[GrowthPoint]) -> tuple[float, float]:
    """By which share the ratio, and by how much the divergence of the median head moved, at worst of two doublings."""
    sizes = sorted({point.rows for point in grown})
    of_size = [{(point.layer, point.head): point for point in grown if point.rows == size} for size in sizes]
    steps = []
    for before, after in pairwise(of_size[-3:]):
        ratios = [abs(after[key].ratio / point.ratio - 1) for key, point in before.items() if point.ratio > 0]
        divergences = [abs(after[key].divergence - point.divergence) for key, point in before.items()]
        steps.append((float(np.nanmedian(ratios)), float(np.nanmedian(divergences))))
    if len(steps) < 2:
        return math.inf, math.inf
    return max(ratio for ratio, _ in steps), max(divergence for _, divergence in steps)


def growth_notes(settle: float | None, grown: Sequence[GrowthPoint]) -> list[str]:
    """How ratio and divergence moved with the sample, and whether they settled, in a sentence."""
    sizes = sorted({point.rows for point in grown})
    if not sizes:
        return []
    if len(sizes) < 3:
        return [f"The sample has {sizes[-1]} rows, too few to see whether ratios settle; {4 * FIRST_ROWS} would do."]
    ratio, divergence = moved(grown)
    still = max(ratio, divergence) <= (settle or 0.0)
    return [
        f"Heads were solved on {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} rows: in the last two steps the ratio "
        f"of the median head moved by up to {ratio:.1%} and its divergence by {divergence:.2g}, so that they "
        + ("have settled" if still else "have not settled, and more samples would be needed")
        + f" to within {settle or 0:g}."
    ]


def _solved(
    exponents: Mapping[Index, Sequence[float]], collected: Collected, client: Any, tell: Callable[[int, int], None]
) -> Solved:
    """Heads and controls at their exponents; tasks are made as they are wanted, as their arrays are large."""
    rows, options = collected.sample.rows(), collected.options

    def task(index: Index) -> Callable[[], Mapping[float, Margins]]:
        layer, head = index
        kept = [row.kept[layer][head] for row in rows]
        X = pad_sequence([row.known[row.which].double() for row in kept], batch_first=True).numpy()
        z = torch.stack([row.z.double() for row in kept]).numpy()
        mask = np.arange(X.shape[1]) < np.array([len(row.tokens) for row in kept])[:, None]
        problem = HeadProblem(X, z, mask, collected.weights(layer, head).cpu().numpy())
        whole = options.p if options.interventions and head >= 0 else None
        return partial(measure_all, problem, exponents[index], whole, options.C, options.quantile)

    if client is None:
        answers = on_all_cores(lambda index: task(index)(), list(exponents))
    else:
        ahead = _parallel.AHEAD * max(1, sum(client.nthreads().values()))
        answers = _parallel.on_cluster(client, _called, map(task, exponents), ahead)
    solved = Solved()
    tell(0, len(exponents))
    for index, margins in zip(exponents, answers, strict=True):
        solved[index] = margins
        tell(len(solved), len(exponents))
    return solved


def _called(task: Callable[[], Answer]) -> Answer:
    return task()


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """``function(item)`` of every item in order, on as many threads as torch may use.

    A head's problem is a few hundred products of small matrices, some of them NumPy's and SciPy's, whose BLAS has
    threads of its own.
    """
    # The tensors first: limits on products reach torch too, and would be taken for what it may use.
    with _parallel.single_threaded_tensors(), _parallel.single_threaded_products():
        yield from _parallel.on_all_cores(function, items)
