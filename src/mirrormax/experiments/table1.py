"""Table 1: test accuracy of text classifiers trained by ℓp mirror descent, and by AdamW.

Every seed has first weights of its own, and epoch and step size are chosen on a validation split. The paper's way
of counting, the best epoch on the test split, stands beside it.
"""

from __future__ import annotations

import numpy as np

from mirrormax.experiments import published
from mirrormax.experiments.contract import (
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
from mirrormax.experiments.sentiment import PAPER_SIZES, PROFILES, Config, on_data, run_sizes
from mirrormax.experiments.sweeps import arrays
from mirrormax.experiments.work import Work

__all__ = ["PROFILES", "TITLE", "Config", "comparisons", "on_data", "run", "shows", "summary"]

TITLE = "Table 1: accuracy of text classifiers"
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
    published_gaps = [
        published.TABLE1[1.1, blocks][0] - published.TABLE1[p, blocks][0] for blocks in PAPER_SIZES.values()
    ]
    told = f"{min(published_gaps):+.2f} to {max(published_gaps):+.2f}"
    first, second = (data[f"{size}/{name}/test_accuracy"] for name in ("ℓ1.1", rival))
    return greater(f"ℓ1.1 above {rival}, points, {size}", told, first, second, unit=100)


def _cell(data: Arrays, size: str, name: str) -> list[Comparison]:
    chosen, best = (100 * data[f"{size}/{name}/{key}"] for key in KEPT[:2])
    told = f"{spread(float(chosen.mean()), std_of(chosen))} chosen on validation"
    paper = (
        published.TABLE1.get((float(name[1:]), PAPER_SIZES[size])) if name[0] == "ℓ" and size in PAPER_SIZES else None
    )
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
