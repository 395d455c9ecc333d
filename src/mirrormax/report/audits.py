"""The page of an audit, and the files that stand beside it."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from mirrormax._drawing import house_style, save
from mirrormax._results import ResultFolder
from mirrormax.auditing import MAX_MARGIN, Audit, Example, columns
from mirrormax.report import audit_figures, maps
from mirrormax.report.audit_words import called, sentences, summary, theory
from mirrormax.report.pages import render

Pictures = Sequence[tuple[str, Path]]

NAMED = 3
"""Tokens that the page names of a head."""


def write_audit(folder: ResultFolder, audit: Audit, title: str, tell: Callable[[str, int, int], None]) -> None:
    """JSON, tables, pictures and the page of one audit; ``tell`` hears how many of the pictures are drawn."""
    audit.write(folder)
    grown = len({point.rows for point in audit.growth}) > 1
    changed = any(effect.kind == MAX_MARGIN for effect in audit.effects)
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
        for name, (heading, meaning) in columns().items()
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
            maps.of_tokens(example.tokens, weights, {"selected": [token], "support": marks, "query": [example.query]})
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
