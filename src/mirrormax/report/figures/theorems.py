"""Fig 1 and the theorems: cones, rates, regularisation paths."""

from __future__ import annotations

from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from mirrormax.experiments import thm4 as rates
from mirrormax.experiments.contract import Arrays
from mirrormax.experiments.fig1 import stay
from mirrormax.experiments.trials import name_of
from mirrormax.report.style import COLOURS, LINES, MARKERS, row_of_axes


def fig1(data: Arrays) -> Figure:
    """Runs inside their cone at p = 2, and the share of runs that stay for every p, μ and norm."""
    fig, axes = row_of_axes(
        1 + len(data["p"]), width=4.4 + 2.7 * len(data["p"]), height=3.6, ratios=[1.6] + [1.0] * len(data["p"])
    )
    _cone(axes[0], data)
    for k, (ax, p) in enumerate(zip(axes[1:], data["p"], strict=True)):
        for mu, share, colour, marker in zip(data["mu"], stay(data)[k], COLOURS, MARKERS, strict=False):
            ax.plot(data["radii"], 100 * share, color=colour, marker=marker, markersize=5, label=f"μ = {mu:g}")
        ax.set(xscale="log", xlabel="norm of the start", ylim=(-4, 104), title=f"p = {p:g}")
        ax.title.set_fontsize(10)
    axes[1].set_ylabel("runs from μ/3 that stay within μ, %")
    axes[-1].legend(loc="lower right")
    return fig


def _cone(ax: Axes, data: Arrays) -> None:
    """Distance along W_mm and away from it; every other run drawn below the axis."""
    mu, radius = float(data["picture/mu"]), float(data["picture/radius"])
    along, away = data["picture/along"], data["picture/away"]
    sides = np.where(np.arange(along.shape[1]) % 2, -1, 1)
    reach = 2.5 * radius
    for part, alpha, name in ((mu, 0.16, "μ"), (mu / 3, 0.3, "μ/3")):
        angle = np.arccos(1 - part)
        arc = np.linspace(-angle, angle, 60)
        inner, outer = (r * np.stack([np.cos(arc), np.sin(arc)]) for r in (radius, 2 * reach))
        label = f"divergence ≤ {name}, norm ≥ {radius:g}"
        ax.fill(*np.concatenate([inner, outer[:, ::-1]], 1), color=COLOURS[4], alpha=alpha, linewidth=0, label=label)
    ax.plot(along, sides * away, color=COLOURS[0], linewidth=1.1)
    ax.scatter(along[0], sides * away[0], s=16, color=COLOURS[0], zorder=3, label="starts, and runs from them")
    ax.axhline(0, color="black", linewidth=1)
    ax.set(
        xlim=(0.6 * radius, reach),
        ylim=(-1.5 * radius, 1.5 * radius),
        xlabel="distance along $W_{mm}$",
        ylabel="distance away from it",
    )
    ax.set_title("p = 2, one problem", fontsize=10)
    ax.legend(loc="lower left", fontsize=7.5)


def thm1(data: Arrays) -> Figure:
    """Divergence along the regularisation path, one line a problem, the median thick."""
    fig, axes = row_of_axes(len(data["p"]), width=3.5 * len(data["p"]), height=3.2)
    for ax, p, D, colour, marker in zip(axes, data["p"], data["D"], COLOURS, MARKERS, strict=False):
        ax.plot(data["radii"], D.T, color=colour, linewidth=0.8, alpha=0.5)
        ax.plot(data["radii"], np.median(D, 0), color=colour, marker=marker, markersize=5, label="median")
        ax.set(xscale="log", yscale="log", xlabel="radius R", title=f"p = {p:g}, {len(D)} problems")
        ax.title.set_fontsize(10)
        ax.legend(loc="lower left")
    axes[0].set_ylabel("divergence to the attention SVM")
    return fig


def thm4(data: Arrays) -> Figure:
    """D over its bound for plain steps, the norm over k, and D of long normalised runs."""
    fig, (left, middle, right) = row_of_axes(3, width=11.5, height=3.4)
    positive = data["steps"] > 0
    steps = data["steps"][positive]
    for p, colour, marker in zip(data["p"], COLOURS, MARKERS, strict=False):
        fit = rates.rate_fit(data, p)
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 4,
            "markevery": max(len(fit.steps) // 7, 1),
        }
        left.plot(fit.steps, fit.ratio, label=f"p = {p:g}", **style)
        middle.plot(steps, np.median(data[f"plain/{name_of(p)}/norm"], -1)[positive], label=f"p = {p:g}", **style)
    for j, p in enumerate(data["normalised_p"]):
        D = np.median(data[f"normalised/{name_of(p)}/D"], -1)[positive]
        right.plot(steps, D, color=COLOURS[j % len(COLOURS)], linestyle=LINES[j % len(LINES)], label=f"p = {p:g}")
    left.set(
        xscale="log",
        yscale="log",
        xlabel="step k",
        title="plain steps: D / rate(k)\n(bounded, says the theorem)",
    )
    middle.set(xscale="log", xlabel="step k", title="plain steps: norm of W\n(a line here is growth like log k)")
    right.set(xscale="log", yscale="log", xlabel="step k", title="normalised steps: D\n(median)")
    for ax in (left, middle, right):
        ax.title.set_fontsize(10)
    middle.legend(loc="upper left")
    right.legend(loc="lower left", fontsize=8, ncols=2)
    return fig


def thm5(data: Arrays) -> Figure:
    """Divergences of W and v along the joint regularisation path."""
    fig, axes = row_of_axes(2, width=8.5, height=3.3)
    for ax, part, limit in zip(axes, ("W", "v"), ("the attention SVM", "the SVM"), strict=True):
        for p, colour, marker in zip(data["p"], COLOURS, MARKERS, strict=False):
            # A divergence of exactly 0 has no place on a logarithmic axis.
            D = np.maximum(data[f"D_{part}/{name_of(p)}"], 1e-16)
            ax.plot(data["radii"], D, color=colour, marker=marker, markersize=5, label=f"p = {p:g}")
        ax.set(xscale="log", yscale="log", xlabel="radius R of W", title=f"divergence of {part} to {limit}")
        ax.title.set_fontsize(10)
    axes[0].legend(loc="lower left")
    return fig
