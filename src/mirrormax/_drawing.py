"""One look for all figures: colour-blind safe, readable in print, no frame around the data.

matplotlib is imported when something is drawn, and no sooner: what only computes does not wait for it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from mirrormax._extras import extra
from mirrormax._files import replacing

if TYPE_CHECKING:
    from matplotlib.axes import Axes as Axes
    from matplotlib.axis import Axis
    from matplotlib.figure import Figure as Figure

    from mirrormax._results import ResultFolder
else:  # names for annotations
    Axes = Figure = Any

# Okabe and Ito's palette, in an order that keeps neighbours apart in grey print too: for what is not a method.
COLOURS = ("#0072B2", "#D55E00", "#009E73", "#CC79A7", "#E69F00", "#56B4E9")
# From dark to light, and like no method's colour: for degrees of something.
SHADES = ("#40004B", "#8C5FA8", "#C9A9DB")
# Of heat maps, as in the explorer and its attention maps: from paper at nothing to dark blue at the most, and weights
# orange below zero, blue above.
RAMP = ("#ffffff", "#d6e8f6", "#9cc8e5", "#559fce", "#175a97", "#0a3f7c")
AROUND_ZERO = ("#b34700", "#f7f7f7", "#005aa0")
LINES = ("-", "--", "-.", ":", (0, (5, 1)), (0, (3, 1, 1, 1)))
MARKERS = ("o", "s", "^", "D", "v", "P")


class Look(NamedTuple):
    """How a method is drawn: the same colour, marker and dash in every figure, page and guide."""

    colour: str
    marker: str
    line: Any

    def style(self, **more: Any) -> dict[str, Any]:
        """As keywords of matplotlib's ``plot``; ``more`` adds to them or takes their place."""
        return {"color": self.colour, "marker": self.marker, "linestyle": self.line, **more}


# Cold below p = 2, dark at 2 (gradient descent), warm above; what is not mirror descent stands apart from these.
EXPONENTS: dict[float, Look] = {
    1.1: Look("#0072B2", "o", "-"),
    1.25: Look("#6A5ACD", "<", (0, (5, 1))),
    1.5: Look("#56B4E9", "v", (0, (3, 1, 1, 1))),
    1.75: Look("#009E73", "^", "-."),
    2.0: Look("#3D3D3D", "s", "--"),
    3.0: Look("#D55E00", "D", (0, (6, 1.5, 1, 1.5))),
    4.0: Look("#A6761D", "p", (0, (4, 2))),
    6.0: Look("#E69F00", "P", ":"),
}
OTHERS = {
    "SGD": Look("#8C8C8C", "x", (0, (1, 1))),
    "AdamW": Look("#CC79A7", "h", (0, (8, 2))),
    "Adam": Look("#CC79A7", "h", (0, (8, 2))),
    "MirrorAdamW": Look("#882255", "*", "-"),
    "AdaBreg": Look("#999933", "X", (0, (2, 1))),
}


def look_of(method: str | float) -> Look:
    """The look of a method: a p, or its name as in "ℓ1.1", "p = 1.1", "SGD", "AdamW", "MirrorAdamW".

    A p without a look of its own has that of the nearest one that has, by the logarithm of p − 1.

    >>> look_of("ℓ2") == look_of(2), look_of("AdamW").colour
    (True, '#CC79A7')
    """
    if isinstance(method, str) and method.startswith(("ℓ", "p = ")):
        method = float(method.removeprefix("ℓ").removeprefix("p = ").split()[0])
    if not isinstance(method, str):
        wanted = math.log(max(float(method) - 1, 1e-9))
        return EXPONENTS[min(EXPONENTS, key=lambda p: abs(math.log(p - 1) - wanted))]
    looks = [look for name, look in OTHERS.items() if method.startswith(name)]
    if not looks:
        raise ValueError(f"method must be a p, ℓp or one of {', '.join(OTHERS)}, got {method!r}.")
    return looks[0]


def headline(fig: Figure, text: str) -> None:
    """The finding, above all panels; make it from the data, so that it cannot say what they do not."""
    fig.suptitle(text, x=0.01, ha="left", fontsize=11, fontweight="bold")


def panel(
    ax: Axes, title: str = "", xlabel: str = "", ylabel: str = "", *, log: str = "", legend: Any = "", **options: Any
) -> None:
    """Title, labels, logarithmic axes ("x", "y" or "xy") and the place of the legend, if there is one, of a panel."""
    ax.set(xlabel=xlabel, ylabel=ylabel, **{f"{axis}scale": "log" for axis in log}, **options)
    ax.set_title(title, fontsize=10)
    if legend:
        ax.legend(loc=legend, fontsize=9)


def curve(ax: Axes, x: Any, y: Any, method: str | float, band: Any = None, **style: Any) -> None:
    """A line in the look of its method, with some eight marks and its name as label; ``band``, its ends, is shaded."""
    look, label = look_of(method), method if isinstance(method, str) else f"p = {method:g}"
    ax.plot(x, y, **look.style(**{"markersize": 4, "markevery": max(len(x) // 8, 1), "label": label, **style}))
    if band is not None:
        ax.fill_between(x, *band, color=look.colour, alpha=0.15, linewidth=0)


def mark_decade(axis: Axis) -> None:
    """Label 1, 2 and 5 of every power of ten, for a logarithmic axis that shows one or two of these."""
    with extra("reproduce"):
        from matplotlib.ticker import FuncFormatter, LogLocator, NullFormatter
    axis.set_major_locator(LogLocator(subs=(1.0, 2.0, 5.0)))
    axis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    axis.set_minor_formatter(NullFormatter())


WIDEST = 12.4  # inches, and
SMALLEST = 9.0  # points: shown 66 rem wide or more, as the report does, no type is below 11 pixels
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
    with extra("reproduce"):
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
    with extra("reproduce"):
        from matplotlib import figure
    fig = figure.Figure(figsize=(min(width, WIDEST), height))  # pyplot keeps every figure and chooses a screen
    return fig, fig.subplots(rows, columns, squeeze=False, **options).tolist()


def colour_map(colours: Sequence[str]) -> Any:
    """The colour map of ``RAMP`` or ``AROUND_ZERO``."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("", colours)


def save(fig: Figure, folder: Path | ResultFolder, name: str) -> list[Path]:
    """Write ``name.svg`` and ``name.png``, the same bytes for the same data; type below ``SMALLEST`` is enlarged."""
    from matplotlib.text import Text

    for text in fig.findobj(Text):
        text.set_fontsize(max(text.get_fontsize(), SMALLEST))
    paths = []
    for file in (f"{name}.svg", f"{name}.png"):
        path = folder / file if isinstance(folder, Path) else folder.path / file
        with replacing(path) if isinstance(folder, Path) else folder.writing(file) as temporary:
            fig.savefig(temporary, metadata={"Date": None} if path.suffix == ".svg" else None)
        fig.set_layout_engine("none")  # the second file has the first one's: laying out takes as long as drawing
        paths.append(path)
    return paths
