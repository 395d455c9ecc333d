"""One look for all figures: colour-blind safe, readable in print, no frame around the data.

matplotlib is imported when something is drawn, and no sooner: what only computes does not wait for it.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrormax._files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

    from mirrormax._results import ResultFolder

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
    """Everything drawn and saved inside looks like the rest."""
    import matplotlib

    return matplotlib.rc_context(RULES)


def row_of_axes(
    columns: int, *, width: float = 10.0, height: float = 3.0, ratios: list[float] | None = None
) -> tuple[Figure, list[Axes]]:
    """A figure with axes side by side."""
    fig, axes = grid_of_axes(1, columns, width=width, height=height, width_ratios=ratios)
    return fig, axes[0]


def grid_of_axes(
    rows: int, columns: int, *, width: float, height: float, **options: Any
) -> tuple[Figure, list[list[Axes]]]:
    """A figure with rows of axes; ``options`` are those of ``Figure.subplots``."""
    from matplotlib.figure import Figure

    fig = Figure(figsize=(width, height))  # not pyplot's, which keeps every figure and chooses a screen
    return fig, fig.subplots(rows, columns, squeeze=False, **options).tolist()


def save(fig: Figure, folder: Path | ResultFolder, name: str) -> list[Path]:
    """Write ``name.svg`` and ``name.png``, the same bytes for the same data."""
    found = []
    for file in (f"{name}.svg", f"{name}.png"):
        path = folder / file if isinstance(folder, Path) else folder.path / file
        with replacing(path) if isinstance(folder, Path) else folder.writing(file) as temporary:
            fig.savefig(temporary, metadata={"Date": None} if path.suffix == ".svg" else None)
        found.append(path)
    return found
