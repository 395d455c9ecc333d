"""The audit itself: walk the data, solve every head's problem, say what was done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, replace
from itertools import pairwise
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

import mirrormax
from mirrormax import _parallel
from mirrormax._parallel import Answer, Item
from mirrormax.auditing.adapters import adapter_for
from mirrormax.auditing.collect import Collected, collect
from mirrormax.auditing.heads import HeadAnswer, audit_control, audit_head, mean_chances
from mirrormax.auditing.interventions import Change, check_changeable, effects
from mirrormax.auditing.kinds import Induction, induction
from mirrormax.auditing.layers import QUERY, Adapter
from mirrormax.auditing.query_form import CaughtLayer
from mirrormax.auditing.result import Audit, Effect, Example, GrowthPoint, ScanPoint, with_best_p
from mirrormax.auditing.settings import NAMED, Query, Settings, check_settings
from mirrormax.geometry import Lp

Progress = Callable[[str, int, int | None], None]
FIRST_ROWS = 16  # of a sample that is to settle


def audit(
    model: nn.Module | Adapter,
    batches: Iterable[Any],
    p: float | Lp = 2,
    *,
    query: Query | None = None,
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
    skip_sink: bool = False,
    form: str | None = None,
    settle: float | None = None,
    separators: Sequence[int] = (),
    random_tokens: Sequence[int] = (),
    start: int | None = None,
    interventions: int = 0,
    intervention_texts: int = 16,
    progress: Progress | None = None,
) -> Audit:
    """What every head of a trained model selects, with what margin, and how near that is to the best one.

    Statistics are over all of the data; the max-margin problems of the heads over a sample of its rows. What is
    exact and what a bound is said in :mod:`mirrormax.auditing.margins` and, for this run, in ``Audit.notes``.

    Args:
        model: of :mod:`mirrormax.nets`, a module with ``nn.MultiheadAttention`` in it, a model of transformers, or an
            :class:`~mirrormax.auditing.layers.Adapter`. It is left as it was: weights, gradients, modes and hooks.
        batches: any iterable of what the model takes, see its adapter.
        p: the geometry: margins are measured for W/‖W‖_p.
        query: whose attention: ``first`` ([CLS]), ``last``, a position, or ``all``; by default the last of a language
            model and the first of others.
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
        seed: of the sample, of the controls and of the repeated tokens.
        skip_sink: leave out the first token of every sequence and a learned sink, as if they were not there.
        form: ``"token"`` or ``"query"`` (see :mod:`mirrormax.auditing.layers`); by default the token form where a layer
            has one.
        settle: ratios depend on the size of the sample. With a number, heads are solved for ``p`` on 16 rows, then 32,
            64, … of the sample, until in the median head ratio and divergence move by at most this share twice
            in a row (a divergence by this much); all else is then about the rows of the last size. What was found
            at each size is in ``Audit.growth``. None takes the whole sample at once.
        separators: numbers of tokens that end or part texts, for the kinds of heads.
        random_tokens: numbers of ordinary tokens, of which random sequences are made to find induction heads; of
            language models only. Empty for none.
        start: the token that goes before such a sequence, if the model wants one.
        interventions: heads per layer, drawn with ``seed``, to change one at a time, see
            :mod:`mirrormax.auditing.interventions`; ``batches`` are then read again.
        intervention_texts: on how many of the first texts.
        progress: called with a stage, what is done and the total, if known.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> found = mirrormax.audit(encoder, [torch.randn(4, 5, 8)], p=1.5, samples=4)
    >>> [(head.layer, head.head, 0 <= head.ratio <= 1) for head in found.heads]
    [(0, 0, True), (0, 1, True)]
    """
    settings = check_settings(
        p, query, scan, target, quantile, C, skip_sink, form, settle,
        samples=samples, rivals=rivals, controls=controls, examples=examples, seed=seed,
        interventions=interventions, intervention_texts=intervention_texts,
    )  # fmt: skip
    adapter, tell = adapter_for(model, form), progress or _silent
    if interventions:
        check_changeable(adapter)
        if iter(batches) is batches:
            raise ValueError("interventions read the batches again, but they can be read once only; give a list.")
    done = 0

    def advance(count: int) -> None:
        nonlocal done
        done += count
        tell("reading", done, None)

    collected = collect(adapter, batches, settings, head=head, separators=separators, advance=advance)
    copying = None
    if adapter.causal and len(random_tokens):
        copying = induction(adapter, random_tokens, start=start, seed=seed)
    grown: list[GrowthPoint] = []
    if settle is not None:
        collected, grown = _settled(collected, settings, tell)
    answers, points = _solve(collected, copying, settings, tell)
    scanned = [point for layer in answers for answer in layer for point in answer.scan]
    changed, told = _interventions(adapter, batches, answers, settings, tell) if interventions else ([], [])
    return Audit(
        config=_config(adapter.model, settings, collected),
        heads=with_best_p([answer.head for layer in answers for answer in layer], scanned, points),
        scan=scanned,
        controls=points,
        examples=_examples(collected, answers, names, settings.examples),
        notes=[*notes(settings, collected), *growth_notes(settings, grown), *told],
        chances=mean_chances(collected, copying),
        effects=changed,
        growth=grown,
    )


def _settled(collected: Collected, settings: Settings, tell: Progress) -> tuple[Collected, list[GrowthPoint]]:
    """As much of the sample as it takes until the heads' answers move no more, and what they were on the way."""
    heads = [(k, h) for k, layer in enumerate(collected.layers) for h in range(layer.heads)]
    grown: list[GrowthPoint] = []
    size, whole = FIRST_ROWS, len(collected.sample)
    while True:
        part = collected.first(size)
        asked = replace(settings, scan=())

        def solve(index: tuple[int, int], part: Collected = part, asked: Settings = asked) -> GrowthPoint:
            found = audit_head(index, part, None, asked).head
            return GrowthPoint(len(part.sample), *index, found.ratio, found.divergence)

        for done, point in enumerate(on_all_cores(solve, heads), 1):
            grown.append(point)
            tell(f"solving {len(part.sample)} rows", done, len(heads))
        if size >= whole or max(moved(grown)) <= (settings.settle or 0.0):
            return part, grown
        size *= 2


