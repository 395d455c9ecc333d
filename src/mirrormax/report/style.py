"""One look for all figures: colour-blind safe, readable in print, no frame around the data."""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

import matplotlib

matplotlib.use("agg")
import matplotlib.pyplot as plt
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirrormax._files import replacing

# Okabe and Ito's palette, in an order that keeps neighbours apart in grey print too.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")

RULES: Any = {
    "axes.grid": True,
    "axes.spines.right": False,
    "axes.spines.top": False,
    "figure.constrained_layout.use": True,
    "font.size": 10,
    "grid.alpha": 0.25,
    "legend.frameon": False,
    "lines.linewidth": 1.8,
    "savefig.dpi": 160,
    "svg.hashsalt": "mirrormax",
}


def house_style() -> AbstractContextManager[None]:
    """Everything drawn inside looks like the rest."""
    return plt.rc_context(RULES)


def row_of_axes(
    columns: int, *, width: float = 10.0, height: float = 3.0, ratios: list[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with axes side by side."""
    fig, axes = plt.subplots(1, columns, figsize=(width, height), squeeze=False, width_ratios=ratios)
    return fig, list(axes[0])


def save(fig: Figure, folder: Path, name: str) -> list[Path]:
    """Write ``name.svg`` and ``name.png``, the same bytes for the same data."""
    paths = [folder / f"{name}.svg", folder / f"{name}.png"]
    for path in paths:
        with replacing(path) as temporary:
            fig.savefig(temporary, metadata={"Date": None} if path.suffix == ".svg" else None)
    plt.close(fig)
    return paths
