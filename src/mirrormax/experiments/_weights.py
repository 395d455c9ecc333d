"""The trained query, key and value matrices of a sweep: histograms, and how concentrated they are."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from mirrormax._drawing import Axes, look_of, panel
from mirrormax.auditing import attention_weights, sparsity
from mirrormax.experiments._measurements import Arrays
from mirrormax.experiments._sweeps import Finished
from mirrormax.nets import load_model

ROLES = ("key", "query", "value")
MEASURES = ("hoyer", "top_mass", "effective_rank", "large", "near_zero", "left_range")

BINS = 121
WIDEST = 99.9  # percent of the weights that the histograms show
LARGE = 0.06  # the paper counts, and draws, entries of at least this size
WIDTH = 0.005  # of the bins of its histogram


def weight_arrays(finished: Sequence[Finished]) -> Arrays:
    """Measures (seeds,) and histograms (bins,), a mean over seeds, by contender and role; models as training left them.

    Runs that diverged have no weights to measure: they are counted under ``diverged`` and left out. The histograms
    share their bins, whose ends leave out the outermost weights of the widest contender.
    """
    weights, diverged = {}, {}
    for name, folders in ((each.contender.name, each.folders) for each in finished):
        trained = [attention_weights(load_model(str(folder / "last")).model) for folder in folders]
        runs = [{role: [w.double().numpy() for w in run[role]] for role in ROLES} for run in trained]
        weights[name] = [run for run in runs if all(np.isfinite(_flat(run[role])).all() for role in ROLES)]
        diverged[name] = len(runs) - len(weights[name])
        if not weights[name]:
            raise ValueError(f"every run of {name} diverged, so its weights cannot be shown; try smaller step sizes.")
    every = [np.abs(_flat(run[role])) for runs in weights.values() for run in runs for role in ROLES]
    reach = max(float(np.percentile(sizes, WIDEST)) for sizes in every)
    edges = np.linspace(-reach, reach, BINS + 1)
    data: Arrays = {"edges": edges}
    for name, runs in weights.items():
        data[f"{name}/diverged"] = np.array(diverged[name])
        for role in ROLES:
            measures, flat = [sparsity(*run[role]) for run in runs], [_flat(run[role]) for run in runs]
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


def _flat(matrices: Sequence[Any]) -> Any:
    return np.concatenate([matrix.ravel() for matrix in matrices])


def bar(ax: Axes, at: float, values: Any, **style: Any) -> None:
    """A bar as high as the mean, and every run a point."""
    ax.bar(at, values.mean(), **{"linewidth": 0, **style})
    ax.scatter(np.full(len(values), at), values, s=9, color="black", zorder=3)


def draw_measures(ax: Axes, data: Arrays, roles: tuple[str, ...]) -> None:
    """Hoyer index and mass in the top 1 % of every contender."""
    names = data["names"].tolist()
    hatched = {"alpha": 0.55, "hatch": "///", "edgecolor": "white"}
    measures: Any = (("hoyer", "Hoyer index", {"alpha": 0.9}), ("top_mass", "ℓ1 mass in the top 1 %", hatched))
    for offset, (measure, _, style) in enumerate(measures):
        for place, name in enumerate(names):
            values = np.mean([data[f"{name}/{role}/{measure}"] for role in roles], axis=0)
            at = place + (offset - 0.5) * 0.4
            bar(ax, at, values, width=0.36, color=look_of(name).colour, **style)
            mean, top = f"{values.mean():.2f}", (at, values.max())
            ax.annotate(mean, top, (0, 3), textcoords="offset points", ha="center", fontsize=7)
    for _, label, style in measures:
        ax.bar(0, 0, color="0.4", label=label, **style)
    panel(ax, "concentration, each run a point", xticks=range(len(names)), xticklabels=names)
    ax.margins(y=0.3)
    ax.grid(axis="x", visible=False)
    ax.legend(fontsize=8, loc="upper right")
