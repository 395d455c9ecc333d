"""The page of a comparison of two models, and the files that stand beside it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from mirrormax._drawing import house_style, save
from mirrormax._results import ResultFolder
from mirrormax.auditing import MARGINS, METRICS, Side, columns
from mirrormax.report import audit_figures, maps
from mirrormax.report.audits import Pictures, number
from mirrormax.report.pages import render

SMALL = 0.01
SPARSITY = {"hoyer": "Hoyer index", "top_mass": "mass in the top 1 %", "effective_rank": "effective rank"}
SCORES = {
    "mass": "share of the text’s attention",
    "scaled": "attention scaled from 0 to 1",
    "hit": "most attended word is decisive",
    "rank": "rank of the best decisive word",
}


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
        sparser = first if hoyer[most][0] > hoyer[most][1] else second
        high, low = max(hoyer[most]), min(hoyer[most])
        sentences.append(
            f"{sparser['name']} has the sparser {most} weights (Hoyer index {high:.2f} against {low:.2f})."
        )
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
        for name in METRICS:
            cells = [_interval(m["pivots"][name], f"chance {number(m['pivots'][name]['chance'])}") for m in models]
            rows.append(_row(SCORES[name], cells, difference["pivots"][name]))
        groups.append({"title": "Attention on decisive words", "rows": rows})
    paired = difference["margins"]
    rows = []
    for name in MARGINS:
        cells = [_cell(model["margins"][name]) for model in models]
        rows.append(_row(columns()[name].meaning, cells, paired.get(name)))
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
    return maps.attention_maps(
        [first.pivots[k] for k in chosen], {side.name: [side.readings[k] for k in chosen] for side in sides}
    )
