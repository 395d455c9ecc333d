"""Pictures of an audit: heat maps layer × head, kinds of heads, effects of changes, and the scan over p."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Any

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import ListedColormap, LogNorm, Normalize
from matplotlib.figure import Figure
from matplotlib.image import AxesImage
from matplotlib.patches import Patch

from mirrormax._drawing import AROUND_ZERO, COLOURS, LINES, RAMP, colour_map, grid_of_axes, row_of_axes
from mirrormax.auditing import KINDS, MAX_MARGIN, OFF, Audit, relative_to_controls
from mirrormax.report.audit_words import SINK

Array = npt.NDArray[np.float64]

PANELS = (  # field, title, logarithmic, from 0 to 1
    ("mass", "attention on the selected token", False, True),
    ("entropy", "entropy (1: uniform)", False, True),
    ("on_first", "rows that select the first token", False, True),
    ("on_last", "rows that select the last token", False, True),
    ("ratio", "realised / optimal margin", True, False),
    ("quantile_ratio", "the same at the quantile", True, False),
    ("divergence", "divergence from the optimum", False, False),
    ("hoyer", "sparsity of W (Hoyer)", False, False),
)
DECODER = {  # of language models, instead of
    "on_last": ("on_previous", "rows that select the token before", False, True),
    "quantile_ratio": ("induction", "induction (repeated tokens)", False, True),
}
CELLS_WITH_NUMBERS = 40
WIDTH = 8.8
"""Inches: on a page of 800 pixels all of a figure is seen, with type of 11 pixels."""


def kinds(audit: Audit) -> Figure:
    """The kind of every head, layer × head, and how many there are of each."""
    names = [kind for kind in KINDS.values() if any(head.kind == kind for head in audit.heads)]
    values = np.full_like(audit.grid("mass"), np.nan)
    layers, width = values.shape
    for head in audit.heads:
        values[head.layer, head.head] = names.index(head.kind) if head.kind else len(names)
    shades = [*(COLOURS[k % len(COLOURS)] for k in range(len(names))), "#dddddd"]
    if len(names) > len(COLOURS):
        shades[len(COLOURS)] = "#444444"
    fig, (ax,) = row_of_axes(1, width=min(WIDTH, 3.5 + 0.45 * width), height=min(max(2.4, 1.2 + 0.22 * layers), 8))
    _image(ax, values, cmap=ListedColormap(shades), vmin=-0.5, vmax=len(names) + 0.5)
    ax.set(xlabel="head", ylabel="layer")
    controls, labels = [control.kind or "none" for control in audit.shuffled], []
    for k, name in enumerate([*names, "none"]):
        beside = f" (shuffled: {controls.count(name)} of {len(controls)})" if controls else ""
        labels.append(f"{name}: {int((values == k).sum())}{beside}")
    fig.legend([Patch(color=shade) for shade in shades], labels, loc="outside right upper", fontsize=9)
    return fig


def growth(audit: Audit) -> Figure:
    """Ratio and divergence over the rows of the sample: the median head, and the middle half of them."""
    fig, axes = row_of_axes(2, width=WIDTH, height=3.4)
    sizes = sorted({point.rows for point in audit.growth})
    titles = {"ratio": "realised / optimal margin", "divergence": "divergence from the optimum"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        values = [[getattr(point, name) for point in audit.growth if point.rows == size] for size in sizes]
        low, middle, high = (np.array([np.nanquantile(column, q) for column in values]) for q in (0.25, 0.5, 0.75))
        ax.fill_between(sizes, low, high, color=COLOURS[0], alpha=0.2, linewidth=0, label="middle half of the heads")
        ax.plot(sizes, middle, color=COLOURS[0], marker="o", label="median head")
        ax.set(xscale="log", xlabel="rows of the sample", title=title)
        ax.set_xticks(sizes, [str(size) for size in sizes])
        ax.minorticks_off()
    axes[0].set_yscale("log")
    axes[0].legend(fontsize=8)
    return fig


def removal(audit: Audit) -> Figure:
    """The rise of the loss over the heads removed, by order, with intervals over texts."""
    fig, (ax,) = row_of_axes(1, width=6, height=3.6)
    titles = {"taylor": "least Taylor importance first", "sink": "most sink-like first", "random": "at random"}
    for k, (order, title) in enumerate(titles.items()):
        mine = [(point.heads, point.mean, point.low, point.high) for point in audit.removal if point.order == order]
        if mine:
            x, means, low, high = np.array([(0, 0, 0, 0), *mine]).T
            ax.plot(x, means, color=COLOURS[k], linestyle=LINES[k], marker="o", label=title)
            ax.fill_between(x, low, high, color=COLOURS[k], alpha=0.15, linewidth=0)
    ax.axhline(0, color="#888888", linewidth=0.8)
    ax.set(xlabel="heads removed", ylabel="rise of the loss, nats")
    ax.set_xticks(sorted({0, *(point.heads for point in audit.removal)}))
    ax.legend(fontsize=8)
    return fig


def effects(audit: Audit) -> Figure:
    """The effect of every change over the head's ratio, with intervals."""
    fig, axes = row_of_axes(2, width=WIDTH, height=4)
    of_head = {head.name: head for head in audit.heads}
    titles = {OFF: "head switched off", MAX_MARGIN: "head with its max-margin weights"}
    for ax, (kind, title) in zip(axes, titles.items(), strict=True):
        named = audit.config["heads"]
        every = [effect for effect in audit.effects if effect.kind == kind and effect.name not in named]
        for k, (name, are_sinks, marker) in enumerate((("others", False, "o"), (f"{SINK}s", True, "^"))):
            mine = [effect for effect in every if (of_head[effect.name].kind == SINK) == are_sinks]
            if not mine:
                continue
            x = [of_head[effect.name].ratio for effect in mine]
            low, y, high = np.array([(effect.low, effect.mean, effect.high) for effect in mine]).T
            bars = np.abs([y - low, high - y])
            ax.errorbar(x, y, bars, fmt=marker, ms=4, color=COLOURS[k], ecolor="#cccccc", label=f"{name} ({len(mine)})")
        ax.axhline(0, color="#888888", linewidth=0.8)
        ax.set(xscale="log", xlabel="realised / optimal margin", title=title)
        typical = max(1e-6, float(np.median([abs(effect.mean) for effect in every])))
        ax.set_yscale("symlog", linthresh=10.0 ** np.ceil(np.log10(typical)))  # a decade, so that ticks keep apart
        if all(effect.low >= 0 for effect in every):
            ax.set_ylim(bottom=0)
    axes[0].set_ylabel("effect on the answers")
    axes[0].legend(fontsize=8)
    return fig


