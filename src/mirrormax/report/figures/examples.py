"""Fig 2 and Fig 3: the tokens of Example 1 and the lines that keep them apart."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirrormax.experiments.contract import Arrays
from mirrormax.report.style import COLOURS, row_of_axes

LABELS = (r"$x_{11}$", r"$x_{12}$"), (r"$x_{21}$", r"$x_{22}$")


def fig2(data: Arrays) -> Figure:
    """One panel for each p: tokens, the directions W z_i, and the lines orthogonal to them."""
    fig, axes = row_of_axes(len(data["p"]), width=5.0 * len(data["p"]), height=3.1)
    for ax, p, W in zip(axes, data["p"], data["W"], strict=True):
        _frame(ax)
        for i, (X, z) in enumerate(zip(data["X"], data["z"], strict=True)):
            colour = COLOURS[i]
            normal = W @ z
            _line(ax, X.mean(0), np.array([-normal[1], normal[0]]), color=colour, linestyle="--")
            tip = 1.6 * normal / np.linalg.norm(normal)
            ax.annotate("", X.mean(0) + tip, X.mean(0), arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6})
            end = X.mean(0) + tip
            ax.annotate(
                rf"$Wz_{i + 1}$",
                end,
                xytext=(0, -14 if i == 0 else 6),
                textcoords="offset points",
                color=colour,
                ha="center",
            )
            _tokens(ax, X, i, chosen=0)
        ax.set_title(f"p = {p:g}:  W = [{W[0, 0]:.5f}, 0; {W[1, 0]:.5f}, 0]", fontsize=10)
    return fig


def fig3(data: Arrays) -> Figure:
    """The label margin of every selection, at the first p."""
    count = len(data["selections"])
    fig, axes = row_of_axes(count, width=3.1 * count, height=2.3)
    for ax, selection, v, margin in zip(axes, data["selections"], data["v"][0], data["margin"][0], strict=True):
        _frame(ax)
        along = np.array([-v[1], v[0]]) / np.linalg.norm(v)
        out = v / (v @ v)  # where the margin ends: vᵀx = 1
        _line(ax, np.zeros(2), along, color="black", linewidth=1.2)
        far = 20 * along
        corners = np.stack([out - far, out + far, -out + far, -out - far])
        ax.fill(*corners.T, color=COLOURS[5], alpha=0.3, linewidth=0)
        for i, X in enumerate(data["X"]):
            _tokens(ax, X, i, chosen=int(selection[i]))
        ax.set_title(f"margin {margin:.3g}", fontsize=10)
    for ax in axes[1:]:
        ax.set_ylabel("")
    return fig


def _frame(ax: Axes) -> None:
    ax.set(xlim=(-6.3, 6.3), ylim=(-3.4, 3.4), aspect="equal", xlabel="first coordinate", ylabel="second")


def _line(ax: Axes, point: Any, along: Any, **style: Any) -> None:
    unit = 20 * along / np.linalg.norm(along)
    ax.plot(*np.stack([point - unit, point + unit]).T, **style)


def _tokens(ax: Axes, X: Any, i: int, chosen: int) -> None:
    """The tokens of a sequence: the chosen one filled, the others open; labels away from the origin."""
    for t, x in enumerate(X):
        face = COLOURS[i] if t == chosen else "white"
        ax.scatter(x[0], x[1], s=60, color=face, edgecolors=COLOURS[i], linewidths=1.8, marker="os"[i], zorder=3)
        across = abs(x[0]) > abs(x[1])
        offset = (0, 9 if x[0] > 0 else -18) if across else (9, 6 if x[1] > 0 else -14)
        ax.annotate(LABELS[i][t], x, xytext=offset, textcoords="offset points", ha="center" if across else "left")
