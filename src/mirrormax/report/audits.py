"""What is written of an audit, a comparison of two models and a pruned model: pages, and the files beside them."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mirrormax import auditing
from mirrormax._drawing import COLOURS, house_style, row_of_axes, save
from mirrormax._results import ResultFolder
from mirrormax.auditing import Audit, Estimate, Example, Loaded, PruningReport, Side
from mirrormax.nets import SPARSE_WEIGHTS
from mirrormax.report import audit_figures
from mirrormax.report.audit_words import called, sentences, summary, theory
from mirrormax.report.pages import attention_maps, of_tokens, render

Pictures = Sequence[tuple[str, Path]]

NAMED = 3
"""Tokens that the page names of a head."""
SMALL = 0.01
SPARSITY = {"hoyer": "Hoyer index", "top_mass": "mass in the top 1 %", "effective_rank": "effective rank"}
SCORES = {
    "mass": "share of the text’s attention",
    "scaled": "attention scaled from 0 to 1",
    "hit": "most attended word is decisive",
    "rank": "rank of the best decisive word",
}
PRUNED_KIND = "pruned model"


def write_audit(folder: ResultFolder, audit: Audit, title: str, tell: Callable[[str, int, int], None]) -> None:
    """JSON, tables, pictures and the page of one audit; ``tell`` hears how many of the pictures are drawn."""
    audit.write(folder)
    grown = len({point.rows for point in audit.growth}) > 1
    changed = any(effect.kind == auditing.MAX_MARGIN for effect in audit.effects)
    known = (
        ("heads", "Layers and heads", audit_figures.heat_maps, True),
        ("kinds", "Kinds of heads", audit_figures.kinds, any(head.kind for head in audit.heads)),
        ("growth", "Do the numbers depend on the size of the sample?", audit_figures.growth, grown),
        ("removal", "Which heads could go?", audit_figures.removal, audit.removal),
        ("effects", "Do heads with larger margins matter more?", audit_figures.effects, changed),
        ("scan", "For which p does a head look most like a max-margin solution?", audit_figures.scan, audit.scan),
    )
    drawn = [(name, caption, draw) for name, caption, draw, wanted in known if wanted]
    pictures = []
    with house_style():
        for k, (name, caption, draw) in enumerate(drawn):
            tell("drawing", k, len(drawn))
            pictures.append((caption, save(draw(audit), folder, name)[-1]))
    folder.save_text("audit.html", audit_page(audit, title, audit.config.get("command", ""), pictures))


def audit_page(audit: Audit, title: str, command: str, pictures: Pictures) -> str:
    """The page of an audit; pictures are (caption, PNG or SVG file)."""
    used = [
        (name, heading, meaning + (f" (chance {audit.chances[name]:.2g})" if name in audit.chances else ""))
        for name, (heading, meaning) in auditing.columns().items()
        if any(getattr(head, name) is not None for head in audit.heads)
    ]
    beside = {name: f"selections that {called(name)} would change, in brackets measured" for name in audit.schemes}
    beside |= {"selects most": "its most frequent tokens on the first texts"} if audit.favourites else {}
    cells = {
        (row.name, row.scheme): f"{row.predicted:.1%}" + ("" if row.measured is None else f" ({row.measured:.1%})")
        for row in audit.robustness
    }
    cells |= {
        (row.name, "selects most"): " ".join(token for token, _ in row.tokens[:NAMED]) for row in audit.favourites
    }
    heads = [
        {
            "name": head.name,
            "cells": [
                *(number(getattr(head, name)) for name, _, _ in used),
                *(cells[head.name, heading] for heading in beside),
            ],
            "problem": (head.problem if head.status == "optimal" else f"{head.problem}: {head.status}")
            + {None: "", True: ", locally optimal", False: ", not locally optimal"}[head.locally_optimal],
        }
        for head in audit.heads
    ]
    lines, kinds = summary(audit)
    return render(
        "audit.html",
        title=title,
        findings=[*lines[1:], *sentences(audit)],
        kinds=kinds,
        theory=theory(audit),
        notes=audit.notes,
        pictures=pictures,
        examples=[_example(example) for example in audit.examples],
        columns=[*used, *(("", heading, meaning) for heading, meaning in beside.items())],
        heads=heads,
        command=command,
        config={name: value for name, value in audit.config.items() if name != "sampled_rows"},
    )


def _example(example: Example) -> dict[str, Any]:
    layers = [
        [
            of_tokens(example.tokens, weights, {"selected": [token], "support": marks, "query": [example.query]})
            for weights, token, marks in zip(attention, selected, support, strict=True)
        ]
        for attention, selected, support in zip(example.attention, example.selected, example.support, strict=True)
    ]
    text = " ".join(example.tokens[:12]) + (" …" if len(example.tokens) > 12 else "")
    return {"sequence": example.sequence, "query": example.query, "text": text, "layers": layers}


def number(value: float | bool | str | None) -> str:
    """Three digits, words as they are, an em dash where there is nothing."""
    if isinstance(value, str):
        return value
    if value is None or math.isnan(value):
        return "—"
    return str(value) if isinstance(value, int) else f"{value:.3g}"


def write_comparison(folder: ResultFolder, sides: Sequence[Side], result: dict[str, Any], count: int) -> None:
    """JSON, both audits under ``a/`` and ``b/``, pictures and the page of a comparison with ``count`` maps."""
    folder.save_json("compare.json", result)
    for letter, side in zip("ab", sides, strict=True):
        side.audit.write(folder, f"{letter}/")
    with house_style():
        fig = audit_figures.side_by_side(sides[0].audit, sides[1].audit, [side.name for side in sides])
        pictures = [("Every head of both, on one scale", save(fig, folder, "heads")[-1])]
    folder.save_text("compare.html", compare_page(sides, result, pictures, count))


def compare_page(sides: Sequence[Side], result: dict[str, Any], pictures: Pictures, count: int) -> str:
    """The page of a comparison, with ``count`` reviews as attention maps where both models read reviews."""
    return render(
        "compare.html",
        names=" and ".join(side.name for side in sides),
        headline=_headline(result),
        notes=result["notes"],
        titles=["", *(model["name"] for model in result["models"]), "difference"],
        groups=comparison_groups(result),
        pictures=pictures,
        shown=_maps(sides, count),
        command=result["config"]["command"],
        config=result["config"],
    )


def _headline(result: dict[str, Any]) -> str:
    """What the two models differ in, in two sentences: how often they are right, and how sparse they are."""
    (first, second), difference = result["models"], result["difference"]
    names, sentences = f"{first['name']} and {second['name']}", []
    if first["accuracy"] and second["accuracy"]:
        apart = difference["accuracy"]
        mean, low, high = (f"{100 * apart[end]:+.1f}".replace("-", "−") for end in ("mean", "low", "high"))
        points = f"{mean} points, 95 % interval {low} to {high}, n = {first['accuracy']['examples']}"
        if apart["low"] <= 0 <= apart["high"]:
            sentences.append(f"{names} cannot be told apart in accuracy ({points}).")
        else:
            better, worse = (first, second) if apart["mean"] > 0 else (second, first)
            sentences.append(f"{better['name']} is more often right than {worse['name']} ({points}).")
    roles = [role for role in first["sparsity"] if role in second["sparsity"]]
    if roles:
        hoyer = {role: [model["sparsity"][role]["hoyer"] for model in (first, second)] for role in roles}
        most = max(roles, key=lambda role: abs(hoyer[role][0] - hoyer[role][1]))
        sparser = (first if hoyer[most][0] > hoyer[most][1] else second)["name"]
        high, low = max(hoyer[most]), min(hoyer[most])
        sentences.append(f"{sparser} has the sparser {most} weights (Hoyer index {high:.2f} against {low:.2f}).")
    return " ".join(sentences) or f"{names}, number by number."


def comparison_groups(result: dict[str, Any]) -> list[dict[str, Any]]:
    """The numbers of both models by what they are about."""
    models, difference = result["models"], result["difference"]
    groups: list[dict[str, Any]] = []
    if all(model["accuracy"] for model in models):
        answers = [_row("accuracy", [_interval(m["accuracy"]) for m in models], difference["accuracy"])]
        groups.append({"title": "Answers", "rows": answers})
    for role in models[0]["sparsity"] if models[1]["sparsity"] else ():
        rows = [_row(what, [_cell(m["sparsity"][role][name]) for m in models]) for name, what in SPARSITY.items()]
        groups.append({"title": f"{role.capitalize()} weights", "rows": rows})
    if all(model["pivots"] for model in models):
        rows = []
        for name in auditing.METRICS:
            cells = [_interval(m["pivots"][name], f"chance {number(m['pivots'][name]['chance'])}") for m in models]
            rows.append(_row(SCORES[name], cells, difference["pivots"][name]))
        groups.append({"title": "Attention on decisive words", "rows": rows})
    paired = difference["margins"]
    rows = []
    for name in auditing.MARGINS:
        cells = [_cell(model["margins"][name]) for model in models]
        rows.append(_row(auditing.columns()[name].meaning, cells, paired.get(name)))
    title = "Heads, medians" + (f" and mean differences over {models[0]['heads']} pairs of heads" if paired else "")
    return [*groups, {"title": title, "rows": rows}]


def _row(name: str, cells: list[dict[str, Any]], difference: dict[str, float] | None = None) -> dict[str, Any]:
    last = {"value": "", "small": []} if difference is None else _interval(difference)
    return {"name": name, "cells": [*cells, last]}


def _cell(value: float | None) -> dict[str, Any]:
    return {"value": number(value), "small": []}


def _interval(estimate: dict[str, float], *beside: str) -> dict[str, Any]:
    values = [estimate[name] for name in ("mean", "low", "high")]
    digits = ".3f" if max(map(abs, values)) >= SMALL else ".2g"  # a difference of 0.0005 is no 0.000
    mean, low, high = (format(value, digits).replace("-", "−") for value in values)
    return {"value": mean, "small": [f"[{low}, {high}]", *beside]}


def _maps(sides: Sequence[Side], count: int) -> str:
    first = sides[0].pivots
    if first is None or not count or not all(side.readings for side in sides):
        return ""
    # Reviews of a kind stand together: some of every part show more than the first.
    total = len(first.pivots)
    chosen = [k * total // min(count, total) for k in range(min(count, total))]
    readings = {side.name: [side.readings[k] for k in chosen] for side in sides}
    return attention_maps([first.pivots[k] for k in chosen], readings)


def write_pruned(folder: ResultFolder, report: PruningReport, loaded: Loaded, name: str) -> None:
    """The pruned model, which can be audited again, the curve as a picture, numbers, and what is to be said."""
    auditing.save_pruned(folder.writing, loaded)
    kept = (folder.path / SPARSE_WEIGHTS).stat().st_size
    dense = sum(tensor.numel() * tensor.element_size() for tensor in auditing.stored_once(loaded.model).values())
    with house_style():
        fig, (axes,) = row_of_axes(1, width=6.4, height=4.0)
        _curve(axes, report.quality, f"by {report.by}", "o", COLOURS[0])
        if report.magnitude:
            _curve(axes, report.magnitude, "by magnitude", "^", COLOURS[2])
        _curve(axes, [(report.share, report.pruned)], "the saved checkpoint", "s", COLOURS[1])
        if report.chance is not None:
            axes.axhline(report.chance, color="0.5", linestyle="--", linewidth=1, label="always the commonest label")
            low = min(estimate.low for _, estimate in [*report.quality, *report.magnitude])
            axes.set_ylim(min(low, report.chance) - 0.05, 1.02)
        axes.set(xlabel="weights pruned, %", ylabel=f"{report.measure}, 95 % intervals", xlim=(-2, 100))
        axes.set_title(f"{name}: {report.finding}", fontsize=10, wrap=True)
        axes.legend()
        save(fig, folder, "pruning")
    folder.save_json(
        "pruning.json",
        {
            "measure": report.measure,
            "by": report.by,
            "rows": report.rows,
            "chance": report.chance,
            "quality": _points(report.quality),
            "by_magnitude": _points(report.magnitude),
            "share": report.share,
            "pruned": report.pruned.to_dict(),
            "change": report.change.to_dict(),
            "tensors": {name: {"zero": zero, "size": size} for name, (zero, size) in report.tensors.items()},
            "bytes": {"dense": dense, "sparse": kept},
            "sentences": report.sentences(dense, kept),
        },
    )


def _points(points: list[tuple[float, Estimate]]) -> list[dict[str, Any]]:
    return [{"share": share, "quality": at.mean, "low": at.low, "high": at.high} for share, at in points]


def _curve(axes: Any, points: list[tuple[float, Estimate]], label: str, marker: str, colour: str) -> None:
    rows = [(100 * share, at.mean, at.mean - at.low, at.high - at.mean) for share, at in points]
    shares, means, *reach = zip(*rows, strict=True)
    axes.errorbar(shares, means, reach, marker=marker, color=colour, capsize=3, label=label)
