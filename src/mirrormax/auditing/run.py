"""The audit itself: walk the data, solve every head's problem, say what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn

import mirrormax
from mirrormax.auditing.adapters import adapter_for
from mirrormax.auditing.collect import Collected, collect
from mirrormax.auditing.heads import (
    HeadAnswer,
    Progress,
    audit_head,
    growth_notes,
    mean_chances,
    scan_point,
    settled,
    shuffled_kinds,
    solve_heads,
)
from mirrormax.auditing.interventions import check_changeable, intervene
from mirrormax.auditing.kinds import induction
from mirrormax.auditing.layers import QUERY, Adapter
from mirrormax.auditing.margins import Margins
from mirrormax.auditing.query_form import CaughtLayer
from mirrormax.auditing.result import Audit, Example, GrowthPoint, with_best_p
from mirrormax.auditing.settings import NAMED, Query, Settings, check_settings
from mirrormax.geometry import Lp

if TYPE_CHECKING:
    from distributed import Client


def audit(
    model: nn.Module | Adapter,
    batches: Iterable[Any],
    p: float | Lp = 2,
    *,
    query: Query | None = None,
    scan: Sequence[float] = (),
    samples: int | None = None,
    rivals: int | None = None,
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
    client: Client | None = None,
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
        samples: rows in the margin problems, drawn uniformly with ``seed`` from all of the data; by default 64 where
            p = 2 alone is asked, which is quick, and 24 otherwise.
        rivals: tokens kept against the selected one in each row, those of highest logit; by default 128 and 12.
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
        client: a ``distributed.Client``, to spread the heads over the workers of a dask cluster; by default they are
            spread over as many threads as torch may use. The answers are the same.
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
        copying = induction(adapter, random_tokens, start=start, controls=collected.controls, seed=seed)
    grown: list[GrowthPoint] = []
    known: dict[tuple[int, int], Margins] = {}
    if settle is not None:
        collected, grown, known = settled(collected, settings, client, tell)
    measured, shuffled = solve_heads(collected, settings, client, tell, known)
    answers: list[list[HeadAnswer]] = [[] for _ in collected.layers]
    for index, one in measured.items():
        answers[index[0]].append(audit_head(index, collected, copying, settings, one))
    points = [scan_point(k, -1 - c, one[p]) for (k, c), one in shuffled.items() for p in settings.exponents]
    scanned = [point for layer in answers for answer in layer for point in answer.scan]
    changed, told = intervene(adapter, batches, answers, settings, tell) if interventions else ([], [])
    return Audit(
        config=_config(adapter.model, settings, collected),
        heads=with_best_p([answer.head for layer in answers for answer in layer], scanned, points),
        scan=scanned,
        controls=points,
        examples=_examples(collected, answers, names, settings.examples),
        notes=[*notes(settings, collected), *growth_notes(settings.settle, grown), *told],
        chances=mean_chances(collected, copying),
        effects=changed,
        growth=grown,
        shuffled=shuffled_kinds(collected, copying),
    )


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
