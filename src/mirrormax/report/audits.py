"""The pages of an audit and of a comparison, and the files that stand beside them.

Pages are templates; what an audit found is said in sentences that do not say more than the numbers.
"""

from __future__ import annotations

import json
import math
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from statistics import fmean, median
from typing import Any

from mirrormax._drawing import house_style, save
from mirrormax._results import ResultFolder
from mirrormax.auditing import (
    KINDS,
    MARGINS,
    MAX_MARGIN,
    METRICS,
    OFF,
    Audit,
    Example,
    Head,
    ScanPoint,
    Side,
    rank_correlation,
)
from mirrormax.report import audit_figures, maps
from mirrormax.report.pages import render

Pictures = Sequence[tuple[str, Path]]

NEAR_MAX_MARGIN = 0.5
FEW = 8
"""Heads below which a correlation is not worth a sentence."""
CHANGES = {OFF: "Switching a head off", MAX_MARGIN: "Giving a head its max-margin weights"}

COLUMNS = (  # field, heading, what it means
    ("mass", "mass", "mean attention on the selected token"),
    ("entropy", "entropy", "normalised, 1 is uniform"),
    ("kind", "kind", "what it selects in more than half of the rows and twice as often as chance"),
    ("on_first", "first", "share of rows that select the first token"),
    ("on_previous", "previous", "share that selects the token before the query"),
    ("on_self", "self", "share that selects the query itself"),
    ("on_last", "last", "share that selects the last token"),
    ("on_separator", "separator", "share that selects a token that ends or parts texts"),
    ("on_place", "place", "share of the one place that it selects most often"),
    ("induction", "induction", "share, on repeated random tokens, that looks behind the earlier occurrence"),
    ("margin_all", "margin, all", "realised margin over every row of the data"),
    ("margin", "margin", "realised margin on the sample"),
    ("optimal_margin", "optimum", "best margin of any weights on the sample"),
    ("ratio", "ratio", "margin / optimum"),
    ("quantile_ratio", "at quantile", "the same at the quantile of the rows"),
    ("divergence", "divergence", "of the direction from the optimal one"),
    ("support_tokens", "support", "tokens on the optimal margin"),
    ("in_order", "in order", "share of support tokens that the model scores below the selected one"),
    ("hoyer", "Hoyer", "sparsity of W"),
    ("effective_rank", "eff. rank", "of W"),
)
MEANING = {
    "mass": "attention on the selected token",
    "decisive": "rows with more than half of it there",
    "entropy": "entropy, 1 is uniform",
    "ratio": "realised / optimal margin",
    "quantile_ratio": "the same at the 10 % quantile",
    "divergence": "divergence from the optimum",
    "in_order": "support tokens scored below the selected one",
    "hoyer": "sparsity of W (Hoyer)",
    "effective_rank": "effective rank of W",
}
SPARSITY = {"hoyer": "Hoyer index", "top_mass": "mass in the top 1 %", "effective_rank": "effective rank"}
SCORES = {
    "mass": "share of the text’s attention",
    "scaled": "attention scaled from 0 to 1",
    "hit": "most attended word is decisive",
    "rank": "rank of the best decisive word",
}


def write_audit(folder: ResultFolder, found: Audit, title: str) -> None:
    """JSON, tables, pictures and the page of one audit."""
    found.write(folder)
    with house_style():
        pictures = [("Layers and heads", save(audit_figures.heat_maps(found), folder, "heads")[-1])]
        if any(head.kind for head in found.heads):
            pictures.append(("Kinds of heads", save(audit_figures.kinds(found), folder, "kinds")[-1]))
        if len({point.rows for point in found.growth}) > 1:
            caption = "Do the numbers depend on the size of the sample?"
            pictures.append((caption, save(audit_figures.growth(found), folder, "growth")[-1]))
        if found.effects:
            caption = "Do heads with larger margins matter more?"
            pictures.append((caption, save(audit_figures.effects(found), folder, "effects")[-1]))
        if found.scan:
            caption = "For which p does a head look most like a max-margin solution?"
            pictures.append((caption, save(audit_figures.scan(found), folder, "scan")[-1]))
    folder.save_text("audit.html", audit_page(found, title, found.config.get("command", ""), pictures))


