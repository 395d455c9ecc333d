"""Fig 8: how the attention weights of the trained text classifiers are spread.

The paper counts entries with |w| ≥ 0.06, which tells what has left the initial range U(±1/√d) rather than how
sparse the weights are. Measures that hang on no threshold stand beside that count, and what sparsity is for: how
accurate each model still is when its smallest attention weights are pruned.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import torch

from mirrormax._drawing import Figure, curve, grid_of_axes, look_of, panel
from mirrormax._statistics import Sample, percent
from mirrormax.experiments._measurements import DIFFERS, MET, About, Arrays, Measured, Rows, Told, alone, greater
from mirrormax.experiments._running import Work
from mirrormax.experiments._sweeps import LARGE, ROLES, WIDTH, TextConfig, bar, draw_measures, run_sweep, weight_arrays
from mirrormax.experiments._sweeps import PROFILES as PROFILES
from mirrormax.experiments._sweeps import on_data as on_data
from mirrormax.experiments._sweeps import sources as sources
from mirrormax.nets import load_model
from mirrormax.pruning import prune
from mirrormax.training import EpochBatches, TrainConfig, prepare

ABOUT = About("Fig 8: histograms of the attention weights", place=90, seconds=4, revision=2, after="table1")
CUTS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # shares of the attention weights that are pruned
# Entries with |w| >= 0.06 of 884,736 in W_K, W_Q and W_V of the model with six blocks: Fig 8's caption, and the output
# of the authors' real-data/imdb_histogram.ipynb.
PUBLISHED_LARGE = {"key": (18206, 27224), "query": (13964, 14654), "value": (7643, 10127)}  # ℓ1.1, ℓ2
LABELS = {
    "hoyer": "Hoyer index",
    "top_mass": "share of ‖W‖_1 in the top 1 %",
    "effective_rank": "effective rank",
    "left_range": "share outside the initial range",
}
PRUNED = "test accuracy, percent"
COUNT = f"entries with |w| ≥ {LARGE:g}"


def run(config: TextConfig, work: Work) -> Arrays:
    """The largest size, as in the paper."""
    size, sweep = config.sizes[-1]
    data, finished = run_sweep(sweep, work)
    tasks = [(sweep.base, str(folder), work.data_dir) for folders in finished.values() for folder in folders]
    pruned = iter(work.each(_pruned, tasks, 0.0))
    return {
        "size": np.array(size),
        "names": data["names"],
        "cuts": np.array(CUTS),
        **weight_arrays(finished),
        **{f"{name}/pruned": np.stack([next(pruned) for _ in folders]) for name, folders in finished.items()},
    }


def _pruned(config: TrainConfig, folder: str, data_dir: Path | None) -> np.ndarray[Any, Any]:
    """The test accuracy of a trained model with each share of its attention weights pruned, the smallest first."""
    test = prepare(config, data_dir).splits[2]
    batches = [test.__getitems__(indices) for indices in EpochBatches(test.lengths(), 200, seed=None)]
    model = load_model(f"{folder}/last").model.eval()
    accuracies = []
    for cut in CUTS:
        prune(model, cut, scope="global", params="attention")
        with torch.no_grad():
            right = sum(int((model(inputs).argmax(-1) == labels).sum()) for inputs, labels in batches)
        accuracies.append(right / len(test))
    return np.array(accuracies)


def measure(data: Arrays) -> Rows:
    for role, (least, most) in PUBLISHED_LARGE.items():
        first, second = (data[f"{name}/{role}/large"] for name in ("ℓ2", "ℓ1.1"))
        more = {"column": f"W_{role[0].upper()}", "where": "Fig 8's caption"}
        yield greater(f"{COUNT}: ℓ2 more than ℓ1.1", f"{most - least:+,} of 884,736", first, second, **more)
    for measure in ("hoyer", "top_mass"):
        first, second = (_pooled(data, name, measure) for name in ("ℓ1.1", "ℓ2"))
        yield greater(f"{LABELS[measure]}: ℓ1.1 sparser than ℓ2", "sparser", first, second)
    for name in data["names"].tolist():
        for measure, label in LABELS.items():
            yield alone(f"{label}, mean", Sample.of(_pooled(data, name, measure)), column=name)
        for cut in (0.0, 0.9):
            accuracy = Sample.of(100 * data[f"{name}/pruned"][:, int(np.abs(data["cuts"] - cut).argmin())])
            yield alone(f"{PRUNED}, {percent(cut)} of the attention weights pruned", accuracy, column=name)
        for role in ROLES:
            yield alone(f"largest |w|, {role}", float(data[f"{name}/{role}/largest"].max()), column=name)


def _pooled(data: Arrays, name: str, measure: str) -> Any:
    """The mean over keys, queries and values, of every run."""
    return np.mean([data[f"{name}/{role}/{measure}"] for role in ROLES], axis=0)


def tell(data: Arrays, table: Measured) -> Told:
    hoyer = {row.column: row.value or 0.0 for row in table.rows(f"{LABELS['hoyer']}, mean")}
    (row,) = table.rows(f"{LABELS['hoyer']}: ℓ1.1")
    words = {MET: "ℓ1.1 makes sparser attention weights than ℓ2", DIFFERS: "ℓ1.1 makes less sparse weights than ℓ2"}
    finding = words.get(row.verdict, "Whether ℓ1.1 or ℓ2 makes sparser attention weights is open here")
    counts = "; ".join(f"{row.column}: {row.ours.rpartition(', ')[0]} under ℓ2" for row in table.rows(COUNT))
    order = ", ".join(sorted(hoyer, key=lambda name: -hoyer[name]))
    measured = f"Hoyer index {hoyer['ℓ1.1']:.2f} against {hoyer['ℓ2']:.2f} (1: all weight in one entry)."
    rests_on = [f"{LABELS[measure]}: ℓ1.1" for measure in ("hoyer", "top_mass")]
    return Told(
        f"{finding}: Hoyer index {row.ours.rpartition(', ')[0]}",
        f"By this index the weights are concentrated in the order {order}; the share that left the initial range is "
        "another matter.",
        table.claim("ℓ1.1 gives sparser attention weights than ℓ2", measured, *rests_on, larger="sparser"),
        table.claim(f"ℓ1.1 gives fewer {COUNT} than ℓ2 in W_K, W_Q and W_V", f"{counts}.", COUNT, larger="large"),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """The paper's histograms of large entries; how many these are, the measures without a threshold, and what pruning
    costs."""
    fig, (published, (counts, measures, pruning)) = grid_of_axes(2, 3, width=11, height=6.4)
    names = data["names"].tolist()
    for k, (ax, role) in enumerate(zip(published, ROLES, strict=True)):
        for place, name in enumerate(names):
            look, parts = look_of(name), ("tail", "large", "entries", "largest")
            tail, large, entries, largest = (data[f"{name}/{role}/{part}"] for part in parts)
            ax.stairs(tail, LARGE + WIDTH * np.arange(len(tail) + 1), color=look.colour, linewidth=1.4, label=name)
            ax.plot(largest.max(), 1, look.marker, color=look.colour, markersize=6, clip_on=False)
            at, label = k + (place - (len(names) - 1) / 2) * 0.18, name if k == 0 else None
            bar(counts, at, 100 * large / entries, width=0.16, color=look.colour, label=label)
        panel(ax, f"{role}: |w| ≥ {LARGE:g}, as published", "|w|, the largest marked", log="y", ylim=(0.5, None))
    published[0].set_ylabel("entries")
    published[0].legend(loc="upper right", fontsize=9)
    panel(counts, f"{COUNT}, the paper's count", "", "percent", xticks=range(len(ROLES)), xticklabels=ROLES)
    counts.grid(axis="x", visible=False)
    draw_measures(measures, data, ROLES)
    for name in names:
        accuracy = 100 * data[f"{name}/pruned"]
        curve(pruning, 100 * data["cuts"], accuracy.mean(0), name, (accuracy.min(0), accuracy.max(0)))
    panel(pruning, "what pruning costs", "smallest attention weights pruned, %", "test accuracy, %")
    return fig
