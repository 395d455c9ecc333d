"""Pictures of an audit: heat maps layer × head, and the scan over p."""

from __future__ import annotations

from collections.abc import Sequence

import matplotlib
import numpy as np
import numpy.typing as npt
from matplotlib.axes import Axes
from matplotlib.colors import LogNorm, Normalize
from matplotlib.figure import Figure

from mirrormax._drawing import COLOURS, LINES, grid_of_axes, row_of_axes
from mirrormax.auditing import Audit, ScanPoint, relative_to_controls

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
CELLS_WITH_NUMBERS = 40


def heat_maps(audit: Audit) -> Figure:
    """Eight numbers of every head, one small map each."""
    layers = len(audit.grid("mass"))
    heads = max(len(row) for row in audit.grid("mass"))
    height = min(max(1.9, 1.2 + 0.27 * layers), 5.0)
    fig, axes = grid_of_axes(2, 4, width=13, height=2 * height)
    for ax, (name, title, logarithmic, unit) in zip([*axes[0], *axes[1]], PANELS, strict=True):
        _heat_map(ax, _filled(audit.grid(name), heads), logarithmic, unit)
        ax.set_title(title, fontsize=10)
    for ax in axes[-1]:
        ax.set_xlabel("head")
    for row in axes:
        row[0].set_ylabel("layer")
    return fig


def _filled(rows: Sequence[Sequence[float]], heads: int) -> Array:
    """Layers may differ in heads; what is missing stays blank."""
    return np.array([[*row, *[np.nan] * (heads - len(row))] for row in rows])


def _heat_map(ax: Axes, values: Array, logarithmic: bool, unit: bool) -> None:
    positive = values[np.isfinite(values) & (values > 0)]
    few = values.size <= CELLS_WITH_NUMBERS  # without a colour bar, near equal heads must not look far apart
    if logarithmic and positive.size and not few:
        norm: Normalize = LogNorm(positive.min(), max(positive.max(), positive.min() * 1.01))
        values = np.where(values > 0, values, positive.min())
    else:
        known = values[np.isfinite(values)]
        least = 0.0 if few else known.min(initial=np.inf)
        norm = Normalize(0, 1) if unit or not known.size else Normalize(least, known.max() + 1e-12)
    image = ax.imshow(values, cmap="viridis", norm=norm, aspect="auto")
    ax.grid(False)
    ax.set_xticks(_ticks(values.shape[1]))
    ax.set_yticks(_ticks(values.shape[0]))
    if not few:
        ax.figure.colorbar(image, ax=ax, pad=0.02)
    else:
        for (row, column), value in np.ndenumerate(values):
            shade = "white" if np.isfinite(value) and norm(value) < 0.6 else "black"
            ax.text(column, row, f"{value:.2g}", ha="center", va="center", fontsize=9, color=shade)


def _ticks(count: int) -> list[int]:
    return list(range(0, count, max(1, -(-count // 8))))


def scan(audit: Audit) -> Figure:
    """Ratio and divergence over p: medians by layer, the controls, and which p wins how often."""
    fig, axes = row_of_axes(4, width=13, height=3.7)
    exponents = sorted({point.p for point in audit.scan})
    layers = sorted({point.layer for point in audit.scan})
    shades = matplotlib.colormaps["viridis"](np.linspace(0, 0.9, len(layers)))
    relative = relative_to_controls(audit.scan, audit.controls)
    for layer, shade in zip(layers, shades, strict=True):
        mine = [k for k, point in enumerate(audit.scan) if point.layer == layer]
        for ax, values in zip(
            axes,
            (
                [point.ratio for point in audit.scan],
                [point.divergence for point in audit.scan],
                [r for r, _ in relative],
            ),
            strict=False,
        ):
            medians = [np.median([values[k] for k in mine if audit.scan[k].p == p]) for p in exponents]
            ax.plot(exponents, medians, color=shade, marker="o", markersize=3, label=f"layer {layer}")
    for ax, name in zip(axes, ("ratio", "divergence"), strict=False):
        _controls(ax, audit.controls, exponents, name)
    for ax in axes[:3]:
        ax.set_xlabel("p")
        ax.set_xticks(exponents, [f"{p:g}" for p in exponents])
    axes[0].set(yscale="log", title="realised / optimal margin")
    axes[1].set(title="divergence from the optimum")
    axes[2].set(yscale="log", title="ratio over the controls’" if audit.controls else "ratio")
    handles, labels = axes[0].get_legend_handles_labels()
    fig.legend(handles, labels, loc="outside lower center", ncols=min(len(labels), 9), fontsize=8)
    _winners(axes[3], audit, exponents)
    for ax in axes:
        ax.title.set_fontsize(10)
    return fig


def _controls(ax: Axes, controls: Sequence[ScanPoint], exponents: Sequence[float], name: str) -> None:
    if controls:
        medians = [np.median([getattr(point, name) for point in controls if point.p == p]) for p in exponents]
        ax.plot(exponents, medians, color=COLOURS[1], linestyle=LINES[1], label="controls")


def _winners(ax: Axes, audit: Audit, exponents: Sequence[float]) -> None:
    width, places = 0.38, np.arange(len(exponents))
    for k, (name, label) in enumerate((("best_p_ratio", "by ratio"), ("best_p_divergence", "by divergence"))):
        counts = [sum(getattr(head, name) == p for head in audit.heads) for p in exponents]
        ax.bar(places + (k - 0.5) * width, counts, width, color=COLOURS[k], label=label)
    ax.set_xticks(places, [f"{p:g}" for p in exponents])
    ax.set(xlabel="p", title="heads that stand out most at p")
    ax.legend(fontsize=8)
