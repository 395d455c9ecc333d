"""Our own studies: sparsity and step sizes."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.figure import Figure

from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.sparsity import entries_for_mass
from mirrormax.report.style import COLOURS, MARKERS, row_of_axes


def sparsity(data: Arrays) -> Figure:
    """The trained weights as pictures, and how attention turns to one token."""
    count = len(data["p"])
    fig, axes = row_of_axes(count + 1, width=11, height=2.9, ratios=[1.0] * count + [1.5])
    for ax, p, W in zip(axes, data["p"], data["W"], strict=False):
        limit = np.abs(W).max()
        ax.imshow(W, cmap="PuOr", vmin=-limit, vmax=limit)
        ax.set_title(f"p = {p:g}: {entries_for_mass(W, 0.9)} of {W.size} entries\nhold 90 % of the weight", fontsize=10)
        ax.set_xticks([])
        ax.set_yticks([])
        ax.grid(False)
        ax.spines[["right", "top"]].set_visible(True)
    steps = np.arange(1, data["attention"].shape[1] + 1)
    for p, curve, colour in zip(data["p"], data["attention"], COLOURS, strict=False):
        axes[-1].plot(steps, curve, color=colour, label=f"p = {p:g}")
    axes[-1].set(xscale="log", xlabel="step", title="attention on the selected token\n(mean over sequences)")
    axes[-1].title.set_fontsize(10)
    axes[-1].legend(loc="lower right")
    return fig


def step_size(data: Arrays) -> Figure:
    """Accuracy over the step size as it is, and over its multiple of the rule."""
    fig, (left, right) = row_of_axes(2, width=9, height=3.4)
    for p, lr, accuracy, colour, marker in zip(data["p"], data["lr"], data["accuracy"], COLOURS, MARKERS, strict=False):
        style: dict[str, Any] = {"color": colour, "marker": marker, "markersize": 5, "label": f"p = {p:g}"}
        left.plot(lr, accuracy, **style)
        right.plot(data["multiples"], accuracy, **style)
    left.set(xscale="log", xlabel="step size", ylabel="test accuracy", ylim=(0, 1), title="over the step size itself")
    right.set(
        xscale="log",
        xlabel="multiple of the rule's step size",
        ylim=(0, 1),
        title="over its multiple of the rule (p−1) s$^{p-2}$ · 0.1",
    )
    right.legend(loc="upper left")
    return fig
