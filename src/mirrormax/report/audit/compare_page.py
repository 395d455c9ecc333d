"""The page of a comparison."""

from __future__ import annotations

import json
from collections.abc import Sequence
from html import escape
from pathlib import Path
from typing import Any

from mirrormax.auditing.comparison import MARGINS, Side
from mirrormax.auditing.pivots import METRICS
from mirrormax.report.audit.page import document, figure, number
from mirrormax.report.maps import attention_maps

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


def compare_page(sides: Sequence[Side], told: dict[str, Any], pictures: Sequence[tuple[str, Path]], maps: int) -> str:
    """The document. Whatever comes from data goes through ``escape``."""
    names = " and ".join(side.name for side in sides)
    notes = "".join(f"<li>{escape(note)}</li>" for note in told["notes"])
    config = json.dumps(told["config"], indent=2, sort_keys=True)
    body = f"""<header>
<h1>{escape(names)}, side by side</h1>
<ul class="soft">{notes}</ul>
</header>
<main>
<section><h2>Numbers</h2>
{_numbers(told)}
</section>
{"".join(figure(caption, path) for caption, path in pictures)}
{_maps(sides, maps)}
<section><h2>How this page was made</h2>
<pre>{escape(told["config"]["command"])}</pre>
<details><summary>Configuration</summary><pre>{escape(config)}</pre></details>
</section>
</main>"""
    return document(f"mirrormax: {names}", body)


def _numbers(told: dict[str, Any]) -> str:
    models, difference = told["models"], told["difference"]
    rows = [_group("Answers"), _row("accuracy", [_interval(m["accuracy"]) for m in models], difference["accuracy"])]
    for role in models[0]["sparsity"]:
        rows.append(_group(f"{role.capitalize()} weights"))
        rows += [_row(what, [number(m["sparsity"][role][name]) for m in models]) for name, what in SPARSITY.items()]
    if all(model["pivots"] for model in models):
        rows.append(_group("Attention on decisive words"))
        for name in METRICS:
            cells = [_interval(m["pivots"][name], f"chance {number(m['pivots'][name]['chance'])}") for m in models]
            rows.append(_row(SCORES[name], cells, difference["pivots"][name]))
    rows.append(_group("Heads, medians"))
    rows += [_row(MEANING[name], [number(model["margins"][name]) for model in models]) for name in MARGINS]
    head = "".join(f"<th>{escape(title)}</th>" for title in ("", *(model["name"] for model in models), "difference"))
    return (
        '<p class="soft">Intervals hold the middle 95 % of bootstrap means; differences are paired, first − second.</p>'
        f'<table class="sides"><thead><tr>{head}</tr></thead><tbody>{"".join(rows)}</tbody></table>'
    )


def _group(title: str) -> str:
    return f'<tr><th colspan="4">{escape(title)}</th></tr>'


def _row(name: str, cells: Sequence[str], difference: dict[str, float] | None = None) -> str:
    """Cells are markup, made here of numbers alone."""
    last = "" if difference is None else _interval(difference)
    return f"<tr><td>{escape(name)}</td>" + "".join(f"<td>{cell}</td>" for cell in (*cells, last)) + "</tr>"


def _interval(estimate: dict[str, float], beside: str = "") -> str:
    low, high = _signed(estimate["low"]), _signed(estimate["high"])
    small = f"[{low}, {high}]" + (f"<br>{escape(beside)}" if beside else "")
    return f"{_signed(estimate['mean'])}<small>{small}</small>"


def _signed(value: float) -> str:
    return f"{value:.3f}".replace("-", "−")


def _maps(sides: Sequence[Side], count: int) -> str:
    first = sides[0].pivots
    if first is None or not count or not all(side.readings for side in sides):
        return ""
    # Reviews of a kind stand together: some of every part show more than the first.
    total = len(first.pivots)
    chosen = [k * total // min(count, total) for k in range(min(count, total))]
    shown = attention_maps(
        [first.pivots[k] for k in chosen], {side.name: [side.readings[k] for k in chosen] for side in sides}
    )
    return f"""<section><h2>Where they look</h2>
<p class="soft">Attention of [CLS] in the last block, mean over heads; darker is more, relative to the review’s most
attended word. Underlined words decide the review.</p>
{shown}</section>"""
