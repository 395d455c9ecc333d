"""Fig 8: how the attention weights of the trained text classifiers are spread.

The paper counts entries with |w| ≥ 0.06, which tells what has left the initial range U(±1/√d) rather than how
sparse the weights are. Measures that hang on no threshold stand beside that count.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import row_of_axes
from mirrormax.experiments._contract import Arrays, Comparison, Rows, greater, ours_alone, spread, std_of
from mirrormax.experiments._sentiment import PROFILES as PROFILES
from mirrormax.experiments._sentiment import Config, run_sizes
from mirrormax.experiments._sentiment import on_data as on_data
from mirrormax.experiments._sentiment import sources as sources
from mirrormax.experiments._weights import MEASURES, ROLES, draw_histogram, draw_measures, weight_arrays
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Fig 8: histograms of the attention weights"
SHORT = "Fig 8"
PLACE = 90
SECONDS = 5
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
    return {
        "size": np.array(size),
        "names": np.array([each.contender.name for each in finished]),
        **weight_arrays(finished),
    }


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
    far = ", ".join(f"{name} {value:.1%}" for name, value in left.items())
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
                f"entries with |w| ≥ 0.06 of W_{role[0].upper()}: ℓ2 more than ℓ1.1",
                told,
                *_pair(data, role, "large")[::-1],
            )
        )
    for measure in ("hoyer", "top_mass"):
        pooled = [np.mean([data[f"{name}/{role}/{measure}"] for role in ROLES], axis=0) for name in ("ℓ1.1", "ℓ2")]
        rows.append(greater(f"{LABELS[measure]}: ℓ1.1 sparser than ℓ2", "sparser", pooled[0], pooled[1]))
    for name in names:
        for measure, label in LABELS.items():
            values = np.mean([data[f"{name}/{role}/{measure}"] for role in ROLES], axis=0)
            rows.append(ours_alone(f"{label}, {name}", spread(float(values.mean()), std_of(values))))
    return rows


def _pair(data: Arrays, role: str, measure: str) -> tuple[np.ndarray[tuple[int], np.dtype[np.float64]], ...]:
    return data[f"ℓ1.1/{role}/{measure}"], data[f"ℓ2/{role}/{measure}"]


def _mean(data: Arrays, name: str, measure: str) -> float:
    return float(np.mean([data[f"{name}/{role}/{measure}"].mean() for role in ROLES]))


def draw(data: Arrays) -> Figure:
    """Histograms by role, and the measures that hang on no threshold."""
    fig, axes = row_of_axes(len(ROLES) + 1, width=3.1 * (len(ROLES) + 1), height=3.3)
    for ax, role in zip(axes, ROLES, strict=False):
        draw_histogram(ax, data, role)
    draw_measures(axes[-1], data, ROLES)
    return fig
