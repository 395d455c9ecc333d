"""What an audit does with changes of heads: named ones, drawn ones, whole shares; do margins tell effects?."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from scipy.stats import rankdata

from mirrormax._statistics import Estimate, bootstrap_mean, rank_correlation
from mirrormax.auditing.adapters import Adapter
from mirrormax.auditing.changes import MAX_MARGIN, OFF, Array, Change, effects, measured
from mirrormax.auditing.heads import HeadAnswer
from mirrormax.auditing.kinds import KINDS
from mirrormax.auditing.options import AuditOptions, place_of
from mirrormax.auditing.result import Effect, Head, Removal

SINK: str = KINDS["on_first"]
ALL_HEADS, NO_SINKS, SINKS = "all heads", "heads that are no first-token sinks", "first-token sinks"
REMOVED = (0.1, 0.2, 0.3, 0.5)
"""Shares of the heads that are removed together."""
FEW = 8
"""Heads below which a correlation is not worth a sentence."""


def intervene(
    adapter: Adapter,
    batches: Sequence[Any],
    answers: Sequence[Sequence[HeadAnswer]],
    options: AuditOptions,
    tell: Callable[[str, int, int | None], None],
) -> tuple[list[Effect], list[str]]:
    """Named heads, and some heads drawn in every layer, changed one at a time; and a note of it."""
    random = np.random.default_rng(options.seed)
    changes = [Change((place_of(name),), mean=mean) for name in options.heads for mean in (False, True)]
    for layer in answers if options.interventions else ():
        drawn = random.permutation(len(layer))[: options.interventions]
        for answer in (layer[k] for k in sorted(drawn) if layer[k].best is not None):
            index = (answer.head.layer, answer.head.head)
            changes += [Change((index,)), Change((index,), answer.best)]
    done = 0

    def advance(texts: int) -> None:
        nonlocal done
        done += texts
        tell("changing heads", done, options.intervention_texts * len(changes))

    base, found = effects(adapter, batches, changes, options.seed, advance)
    unchanged = (
        f"the loss in nats per token, {base.mean:.3f} [{base.low:.3f}, {base.high:.3f}] unchanged"
        if base is not None
        else "−log p of the class predicted unchanged"
        if adapter.has_head()
        else "1 − cosine of the mean token vector to the unchanged one"
    )
    texts = found[0].texts if found else 0
    return found, [f"Interventions: {len(changes)} changes of one head each on {texts} texts; measured is {unchanged}."]


def removed(
    adapter: Adapter,
    batches: Sequence[Any],
    heads: Sequence[Head],
    options: AuditOptions,
    tell: Callable[[str, int, int | None], None],
) -> list[Removal]:
    """What the loss is when shares of the heads are switched off together, in up to three orders."""
    orders: dict[str, list[Head]] = {}
    if all(head.importance is not None for head in heads):
        orders["taylor"] = sorted(heads, key=lambda head: head.importance or 0.0)
    if options.removal:
        orders["sink"] = sorted(heads, key=lambda head: -head.on_first)
        order = np.random.default_rng(options.seed).permutation(len(heads))
        orders["random"] = [heads[k] for k in order]
    counts = sorted({round(share * len(heads)) for share in REMOVED} - {0})
    asked = [(name, count) for name in orders for count in counts]
    changes = [Change(tuple((head.layer, head.head) for head in orders[name][:count])) for name, count in asked]
    done = 0

    def advance(texts: int) -> None:
        nonlocal done
        done += texts
        tell("removing heads", done, options.intervention_texts * len(changes))

    rises = measured(adapter, batches, changes, advance)[1]
    found = []
    for (name, count), rise in zip(asked, rises, strict=True):
        one = bootstrap_mean(rise, seed=options.seed)
        found.append(Removal(name, count, one.mean, one.low, one.high, len(rise)))
    return found


@dataclass(frozen=True)
class Telling:
    """Whether the ratio of a head tells how much a change of it matters, over a group of heads."""

    group: str
    heads: int
    among_all: Estimate  # rank correlation of ratio and effect
    in_layer: Estimate | None  # the same with ranks among the group's heads of a layer; None where none has two


def tellings(heads: Sequence[Head], changed: Sequence[Effect], kind: str, seed: int = 0) -> list[Telling]:
    """Of one kind of change: over all heads, over those that are first-token sinks, and over the others."""
    of_head = {(head.layer, head.head): head for head in heads}
    pairs = [(of_head[one.layer, one.head], one.mean) for one in changed if one.kind == kind]
    pairs = [(head, effect) for head, effect in pairs if np.isfinite(head.ratio)]
    sinks = [pair for pair in pairs if pair[0].kind == SINK]
    others = [pair for pair in pairs if pair[0].kind != SINK]
    groups = {ALL_HEADS: pairs, NO_SINKS: others, SINKS: sinks} if sinks and others else {ALL_HEADS: pairs}
    found = []
    for name, mine in groups.items():
        if len(mine) < FEW:
            continue
        ratios, sizes = ([head.ratio for head, _ in mine], [effect for _, effect in mine])
        layers = [head.layer for head, _ in mine]
        several = [k for k, layer in enumerate(layers) if layers.count(layer) > 1]
        within = None
        if len(several) >= FEW:
            ranks = [
                ranks_within([values[k] for k in several], [layers[k] for k in several]) for values in (ratios, sizes)
            ]
            within = rank_correlation(*ranks, seed=seed)
        found.append(Telling(name, len(mine), rank_correlation(ratios, sizes, seed=seed), within))
    return found


def ranks_within(values: Sequence[float], groups: Sequence[int]) -> Array:
    """Ranks of values among those of their group, from 0 for the smallest to 1 for the largest."""
    found, of_group = np.zeros(len(values)), np.asarray(groups)
    for group in set(groups):
        mine = of_group == group
        found[mine] = (rankdata(np.asarray(values)[mine]) - 1) / max(int(mine.sum()) - 1, 1)
    return found


def milder(changed: Sequence[Effect], seed: int = 0) -> Estimate | None:
    """The share of heads that lose less by their max-margin weights than by being switched off; None without any."""
    means = {
        kind: {(one.layer, one.head): one.mean for one in changed if one.kind == kind} for kind in (OFF, MAX_MARGIN)
    }
    both = [means[MAX_MARGIN][key] < off for key, off in means[OFF].items() if key in means[MAX_MARGIN]]
    return bootstrap_mean(np.array(both, dtype=float), seed=seed) if both else None