def write_comparison(folder: ResultFolder, sides: Sequence[Side], told: dict[str, Any], count: int) -> None:
    """JSON, both audits under ``a/`` and ``b/``, pictures and the page of a comparison with ``count`` maps."""
    folder.save_json("compare.json", told)
    pictures = []
    for letter, side in zip("ab", sides, strict=True):
        side.audit.write(folder, f"{letter}/")
        with house_style():
            picture = save(audit_figures.heat_maps(side.audit), folder, f"heads-{letter}")[-1]
        pictures.append((f"Layers and heads of {side.name}", picture))
    folder.save_text("compare.html", compare_page(sides, told, pictures, count))


def audit_page(audit: Audit, title: str, command: str, pictures: Pictures) -> str:
    """The page of an audit; pictures are (caption, PNG or SVG file)."""
    used = [
        (name, heading, meaning + (f" (chance {audit.chances[name]:.2g})" if name in audit.chances else ""))
        for name, heading, meaning in COLUMNS
        if any(getattr(head, name) is not None for head in audit.heads)
    ]
    heads = [
        {
            "name": f"{head.layer}.{head.head}",
            "cells": [number(getattr(head, name)) for name, _, _ in used],
            "problem": _verdicts(head),
        }
        for head in audit.heads
    ]
    return render(
        "audit.html",
        title=title,
        findings=sentences(audit),
        notes=audit.notes,
        pictures=pictures,
        examples=[_example(example) for example in audit.examples],
        columns=used,
        heads=heads,
        command=command,
        config=_json({name: value for name, value in audit.config.items() if name != "sampled_rows"}),
    )


def _example(example: Example) -> dict[str, Any]:
    layers = [
        [
            maps.of_tokens(example.tokens, weights, {"selected": [one], "support": marks, "query": [example.query]})
            for weights, one, marks in zip(attention, selected, support, strict=True)
        ]
        for attention, selected, support in zip(example.attention, example.selected, example.support, strict=True)
    ]
    text = " ".join(example.tokens[:12]) + (" …" if len(example.tokens) > 12 else "")
    return {"sequence": example.sequence, "text": text, "layers": layers}


def _verdicts(head: Head) -> str:
    told = head.problem if head.status == "optimal" else f"{head.problem}: {head.status}"
    if head.locally_optimal is not None:
        told += ", locally optimal" if head.locally_optimal else ", not locally optimal"
    return told


def compare_page(sides: Sequence[Side], told: dict[str, Any], pictures: Pictures, count: int) -> str:
    """The page of a comparison, with ``count`` reviews as attention maps where both models read reviews."""
    return render(
        "compare.html",
        names=" and ".join(side.name for side in sides),
        notes=told["notes"],
        titles=["", *(model["name"] for model in told["models"]), "difference"],
        groups=_groups(told),
        pictures=pictures,
        shown=_maps(sides, count),
        command=told["config"]["command"],
        config=_json(told["config"]),
    )


def _groups(told: dict[str, Any]) -> list[dict[str, Any]]:
    """The numbers of both models by what they are about."""
    models, difference = told["models"], told["difference"]
    groups: list[dict[str, Any]] = []
    if all(model["accuracy"] for model in models):
        answers = [_row("accuracy", [_interval(m["accuracy"]) for m in models], difference["accuracy"])]
        groups.append({"title": "Answers", "rows": answers})
    for role in models[0]["sparsity"] if models[1]["sparsity"] else ():
        rows = [_row(what, [_cell(m["sparsity"][role][name]) for m in models]) for name, what in SPARSITY.items()]
        groups.append({"title": f"{role.capitalize()} weights", "rows": rows})
    if all(model["pivots"] for model in models):
        rows = []
        for name in METRICS:
            cells = [_interval(m["pivots"][name], f"chance {number(m['pivots'][name]['chance'])}") for m in models]
            rows.append(_row(SCORES[name], cells, difference["pivots"][name]))
        groups.append({"title": "Attention on decisive words", "rows": rows})
    paired = difference["margins"]
    rows = [
        _row(MEANING[name], [_cell(model["margins"][name]) for model in models], paired.get(name)) for name in MARGINS
    ]
    title = "Heads, medians" + (f" and mean differences over {models[0]['heads']} pairs of heads" if paired else "")
    return [*groups, {"title": title, "rows": rows}]