def moved(grown: Sequence[GrowthPoint]) -> tuple[float, float]:
    """By which share the ratio, and by how much the divergence of the median head moved, at worst of two doublings."""
    sizes = sorted({point.rows for point in grown})
    of_size = [{(one.layer, one.head): one for one in grown if one.rows == size} for size in sizes]
    steps = []
    for before, after in pairwise(of_size[-3:]):
        ratios = [abs(after[key].ratio / one.ratio - 1) for key, one in before.items() if one.ratio > 0]
        divergences = [abs(after[key].divergence - one.divergence) for key, one in before.items()]
        steps.append((float(np.nanmedian(ratios)), float(np.nanmedian(divergences))))
    if len(steps) < 2:
        return math.inf, math.inf
    return max(ratio for ratio, _ in steps), max(divergence for _, divergence in steps)


def growth_notes(settings: Settings, grown: Sequence[GrowthPoint]) -> list[str]:
    """How ratio and divergence moved with the sample, in a sentence."""
    sizes = sorted({point.rows for point in grown})
    if not sizes:
        return []
    if len(sizes) < 3:
        return [f"The sample has {sizes[-1]} rows, too few to see whether ratios settle; {4 * FIRST_ROWS} would do."]
    ratio, divergence = moved(grown)
    settled = max(ratio, divergence) <= (settings.settle or 0.0)
    return [
        f"Heads were solved on {', '.join(map(str, sizes[:-1]))} and {sizes[-1]} rows: in the last two steps the ratio "
        f"of the median head moved by up to {ratio:.1%} and its divergence by {divergence:.2g}, so that they "
        + ("have settled" if settled else "have not settled, and more samples would be needed")
        + f" to within {settings.settle:g}."
    ]


