"""Fig 8: how the attention weights of the trained text classifiers are spread.

The paper counts entries with |w| ≥ 0.06, which tells what has left the initial range U(±1/√d) rather than how
sparse the weights are. Measures that hang on no threshold stand beside that count, and what sparsity is for: how
accurate each model still is when its smallest attention weights are cut.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import grid_of_axes, headline, look_of
from mirrormax.experiments._contract import (
    Arrays,
    Claim,
    Comparison,
    Rows,
    greater,
    number,
    ours_alone,
    percent,
    spread,
    std_of,
    welch_interval,
    worst,
)
from mirrormax.experiments._sentiment import PROFILES as PROFILES
from mirrormax.experiments._sentiment import Config, run_sizes
from mirrormax.experiments._sentiment import on_data as on_data
from mirrormax.experiments._sentiment import sources as sources
from mirrormax.experiments._weights import MEASURES, ROLES, draw_histogram, draw_measures, weight_arrays
from mirrormax.experiments._work import Work
from mirrormax.training import TrainConfig

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Fig 8: histograms of the attention weights"
SHORT = "Fig 8"
PLACE = 90
SECONDS = 10
LARGE = 0.06  # what the paper counts from
CUTS = (0.0, 0.5, 0.7, 0.8, 0.9, 0.95, 0.98)  # shares of the attention weights that are cut
# Entries with |w| >= 0.06 of 884,736 in W_K, W_Q and W_V of the model with six blocks.
PUBLISHED_LARGE: dict[float, dict[str, int]] = {
    1.1: {"key": 18206, "query": 13964, "value": 7643},
    2.0: {"key": 27224, "query": 14654, "value": 10127},
}
LABELS = {
    "hoyer": "Hoyer index",
    "top_mass": "share of ‖W‖_1 in the top 1 %",
    "effective_rank": "effective rank",
    "left_range": "share outside the initial range",
}


def run(config: Config, work: Work) -> Arrays:
    """The largest size, as in the paper."""
    size, finished = run_sizes(config, work, last_only=True)[0]
    base = config.sizes[-1][1].base
    tasks = [(base, str(folder), work.data_dir) for each in finished for folder in each.folders]
    pruned = iter(work.map(_pruned, tasks, 0.0))
    return {
        "size": np.array(size),
        "names": np.array([each.contender.name for each in finished]),
        "cuts": np.array(CUTS),
        **weight_arrays(finished),
        **{f"{each.contender.name}/pruned": np.stack([next(pruned) for _ in each.folders]) for each in finished},
    }


def _pruned(task: tuple[TrainConfig, str, Path | None]) -> np.ndarray[Any, Any]:
    """The test accuracy of a trained model with each share of its attention weights cut, the smallest first."""
    import torch

    from mirrormax.nets import load_model
    from mirrormax.pruning import prune
    from mirrormax.training import EpochBatches, prepare

    config, folder, data_dir = task
    test = prepare(config, data_dir).splits[2]
    batches = [test.__getitems__(indices) for indices in EpochBatches(test.lengths(), 200, seed=None)]
    model = load_model(f"{folder}/last").model.eval()
    found = []
    for cut in CUTS:
        prune(model, cut, "attention")
        with torch.no_grad():
            right = sum(int((model(inputs).argmax(-1) == labels).sum()) for inputs, labels in batches)
        found.append(right / len(test))
    return np.array(found)


def summary(data: Arrays) -> Rows:
    return {
        f"{name}, {role}": {
            "entries": int(data[f"{name}/{role}/entries"]),
            **{measure: float(data[f"{name}/{role}/{measure}"].mean()) for measure in MEASURES},
        }
        for name in data["names"].tolist()
        for role in ROLES
    }


def shows(data: Arrays) -> str:
    hoyer = {name: _mean(data, name, "hoyer") for name in data["names"].tolist()}
    left = {name: _mean(data, name, "left_range") for name in data["names"].tolist()}
    order = ", ".join(f"{name} {value:.3f}" for name, value in sorted(hoyer.items(), key=lambda item: -item[1]))
    far = ", ".join(f"{name} {percent(value, 1)}" for name, value in left.items())
    return (
        f"By the Hoyer index, mean over keys, queries and values, the weights are concentrated in this order: {order}. "
        f"The share of weights that left their initial range is another matter: {far}."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    names = data["names"].tolist()
    for role in ROLES:
        counts = {p: PUBLISHED_LARGE[p][role] for p in (1.1, 2.0)}
        told = f"{counts[2.0] - counts[1.1]:+,} of 884,736"
        rows.append(
            greater(
                "entries with |w| ≥ 0.06: ℓ2 more than ℓ1.1",
                told,
                *_pair(data, role, "large")[::-1],
                column=f"W_{role[0].upper()}",
            )
        )
    for measure in ("hoyer", "top_mass"):
        pooled = [np.mean([data[f"{name}/{role}/{measure}"] for role in ROLES], axis=0) for name in ("ℓ1.1", "ℓ2")]
        rows.append(greater(f"{LABELS[measure]}: ℓ1.1 sparser than ℓ2", "sparser", pooled[0], pooled[1]))
    for name in names:
        for measure, label in LABELS.items():
            values = np.mean([data[f"{name}/{role}/{measure}"] for role in ROLES], axis=0)
            rows.append(ours_alone(label, spread(float(values.mean()), std_of(values)), column=name))
        for cut in (0.0, 0.9):
            accuracy = 100 * _accuracy(data, name, cut)
            told = spread(float(accuracy.mean()), std_of(accuracy))
            rows.append(
                ours_alone(
                    f"test accuracy in percent with {percent(cut)} of the attention weights cut", told, column=name
                )
            )
    return rows


def _accuracy(data: Arrays, name: str, cut: float) -> np.ndarray[Any, Any]:
    return np.asarray(data[f"{name}/pruned"][:, int(np.abs(data["cuts"] - cut).argmin())])


def claims(data: Arrays) -> list[Claim]:
    rows = [row for row in comparisons(data) if "sparser than ℓ2" in row.quantity]
    means = [number(_mean(data, name, "hoyer"), 2) for name in ("ℓ1.1", "ℓ2")]
    counts = [row for row in comparisons(data) if row.quantity.startswith("entries with")]
    return [
        Claim(
            "ℓ1.1 gives sparser attention weights than ℓ2",
            f"Hoyer index {means[0]} against {means[1]}",
            worst(rows),
            larger="sparser",
        ),
        Claim(
            "… and fewer entries with |w| ≥ 0.06 in W_K, W_Q and W_V",
            "; ".join(f"{row.column} {row.verdict}" for row in counts),
            worst(counts),
            larger="large",
        ),
    ]


def _pair(data: Arrays, role: str, measure: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    return data[f"ℓ1.1/{role}/{measure}"], data[f"ℓ2/{role}/{measure}"]


def _mean(data: Arrays, name: str, measure: str) -> float:
    return float(np.mean([data[f"{name}/{role}/{measure}"].mean() for role in ROLES]))


def draw(data: Arrays) -> Figure:
    """Histograms by role with the paper's threshold, the measures that hang on none, and what cutting weights costs."""
    fig, ((key, query, value), (counts, measures, cutting)) = grid_of_axes(2, 3, width=11, height=6.4)
    names = data["names"].tolist()
    for ax, role in zip((key, query, value), ROLES, strict=True):
        draw_histogram(ax, data, role, LARGE)
    for place, name in enumerate(names):
        for k, role in enumerate(ROLES):
            share = 100 * data[f"{name}/{role}/large"] / data[f"{name}/{role}/entries"]
            at = k + (place - (len(names) - 1) / 2) * 0.18
            counts.bar(at, share.mean(), 0.16, color=look_of(name).colour, label=name if k == 0 else None)
            counts.scatter(np.full(len(share), at), share, s=8, color="black", zorder=3)
    counts.set(xticks=range(len(ROLES)), xticklabels=ROLES, ylabel="percent")
    counts.set_title(f"entries with |w| ≥ {LARGE:g}, the paper's count", fontsize=10)
    counts.grid(axis="x", visible=False)
    draw_measures(measures, data, ROLES)
    for name in names:
        curve = 100 * data[f"{name}/pruned"]
        cutting.plot(100 * data["cuts"], curve.mean(0), label=name, **look_of(name).style(markersize=4))
        cutting.fill_between(100 * data["cuts"], curve.min(0), curve.max(0), color=look_of(name).colour, alpha=0.13)
    cutting.set(xlabel="smallest attention weights cut, %", ylabel="test accuracy, %")
    cutting.set_title("what pruning costs", fontsize=10)
    headline(fig, _finding(data))
    return fig


def _finding(data: Arrays) -> str:
    low, mean, high = welch_interval(*(np.mean([data[f"{n}/{r}/hoyer"] for r in ROLES], 0) for n in ("ℓ1.1", "ℓ2")))
    told = f"Hoyer index {number(mean, 2, sign=True)} [{number(low, 2, sign=True)}, {number(high, 2, sign=True)}]"
    if low > 0:
        return f"ℓ1.1 makes sparser attention weights than ℓ2: {told}"
    return (
        f"ℓ1.1 makes less sparse attention weights than ℓ2: {told}"
        if high < 0
        else (f"Whether ℓ1.1 or ℓ2 makes sparser attention weights is open here: {told}")
    )
