"""The trained query, key and value matrices of a sweep: histograms, and how concentrated they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrormax._drawing import Axes, look_of, panel
from mirrormax.auditing import attention_weights, sparsity
from mirrormax.experiments._measurements import Arrays
from mirrormax.experiments._sweeps import Finished

ROLES = ("key", "query", "value")
MEASURES = ("hoyer", "top_mass", "effective_rank", "large", "near_zero", "left_range")
Matrix = np.ndarray[Any, np.dtype[np.float64]]
BINS = 121
WIDEST = 99.9  # percent of the weights that the histograms show
LARGE = 0.06  # the paper counts, and draws, entries of at least this size
WIDTH = 0.005  # of the bins of its histogram


def weight_arrays(finished: Sequence[Finished]) -> Arrays:
    """Measures (seeds,) and histograms (bins,), a mean over seeds, by contender and role; models as training left them.

    Runs that diverged have no weights to measure: they are counted under ``diverged`` and left out. The histograms
    share their bins, whose ends leave out the outermost weights of the widest contender.
    """
    trained = {each.contender.name: [_weights(str(folder / "last")) for folder in each.folders] for each in finished}
    weights = {
        name: [run for run in runs if all(np.isfinite(_flat(each)).all() for each in run.values())]
        for name, runs in trained.items()
    }
    for name, runs in weights.items():
        if not runs:
            raise ValueError(f"every run of {name} diverged, so its weights cannot be shown; try smaller step sizes.")
    every = [np.abs(_flat(run[role])) for runs in weights.values() for run in runs for role in ROLES]
    reach = max(float(np.percentile(sizes, WIDEST)) for sizes in every)
    edges = np.linspace(-reach, reach, BINS + 1)
    data: Arrays = {"edges": edges}
    for name, runs in weights.items():
        data[f"{name}/diverged"] = np.array(len(trained[name]) - len(runs))
        for role in ROLES:
            measures, flat = [sparsity(*seed[role]) for seed in runs], [_flat(seed[role]) for seed in runs]
            largest = [np.abs(each).max() for each in flat]
            bins = np.arange(LARGE, max(largest) + 2 * WIDTH, WIDTH)
            kept = {key: np.array([getattr(each, key) for each in measures], float) for key in MEASURES} | {
                "entries": np.array(measures[0].entries),
                "histogram": np.mean([np.histogram(each, edges)[0] for each in flat], axis=0),
                "largest": np.array(largest),
                "tail": np.mean([np.histogram(np.abs(each), bins)[0] for each in flat], axis=0),
            }
            data |= {f"{name}/{role}/{key}": array for key, array in kept.items()}
    return data


def _flat(matrices: Sequence[Matrix]) -> np.ndarray[tuple[int], np.dtype[np.float64]]:
    return np.concatenate([matrix.ravel() for matrix in matrices])


def _weights(folder: str) -> dict[str, list[Matrix]]:
    from mirrormax.nets import load_model

    model = load_model(folder).model
    return {role: [w.double().numpy() for w in matrices] for role, matrices in attention_weights(model).items()}


def draw_histogram(ax: Axes, data: Arrays, role: str) -> None:
    """The histogram of every contender."""
    middles = (data["edges"][1:] + data["edges"][:-1]) / 2
    for name in data["names"].tolist():
        share, look = data[f"{name}/{role}/histogram"] / data[f"{name}/{role}/entries"], look_of(name)
        ax.plot(middles, np.where(share > 0, share, np.nan), color=look.colour, linestyle=look.line, label=name)
    panel(ax, f"{role} weights", "weight", "share of the weights", log="y", legend="best", ylim=(1e-5, None))


def draw_tail(ax: Axes, data: Arrays, role: str) -> None:
    """The paper's histogram: sizes from 0.06 on, the largest marked by a dot."""
    for name in data["names"].tolist():
        counts, look = data[f"{name}/{role}/tail"], look_of(name)
        bins = LARGE + WIDTH * np.arange(len(counts) + 1)
        ax.stairs(counts, bins, color=look.colour, linewidth=1.4, label=name)
        ax.plot(data[f"{name}/{role}/largest"].max(), 1, look.marker, color=look.colour, markersize=6, clip_on=False)
    first = role == ROLES[0]
    options: dict[str, Any] = {"log": "y", "legend": "upper right" if first else "", "ylim": (0.5, None)}
    panel(
        ax, f"{role}: |w| ≥ {LARGE:g}, as published", "|w|, the largest marked", "entries" if first else "", **options
    )


def draw_measures(ax: Axes, data: Arrays, roles: tuple[str, ...]) -> None:
    """Hoyer index and mass in the top 1 % of every contender: every run a point, the mean a bar."""
    from matplotlib.patches import Patch

    names = data["names"].tolist()
    for offset, measure in enumerate(("hoyer", "top_mass")):
        for place, name in enumerate(names):
            values = np.mean([data[f"{name}/{role}/{measure}"] for role in roles], axis=0)
            at, look = place + (offset - 0.5) * 0.4, look_of(name)
            hatch: dict[str, Any] = {"hatch": "///", "edgecolor": "white"} if offset else {}
            ax.bar(at, values.mean(), 0.36, color=look.colour, alpha=0.55 if offset else 0.9, linewidth=0, **hatch)
            ax.scatter(np.full(len(values), at), values, s=9, color="black", zorder=3)
            top = values.max()
            ax.annotate(f"{values.mean():.2f}", (at, top), (0, 3), textcoords="offset points", ha="center", fontsize=7)
    keys = [
        Patch(facecolor="0.4", label="Hoyer index"),
        Patch(facecolor="0.4", alpha=0.55, hatch="///", edgecolor="white", label="ℓ1 mass in the top 1 %"),
    ]
    ax.set_xticks(range(len(names)), names)
    panel(ax, "concentration, each run a point")
    ax.margins(y=0.3)
    ax.grid(axis="x", visible=False)
    ax.legend(handles=keys, fontsize=8, loc="upper right")
