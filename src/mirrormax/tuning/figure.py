"""The picture of a study: accuracy over p and over the step size, and how sparse attention became."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from matplotlib.axes import Axes
from matplotlib.cm import ScalarMappable
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.ticker import NullLocator

from mirrormax._drawing import COLOURS, house_style, row_of_axes, save
from mirrormax.tuning.results import Row, best_of
from mirrormax.tuning.space import FARTHEST, LEAST_P, MOST_P

TICKS = (1.05, 1.1, 1.25, 1.5, 2, 3, 4)
MULTIPLES = (0.1, 0.3, 1, 3, 10, 30)
SHADES = "viridis_r"
GREY = "#555555"


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write ``tune.svg`` and ``tune.png``."""
    with house_style():
        return save(picture(rows), folder, "tune")


def picture(rows: Sequence[Row]) -> Figure:
    """Three panels; trials given up are hollow, those that diverged crosses, the chosen one has a ring around it."""
    fig, (over_p, sparse, over_lr) = row_of_axes(3, width=13.5, height=3.9)
    mirror = [row for row in rows if row["p"] is not None]
    measured = [row for row in mirror if row["hoyer"] is not None]
    by_multiple: dict[str, Any] = {"shade": "multiple", "norm": LogNorm(1 / FARTHEST, FARTHEST)}
    _scatter(over_p, mirror, "validation_accuracy", x="p", **by_multiple)
    multiples = _scatter(sparse, measured, "hoyer", x="p", **by_multiple)
    exponents = _scatter(
        over_lr, mirror, "validation_accuracy", x="multiple", shade="p", norm=LogNorm(LEAST_P - 1, MOST_P - 1)
    )
    _others(over_lr, rows)
    for ax, x, y in (
        (over_p, "p", "validation_accuracy"),
        (sparse, "p", "hoyer"),
        (over_lr, "multiple", "validation_accuracy"),
    ):
        _ring(ax, rows, x, y)
        ax.margins(y=0.1)  # room for the ring
        if x == "p":
            _axis_of_p(ax)
        else:
            _axis_of_multiples(ax)
    over_p.set(ylabel="validation accuracy", title="accuracy over p")
    sparse.set(ylabel="Hoyer index of $W_Q$, $W_K$, $W_V$", title="sparsity over p")
    over_lr.set(ylabel="validation accuracy", title="accuracy over the step size")
    _bar(fig, multiples, sparse, "step size, multiples of the rule's", MULTIPLES, MULTIPLES)
    _bar(fig, exponents, over_lr, "p", [p - 1 for p in TICKS], TICKS)
    marks: list[Any] = [_mark("finished", markerfacecolor=GREY), _mark("given up early")]
    marks += [_mark("diverged", marker="x")] if any(map(_diverged, mirror)) else []
    marks += [_mark("chosen", markersize=12, markeredgecolor=COLOURS[1]), *over_lr.get_legend_handles_labels()[0]]
    fig.legend(handles=marks, loc="outside lower center", ncols=len(marks))
    return fig


def _mark(label: str, **style: Any) -> Line2D:
    """An entry of the legend."""
    usual: dict[str, Any] = {"marker": "o", "linestyle": "none", "markerfacecolor": "none", "markeredgecolor": GREY}
    return Line2D([], [], label=label, **{**usual, **style})


def _scatter(ax: Axes, rows: Sequence[Row], y: str, *, x: str, shade: str, norm: LogNorm) -> Any:
    """Points coloured by another column; a mappable for the colour bar."""
    drawn = ScalarMappable(norm, SHADES)
    for row in rows:
        colour: Any = drawn.to_rgba(row[shade] - 1 if shade == "p" else row[shade])
        style: dict[str, Any] = {"s": 32, "linewidths": 1.3, "zorder": 3}
        if _diverged(row):
            ax.scatter(_place(row, x), row[y], marker="x", color=[colour], **style)
        else:
            face = colour if row["state"] == "complete" else "none"
            ax.scatter(_place(row, x), row[y], facecolors=face, edgecolors=[colour], **style)
    return drawn


def _diverged(row: Row) -> bool:
    """Whether a trial ran to its end and had no finite loss to show for it."""
    return row["state"] == "complete" and row["validation_loss"] is None


def _place(row: Row, x: str) -> float:
    return float(row[x]) - 1 if x == "p" else float(row[x])


def _others(ax: Axes, rows: Sequence[Row]) -> None:
    """Optimizers without a p, as diamonds with a name."""
    names = sorted({row["optimizer"] for row in rows if row["p"] is None})
    for name, colour in zip(names, COLOURS[1:], strict=False):
        own = [row for row in rows if row["optimizer"] == name]
        x, y = ([row[key] for row in own] for key in ("multiple", "validation_accuracy"))
        ax.scatter(x, y, marker="D", color=colour, s=28, zorder=3, label={"adamw": "AdamW", "sgd": "SGD"}[name])


def _ring(ax: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    best = best_of(rows)
    if best[x] is not None and best[y] is not None:
        ax.scatter(_place(best, x), best[y], s=150, facecolors="none", edgecolors=COLOURS[1], linewidths=1.8, zorder=4)


def _axis_of_p(ax: Axes) -> None:
    """p on the scale on which it is searched, the logarithm of p − 1."""
    ax.set_xscale("log")
    ax.set_xlim((LEAST_P - 1) / 1.15, (MOST_P - 1) * 1.15)
    ax.set_xticks([p - 1 for p in TICKS], [f"{p:g}" for p in TICKS])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("p")


def _axis_of_multiples(ax: Axes) -> None:
    ax.set_xscale("log")
    ax.set_xlim(1 / FARTHEST / 1.15, FARTHEST * 1.15)
    ax.set_xticks(MULTIPLES, [f"{multiple:g}" for multiple in MULTIPLES])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("multiple of the rule's step size")


def _bar(fig: Figure, shades: Any, ax: Axes, label: str, places: Sequence[float], names: Sequence[float]) -> None:
    """A colour bar with these ticks alone."""
    bar = fig.colorbar(shades, ax=ax, label=label)
    bar.set_ticks(list(places), labels=[f"{name:g}" for name in names])
    bar.ax.yaxis.set_minor_locator(NullLocator())
