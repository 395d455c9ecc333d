"""Trained models: Table 1, Fig 8, Fig 9 and the vision transformer."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirrormax.experiments import fig9 as pivots
from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.weights import ROLES
from mirrormax.report.style import COLOURS, LINES, MARKERS, row_of_axes

SHOWN_SCORES = ("mass", "scaled", "hit")


def table1(data: Arrays) -> Figure:
    """Test accuracy of every run, its mean, and the validation accuracy over step sizes it was tuned by."""
    sizes = data["sizes"].tolist()
    fig, axes = row_of_axes(2 * len(sizes), width=4.8 * 2 * len(sizes), height=3.4)
    for k, size in enumerate(sizes):
        inner = {key.removeprefix(f"{size}/"): value for key, value in data.items() if key.startswith(f"{size}/")}
        _runs(axes[2 * k], inner, f"test accuracy, {size}")
        _tuning(axes[2 * k + 1], inner)
    return fig


def _runs(ax: Axes, data: Arrays, title: str) -> None:
    names = data["names"].tolist()
    for place, name in enumerate(names):
        values = 100 * data[f"{name}/test_accuracy"]
        ax.scatter(np.full(len(values), place), values, color=COLOURS[place], alpha=0.6, s=22, zorder=3)
        ax.hlines(values.mean(), place - 0.3, place + 0.3, color=COLOURS[place], linewidth=2.4)
        ax.annotate(f"{values.mean():.1f}", (place + 0.33, values.mean()), va="center", fontsize=9)
    ax.set(xticks=range(len(names)), xticklabels=names, ylabel="percent", title=title, xlim=(-0.5, len(names) - 0.2))
    ax.grid(axis="x", visible=False)


def _tuning(ax: Axes, data: Arrays) -> None:
    for place, name in enumerate(data["names"].tolist()):
        style: dict[str, Any] = {"color": COLOURS[place], "marker": MARKERS[place], "linestyle": LINES[place]}
        ax.plot(data[f"{name}/lrs"], 100 * data[f"{name}/tuning"], label=name, markersize=5, **style)
    ax.set(xscale="log", xlabel="step size", ylabel="percent", title="validation accuracy, when tuning")
    ax.legend(fontsize=8, loc="best")


def fig8(data: Arrays) -> Figure:
    """Histograms by role, and the measures that hang on no threshold."""
    fig, axes = row_of_axes(len(ROLES) + 1, width=3.1 * (len(ROLES) + 1), height=3.3)
    for ax, role in zip(axes, ROLES, strict=False):
        _histogram(ax, data, role)
    _measures(axes[-1], data, ROLES)
    return fig


def _histogram(ax: Axes, data: Arrays, role: str) -> None:
    edges = data["edges"]
    middles = (edges[1:] + edges[:-1]) / 2
    for place, name in enumerate(data["names"].tolist()):
        share = data[f"{name}/{role}/histogram"] / data[f"{name}/{role}/entries"]
        ax.plot(
            middles,
            np.where(share > 0, share, np.nan),
            color=COLOURS[place],
            linestyle=LINES[place],
            label=name,
            linewidth=1.4,
        )
    ax.set(yscale="log", xlabel="weight", title=f"{role} weights", ylim=(1e-5, None))
    if role == ROLES[0]:
        ax.set_ylabel("share of the weights")
        ax.legend(fontsize=8)


def _measures(ax: Axes, data: Arrays, roles: tuple[str, ...]) -> None:
    names = data["names"].tolist()
    for offset, (measure, label) in enumerate((("hoyer", "Hoyer index"), ("top_mass", "ℓ1 mass in the top 1 %"))):
        values = [np.mean([data[f"{name}/{role}/{measure}"] for role in roles], axis=0) for name in names]
        places = np.arange(len(names)) + (offset - 0.5) * 0.36
        means, spreads = [v.mean() for v in values], [v.std() for v in values]
        ax.bar(places, means, 0.34, color=COLOURS[4 + offset], label=label)
        ax.errorbar(places, means, spreads, fmt="none", color="black", linewidth=1)
        for place, mean, spread in zip(places, means, spreads, strict=True):
            ax.annotate(
                f"{mean:.2f}", (place, mean + spread), (0, 2), textcoords="offset points", ha="center", fontsize=7
            )
    ax.set(xticks=range(len(names)), xticklabels=names, title="concentration")
    ax.margins(y=0.25)
    ax.grid(axis="x", visible=False)
    ax.legend(fontsize=8, loc="upper right")


def fig9(data: Arrays) -> Figure:
    """Three scores with their intervals and chance levels."""
    fig, axes = row_of_axes(len(SHOWN_SCORES), width=10, height=3.2)
    names = data["names"].tolist()
    for ax, metric in zip(axes, SHOWN_SCORES, strict=True):
        for place, name in enumerate(names):
            scores = pivots.scores_of(data, name)
            value = scores.estimate(metric)
            ax.errorbar(
                place,
                value.mean,
                [[value.mean - value.low], [value.high - value.mean]],
                fmt=MARKERS[place],
                color=COLOURS[place],
                capsize=4,
            )
            ax.hlines(scores.chance(metric), place - 0.3, place + 0.3, color="0.4", linestyle=":", linewidth=1.6)
        ax.set(xticks=range(len(names)), xticklabels=names, title=pivots.LABELS[metric], ylim=(0, None))
        ax.set_xlim(-0.6, len(names) - 0.4)
        ax.title.set_fontsize(10)
    axes[0].plot([], [], color="0.4", linestyle=":", label="chance")
    axes[0].legend(fontsize=8, loc="lower right")
    return fig


def vit(data: Arrays) -> Figure:
    """Accuracy while training, the keys' histogram, and their concentration."""
    fig, axes = row_of_axes(3, width=11, height=3.4)
    for place, name in enumerate(data["names"].tolist()):
        curves = 100 * data[f"{name}/curve/test_accuracy"]
        epochs = np.arange(1, curves.shape[1] + 1)
        axes[0].plot(epochs, curves.mean(0), color=COLOURS[place], linestyle=LINES[place], label=name)
        axes[0].fill_between(epochs, curves.min(0), curves.max(0), color=COLOURS[place], alpha=0.15)
    axes[0].set(xlabel="epoch", ylabel="percent", title=f"test accuracy, {data['data']}")
    axes[0].legend(fontsize=8)
    _histogram(axes[1], data, "key")
    axes[1].set_ylabel("share of the weights")
    _measures(axes[2], data, ("key",))
    return fig
