"""The plane of Example 1, in which Fig 2 and Fig 3 are drawn."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import SHADES

if TYPE_CHECKING:
    from matplotlib.axes import Axes

LABELS = (r"$x_{11}$", r"$x_{12}$"), (r"$x_{21}$", r"$x_{22}$")


def frame(ax: Axes) -> None:
    """Limits that hold every token, at one scale."""
    ax.set(xlim=(-6.3, 6.3), ylim=(-3.4, 3.4), aspect="equal", xlabel="first coordinate", ylabel="second")


def line(ax: Axes, point: Any, along: Any, **style: Any) -> None:
    """A line through a point, across the whole plane."""
    unit = 20 * along / np.linalg.norm(along)
    ax.plot(*np.stack([point - unit, point + unit]).T, **style)


def draw_tokens(ax: Axes, X: Any, i: int, chosen: int) -> None:
    """The tokens of a sequence: the chosen one filled, the others open; labels away from the origin."""
    for t, x in enumerate(X):
        face = SHADES[i] if t == chosen else "white"
        ax.scatter(x[0], x[1], s=60, color=face, edgecolors=SHADES[i], linewidths=1.8, marker="os"[i], zorder=3)
        across = abs(x[0]) > abs(x[1])
        offset = (0, 9 if x[0] > 0 else -18) if across else (9, 6 if x[1] > 0 else -14)
        ax.annotate(LABELS[i][t], x, xytext=offset, textcoords="offset points", ha="center" if across else "left")
