"""Table 1: test accuracy of text classifiers trained by ℓp mirror descent, and by AdamW.

Every seed has first weights of its own, and epoch and step size are chosen on a validation split. The paper's way
of counting, the best epoch on the test split, stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import COLOURS, LINES, MARKERS, row_of_axes
from mirrormax.experiments._contract import (
    Arrays,
    Comparison,
    Rows,
    greater,
    ours_alone,
    same_within,
    spread,
    std_of,
    welch_interval,
)
from mirrormax.experiments._sentiment import PAPER_SIZES, Config, run_sizes
from mirrormax.experiments._sentiment import PROFILES as PROFILES
from mirrormax.experiments._sentiment import on_data as on_data
from mirrormax.experiments._sentiment import sources as sources
from mirrormax.experiments._sweeps import arrays
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Table 1: accuracy of text classifiers"
SHORT = "Table 1"
PLACE = 80
SECONDS = 200
# IMDb test accuracy in percent, mean and standard deviation over ten trials, best test epoch, by (p, blocks).
PUBLISHED: dict[tuple[float, int], tuple[float, float]] = {
    (1.1, 3): (83.47, 0.09),
    (1.1, 4): (83.36, 0.13),
    (1.1, 6): (83.65, 0.13),
    (2.0, 3): (81.66, 0.09),
    (2.0, 4): (81.05, 0.17),
    (2.0, 6): (82.22, 0.13),
    (3.0, 3): (82.57, 0.09),
    (3.0, 4): (82.40, 0.12),
    (3.0, 6): (81.97, 0.10),
}
OTHER_SETTING = (
    "Another model, smaller or trained for less long than the paper's, so the numbers are not to be compared; what can "
    "be is which p comes out ahead."
)


def run(config: Config, work: Work) -> Arrays:
    data: Arrays = {"sizes": np.array([name for name, _ in config.sizes])}
    for name, finished in run_sizes(config, work):
        data |= {f"{name}/{key}": value for key, value in arrays(finished).items()}
    return data


def summary(data: Arrays) -> Rows:
    rows = {}
    for size, name in _cells(data):
        tests, best, last, epochs = (data[f"{size}/{name}/{key}"] for key in KEPT)
        rows[f"{size}, {name}"] = {
            "runs": len(tests),
            "test accuracy": float(tests.mean()),
            **({} if len(tests) == 1 else {"std": float(tests.std(ddof=1))}),
            "best test epoch": float(best.mean()),
            "last epoch": float(last.mean()),
            "epochs": float(epochs.mean()),
            "step size": float(data[f"{size}/{name}/lr"]),
        }
    return rows


KEPT = ("test_accuracy", "best_test_accuracy", "last_test_accuracy", "epochs")


def shows(data: Arrays) -> str:
    size = str(data["sizes"][0])
    told = []
    for name in data[f"{size}/names"].tolist():
        tests = 100 * data[f"{size}/{name}/test_accuracy"]
        told.append(f"{name} {spread(float(tests.mean()), std_of(tests))}")
    low, mean, high = (100 * end for end in _ahead(data, size))
    return (
        f"Test accuracy in percent at the epoch that validation chose, mean ± standard deviation over seeds with their "
        f"own first weights: {', '.join(told)}. "
        f"ℓ1.1 is {mean:+.2g} points from ℓ2, with a 95 % interval from {low:+.2g} to {high:+.2g}."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for size in data["sizes"].tolist():
        names = data[f"{size}/names"].tolist()
        for rival, p in (("ℓ2", 2.0), ("ℓ3", 3.0)):
            if rival in names:
                rows.append(_ranking(data, size, rival, p))
    for size, name in _cells(data):
        rows += _cell(data, size, name)
    return rows


def _ranking(data: Arrays, size: str, rival: str, p: float) -> Comparison:
    published_gaps = [PUBLISHED[1.1, blocks][0] - PUBLISHED[p, blocks][0] for blocks in PAPER_SIZES.values()]
    told = f"{min(published_gaps):+.2f} to {max(published_gaps):+.2f}"
    first, second = (data[f"{size}/{name}/test_accuracy"] for name in ("ℓ1.1", rival))
    return greater(f"ℓ1.1 above {rival}, points, {size}", told, first, second, unit=100)


def _cell(data: Arrays, size: str, name: str) -> list[Comparison]:
    chosen, best = (100 * data[f"{size}/{name}/{key}"] for key in KEPT[:2])
    told = f"{spread(float(chosen.mean()), std_of(chosen))} chosen on validation"
    paper = PUBLISHED.get((float(name[1:]), PAPER_SIZES[size])) if name[0] == "ℓ" and size in PAPER_SIZES else None
    label = f"{name}, {size}"
    if paper is None:
        return [ours_alone(f"{label}, test accuracy", told, OTHER_SETTING)]
    return [
        ours_alone(f"{label}, test accuracy", told),
        same_within(f"{label}, best test epoch", *paper, float(best.mean()), ours_std=std_of(best)),
    ]


def _ahead(data: Arrays, size: str) -> tuple[float, float, float]:
    return welch_interval(data[f"{size}/ℓ1.1/test_accuracy"], data[f"{size}/ℓ2/test_accuracy"])


def _cells(data: Arrays) -> list[tuple[str, str]]:
    return [(size, name) for size in data["sizes"].tolist() for name in data[f"{size}/names"].tolist()]


def draw(data: Arrays) -> Figure:
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
