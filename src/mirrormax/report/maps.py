"""Attention maps of the trained models, from saved results alone."""

from __future__ import annotations

from pathlib import Path

from mirrormax._files import load_arrays, replacing
from mirrormax.auditing.maps import attention_maps, attention_page
from mirrormax.auditing.pivots import Reading
from mirrormax.data import Pivot
from mirrormax.experiments.fig9 import pictured

COMPARED = ("ℓ1.1", "ℓ2")


def fig9_maps(folder: Path) -> str:
    """The maps of Fig 9 as part of a page."""
    return attention_maps(*_readings(folder))


def write_fig9_page(folder: Path) -> Path:
    """The maps of Fig 9 as a page of their own, beside its data."""
    path = folder / "fig9.html"
    with replacing(path) as temporary:
        temporary.write_text(attention_page(*_readings(folder)), encoding="utf-8")
    return path


def _readings(folder: Path) -> tuple[list[Pivot], dict[str, list[Reading]]]:
    data = load_arrays(folder / "data.npz")
    found = {name: pictured(data, name) for name in COMPARED}
    return found[COMPARED[0]][0], {name: readings for name, (_, readings) in found.items()}
