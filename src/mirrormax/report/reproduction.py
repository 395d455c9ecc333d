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
from mirrormax._files import load_arrays
from mirrormax.experiments import DIFFERS, RERUN, VERDICTS, Result, load_experiment
from mirrormax.report.maps import attention_maps
from mirrormax.report.pages import render


def reproduction_page(results: Sequence[Result], profile: str, data_dir: Path | None = None) -> str:
    """The document."""
    return render(
        "reproduction.html",
        version=mirrormax.__version__,
        profile=profile,
        tally=_tally(results),
        sections=[_section(result, profile, data_dir) for result in results],
        rerun=any(row.published.startswith(RERUN) for result in results for row in result.comparisons),
    )


def _tally(results: Sequence[Result]) -> dict[str, Any]:
    """How many comparisons came out how, and which differ."""
    rows = [(result, row) for result in results for row in result.comparisons]
    counts = Counter(row.verdict for _, row in rows)
    return {
        "rows": len(rows),
        "counts": "; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict]),
        "differing": [f"{result.short}: {row.quantity}" for result, row in rows if row.verdict == DIFFERS],
    }


def _section(result: Result, profile: str, data_dir: Path | None) -> dict[str, Any]:
    data = [] if data_dir is None else ["--data-dir", str(data_dir)]
    rows = result.comparisons
    return {
        "name": result.name,
        "title": result.title,
        "short": result.short,
        "shows": result.shows,
        "figure": result.folder / f"{result.name}.svg",
        "maps": _maps(result),
        "rows": rows,
        "shared": [why for why, count in Counter(row.why for row in rows if row.why).items() if count > 1],
        "command": shlex.join(["mirrormax", "reproduce", result.name, "--profile", profile, *data]),
        "config": json.dumps(result.config, indent=2, sort_keys=True, ensure_ascii=False),
        "seconds": result.seconds,
    }


def _maps(result: Result) -> Markup | None:
    """Attention maps, where an experiment has them."""
    maps = getattr(load_experiment(result.name), "maps", None)
    return None if maps is None else attention_maps(*maps(load_arrays(result.folder / "data.npz")))