def _interventions(
    adapter: Adapter, batches: Iterable[Any], answers: list[list[HeadAnswer]], settings: Settings, tell: Progress
) -> tuple[list[Effect], list[str]]:
    """Some heads of every layer switched off, and given their max-margin weights, one at a time."""
    random = np.random.default_rng(settings.seed)
    changes: list[Change] = []
    for layer in answers:
        drawn = random.permutation(len(layer))[: settings.interventions]
        for answer in (layer[k] for k in sorted(drawn) if layer[k].best is not None):
            index = (answer.head.layer, answer.head.head)
            changes += [Change(*index, None), Change(*index, answer.best)]
    reader = check_changeable(adapter)

    def few() -> Iterator[Any]:
        left = settings.intervention_texts
        for batch in batches:
            size = min(left, len(next(iter(batch.values()))))
            yield {name: part[:size] for name, part in batch.items()}
            left -= size
            tell("changing heads", settings.intervention_texts - left, settings.intervention_texts)
            if not left:
                return

    base, found = effects(reader, few(), changes, settings.seed)
    measured = (
        f"the loss in nats per token, {base.mean:.3f} [{base.low:.3f}, {base.high:.3f}] unchanged"
        if base is not None
        else "−log p of the class predicted unchanged"
        if reader.has_head()
        else "1 − cosine of the mean token vector to the unchanged one"
    )
    texts = found[0].texts if found else 0
    return found, [f"Interventions: {len(changes)} changes of one head each on {texts} texts; measured is {measured}."]


def _solve(
    collected: Collected, copying: Induction | None, settings: Settings, tell: Progress
) -> tuple[list[list[HeadAnswer]], list[ScanPoint]]:
    heads = [(k, h) for k, layer in enumerate(collected.layers) for h in range(layer.heads)]
    controls = [(k, control) for k in range(len(collected.layers)) for control in range(settings.controls)]

    def solve_head(index: tuple[int, int]) -> HeadAnswer:
        return audit_head(index, collected, copying, settings)

    def solve_control(index: tuple[int, int]) -> list[ScanPoint]:
        return audit_control(index, collected, settings)

    answers: list[list[HeadAnswer]] = [[] for _ in collected.layers]
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
    used, longest = len(collected.sample), collected.longest
    where = NAMED.get(str(collected.query), f"the token at position {collected.query}")
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
    if settings.skip_sink:
        told.append("The first token of every sequence was left out, and a learned sink with it.")
    if any(layer.form == QUERY for layer in collected.layers):
        told.append(
            "Heads are in the query form: keys are fixed and the query map is the unknown, so that ratios answer "
            "another question than those of the token form and cannot be compared with them."
        )
    if any(isinstance(layer, CaughtLayer) and layer.recipe.norm is not None for layer in collected.layers):
        told.append("Queries are normalised; their normalisers are kept as the model has them in the optimum, too.")
    if not collected.scored:
        told.append(
            "The model has no head that answers at the query, so that tokens have no scores: local optimality not "
            "applicable."
        )
    return told


def _examples(
    collected: Collected, answers: list[list[HeadAnswer]], names: Callable[[list[int]], list[str]] | None, count: int
) -> list[Example]:
    found = []
    for k, kept in enumerate(collected.sample[:count]):
        length = kept.length
        attention = [one[:, :length] for one in kept.attention]
        ids = kept.ids[:length] if kept.ids is not None else None
        found.append(
            Example(
                sequence=kept.sequence,
                query=kept.query,
                tokens=names(ids) if names and ids is not None else [str(t) for t in ids or range(length)],
                attention=[[[round(float(s), 4) for s in head] for head in layer] for layer in attention],
                selected=[[int(head.argmax()) for head in layer] for layer in attention],
                support=[[[t for t in answer.support[k] if t < length] for answer in layer] for layer in answers],
            )
        )
    return found


def _config(model: torch.nn.Module, settings: Settings, collected: Collected) -> dict[str, Any]:
    return {
        **asdict(settings),
        "query": collected.query,
        "form": "/".join(sorted({layer.form for layer in collected.layers})),
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
