"""The audit itself: walk the data, solve every head's problem, say what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict
from typing import Any

import torch
from torch import Tensor, nn

import mirrormax
from mirrormax import _parallel
from mirrormax._parallel import Answer, Item
from mirrormax.auditing.adapters import adapter_for
from mirrormax.auditing.collect import Collected, collect
from mirrormax.auditing.heads import HeadAnswer, audit_control, audit_head, layer_samples
from mirrormax.auditing.layers import Adapter
from mirrormax.auditing.passes import attention_of
from mirrormax.auditing.result import Audit, Example, ScanPoint, with_best_p
from mirrormax.auditing.selection import NAMED, Query
from mirrormax.auditing.settings import Settings, check_settings
from mirrormax.geometry import Lp

Progress = Callable[[str, int, int | None], None]


def audit(
    model: nn.Module | Adapter,
    batches: Iterable[Any],
    p: float | Lp = 2,
    *,
    query: Query = "first",
    scan: Sequence[float] = (),
    samples: int = 24,
    rivals: int = 12,
    controls: int = 2,
    quantile: float = 0.1,
    C: float = 10.0,
    head: Callable[[Any], Tensor] | None = None,
    target: str = "prediction",
    names: Callable[[list[int]], list[str]] | None = None,
    examples: int = 4,
    seed: int = 0,
    progress: Progress | None = None,
) -> Audit:
    """What every head of a trained model selects, with what margin, and how near that is to the best one.

    Statistics are over all of the data; the max-margin problems of the heads over a sample of its rows. What is
    exact and what a bound is said in :mod:`mirrormax.auditing.margins` and, for this run, in ``Audit.notes``.

    Args:
        model: of :mod:`mirrormax.nets`, a module with ``nn.MultiheadAttention`` in it, a Hugging Face encoder, or an
            :class:`~mirrormax.auditing.layers.Adapter`. It is left as it was: weights, gradients, modes and hooks.
        batches: any iterable of what the model takes, see its adapter.
        p: the geometry: margins are measured for W/‖W‖_p.
        query: whose attention: ``first`` ([CLS]), ``last``, a position, or ``all``.
        scan: further p for which to solve, to ask which of them a head resembles most.
        samples: rows in the margin problems, drawn uniformly with ``seed`` from all of the data.
        rivals: tokens kept against the selected one in each row, those of highest logit.
        controls: heads of shuffled weights per layer, solved alike, for comparison.
        quantile: of the rows' margins, for the margin that does not hang on a single row.
        C: the price of a soft margin where a problem cannot be separated, for rows of norm at most 1.
        head: from the model's output to logits (B, classes), where the model has none that the audit knows.
        target: score tokens for the ``prediction`` or the ``label``.
        names: from token numbers to words for people to read.
        examples: sampled rows whose attention is kept in full.
        seed: of the sample and of the controls.
        progress: called with a stage, what is done and the total, if known.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> found = mirrormax.audit(encoder, [torch.randn(4, 5, 8)], p=1.5, samples=4)
    >>> [(head.layer, head.head, 0 <= head.ratio <= 1) for head in found.heads]
    [(0, 0, True), (0, 1, True)]
    """
    settings = check_settings(
        p, query, scan, target, quantile, C,
        samples=samples, rivals=rivals, controls=controls, examples=examples, seed=seed,
    )  # fmt: skip
    adapter, tell = adapter_for(model), progress or _silent
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        tell("reading", done, None)

    collected = collect(
        adapter, batches, settings.query, settings.samples, settings.seed, head=head, target=target, advance=advance
    )
    answers, points = _solve(collected, settings, tell)
    scanned = [point for layer in answers for answer in layer for point in answer.scan]
    return Audit(
        config=_config(adapter.model, settings, collected),
        heads=with_best_p([answer.head for layer in answers for answer in layer], scanned, points),
        scan=scanned,
        controls=points,
        examples=_examples(collected, answers, names, settings.examples),
        notes=notes(settings, collected),
    )


def _solve(collected: Collected, settings: Settings, tell: Progress) -> tuple[list[list[HeadAnswer]], list[ScanPoint]]:
    samples = layer_samples(collected)
    heads = [(k, h) for k, sample in enumerate(samples) for h in range(sample.layer.heads)]
    controls = [(k, control) for k in range(len(samples)) for control in range(settings.controls)]

    def solve_head(index: tuple[int, int]) -> HeadAnswer:
        return audit_head(index, samples[index[0]], collected.statistics[index[0]], settings)

    def solve_control(index: tuple[int, int]) -> list[ScanPoint]:
        return audit_control(index, samples[index[0]], settings)

    answers: list[list[HeadAnswer]] = [[] for _ in samples]
    points: list[ScanPoint] = []
    done, total = 0, len(heads) + len(controls)
    tell("solving", done, total)
    for (layer, _), answer in zip(heads, on_all_cores(solve_head, heads), strict=True):
        answers[layer].append(answer)
        tell("solving", done := done + 1, total)
    for found in on_all_cores(solve_control, controls):
        points += found
        tell("solving", done := done + 1, total)
    return answers, points


def on_all_cores(function: Callable[[Item], Answer], items: Sequence[Item]) -> Iterator[Answer]:
    """``function(item)`` of every item in order, on as many threads as torch may use.

    A head's problem is a few hundred products of small matrices, some of them NumPy's and SciPy's, whose BLAS has
    threads of its own.
    """
    # The tensors first: limits on products reach torch too, and would be taken for what it may use.
    with _parallel.single_threaded_tensors(), _single_threaded_products():
        yield from _parallel.on_all_cores(function, items)


def _single_threaded_products() -> AbstractContextManager[Any]:
    """One thread for NumPy's and SciPy's BLAS; without threadpoolctl they keep theirs, and are slower."""
    try:
        from threadpoolctl import threadpool_limits
    except ModuleNotFoundError:
        return nullcontext()
    limits: AbstractContextManager[Any] = threadpool_limits(1)
    return limits


def notes(settings: Settings, collected: Collected) -> list[str]:
    """What was done to which part of the data, in sentences."""
    used, longest = len(collected.sample), max(len(kept.layers[0].x) for kept in collected.sample)
    where = NAMED.get(str(settings.query), f"the token at position {settings.query}")
    told = [
        f"Statistics are over all {collected.rows} rows of {collected.sequences} sequences; the query is {where}.",
        f"Margin problems: {used} of {collected.rows} rows"
        + (", all of them" if used == collected.rows else f", a uniform sample with seed {settings.seed}")
        + f"; in each row the {settings.rivals} strongest rivals of up to {longest - 1}"
        + (", that is all of them." if settings.rivals >= longest - 1 else ", so that ratios are lower bounds."),
    ]
    if collected.alone:
        told.append(f"{collected.alone} rows with a single token were left out: there is nothing to select.")
    if 2 in settings.exponents:
        told.append("p = 2 was solved in the coordinates spanned by the sample, which is exact.")
    if not collected.scored:
        told.append(
            "The model has no classification head, so that tokens have no scores: local optimality not applicable."
        )
    return told


def _examples(
    collected: Collected, answers: list[list[HeadAnswer]], names: Callable[[list[int]], list[str]] | None, count: int
) -> list[Example]:
    found = []
    for k, kept in enumerate(collected.sample[:count]):
        length = int(max(row.mask.nonzero().max() for row in kept.layers)) + 1
        attention = []
        for layer, row in zip(collected.layers, kept.layers, strict=True):
            logits = layer.logits(row.x[None].to(layer.output.device), row.z[None, None].to(layer.output.device)).cpu()
            attention.append(attention_of(logits, row.mask[None, None])[0, :, 0, :length])
        ids = kept.ids[:length] if kept.ids is not None else None
        found.append(
            Example(
                sequence=kept.sequence,
                query=kept.query,
                tokens=names(ids) if names and ids is not None else [str(t) for t in ids or range(length)],
                attention=[[[round(float(s), 4) for s in head] for head in layer] for layer in attention],
                selected=[[int(head.argmax()) for head in layer] for layer in attention],
                support=[[answer.support[k] for answer in layer] for layer in answers],
            )
        )
    return found


def _config(model: torch.nn.Module, settings: Settings, collected: Collected) -> dict[str, Any]:
    return {
        **asdict(settings),
        "model": type(model).__name__,
        "parameters": sum(part.numel() for part in model.parameters()),
        "layers": len(collected.layers),
        "sequences": collected.sequences,
        "rows": collected.rows,
        "sampled_rows": [[kept.sequence, kept.query] for kept in collected.sample],
        "mirrormax": mirrormax.__version__,
        "torch": torch.__version__,
    }


def _silent(stage: str, done: int, total: int | None) -> None:
    pass