def heat_maps(audit: Audit) -> Figure:
    """Eight numbers of every head, one small map each."""
    height = min(max(1.9, 1.2 + 0.27 * len(audit.grid("mass"))), 5.0)
    fig, axes = grid_of_axes(4, 2, width=WIDTH, height=4 * height)
    copies = any(head.induction is not None for head in audit.heads)
    panels = [DECODER.get(panel[0], panel) if copies else panel for panel in PANELS]
    for ax, (name, title, logarithmic, unit) in zip(chain(*axes), panels, strict=True):
        _heat_map(ax, audit.grid(name), logarithmic, unit)
        ax.set_title(title, fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("head")
    for row in axes:
        row[0].set_ylabel("layer")
    return fig


def side_by_side(first: Audit, second: Audit, names: Sequence[str]) -> Figure:
    """Four numbers of every head of two models on one scale, and their difference where both have the same heads."""
    panels = [panel for panel in PANELS if panel[0] in ("mass", "entropy", "ratio", "hoyer")]
    shapes = [audit.grid("mass").shape for audit in (first, second)]
    paired = shapes[0] == shapes[1]
    height = min(max(1.8, 1.2 + 0.25 * max(layers for layers, _ in shapes)), 4.5)
    fig, axes = grid_of_axes(len(panels), 3 if paired else 2, width=WIDTH, height=len(panels) * height)
    for row, (name, title, logarithmic, unit) in zip(axes, panels, strict=True):
        values = [audit.grid(name) for audit in (first, second)]
        every = np.concatenate([grid.ravel() for grid in values])
        for ax, grid, whose in zip(row, values, names, strict=False):
            _heat_map(ax, grid, logarithmic, unit, scale=every)
            ax.set_title(f"{title}\n{whose}", fontsize=9)
        row[0].set_ylabel("layer")
        if paired:
            # Blue where the first is larger; none is in full colour below a tenth of what there is.
            apart = values[0] - values[1]
            size = 1.0 if unit else float(np.nanmax(every, initial=0.0))
            most = max(np.abs(apart[np.isfinite(apart)]).max(initial=0.0), size / 10, 1e-12)
            image = _image(row[2], apart, cmap=colour_map(AROUND_ZERO), vmin=-most, vmax=most)
            fig.colorbar(image, ax=row[2], pad=0.02)
            row[2].set_title("first − second", fontsize=9)
    for ax in axes[-1]:
        ax.set_xlabel("head")
    return fig


def _heat_map(ax: Axes, values: Array, logarithmic: bool, unit: bool, scale: Array | None = None) -> None:
    """One map, on the scale of its own values, or of all those of ``scale``."""
    scale = values if scale is None else scale
    positive = scale[np.isfinite(scale) & (scale > 0)]
    few = values.size <= CELLS_WITH_NUMBERS  # without a colour bar, near equal heads must not look far apart
    if logarithmic and positive.size and not few:
        norm: Normalize = LogNorm(positive.min(), max(positive.max(), positive.min() * 1.01))
        values = np.where(values > 0, values, positive.min())
    else:
        known = scale[np.isfinite(scale)]
        least = 0.0 if few else known.min(initial=np.inf)
        norm = Normalize(0, 1) if unit or not known.size else Normalize(least, known.max() + 1e-12)
    image = _image(ax, values, cmap=colour_map(RAMP), norm=norm)
    if not few:
        ax.figure.colorbar(image, ax=ax, pad=0.02)
    else:
        for (row, column), value in np.ndenumerate(values):
            ink = "white" if np.isfinite(value) and norm(value) > 0.6 else "black"
            ax.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=9, color=ink)


