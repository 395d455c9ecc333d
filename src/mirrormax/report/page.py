"""The report of a reproduction: one HTML file with everything in it, from saved results alone."""

from __future__ import annotations

import json
import shlex
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

import mirrormax
from mirrormax._files import replacing
from mirrormax.auditing.maps import map_style
from mirrormax.experiments.contract import DIFFERS, VERDICTS, load_experiment
from mirrormax.experiments.store import Result
from mirrormax.report.maps import fig9_maps
from mirrormax.report.pages import render


def write_report(path: Path, results: Sequence[Result], profile: str, data_dir: Path | None = None) -> None:
    """Write the report of these results, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(results, profile, data_dir), encoding="utf-8")


def page(results: Sequence[Result], profile: str, data_dir: Path | None = None) -> str:
    """The document."""
    return render(
        "reproduction.html",
        version=mirrormax.__version__,
        profile=profile,
        tally=_tally(results),
        sections=[_section(result, profile, data_dir) for result in results],
        maps_style=Markup(map_style()),
    )


def _tally(results: Sequence[Result]) -> dict[str, Any]:
    """How many comparisons came out how, and which differ."""
    rows = [(result, row) for result in results for row in result.comparisons]
    counts = Counter(row.verdict for _, row in rows)
    return {
        "rows": len(rows),
        "counts": "; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]),
        "differing": [f"{_short(result.name)}: {row.quantity}" for result, row in rows if row.verdict == DIFFERS],
    }


def _section(result: Result, profile: str, data_dir: Path | None) -> dict[str, Any]:
    data = [] if data_dir is None else ["--data-dir", str(data_dir)]
    rows = result.comparisons
    return {
        "name": result.name,
        "title": load_experiment(result.name).TITLE,
        "short": _short(result.name),
        "shows": result.shows,
        "figure": result.folder / f"{result.name}.svg",
        "maps": Markup(fig9_maps(result.folder)) if result.name == "fig9" else "",
        "maps_title": "Attention maps of ℓ1.1 and ℓ2 side by side",
        "rows": rows,
        "shared": [why for why, count in Counter(row.why for row in rows if row.why).items() if count > 1],
        "command": shlex.join(["mirrormax", "reproduce", result.name, "--profile", profile, *data]),
        "config": json.dumps(result.config, indent=2, sort_keys=True, ensure_ascii=False),
        "seconds": result.seconds,
    }


def _short(name: str) -> str:
    if name.startswith("fig"):
        return f"Fig {name[3:]}"
    if name.startswith("thm"):
        return f"Theorem {name[3:]}"
    return {"table1": "Table 1", "vit": "vision"}.get(name, name.replace("_", " "))
