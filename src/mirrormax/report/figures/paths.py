"""Fig 4 and Fig 5: the paths of ℓp-AttGD against the attention SVMs."""

from __future__ import annotations

from typing import Any

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import Rectangle

from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.fig4 import PROTOCOLS, same_tokens
from mirrormax.experiments.trials import name_of
from mirrormax.report.style import COLOURS, MARKERS, row_of_axes

ROWS = {
    "random": "authors' protocol:\nown N(0, 1) starts",
    "shared": "controlled:\nshared zero start",
    "same": "controlled,\nsame α for every p",
}


def fig4(data: Arrays) -> Figure:
    """Rows: the authors' protocol, the controlled one, and its trials of one selection; columns: the path's p."""
    every = {protocol: np.ones(len(data[f"{protocol}/alpha"]), dtype=bool) for protocol in PROTOCOLS}
    chosen = {"random": every["random"], "shared": every["shared"], "same": same_tokens(data, "shared")}
    count = len(data["p"])
    fig, grid = plt.subplots(3, count, figsize=(3.6 * count, 8.2), sharey=True, squeeze=False)
    for axes, (row, label) in zip(grid, ROWS.items(), strict=True):
        protocol = "random" if row == "random" else "shared"
        for k, ax in enumerate(axes):
            _divergences(ax, data, protocol, k, chosen[row])
            if row == "random":
                ax.set_title(f"path of p = {data['p'][k]:g}", fontsize=10)
            if row == "same":
                ax.set_xlabel("step")
        axes[0].set_ylabel(f"{label}\n({chosen[row].sum()} trials)\n\ndirectional divergence", fontsize=9)
    handles, names = _legend(grid[0][0])
    fig.legend(handles, names, loc="outside lower center", ncols=3, fontsize=9)
    return fig


def _divergences(ax: Axes, data: Arrays, protocol: str, k: int, trials: Any) -> None:
    """Mean over trials and middle half, for each SVM; the path's trials that are not locally optimal as thin lines."""
    p = data["p"][k]
    steps, D = data[f"{protocol}/steps/{name_of(p)}"], data[f"{protocol}/D/{name_of(p)}"]
    moved = steps > 0
    steps, D = steps[moved], D[moved]
    optimal = data[f"{protocol}/optimal"][:, k]
    every = max(len(steps) // 6, 1)
    for j, q in enumerate(data["p"]):
        part = D[:, trials, j]
        style: dict[str, Any] = {"color": COLOURS[j], "marker": MARKERS[j], "markevery": every, "markersize": 5}
        ax.plot(steps, np.nanmean(part, 1), label=f"to the SVM of p = {q:g}", **style)
        ax.fill_between(steps, *np.nanpercentile(part, [25, 75], axis=1), color=COLOURS[j], alpha=0.18, linewidth=0)
    apart = D[:, trials & ~optimal, k]
    for trial in range(apart.shape[1]):
        ax.plot(steps, apart[:, trial], color="black", linewidth=0.7, alpha=0.6, linestyle=":")
    ax.axvline(data["published_steps"][k], color="grey", linewidth=0.9, linestyle="--")
    ax.set(xscale="log", yscale="log", ylim=(1e-5, 3))


def _legend(ax: Axes) -> tuple[list[Any], list[str]]:
    handles, names = ax.get_legend_handles_labels()
    handles.append(Line2D([], [], color="black", linewidth=0.7, linestyle=":"))
    handles.append(Line2D([], [], color="grey", linewidth=0.9, linestyle="--"))
    handles.append(Rectangle((0, 0), 1, 1, color="grey", alpha=0.25, linewidth=0))
    return handles, [*names, "own SVM, α not locally optimal", "end of the published runs", "middle half of the trials"]


def fig5(data: Arrays) -> Figure:
    """Two entries of W up to the published number of steps, and the line of the SVM through the origin."""
    fig, axes = row_of_axes(len(data["p"]), width=3.7 * len(data["p"]), height=3.5)
    first, second = (tuple(int(k) for k in entry) for entry in data["entries"])
    for ax, p in zip(axes, data["p"], strict=True):
        key = name_of(p)
        path = data[f"path/{key}"][data[f"steps/{key}"] <= data[f"published/{key}"]]
        reach = 1.1 * np.linalg.norm(path, axis=1).max()
        svm = data[f"svm/{key}"] / np.linalg.norm(data[f"svm/{key}"])
        ax.plot(*np.stack([0 * svm, reach * svm]).T, color=COLOURS[1], linestyle="--", label="SVM direction")
        ax.plot(
            *path.T, color=COLOURS[0], marker="o", markersize=3, markevery=max(len(path) // 12, 1), label="path of W"
        )
        ax.scatter(path[-1][0], path[-1][1], s=45, color=COLOURS[0], zorder=3)
        ax.set(xlabel=f"W{list(first)}", ylabel=f"W{list(second)}", title=f"p = {p:g}")
        ax.title.set_fontsize(10)
    axes[0].legend(loc="best")
    return fig
