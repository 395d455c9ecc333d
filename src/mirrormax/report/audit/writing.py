"""The files of an audit and of a comparison: numbers, pictures and a page, in a folder that is open for writing."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.figure import Figure

from mirrormax._drawing import house_style
from mirrormax._results import ResultFolder
from mirrormax.auditing import Audit
from mirrormax.auditing.comparison import Side
from mirrormax.report.audit import figures
from mirrormax.report.audit.compare_page import compare_page
from mirrormax.report.audit.page import audit_page


def write_audit(folder: ResultFolder, found: Audit, title: str) -> None:
    """JSON, tables, pictures and the page of one audit."""
    found.write(folder)
    with house_style():
        pictures = [("Layers and heads", _save(folder, "heads", figures.heat_maps(found)))]
        if found.scan:
            caption = "For which p does a head look most like a max-margin solution?"
            pictures.append((caption, _save(folder, "scan", figures.scan(found))))
    folder.save_text("audit.html", audit_page(found, title, found.config.get("command", ""), pictures))


def write_comparison(folder: ResultFolder, sides: Sequence[Side], told: dict[str, Any], maps: int) -> None:
    """JSON, both audits under ``a/`` and ``b/``, pictures and the page of a comparison."""
    folder.save_json("compare.json", told)
    pictures = []
    for letter, side in zip("ab", sides, strict=True):
        side.audit.write(folder, f"{letter}/")
        with house_style():
            picture = _save(folder, f"heads-{letter}", figures.heat_maps(side.audit))
        pictures.append((f"Layers and heads of {side.name}", picture))
    folder.save_text("compare.html", compare_page(sides, told, pictures, maps))


def _save(folder: ResultFolder, name: str, fig: Figure) -> Path:
    """Write ``name.svg`` and ``name.png``, the same bytes for the same data; the path of the latter."""
    for kind, metadata in (("svg", {"Date": None}), ("png", None)):
        with folder.writing(f"{name}.{kind}") as temporary:
            fig.savefig(temporary, format=kind, metadata=metadata)
    return folder.path / f"{name}.png"
