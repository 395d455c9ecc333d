"""The audit itself: walk the data, solve every head's problem, say what was done."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from torch import nn

import mirrormax
from mirrormax.auditing.adapters import Adapter, Readout, adapter_for
from mirrormax.auditing.changes import Index, counting, intervene, remove
from mirrormax.auditing.collect import Collected, collect
from mirrormax.auditing.heads import (
    HeadAnswer,
    audit_head,
    growth_notes,
    judged,
    scan_point,
    shuffled_kinds,
    solve_heads,
)
from mirrormax.auditing.kinds import find_induction
from mirrormax.auditing.layers import QUERY
from mirrormax.auditing.options import QUERIES, AuditOptions, Progress, Vocabulary, options_of
from mirrormax.auditing.result import Audit, Example, Favourite, with_best_p
from mirrormax.auditing.robustness import robustness

if TYPE_CHECKING:
    from distributed import Client


MOST = 5
"""Tokens and pairs that are told of a head."""


def audit(
    model: nn.Module | Adapter,
    batches: Iterable[Any],
    options: AuditOptions | None = None,
    *,
    vocabulary: Vocabulary | None = None,
    head: Readout | None = None,
    held_out: Iterable[Any] | None = None,
    client: Client | None = None,
    progress: Progress | None = None,
    **choices: Any,
) -> Audit:
    """What every head of a trained model selects, with what margin, and how near that is to the best one.

    Statistics are over all of the data; the max-margin problems of the heads over a sample of its rows. What is
    exact and what a bound is said in :mod:`mirrormax.auditing.margins` and, for this run, in ``Audit.notes``.

    Args:
        model: of :mod:`mirrormax.nets`, a module with ``nn.MultiheadAttention`` in it, a model of transformers, or an
            :class:`~mirrormax.auditing.Adapter`. It is left as it was: weights, gradients, modes and hooks.
        batches: any iterable of what the model takes, see its adapter.
        options: what to do; the defaults of :class:`~mirrormax.auditing.AuditOptions` where nothing is said.
        vocabulary: what the model's tokens are, for examples that people can read and for the kinds of heads.
        head: from the model's output to logits (B, classes), where the model has none that the audit knows.
        held_out: further batches, on which to measure what ``robustness`` predicts.
        client: a ``distributed.Client``, to spread the heads over the workers of a dask cluster; by default they are
            spread over as many threads as torch may use. The answers are the same.
        progress: called with a stage, what is done and the total, if known.
        choices: fields of :class:`~mirrormax.auditing.AuditOptions` by name, in place of those of ``options``.

    >>> from torch import nn
    >>> encoder = nn.TransformerEncoderLayer(d_model=8, nhead=2, batch_first=True)
    >>> found = mirrormax.audit(encoder, [torch.randn(4, 5, 8)], p=1.5, samples=4)
    >>> [(head.layer, head.head, 0 <= head.ratio <= 1) for head in found.heads]
    [(0, 0, True), (0, 1, True)]
    """
    options, words = options_of(options, choices).sized(), vocabulary or Vocabulary()
    adapter, tell = adapter_for(model, options.form, head=head), progress or (lambda stage, done, total: None)
    collected = collect(adapter, batches, options, separators=words.separators, advance=counting(tell, "reading", None))
    if adapter.causal:
        tell("repeating", 0, 1)
    find_induction(adapter, words, collected.selections, collected.shuffled, seed=options.seed)
    robust = robustness(collected.robust, adapter, held_out, tell)
    collected, grown, solved = solve_heads(collected, client, tell)
    answers = {index: audit_head(index, collected, margins) for index, margins in solved.items() if index[1] >= 0}
    controls = [scan_point(*index, solved[index][p]) for index in solved if index[1] < 0 for p in options.exponents]
    scanned = [point for answer in answers.values() for point in answer.scan]
    chance_heads = shuffled_kinds(collected)
    heads = judged([answer.head for answer in answers.values()], chance_heads)
    few = collected.importance.few
    best = {index: answer.best for index, answer in answers.items()}
    changed, of_changes = intervene(adapter, few, best, options, tell)
    chances = [selections.chances() for selections in collected.selections]
    return Audit(
        config=_config(adapter.model, options, collected),
        heads=with_best_p(heads, scanned, controls),
        scan=scanned,
        controls=controls,
        examples=_examples(collected, answers, words.names),
        notes=[*notes(collected), *growth_notes(options.settle, grown), *of_changes],
        chances={name: float(np.mean([of_layer[name] for of_layer in chances])) for name in chances[0]},
        effects=changed,
        growth=grown,
        shuffled=chance_heads,
        robustness=robust,
        removal=remove(adapter, few, heads, options, tell),
        favourites=_favourites(collected, words.names),
    )


def notes(collected: Collected) -> list[str]:
    """What was done to which part of the data, in sentences."""
    used, longest, options = len(collected.sample), collected.longest, collected.options
    where = QUERIES.get(str(collected.query), f"the token at position {collected.query}")
    sentences = [
        f"Statistics are over all {collected.rows} rows of {collected.sequences} sequences; the query is {where}.",
        f"Margin problems: {used} of {collected.rows} rows"
        + (", all of them" if used == collected.rows else f", a uniform sample with seed {options.seed}")
        + f"; in each row the {options.rivals} strongest rivals of up to {longest - 1}"
        + (", that is all of them." if options.rivals >= longest - 1 else ", so that ratios are lower bounds."),
    ]
    if collected.alone:
        sentences.append(f"{collected.alone} rows with a single token were left out: there is nothing to select.")
    if 2 in options.exponents:
        sentences.append("p = 2 was solved in the coordinates spanned by the sample, which is exact.")
    if options.skip_sink:
        sentences.append("The first token of every sequence was left out, and a learned sink with it.")
    if any(layer.form == QUERY for layer in collected.layers):
        sentences.append(
            "Heads are in the query form: keys are fixed and the query map is the unknown, so that ratios answer "
            "another question than those of the token form and cannot be compared with them."
        )
    if any(layer.recipe.norm is not None for layer in collected.layers):
        sentences.append("Queries are normalised; the optimum keeps their normalisers as the model has them.")
    if not collected.scored:
        sentences.append(
            "The model has no head that answers at the query, so that tokens have no scores: local optimality not "
            "applicable."
        )
    return sentences


def _examples(
    collected: Collected, answers: Mapping[Index, HeadAnswer], names: Callable[[list[int]], list[str]] | None
) -> list[Example]:
    examples = []
    for k, row in enumerate(collected.sample[: collected.options.examples]):
        length = row.length
        attention = [layer[:, :length] for layer in row.attention]
        ids = row.ids[:length] if row.ids is not None else None
        support: list[list[list[int]]] = [[] for _ in collected.layers]
        for (layer, _), answer in answers.items():
            support[layer].append([t for t in answer.support[k] if t < length])
        examples.append(
            Example(
                sequence=row.sequence,
                query=row.query,
                tokens=names(ids) if names and ids is not None else [str(t) for t in ids or range(length)],
                attention=[[[round(float(s), 4) for s in head] for head in layer] for layer in attention],
                selected=[[int(head.argmax()) for head in layer] for layer in attention],
                support=support,
            )
        )
    return examples


def _favourites(collected: Collected, names: Callable[[list[int]], list[str]] | None) -> list[Favourite]:
    """The tokens and pairs that every head selects most, on the first texts; none where tokens have no names."""
    if names is None:
        return []
    favourites = []
    for layer, parts in enumerate(collected.pairs):
        pairs = torch.cat(parts, 1) if parts else torch.zeros(2, 0, 0)
        for head in range(pairs.shape[2]):
            tokens, counts = pairs[1, :, head].unique(return_counts=True)
            best = counts.argsort(descending=True, stable=True)[:MOST]
            both, of_both = pairs[:, :, head].unique(dim=1, return_counts=True)
            top = of_both.argsort(descending=True, stable=True)[:MOST]
            spelt = names(tokens[best].tolist())
            first, second = (names(part.tolist()) for part in both[:, top])
            favourites.append(
                Favourite(
                    layer,
                    head,
                    list(zip(spelt, counts[best].tolist(), strict=True)),
                    list(zip(first, second, of_both[top].tolist(), strict=True)),
                )
            )
    return favourites


def _config(model: torch.nn.Module, options: AuditOptions, collected: Collected) -> dict[str, Any]:
    return {
        **asdict(options),
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
