"""The audit itself: walk the data, solve every head's problem, put the answers together, say what was done."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

import mirrormax
from mirrormax.auditing.adapters import Adapter, Readout, adapter_for
from mirrormax.auditing.changes import Index, counting, intervene, remove
from mirrormax.auditing.collect import Collected, OfLayer, collect
from mirrormax.auditing.kinds import KINDS, find_induction
from mirrormax.auditing.layers import QUERY
from mirrormax.auditing.margins import Margins, growth_notes, solve_heads
from mirrormax.auditing.options import QUERIES, AuditOptions, Progress, Vocabulary, options_of
from mirrormax.auditing.result import Audit, Example, Favourite, Head, ScanPoint, Selected, with_best_p
from mirrormax.auditing.robustness import robustness
from mirrormax.auditing.weights import effective_rank, hoyer, top_mass
from mirrormax.geometry import lp_norm

if TYPE_CHECKING:
    from distributed import Client

MOST = 5
"""Tokens and pairs that are told of a head."""
ENOUGH_SHUFFLED = 99
"""Shuffled heads by which single heads are judged."""
OF_MARGINS = {column.name for column in fields(Margins)} & {column.name for column in fields(Head)}
"""What a head has of its margins …"""
OF_SCAN = [column.name for column in fields(ScanPoint)][2:]
"""… and a point of a scan."""


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
    >>> result = mirrormax.audit(encoder, [torch.randn(4, 5, 8)], p=1.5, samples=4)
    >>> [(head.layer, head.head, 0 <= head.ratio <= 1) for head in result.heads]
    [(0, 0, True), (0, 1, True)]
    """
    options, words = options_of(options, choices).sized(), vocabulary or Vocabulary()
    if held_out is not None and not options.robustness:
        raise ValueError("held_out measures what robustness predicts; name what to change, as in robustness=('int8',).")
    adapter, tell = adapter_for(model, options.form, head=head), progress or (lambda stage, done, total: None)
    collected = collect(adapter, batches, options, separators=words.separators, advance=counting(tell, "reading", None))
    if adapter.causal:
        tell("repeating", 0, 1)
    of_words = [(sums.selections, sums.shuffled) for sums in collected.layers]
    find_induction(adapter, words, of_words, seed=options.seed)
    robust = robustness([sums.robust for sums in collected.layers if sums.robust], adapter, held_out, tell)
    collected, grown, solved = solve_heads(collected, client, tell)
    own = {index: margins for index, margins in solved.items() if index[1] >= 0}
    scan = scan_points(own, options.scan)
    controls = scan_points({index: solved[index] for index in solved if index not in own}, options.exponents)
    main = {index: margins[options.p] for index, margins in own.items()}
    shuffled = [
        Selected(k, -1 - c, **selections.of_head(c))
        for k, selections in enumerate(sums.shuffled for sums in collected.layers)
        for c in range(len(selections.weights or ()))
    ]
    heads = judged([head_of(index, collected, margins) for index, margins in main.items()], shuffled)
    few = collected.importance.few
    changed, of_changes = intervene(adapter, few, {index: main[index].scaled for index in main}, options, tell)
    chances = [sums.selections.chances() for sums in collected.layers]
    return Audit(
        config={
            **asdict(options),
            "query": collected.query,
            "form": "/".join(sorted({sums.layer.form for sums in collected.layers})),
            "model": type(adapter.model).__name__,
            "parameters": sum(part.numel() for part in adapter.model.parameters()),
            "layers": len(collected.layers),
            "sequences": collected.sequences,
            "rows": collected.rows,
            "sampled_rows": [[kept.sequence, kept.query] for kept in collected.sample.rows()],
            "mirrormax": mirrormax.__version__,
            "torch": torch.__version__,
        },
        heads=with_best_p(heads, scan, controls),
        scan=scan,
        controls=controls,
        examples=_examples(collected, main, words.names),
        notes=[*notes(collected), *growth_notes(options.settle, grown), *of_changes],
        chances={name: float(np.mean([of_layer[name] for of_layer in chances])) for name in chances[0]},
        effects=changed,
        growth=grown,
        shuffled=shuffled,
        robustness=robust,
        removal=remove(adapter, few, heads, options, tell),
        favourites=_favourites(collected, words.names),
    )


def scan_points(solved: Mapping[Index, Mapping[float, Margins]], exponents: Sequence[float]) -> list[ScanPoint]:
    """Heads, or controls, at these p."""
    return [
        ScanPoint(*index, **{name: getattr(margins[p], name) for name in OF_SCAN})
        for index, margins in solved.items()
        for p in exponents
    ]


