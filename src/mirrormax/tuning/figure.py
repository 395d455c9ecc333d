"""The picture of a study: accuracy over p and over the step size, and how sparse attention became."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm
from matplotlib.figure import Figure
from matplotlib.ticker import NullFormatter, NullLocator

from mirrormax.report.style import COLOURS, house_style, row_of_axes, save
from mirrormax.tuning.results import Row, best_of
from mirrormax.tuning.space import FARTHEST, LEAST_P, MOST_P

TICKS = (1.05, 1.1, 1.25, 1.5, 2, 3, 4)
SHADES = "viridis_r"


def draw(rows: Sequence[Row], folder: Path) -> list[Path]:
    """Write ``tune.svg`` and ``tune.png``."""
    with house_style():
        return save(picture(rows), folder, "tune")


def picture(rows: Sequence[Row]) -> Figure:
    """Three panels; trials that were given up are hollow, the chosen one has a ring around it."""
    fig, (over_p, over_lr, sparse) = row_of_axes(3, width=12, height=3.4, ratios=[1.15, 1.0, 1.0])
    mirror = [row for row in rows if row["p"] is not None]
    measured = [row for row in mirror if row["hoyer"] is not None]
    by_multiple: dict[str, Any] = {"shade": "multiple", "norm": LogNorm(1 / FARTHEST, FARTHEST)}
    points = _scatter(over_p, mirror, "validation_accuracy", x="p", **by_multiple)
    _scatter(sparse, measured, "hoyer", x="p", **by_multiple)
    shades = _scatter(over_lr, mirror, "validation_accuracy", x="multiple", shade="p", norm=LogNorm(0.05, 3))
    _others(over_lr, rows)
    _ring(over_p, rows, "p", "validation_accuracy")
    _ring(over_lr, rows, "multiple", "validation_accuracy")
    _ring(sparse, rows, "p", "hoyer")
    for ax in (over_p, sparse):
        _axis_of_p(ax)
    over_p.set(ylabel="validation accuracy", title="over p")
    over_lr.set(xscale="log", xlabel="multiple of the rule's step size", title="over the step size")
    sparse.set(ylabel="Hoyer index of W$_Q$, W$_K$, W$_V$", title="sparsity of attention (finished trials)")
    fig.colorbar(points, ax=over_p, label="multiple of the rule's step size")
    _bar_of_p(fig, shades, over_lr)
    return fig


def _scatter(ax: Axes, rows: Sequence[Row], y: str, *, x: str, shade: str, norm: LogNorm) -> Any:
    """Points coloured by another column; a mappable for the colour bar."""
    drawn = plt.cm.ScalarMappable(norm, SHADES)
    for row in rows:
        colour = drawn.to_rgba(row[shade] - 1 if shade == "p" else row[shade])
        face = colour if row["state"] == "complete" else "none"
        ax.scatter(_place(row, x), row[y], s=32, facecolors=face, edgecolors=[colour], linewidths=1.3, zorder=3)
    return drawn


def _place(row: Row, x: str) -> float:
    return float(row[x]) - 1 if x == "p" else float(row[x])


def _others(ax: Axes, rows: Sequence[Row]) -> None:
    """Optimizers without a p, as crosses."""
    names = sorted({row["optimizer"] for row in rows if row["p"] is None})
    for name, colour in zip(names, COLOURS[1:], strict=False):
        own = [row for row in rows if row["optimizer"] == name]
        x, y = ([row[key] for row in own] for key in ("multiple", "validation_accuracy"))
        ax.scatter(x, y, marker="x", color=colour, s=36, zorder=3, label={"adamw": "AdamW", "sgd": "SGD"}[name])
    if names:
        ax.legend()


def _ring(ax: Axes, rows: Sequence[Row], x: str, y: str) -> None:
    best = best_of(rows)
    if best[x] is not None and best[y] is not None:
        ax.scatter(_place(best, x), best[y], s=150, facecolors="none", edgecolors=COLOURS[1], linewidths=1.8, zorder=4)


def _axis_of_p(ax: Axes) -> None:
    """p on the scale on which it is searched, the logarithm of p − 1."""
    ax.set_xscale("log")
    ax.set_xlim((LEAST_P - 1) / 1.15, (MOST_P - 1) * 1.15)
    ax.set_xticks(np.array(TICKS) - 1, [f"{p:g}" for p in TICKS])
    ax.xaxis.set_minor_locator(NullLocator())
    ax.set_xlabel("p")


def _bar_of_p(fig: Figure, shades: Any, ax: Axes) -> None:
    bar = fig.colorbar(shades, ax=ax, label="p")
    bar.set_ticks(list(np.array(TICKS) - 1), labels=[f"{p:g}" for p in TICKS])
    bar.ax.yaxis.set_minor_locator(NullLocator())
    bar.ax.yaxis.set_minor_formatter(NullFormatter())
