"""From what was collected to one answer per head: its problems solved, on all cores or a cluster, and put together.

A sample that is small beside the dimension is easy to separate widely, so that ratios depend on its size. Heads are
then solved on 16 rows, 32, 64, …, each the rows that a smaller sample with the same seed would have, until ratio and
divergence of the median head have moved little twice in a row.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax import _parallel
from mirrormax._parallel import Answer, Item
from mirrormax.auditing.adapters import Adapter
from mirrormax.auditing.changes import Index
from mirrormax.auditing.collect import Collected, Kept, collect
from mirrormax.auditing.kinds import KINDS, Selections, find_induction
from mirrormax.auditing.margins import HeadProblem, Margins, Task, measure_all
from mirrormax.auditing.options import AuditOptions, Progress, Vocabulary
from mirrormax.auditing.result import GrowthPoint, Head, ScanPoint, Shuffled
from mirrormax.auditing.weights import effective_rank, hoyer, top_mass
from mirrormax.geometry import lp_norm

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]
ENOUGH_SHUFFLED = 99
"""Shuffled heads by which single heads are judged."""
FIRST_ROWS = 16
"""Of a sample that is to settle."""
Solved = dict[Index, Mapping[float, Margins]]
"""The answers to every p, by layer and head."""
OF_MARGINS = {column.name for column in fields(Margins)} & {column.name for column in fields(Head)} - {"in_span"}
"""What a head has of its margins …"""
OF_SCAN = [column.name for column in fields(ScanPoint)][2:]
"""… and a point of a scan."""


def solve_heads(collected: Collected, client: Any, tell: Progress) -> tuple[Collected, list[GrowthPoint], Solved]:
    """Every p of every head, and of every control, on as much of the sample as is asked for or as it takes to settle.

    What was collected with that much of the sample, what heads answered on the way, and all answers.
    """
    options, known, grown = collected.options, Solved(), list[GrowthPoint]()
    heads = [(k, h) for k, layer in enumerate(collected.layers) for h in range(layer.heads)]
    if options.settle is not None:
        collected, grown, known = _settled(heads, collected, client, tell)
    indices = [*heads, *((k, -1 - c) for k in range(len(collected.layers)) for c in range(options.controls))]
    exponents = {index: [p for p in options.exponents if p not in known.get(index, {})] for index in indices}
    solved = Solved()
    tell("solving", 0, len(indices))
    for index, margins in _solved(exponents, collected, client):
        solved[index] = {**margins, **known.get(index, {})}
        tell("solving", len(solved), len(indices))
    return collected, grown, solved


def _settled(
    heads: Sequence[Index], collected: Collected, client: Any, tell: Progress
) -> tuple[Collected, list[GrowthPoint], Solved]:
    """As much of the sample as it takes, what heads answered on the way, and their answers for the main p at last."""
    options, grown, size = collected.options, list[GrowthPoint](), FIRST_ROWS
    while True:
        part, last = collected.first(size), Solved()
        rows = len(part.sample)
        for index, margins in _solved(dict.fromkeys(heads, (options.p,)), part, client):
            last[index], main = margins, margins[options.p]
            grown.append(GrowthPoint(rows, *index, main.ratio, main.divergence))
            tell(f"solving {rows} rows", len(last), len(heads))
        if rows >= len(collected.sample) or max(moved(grown)) <= (options.settle or 0.0):
            return part, grown, last
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
    exponents: Mapping[Index, Sequence[float]], collected: Collected, client: Any
) -> Iterator[tuple[Index, Mapping[float, Margins]]]:
    """Heads and controls at their exponents, in order; tasks are made as they are wanted, as their arrays are large."""
    rows, options = collected.sample, collected.options

    def task(index: Index) -> Task:
        layer, head = index
        problem = problem_of([row.kept[layer][head] for row in rows], collected.weights(layer, head))
        whole = options.p if options.interventions and head >= 0 else None
        return Task(problem, exponents[index], options.C, options.quantile, whole)

    if client is None:
        answers = on_all_cores(lambda index: measure_all(task(index)), list(exponents))
    else:
        ahead = _parallel.AHEAD * max(1, sum(client.nthreads().values()))
        answers = _parallel.on_cluster(client, measure_all, map(task, exponents), ahead)
    yield from zip(exponents, answers, strict=True)


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """``function(item)`` of every item in order, on as many threads as torch may use.

    A head's problem is a few hundred products of small matrices, some of them NumPy's and SciPy's, whose BLAS has
    threads of its own.
    """
    # The tensors first: limits on products reach torch too, and would be taken for what it may use.
    with _parallel.single_threaded_tensors(), _parallel.single_threaded_products():
        yield from _parallel.on_all_cores(function, items)


def problem_of(kept: Sequence[Kept], W: Tensor) -> HeadProblem:
    """The sampled rows of one head side by side, padded to one length."""
    pad = torch.nn.utils.rnn.pad_sequence
    return HeadProblem(
        X=pad([row.x for row in kept], batch_first=True).numpy(),
        z=torch.stack([row.z.double() for row in kept]).numpy(),
        mask=pad([torch.ones(len(row.tokens), dtype=torch.bool) for row in kept], batch_first=True).numpy(),
        W=W.cpu().numpy(),
    )


@dataclass(frozen=True, eq=False)
class HeadAnswer:
    """Everything about one head: its line of the table, its points of the scan, its support tokens by row."""

    head: Head
    scan: list[ScanPoint]
    support: list[list[int]]
    best: Tensor | None  # the max-margin weights, of the head's own norm, where heads are to be changed


def audit_head(index: Index, collected: Collected, measured: Mapping[float, Margins]) -> HeadAnswer:
    """Put the numbers of one head together."""
    (k, h), options = index, collected.options
    kept = [row.kept[k][h] for row in collected.sample]
    layer, statistics, selections = collected.layers[k], collected.statistics[k], collected.selections[k]
    W, main, importance = layer.weights(h).cpu(), measured[options.p], collected.importance.of_layer(k)
    means: dict[str, Any] = {name: statistics.mean(name, h) for name in ("mass", "decisive", "entropy")}
    head = Head(
        layer=k,
        head=h,
        module=layer.name,
        form=layer.form,
        rows=statistics.rows,
        **means,
        margin_all=float(statistics.least_lead[h] / lp_norm(W, options.p)) if W.any() else math.nan,
        **selections.shares(h),
        kind=selections.kind(h),
        learned=None,
        importance=None if importance is None else float(importance[h]),
        **{name: getattr(main, name) for name in OF_MARGINS},
        in_span=None if math.isnan(main.in_span) else main.in_span,
        support_tokens=int(main.support.sum()),
        **local_optimality([row.scores for row in kept], main.support),
        hoyer=hoyer(W) if W.any() else math.nan,
        top_mass=top_mass(W) if W.any() else math.nan,
        effective_rank=effective_rank(W),
        best_p_ratio=None,
        best_p_divergence=None,
    )
    return HeadAnswer(
        head,
        scan=[scan_point(k, h, measured[p]) for p in options.exponents if p in options.scan],
        support=[
            np.sort(row.tokens.numpy()[near[: len(row.tokens)]]).tolist()
            for row, near in zip(kept, main.support, strict=True)
        ],
        best=None if main.best is None else torch.from_numpy(main.best * main.norm * main.optimal_margin),
    )


def head_kinds(adapter: Adapter, batches: Iterable[Any], vocabulary: Vocabulary) -> list[list[dict[str, Any]]]:
    """The kinds of a model's heads by layer, over every query of some texts, without any margin problem.

    Of each its ``kind``, None where none stands out, all ``shares`` that are known and their ``chances``.
    """
    options = AuditOptions(query="all", samples=1, rivals=1, controls=0, shuffled=0, examples=0, intervention_texts=0)
    collected = collect(adapter, batches, options, separators=vocabulary.separators)
    find_induction(adapter, vocabulary, collected.selections)

    def of_head(selections: Selections, head: int) -> dict[str, Any]:
        shares = {name: share for name, share in selections.shares(head).items() if share is not None}
        return {"kind": selections.kind(head), "shares": shares, "chances": selections.chances()}

    pairs = zip(collected.layers, collected.selections, strict=True)
    return [[of_head(selections, head) for head in range(layer.heads)] for layer, selections in pairs]


def shuffled_kinds(collected: Collected) -> list[Shuffled]:
    """What heads that learned nothing would be called, by the same rule."""
    return [
        Shuffled(k, -1 - c, selections.kind(c), **selections.shares(c))
        for k, selections in enumerate(collected.shuffled)
        for c in range(len(selections.weights or ()))
    ]


def judged(heads: Sequence[Head], shuffled: Sequence[Shuffled]) -> list[Head]:
    """Heads that have a kind, with whether they show it more clearly than every head that learned nothing.

    Among n heads of one sort the first has the largest share by chance once in n: with n − 1 ≥ 99 shuffled heads that
    is one in a hundred. With fewer, ``learned`` stays None.
    """
    names = {kind: name for name, kind in KINDS.items()}
    if len(shuffled) < ENOUGH_SHUFFLED:
        return list(heads)
    most = {name: max(getattr(head, name) or 0.0 for head in shuffled) for name in KINDS}
    return [
        head if head.kind is None else replace(head, learned=getattr(head, names[head.kind]) > most[names[head.kind]])
        for head in heads
    ]


def scan_point(layer: int, head: int, margins: Margins) -> ScanPoint:
    """A head, or a control, at one p."""
    return ScanPoint(layer, head, **{name: getattr(margins, name) for name in OF_SCAN})


def local_optimality(scores: Sequence[Tensor | None], support: Bools) -> dict[str, Any]:
    """Definition 3.2 on a sample of n rows, by the scores of each row's tokens and support (n, K + 1), selected first.

    ``locally_optimal`` if every support token scores below the selected one; ``in_order`` is the share of them that
    does, None without any; ``best_token`` the share of rows whose selected token scores highest of those kept. Rows
    without scores, or with NaN, are left out; all three are None where there is no other.
    """
    read = [k for k, row in enumerate(scores) if row is not None and not row[0].isnan()]
    if not read:
        return dict.fromkeys(("locally_optimal", "in_order", "best_token"))
    known = [row for k in read if (row := scores[k]) is not None]
    gamma = torch.nn.utils.rnn.pad_sequence(known, batch_first=True, padding_value=-math.inf).numpy()
    lower = gamma < gamma[:, :1]
    pairs = lower[support[read, : lower.shape[1]]]
    return {
        "locally_optimal": bool(pairs.all()),
        "in_order": float(pairs.mean()) if pairs.size else None,
        "best_token": float(lower[:, 1:].all(1).mean()),
    }