def head_of(index: Index, collected: Collected, margins: Margins) -> Head:
    """Put the numbers of one head together."""
    k, h = index
    sums = collected.layers[k]
    layer, importance = sums.layer, collected.importance.of_layer(k)
    W = layer.weights(h).cpu()
    return Head(
        layer=k,
        head=h,
        module=layer.name,
        form=layer.form,
        **sums.statistics.of_head(h),
        margin_all=float(sums.statistics.least_lead[h] / lp_norm(W, margins.p)) if W.any() else math.nan,
        **sums.selections.of_head(h),
        learned=None,
        importance=None if importance is None else float(importance[h]),
        **{name: getattr(margins, name) for name in OF_MARGINS},
        support_tokens=int(margins.support.sum()),
        **local_optimality([row.kept[k][h].scores for row in collected.sample.rows()], margins.support),
        hoyer=hoyer(W) if W.any() else math.nan,
        top_mass=top_mass(W) if W.any() else math.nan,
        effective_rank=effective_rank(W),
    )


def judged(heads: Sequence[Head], shuffled: Sequence[Selected]) -> list[Head]:
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


def local_optimality(scores: Sequence[Tensor | None], support: npt.NDArray[np.bool_]) -> dict[str, Any]:
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


def head_kinds(adapter: Adapter, batches: Iterable[Any], vocabulary: Vocabulary) -> list[list[dict[str, Any]]]:
    """The kinds of a model's heads by layer, over every query of some texts, without any margin problem.

    Of each its ``kind``, None where none stands out, all ``shares`` that are known and their ``chances``.
    """
    options = AuditOptions(query="all", samples=1, rivals=1, controls=0, shuffled=0, examples=0, intervention_texts=0)
    collected = collect(adapter, batches, options, separators=vocabulary.separators)
    find_induction(adapter, vocabulary, [(sums.selections,) for sums in collected.layers])

    def of_head(sums: OfLayer, head: int) -> dict[str, Any]:
        shares = {name: share for name, share in sums.selections.of_head(head).items() if share is not None}
        return {"kind": shares.pop("kind", None), "shares": shares, "chances": sums.selections.chances()}

    return [[of_head(sums, head) for head in range(sums.layer.heads)] for sums in collected.layers]


def notes(collected: Collected) -> list[str]:
    """What was done to which part of the data, in sentences."""
    used, longest, options = len(collected.sample.kept), collected.longest, collected.options
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
    layers = [sums.layer for sums in collected.layers]
    if any(layer.form == QUERY for layer in layers):
        sentences.append(
            "Heads are in the query form: keys are fixed and the query map is the unknown, so that ratios answer "
            "another question than those of the token form and cannot be compared with them."
        )
    if any(layer.recipe.norm is not None for layer in layers):
        sentences.append("Queries are normalised; the optimum keeps their normalisers as the model has them.")
    if not collected.scored:
        sentences.append(
            "The model has no head that answers at the query, so that tokens have no scores: local optimality not "
            "applicable."
        )
    return sentences


def _examples(
    collected: Collected, margins: Mapping[Index, Margins], names: Callable[[list[int]], list[str]] | None
) -> list[Example]:
    examples = []
    for k, row in enumerate(collected.sample.rows()[: collected.options.examples]):
        length = row.length
        attention = [layer[:, :length] for layer in row.attention]
        ids = row.ids[:length] if row.ids is not None else None
        support: list[list[list[int]]] = [[] for _ in collected.layers]
        for (layer, head), answer in margins.items():
            tokens = row.kept[layer][head].tokens.numpy()
            near = np.sort(tokens[answer.support[k][: len(tokens)]])
            support[layer].append(near[near < length].tolist())
        examples.append(
            Example(
                sequence=row.sequence,
                query=row.query,
                tokens=names(ids) if names and ids is not None else [str(t) for t in ids or range(length)],
                attention=[[[round(float(s), 4) for s in weights] for weights in layer] for layer in attention],
                selected=[[int(weights.argmax()) for weights in layer] for layer in attention],
                support=support,
            )
        )
    return examples


def _favourites(collected: Collected, names: Callable[[list[int]], list[str]] | None) -> list[Favourite]:
    """The tokens and pairs that every head selects most, on the first texts; none where tokens have no names."""
    if names is None:
        return []
    favourites = []
    for layer, sums in enumerate(collected.layers):
        pairs = torch.cat(sums.pairs, 1) if sums.pairs else torch.zeros(2, 0, 0)
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
