"""Fig 6 and Fig 7: W and v trained together on Example 2."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.trials import name_of
from mirrormax.report.style import COLOURS, MARKERS, row_of_axes


def fig6(data: Arrays) -> Figure:
    """First row: the rows of W; second: v; third: the divergences to both SVM directions."""
    count = len(data["p"])
    fig, grid = plt.subplots(3, count, figsize=(3.7 * count, 8.6), squeeze=False)
    for k, p in enumerate(data["p"]):
        key = name_of(p)
        top, middle, bottom = grid[:, k]
        for i in range(2):
            colour, name = COLOURS[i], f"row {i + 1} of W"
            _path(top, data[f"W/{key}"][:, i], data[f"W_mm/{key}"][i], colour, MARKERS[i], name)
        _path(middle, data[f"v/{key}"], data[f"v_mm/{key}"], COLOURS[2], MARKERS[2], "v")
        steps = data[f"steps/{key}"]
        for part, colour, marker in (("W", COLOURS[0], "o"), ("v", COLOURS[2], "^")):
            D, moved = data[f"D_{part}/{key}"], steps > 0
            every = max(int(moved.sum()) // 7, 1)
            bottom.plot(steps[moved], D[moved], color=colour, marker=marker, markevery=every, markersize=4, label=part)
        bottom.set(xscale="log", yscale="log", xlabel="step")
        alpha = data[f"alpha/{key}"].tolist()
        top.set_title(f"p = {p:g}, tokens {alpha}", fontsize=10)
        top.set(xlabel="first entry", ylabel="second entry" if k == 0 else "")
        middle.set(xlabel="first entry", ylabel="second entry" if k == 0 else "")
    grid[2][0].set_ylabel("directional divergence")
    for ax in grid[:, 0]:
        ax.legend(loc="best", fontsize=8)
    return fig


def _path(ax: Axes, path: Any, svm: Any, colour: str, marker: str, name: str) -> None:
    """A path in the plane, and the ray of the SVM, a little longer than the path."""
    size = np.linalg.norm(path[-1]) / max(np.linalg.norm(svm), 1e-300)
    ray = np.stack([0 * svm, 1.08 * size * svm])
    ax.plot(*ray.T, color=colour, linestyle="--", linewidth=1.2, label=f"{name}, SVM")
    ax.plot(*path.T, color=colour, marker=marker, markersize=4, markevery=max(len(path) // 10, 1), label=name)


def fig7(data: Arrays) -> Figure:
    """Softmax probability of the selected token and logistic probability, over the first steps and all."""
    fig, axes = row_of_axes(2, width=9, height=3.3)
    titles = {"softmax": "softmax probability of the selected token", "logistic": "logistic probability"}
    for ax, (curve, title) in zip(axes, titles.items(), strict=True):
        for p, colour, marker in zip(data["p"], COLOURS, MARKERS, strict=False):
            steps, values = data[f"steps/{name_of(p)}"], data[f"{curve}/{name_of(p)}"]
            first = steps <= 100
            ax.plot(
                steps[first], values[first], color=colour, marker=marker, markevery=8, markersize=5, label=f"p = {p:g}"
            )
        ax.set(xlabel="step", ylim=(0.3, 1.02), title=f"{title}\n(mean over the two sequences)")
        ax.title.set_fontsize(10)
    axes[1].legend(loc="lower right")
    return fig
