"""What an audit found, in sentences that do not say more than the numbers: the summary, and those of the page."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

import numpy as np
import numpy.typing as npt
from scipy.stats import mannwhitneyu, rankdata

from mirrormax._statistics import Estimate, bootstrap_mean, rank_correlation
from mirrormax.auditing import ENOUGH_SHUFFLED, KINDS, MAX_MARGIN, MEAN, OFF, Audit, Effect, Head, Removal, ScanPoint

SINK = KINDS["on_first"]
ALL_HEADS, NO_SINKS, SINKS = "all heads", "heads that are no first-token sinks", "first-token sinks"
FEW = 8
"""Heads below which a correlation is not worth a sentence."""
NEAR_MAX_MARGIN = 0.5
RARE = 0.01
"""How likely what stands out may be by chance."""
FIRST = 6
"""Heads that the summary names."""
SCHEMES, IN_TABLE = 3, 2
"""Ways to round or prune that it has lines for, and columns on a terminal; all are in robustness.csv."""
CHEAP = 0.1
"""Nats up to which heads could go."""
ORDERS = {"taylor": "of least Taylor importance first", "sink": "that are most sink-like first", "random": "at random"}
CHANGED = {OFF: "switched off changes the answers by", MEAN: "with its mean output changes them by"}
CHANGES = {OFF: "Switching a head off", MAX_MARGIN: "Giving a head its max-margin weights"}


def summary(audit: Audit) -> tuple[list[str], list[tuple[str, ...]]]:
    """What to know first, in eight short lines at most: what heads there are, which matter, change, or could go.

    And a small table, a row for each kind of head, its first row the headings.
    """
    layers = 1 + max(head.layer for head in audit.heads)
    texts = _counted(audit.config["sequences"], "text")
    lines = [f"{_counted(len(audit.heads), 'head')} in {_counted(layers, 'layer')}, read on {texts}."]
    known = [head for head in audit.heads if head.importance is not None]
    if known:
        most = sorted(known, key=lambda head: -(head.importance or 0.0))[:FIRST]
        low, high = (most[k].importance or 0.0 for k in (-1, 0))
        lines.append(f"Matter most: {', '.join(head.name for head in most)} (Taylor {high:.2g} to {low:.2g} nats).")
    cheap = [step for step in audit.removal if step.order == "taylor" and step.mean <= CHEAP]
    if cheap:
        which = "the least important head" if cheap[-1].heads == 1 else f"the {cheap[-1].heads} least important heads"
        lines.append(f"Could go: {which}, for {_interval(cheap[-1])} nats.")
    for scheme in audit.schemes[:SCHEMES]:
        mine = [head for head in audit.robustness if head.scheme == scheme]
        measured = [head.measured for head in mine if head.measured is not None]
        worst = sorted(mine, key=lambda head: -head.predicted)[: 1 if measured else 2]
        shares = ", ".join(f"{head.name} ({head.predicted:.1%})" for head in worst)
        beside = f", measured {_percent(fmean(measured))}" if measured else ""
        mean = fmean(head.predicted for head in mine)
        lines.append(f"{called(scheme)} would change {_percent(mean)} of selections{beside}; most: {shares}.")
    if audit.schemes[SCHEMES:]:
        lines.append(f"{', '.join(map(called, audit.schemes[SCHEMES:]))}: see robustness.csv.")
    ratios = [head.ratio for head in audit.heads if head.problem != "none"]
    if ratios and max(ratios) < NEAR_MAX_MARGIN:
        lines.append(f"No head is near max-margin: best {_percent(max(ratios))}, median {_percent(median(ratios))}.")
    return lines, _kinds_table(audit)


def called(scheme: str) -> str:
    """``0.5`` as pruning 50%, ``0.5/wanda`` as Wanda at 50%."""
    share, _, by = scheme.partition("/")
    if not share.replace(".", "", 1).isdigit():
        return scheme
    return f"{by.capitalize() + ' at' if by else 'Pruning'} {100 * float(share):g}%"


def _kinds_table(audit: Audit) -> list[tuple[str, ...]]:
    """For each kind its heads, how many are clearer than all shuffled heads, importance, and what rounding changes."""
    schemes = audit.schemes[:IN_TABLE]
    judged, weighed = any(head.learned is not None for head in audit.heads), audit.heads[0].importance is not None
    rows = [("kind", "heads", *["learned"] * judged, *["Taylor"] * weighed, *schemes, "clearest")]
    share_of = {kind: name for name, kind in KINDS.items()}
    for kind, count in Counter(head.kind for head in audit.heads).most_common():
        mine = [head for head in audit.heads if head.kind == kind]
        names = {head.name for head in mine}
        cells = [kind or "no clear pattern", str(count)]
        if judged:
            cells.append(str(sum(bool(head.learned) for head in mine)) if kind else "")
        if weighed:
            cells.append(f"{fmean(head.importance or 0.0 for head in mine):.2g}")
        for scheme in schemes:
            of_kind = [head.predicted for head in audit.robustness if head.scheme == scheme and head.name in names]
            cells.append(f"{fmean(of_kind):.1%}")
        best = max(mine, key=lambda head: getattr(head, share_of[kind]) or 0.0) if kind else None
        cells.append(f"{best.name} ({getattr(best, share_of[str(kind)]):.0%})" if best else "")
        rows.append(tuple(cells))
    return rows


def _percent(share: float) -> str:
    """Two digits, and 100% as such."""
    percent = 100 * share
    return f"{percent:.0f}%" if percent >= 10 else f"{percent:.2g}%"


def _counted(count: int, what: str) -> str:
    return f"{count} {what}" + ("" if count == 1 else "s")


def _interval(estimate: Estimate | Removal | Effect, digits: str = "+.2g") -> str:
    mean, low, high = (format(part, digits) for part in (estimate.mean, estimate.low, estimate.high))
    return f"{mean} [{low}, {high}]".replace("-", "−")


def sentences(audit: Audit) -> list[str]:
    """What the heads do, for the page."""
    heads = audit.heads
    layers = _counted(1 + max(head.layer for head in heads), "layer")
    names = ("mass", "decisive", "on_first", "on_last")
    mass, decisive, first, last = (f"{fmean(getattr(head, name) for head in heads):.0%}" for name in names)
    chance = {name: f" (chance {share:.0%})" for name, share in audit.chances.items()}
    lines = [
        f"{_counted(len(heads), 'head')} in {layers}; on average {mass} of a row’s attention is on the selected token, "
        f"and {decisive} of the rows have more than half of it there.",
        f"The selected token is the first one in {first} of the rows{chance.get('on_first', '')} and the last one in "
        f"{last}{chance.get('on_last', '')}, over all heads.",
    ]
    if audit.shuffled and all(head.learned is None for head in heads) and any(head.kind for head in heads):
        count = len(audit.shuffled)
        lines.append(f"With {count} shuffled heads, single heads cannot be judged: {ENOUGH_SHUFFLED} are needed.")
    for order, words in ORDERS.items():
        mine = [change for change in audit.removal if change.order == order]
        if mine:
            steps = ", ".join(f"{_counted(change.heads, 'head')} {_interval(change)}" for change in mine)
            lines.append(f"Removing heads {words} raises the loss on {mine[0].texts} texts by: {steps} nats.")
    for change in audit.effects:
        if change.name in audit.config["heads"] and change.kind in CHANGED:
            lines.append(f"Head {change.name} {CHANGED[change.kind]}: {_interval(change)}.")
    scored = [head for head in heads if head.locally_optimal is not None]
    if scored:
        orders = [head.in_order for head in scored if head.in_order is not None]
        optimal = sum(bool(head.locally_optimal) for head in scored)
        sentence = f"{optimal} of {len(scored)} heads select locally optimal tokens by the model’s own head"
        if orders:
            sentence += f"; in the median {median(orders):.0%} of a head’s support tokens score below the selected one"
        lines.append(f"{sentence}.")
    return lines


def theory(audit: Audit) -> list[str]:
    """Margins, divergences and the scan over p, and whether margins tell which heads matter."""
    heads, p = audit.heads, audit.heads[0].p
    solved = [head for head in heads if head.problem != "none"]
    ratios = sorted(head.ratio for head in solved) or [math.nan]
    apart = [head.divergence for head in solved] or [math.nan]
    lines = [
        f"For p = {p:g} the heads realise {ratios[0]:.2g} to {ratios[-1]:.2g} of the best margin on the sample, median "
        f"{median(ratios):.2g}; the directions are {median(apart):.2f} apart in the median (0 the same, 1 unrelated).",
    ]
    lines += _standing_out(solved, [point for point in audit.controls if point.p == p and point.problem != "none"])
    soft = sum(head.problem == "soft" for head in heads)
    if soft:
        lines.append(f"{soft} of {len(heads)} problems cannot be separated; there the margins are soft.")
    if len(solved) < len(heads):
        lines.append(f"{len(heads) - len(solved)} of {len(heads)} heads have nothing to measure; see the table.")
    unsolved = sum(head.status != "optimal" for head in solved)
    if unsolved:
        lines.append(f"{unsolved} of {len(heads)} problems stopped before the tolerance; see the table.")
    lines += _effects(audit)
    if audit.scan:
        most = []
        for measure in ("ratio", "divergence"):
            best = [getattr(head, f"best_p_{measure}") for head in heads]
            counts = sorted(Counter(p for p in best if p is not None).items())
            most.append(f"by {measure}: {', '.join(f'{count} at p = {p:g}' for p, count in counts)}")
        lines.append(f"Compared with the controls, heads stand out most {'; '.join(most)}.")
    return lines


def _standing_out(heads: Sequence[Head], controls: Sequence[ScanPoint]) -> list[str]:
    """What is outside of what weights that learned nothing reach, and what is not."""
    if not heads or not controls:
        return []
    ours, theirs = [head.ratio for head in heads], [point.ratio for point in controls]
    # The share of pairs in which ours is the larger, and how likely so large a share is by chance.
    test = mannwhitneyu(ours, theirs, alternative="greater")
    larger = float(test.statistic) / (len(ours) * len(theirs))
    verdict = "whether the margins stand out cannot be told from this sample"
    if test.pvalue < RARE:
        verdict = "as a whole the margins stand out"
    wide = sum(ratio > max(theirs) for ratio in ours)
    near = sum(head.divergence < min(point.divergence for point in controls) for head in heads)
    return [
        f"Heads with their weights shuffled realise {median(theirs):.2g} in the median, at a divergence of "
        f"{median(point.divergence for point in controls):.2f}. A head has a larger ratio than a shuffled one in "
        f"{larger:.0%} of all pairs, where weights that learned nothing would in 50 %: {verdict}.",
        f"One by one, {wide} of {len(heads)} heads have a larger ratio than every shuffled head ({max(theirs):.2g} "
        f"at most), where chance alone would put {len(heads) / (len(controls) + 1):.0f}, and {near} lie nearer to "
        "their optimum than any of those.",
    ]


def _effects(audit: Audit) -> list[str]:
    """What changing heads does, and whether ratios tell."""
    lines = []
    for kind, words in CHANGES.items():
        mine = [effect for effect in audit.effects if effect.kind == kind]
        groups = tellings(audit.heads, audit.effects, kind)
        if not groups:
            continue
        largest = max(mine, key=lambda effect: effect.mean)
        null = sum(effect.low <= 0 <= effect.high for effect in mine)
        lines.append(
            f"{words} moves the model’s answers by {median(effect.mean for effect in mine):.2g} in the median of "
            f"{len(mine)} heads, at most by {_interval(largest, '.2g')} "
            f"({largest.name}); for {null} the interval over texts holds 0."
        )
        for group in groups:
            within = "" if group.in_layer is None else f", among those of one layer {_interval(group.in_layer, '.2f')}"
            lines.append(
                f"Over {group.group} ({group.heads}), rank correlation of the ratio with this effect: "
                f"{_interval(group.among_all, '.2f')}{within}: {_tells(group)}."
            )
    share = milder(audit.effects)
    if lines and share is not None:
        lines.append(
            f"Max-margin weights move the answers less than switching the head off in {share.mean:.0%} of the heads "
            f"[{share.low:.0%}, {share.high:.0%}]."
        )
    return lines


@dataclass(frozen=True)
class Telling:
    """Whether the ratio of a head tells how much a change of it matters, over a group of heads."""

    group: str
    heads: int
    among_all: Estimate  # rank correlation of ratio and effect
    in_layer: Estimate | None  # the same with ranks among the group's heads of a layer; None where none has two


def tellings(heads: Sequence[Head], changed: Sequence[Effect], kind: str) -> list[Telling]:
    """Of one kind of change: over all heads, over those that are first-token sinks, and over the others."""
    of_head = {head.name: head for head in heads}
    pairs = [(of_head[effect.name], effect.mean) for effect in changed if effect.kind == kind]
    pairs = [(head, effect) for head, effect in pairs if np.isfinite(head.ratio)]
    sinks = [pair for pair in pairs if pair[0].kind == SINK]
    others = [pair for pair in pairs if pair[0].kind != SINK]
    groups = {ALL_HEADS: pairs, NO_SINKS: others, SINKS: sinks} if sinks and others else {ALL_HEADS: pairs}
    answers = []
    for name, mine in groups.items():
        if len(mine) < FEW:
            continue
        numbers = np.array([[head.ratio, effect] for head, effect in mine])
        layers = np.array([head.layer for head, _ in mine])
        several = np.isin(layers, [layer for layer in layers if (layers == layer).sum() > 1])
        within = None
        if several.sum() >= FEW:
            within = rank_correlation(*_ranks_within(numbers[several], layers[several]).T)
        answers.append(Telling(name, len(mine), rank_correlation(*numbers.T), within))
    return answers


def _ranks_within(values: npt.NDArray[np.float64], groups: npt.NDArray[np.intp]) -> npt.NDArray[np.float64]:
    """Ranks of values (n, columns) among those of their group, from 0 for the smallest to 1 for the largest."""
    ranks = np.zeros_like(values)
    for group in set(groups.tolist()):
        mine = groups == group
        ranks[mine] = (rankdata(values[mine], axis=0) - 1) / max(int(mine.sum()) - 1, 1)
    return ranks


def milder(changed: Sequence[Effect]) -> Estimate | None:
    """The share of heads that lose less by their max-margin weights than by being switched off; None without any."""
    off, best = ({effect.name: effect.mean for effect in changed if effect.kind == kind} for kind in (OFF, MAX_MARGIN))
    both = [best[name] < off[name] for name in off if name in best]
    return bootstrap_mean(np.array(both, dtype=float)) if both else None


def _tells(group: Telling) -> str:
    """An answer where an interval gives one, and only among heads of a layer one that is more than depth."""
    signs = [
        0 if estimate is None or estimate.low <= 0 <= estimate.high else 1 if estimate.low > 0 else -1
        for estimate in (group.among_all, group.in_layer)
    ]
    if not signs[0]:
        return "whether a larger margin means a more important head cannot be told"
    more = "more" if signs[0] > 0 else "less"
    beyond = "also within a layer" if signs[1] == signs[0] else "though perhaps by depth alone"
    return f"heads with larger margins matter {more}, {beyond}"
