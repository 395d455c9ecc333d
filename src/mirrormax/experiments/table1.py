"""Table 1: test accuracy of text classifiers trained by ℓp mirror descent, and by AdamW.

Every seed has first weights of its own, and epoch and step size are chosen on a validation split. The paper's way
of counting, the best epoch on the test split, stands beside it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.experiments._contract import (
    Arrays,
    Claim,
    Comparison,
    Rows,
    Sample,
    decided,
    greater,
    interval,
    number,
    ours_alone,
    same_mean,
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
        f"ℓ1.1 is {number(mean, 2, sign=True)} points from ℓ2 (95 % interval{interval(low, high, sign=True)}), where "
        f"the paper has {_published_gaps(2.0)}. "
        f"Test accuracy in percent at the epoch that validation chose, mean ± standard deviation over seeds with their "
        f"own first weights: {', '.join(told)}."
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
    first, second = (data[f"{size}/{name}/test_accuracy"] for name in ("ℓ1.1", rival))
    quantity = f"test accuracy, points, {size}"
    return greater(
        quantity, _published_gaps(p), first, second, unit=100, size=min(_gaps(p)), column=f"ℓ1.1 above {rival}"
    )


def _gaps(p: float) -> list[float]:
    """By how much ℓ1.1 is ahead in the paper, for each size of model."""
    return [PUBLISHED[1.1, blocks][0] - PUBLISHED[p, blocks][0] for blocks in PAPER_SIZES.values()]


def _published_gaps(p: float) -> str:
    return f"+{min(_gaps(p)):.2f} to +{max(_gaps(p)):.2f}"


def _cell(data: Arrays, size: str, name: str) -> list[Comparison]:
    chosen, best = (100 * data[f"{size}/{name}/{key}"] for key in KEPT[:2])
    told = spread(float(chosen.mean()), std_of(chosen))
    paper = PUBLISHED.get((float(name[1:]), PAPER_SIZES[size])) if name[0] == "ℓ" and size in PAPER_SIZES else None
    quantity = f"test accuracy at the epoch chosen on validation, percent, {size}"
    if paper is None:
        return [ours_alone(quantity, told, OTHER_SETTING, column=name)]
    return [
        ours_alone(quantity, told, column=name),
        same_mean(f"best test epoch, percent, {size}", Sample(*paper, 10), Sample.of(best), column=name),
    ]


def claims(data: Arrays) -> list[Claim]:
    """By the first size, which the quick profile has alone."""
    size = str(data["sizes"][0])
    found = []
    for rival, p in (("ℓ2", 2.0), ("ℓ3", 3.0)):
        if rival in data[f"{size}/names"].tolist():
            row = _ranking(data, size, rival, p)
            statement = f"ℓ1.1 classifies text {_published_gaps(p)} points better than {rival}"
            found.append(Claim(statement, f"{row.ours}, {size}", row.verdict, larger=f"text-{p:g}"))
    return found


def _ahead(data: Arrays, size: str) -> tuple[float, float, float]:
    return welch_interval(data[f"{size}/ℓ1.1/test_accuracy"], data[f"{size}/ℓ2/test_accuracy"])


def _cells(data: Arrays) -> list[tuple[str, str]]:
    return [(size, name) for size in data["sizes"].tolist() for name in data[f"{size}/names"].tolist()]


def draw(data: Arrays) -> Figure:
    """Test accuracy of every run, its mean, the paper's band, and the validation accuracy over step sizes."""
    sizes = data["sizes"].tolist()
    fig, axes = row_of_axes(2 * len(sizes), width=4.8 * 2 * len(sizes), height=3.8)
    for k, size in enumerate(sizes):
        inner = {key.removeprefix(f"{size}/"): value for key, value in data.items() if key.startswith(f"{size}/")}
        _runs(axes[2 * k], inner, f"test accuracy, {size}")
        _tuning(axes[2 * k + 1], inner)
    headline(fig, _finding(data, sizes[0]))
    return fig


def _finding(data: Arrays, size: str) -> str:
    low, mean, high = (100 * end for end in _ahead(data, size))
    words = {
        "met": "ℓ1.1 is ahead of ℓ2",
        "differs": "ℓ1.1 is behind ℓ2",
        "smaller than published": "No advantage of ℓ1.1 as large as published",
        "undecided": "ℓ1.1 against ℓ2 is open",
    }[decided(low, high, min(_gaps(2.0)))]
    return f"{words}: {number(mean, 2, sign=True)} points{interval(low, high, sign=True)}, paper {_published_gaps(2.0)}"


def _runs(ax: Axes, data: Arrays, title: str) -> None:
    """Every run a point; where the paper's gap to ℓ2 would put each p, a band."""
    names = data["names"].tolist()
    base = 100 * data["ℓ2/test_accuracy"].mean() if "ℓ2" in names else np.nan
    for place, name in enumerate(names):
        values, look = 100 * data[f"{name}/test_accuracy"], look_of(name)
        ax.scatter(np.full(len(values), place), values, color=look.colour, marker=look.marker, s=30, zorder=3)
        ax.hlines(values.mean(), place - 0.3, place + 0.3, color=look.colour, linewidth=2.4)
        ax.annotate(f"{values.mean():.1f}", (place + 0.33, values.mean()), va="center", fontsize=9)
        p = float(name[1:]) if name[0] == "ℓ" else 0.0
        if (p, 3) in PUBLISHED and p != 2:
            gaps = [PUBLISHED[p, blocks][0] - PUBLISHED[2.0, blocks][0] for blocks in PAPER_SIZES.values()]
            ax.fill_between(
                [place - 0.36, place + 0.36], base + min(gaps), base + max(gaps), color="0.5", alpha=0.25, linewidth=0
            )
    ax.fill_between([], [], [], color="0.5", alpha=0.25, linewidth=0, label="ours of ℓ2 + the paper's gap to ℓ2")
    ax.set(xticks=range(len(names)), xticklabels=names, ylabel="percent", xlim=(-0.5, len(names) - 0.2))
    ax.set_title(title, fontsize=10)
    ax.grid(axis="x", visible=False)
    ax.legend(fontsize=8, loc="best")


def _tuning(ax: Axes, data: Arrays) -> None:
    for name in data["names"].tolist():
        ax.plot(data[f"{name}/lrs"], 100 * data[f"{name}/tuning"], label=name, **look_of(name).style(markersize=5))
    ax.set(xscale="log", xlabel="step size", ylabel="percent")
    ax.set_title("validation accuracy, when tuning", fontsize=10)
    ax.legend(fontsize=8, loc="best")