def _image(ax: Axes, values: Array, **look: Any) -> AxesImage:
    """Values layer × head as an image, with at most eight ticks along each side."""
    image = ax.imshow(values, aspect="auto", **look)
    ax.grid(False)
    for count, ticks in ((values.shape[1], ax.set_xticks), (values.shape[0], ax.set_yticks)):
        ticks(range(0, count, max(1, -(-count // 8))))
    return image


def scan(audit: Audit) -> Figure:
    """Ratio and divergence over p: medians by layer, the controls, and which p wins how often."""
    fig, grid = grid_of_axes(2, 2, width=WIDTH, height=6.6)
    axes = list(chain(*grid))
    exponents = sorted({point.p for point in audit.scan})
    layers = sorted({point.layer for point in audit.scan})
    colours = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(layers)))
    relative = [ratio for ratio, _ in relative_to_controls(audit.scan, audit.controls)]
    measures = [[point.ratio for point in audit.scan], [point.divergence for point in audit.scan], relative]
    for layer, colour in zip(layers, colours, strict=True):
        mine = [k for k, point in enumerate(audit.scan) if point.layer == layer]
        for ax, values in zip(axes, measures, strict=False):
            medians = [np.median([values[k] for k in mine if audit.scan[k].p == p]) for p in exponents]
            ax.plot(exponents, medians, color=colour, marker="o", markersize=3, label=f"layer {layer}")
    for ax, name in zip(axes, ("ratio", "divergence") if audit.controls else (), strict=False):
        of_p = [[getattr(point, name) for point in audit.controls if point.p == p] for p in exponents]
        ax.plot(exponents, np.median(of_p, 1), color=COLOURS[1], linestyle=LINES[1], label="controls")
    for ax in axes[:3]:
        ax.set_xlabel("p")
        ax.set_xticks(exponents, [f"{p:g}" for p in exponents])
    axes[0].set(yscale="log", title="realised / optimal margin")
    axes[1].set(title="divergence from the optimum")
    axes[2].set(yscale="log", title="ratio over the controls’" if audit.controls else "ratio")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 9), fontsize=8)
    width, places = 0.38, np.arange(len(exponents))
    for k, name in enumerate(("ratio", "divergence")):
        counts = [sum(getattr(head, f"best_p_{name}") == p for head in audit.heads) for p in exponents]
        axes[3].bar(places + (k - 0.5) * width, counts, width, color=COLOURS[k], label=f"by {name}")
    axes[3].set_xticks(places, [f"{p:g}" for p in exponents])
    axes[3].set(xlabel="p", title="heads that stand out most at p")
    axes[3].legend(fontsize=8)
    for ax in axes:
        ax.title.set_fontsize(10)
    return fig