def _row(name: str, cells: list[dict[str, Any]], difference: dict[str, float] | None = None) -> dict[str, Any]:
    last = {"value": "", "small": []} if difference is None else _interval(difference)
    return {"name": name, "cells": [*cells, last]}


def _cell(value: float | None) -> dict[str, Any]:
    return {"value": number(value), "small": []}


def _interval(estimate: dict[str, float], *beside: str) -> dict[str, Any]:
    mean, low, high = (f"{estimate[name]:.3f}".replace("-", "−") for name in ("mean", "low", "high"))
    return {"value": mean, "small": [f"[{low}, {high}]", *beside]}


def _maps(sides: Sequence[Side], count: int) -> str:
    first = sides[0].pivots
    if first is None or not count or not all(side.readings for side in sides):
        return ""
    # Reviews of a kind stand together: some of every part show more than the first.
    total = len(first.pivots)
    chosen = [k * total // min(count, total) for k in range(min(count, total))]
    return maps.attention_maps(
        [first.pivots[k] for k in chosen], {side.name: [side.readings[k] for k in chosen] for side in sides}
    )


def _json(config: dict[str, Any]) -> str:
    return json.dumps(config, indent=2, sort_keys=True, ensure_ascii=False)


def number(value: float | bool | str | None) -> str:
    """Three digits, words as they are, an em dash where there is nothing."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "—"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def sentences(audit: Audit) -> list[str]:
    """The main findings of one audit."""
    heads, p = audit.heads, audit.heads[0].p
    solved = [head for head in heads if head.problem != "none"]
    ratios = sorted(head.ratio for head in solved) or [math.nan]
    apart = [head.divergence for head in solved] or [math.nan]
    told = [
        f"{len(heads)} heads in {1 + max(head.layer for head in heads)} layers; on average {_mean(audit, 'mass'):.0%} "
        f"of a row’s attention is on the selected token, and {_mean(audit, 'decisive'):.0%} of the rows have more "
        "than half of it there.",
        f"The selected token is the first one in {_mean(audit, 'on_first'):.0%} of the rows"
        f"{_chance(audit, 'on_first')} and the last one in {_mean(audit, 'on_last'):.0%}{_chance(audit, 'on_last')}, "
        "over all heads.",
        *_kinds(audit),
        f"For p = {p:g} the heads realise {ratios[0]:.2g} to {ratios[-1]:.2g} of the best margin on the sample, median "
        f"{median(ratios):.2g}; the directions are {median(apart):.2f} apart in the median (0 the same, 1 unrelated).",
    ]
    controls = [point for point in audit.controls if point.p == p]
    if controls:
        told.append(
            f"Heads with their weights shuffled realise {median(point.ratio for point in controls):.2g} in the median, "
            f"at a divergence of {median(point.divergence for point in controls):.2f}."
        )
        told.append(_standing_out(solved, controls))
    soft = sum(head.problem == "soft" for head in heads)
    if soft:
        told.append(f"{soft} of {len(heads)} problems cannot be separated; there the margins are soft.")
    if len(solved) < len(heads):
        told.append(f"{len(heads) - len(solved)} of {len(heads)} heads have nothing to measure; see the table.")
    unsolved = sum(head.status != "optimal" for head in solved)
    if unsolved:
        told.append(f"{unsolved} of {len(heads)} problems stopped before the tolerance; see the table.")
    scored = [head for head in heads if head.locally_optimal is not None]
    if scored:
        orders = [head.in_order for head in scored if head.in_order is not None]
        optimal = sum(bool(head.locally_optimal) for head in scored)
        told.append(
            f"{optimal} of {len(scored)} heads select locally optimal tokens by the model’s own head"
            + (
                f"; in the median {median(orders):.0%} of a head’s support tokens score below the selected one."
                if orders
                else "."
            )
        )
    told += _effects(audit)
    if audit.scan:
        told.append(f"Beside the controls, heads stand out most {_winners(audit)}.")
    return told


def _chance(audit: Audit, name: str) -> str:
    return f" (chance {audit.chances[name]:.0%})" if name in audit.chances else ""


def _kinds(audit: Audit) -> list[str]:
    """How many heads have a kind, and the clearest of each."""
    of_kind: dict[str, list[Head]] = {}
    names = {kind: name for name, kind in KINDS.items()}
    for head in audit.heads:
        if head.kind is not None:
            of_kind.setdefault(head.kind, []).append(head)
    if not of_kind:
        return ["No head selects one kind of token in more than half of the rows and twice as often as chance."]
    parts = []
    for kind, members in sorted(of_kind.items(), key=lambda item: -len(item[1])):
        best = max(members, key=lambda head: getattr(head, names[kind]))
        chance = audit.chances.get(names[kind])
        beside = "" if chance is None else f", chance {chance:.0%}"
        parts.append(f"{len(members)} {kind} ({best.layer}.{best.head}: {getattr(best, names[kind]):.0%}{beside})")
    rest = len(audit.heads) - sum(map(len, of_kind.values()))
    return [f"Kinds of heads: {', '.join(parts)}; {rest} of {len(audit.heads)} have none that stands out."]


def _standing_out(heads: Sequence[Head], controls: Sequence[ScanPoint]) -> str:
    """What is outside of what weights that learned nothing reach, and what is not."""
    largest = max(point.ratio for point in controls)
    nearest = min(point.divergence for point in controls)
    wide = [head for head in heads if head.ratio > largest]
    near = [head for head in heads if head.divergence < nearest]
    typical = median(point.ratio for point in controls)
    above = sum(head.ratio > typical for head in heads)
    best = max(heads, key=lambda head: head.ratio, default=None)
    told = (
        f"{above} of {len(heads)} heads have a larger ratio than the median shuffled head, {len(wide)} a larger one "
        f"than every shuffled head ({largest:.2g} at most), and {len(near)} lie nearer to their optimum than any of "
        "those."
    )
    if best is not None and best.ratio < NEAR_MAX_MARGIN:
        told += f" No head is near its max-margin solution: the largest ratio is {best.ratio:.2g} of 1."
    return told


def _effects(audit: Audit) -> list[str]:
    """What switching heads off does, and whether ratios tell."""
    told = []
    ratios = {(head.layer, head.head): head.ratio for head in audit.heads}
    for kind, words in CHANGES.items():
        mine = [one for one in audit.effects if one.kind == kind]
        if len(mine) < FEW:
            continue
        largest = max(mine, key=lambda one: one.mean)
        order = rank_correlation([ratios[one.layer, one.head] for one in mine], [one.mean for one in mine])
        told.append(
            f"{words} moves the model’s answers by {median(one.mean for one in mine):.2g} in the median of {len(mine)} "
            f"heads, at most by {largest.mean:.2g} [{largest.low:.2g}, {largest.high:.2g}] ({largest.layer}."
            f"{largest.head}). Rank correlation of the ratio with this effect: "
            f"{order.mean:.2f} [{order.low:.2f}, {order.high:.2f}]."
        )
    return told


def _mean(audit: Audit, name: str) -> float:
    return fmean(getattr(head, name) for head in audit.heads)


def _winners(audit: Audit) -> str:
    by_ratio = Counter(head.best_p_ratio for head in audit.heads if head.best_p_ratio is not None)
    by_divergence = Counter(head.best_p_divergence for head in audit.heads if head.best_p_divergence is not None)

    def listed(counts: Counter[float]) -> str:
        return ", ".join(f"{count} at p = {p:g}" for p, count in sorted(counts.items()))

    return f"by ratio: {listed(by_ratio)}; by divergence: {listed(by_divergence)}"
