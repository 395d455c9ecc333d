"""The vision transformer: accuracy while training, and how its attention weights are spread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.experiments._contract import (
    Arrays,
    Claim,
    Comparison,
    Rows,
    greater,
    interval,
    number,
    ours_alone,
    percent,
    same_gap,
    spread,
    std_of,
    welch_interval,
    worst,
)
from mirrormax.experiments._sweeps import Contender, Finished, Sweep, arrays, data_of, run_sweep
from mirrormax.experiments._weights import MEASURES, ROLES, draw_histogram, draw_measures, weight_arrays
from mirrormax.experiments._work import Work
from mirrormax.training import PROFILES as TRAINING
from mirrormax.training import VisionTraining

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "The vision transformer: accuracy and weights"
SHORT = "Vision transformer"
PLACE = 110
SECONDS = 120
CIFAR = "cifar-10-batches-bin"
# CIFAR-10: last test accuracy, and key weights with |w| < 0.01 of 1.57 million.
PUBLISHED_ACCURACY: dict[str, float] = {"Adam": 0.8263, "ℓ1.1": 0.8241, "ℓ1.75": 0.8192, "ℓ2": 0.8232, "ℓ3": 0.8248}
PUBLISHED_NEAR_ZERO: dict[str, float] = {"Adam": 249e3, "ℓ1.1": 427e3, "ℓ1.75": 472e3, "ℓ2": 323e3, "ℓ3": 72e3}
PUBLISHED_KEYS = 1.57e6


@dataclass(frozen=True)
class Config:
    sweep: Sweep


DIGITS = replace(TRAINING["vision"]["small"], epochs=12)
CIFAR_SMALL = VisionTraining(
    data="cifar10",
    image_size=32,
    dim=64,
    hidden=128,
    patch=4,
    blocks=2,
    heads=2,
    head_dim=32,
    augment=True,
    schedule="cosine",
    warmup=1.0,
    epochs=8,
)
PAPER = TRAINING["vision"]["paper"]
CONTENDERS = (
    Contender("md", 1.1, (0.03, 0.1, 0.3), 2),
    Contender("md", 1.75, (0.03, 0.1, 0.3), 2),
    Contender("md", 2.0, (0.03, 0.1, 0.3), 2),
    Contender("md", 3.0, (0.003, 0.01, 0.03), 2),
    Contender("adamw", 2.0, (3e-4, 1e-3, 3e-3), 2),
)
QUICK = Config(Sweep(DIGITS, CONTENDERS, tuning_epochs=8))
SMALL_DIGITS = Config(
    Sweep(replace(DIGITS, epochs=40), tuple(replace(c, seeds=5) for c in CONTENDERS), tuning_epochs=10)
)
SMALL_CIFAR = Config(
    Sweep(
        CIFAR_SMALL,
        (
            Contender("md", 1.1, (0.1, 0.3, 0.9), 2),
            Contender("md", 2.0, (0.1, 0.3, 0.9), 2),
            Contender("adamw", 2.0, (1e-3, 3e-3, 9e-3), 2),
        ),
        tuning_epochs=2,
    )
)
AS_IN_THE_PAPER = Config(
    Sweep(
        PAPER,
        (
            Contender("md", 1.1, (0.1,), 2),
            Contender("md", 1.75, (0.1,), 2),
            Contender("md", 2.0, (0.1,), 2),
            Contender("md", 3.0, (0.01,), 2),
            Contender("adamw", 2.0, (1e-4,), 2),
        ),
        tuning_epochs=1,
    )
)
PROFILES = {"quick": QUICK, "small": SMALL_DIGITS, "paper": AS_IN_THE_PAPER}
QUICK_CIFAR = Config(Sweep(replace(CIFAR_SMALL, train_limit=2000, epochs=4), CONTENDERS, tuning_epochs=2))


def on_data(config: Config, data_dir: Path) -> Config:
    """The same on CIFAR-10 if the folder holds it; else the embedded digits stay."""
    if not (data_dir / CIFAR).is_dir():
        return config
    return {QUICK: QUICK_CIFAR, SMALL_DIGITS: SMALL_CIFAR}.get(config, config)


def sources(config: Config, data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that is read."""
    return data_of([config.sweep], data_dir)


def run(config: Config, work: Work) -> Arrays:
    finished = run_sweep(config.sweep, work)
    data = {"data": np.array(config.sweep.base.data), **arrays(finished), **weight_arrays(finished)}
    for each in finished:
        data |= {f"{each.contender.name}/curve/{key}": _curve(each, key) for key in ("test_accuracy", "train_accuracy")}
    return data


def _curve(each: Finished, key: str) -> np.ndarray[tuple[int, int], np.dtype[np.float64]]:
    """Accuracy (seeds, epochs); a run that stopped early keeps its last."""
    from mirrormax.training import read_metrics

    rows = [[row[key] for row in read_metrics(folder)] for folder in each.folders]
    longest = max(map(len, rows))
    return np.array([row + row[-1:] * (longest - len(row)) for row in rows])


def summary(data: Arrays) -> Rows:
    return {
        name: {
            "runs": len(data[f"{name}/test_accuracy"]),
            "test accuracy": float(data[f"{name}/test_accuracy"].mean()),
            "std": std_of(data[f"{name}/test_accuracy"]) or 0.0,
            "last epoch": float(data[f"{name}/last_test_accuracy"].mean()),
            "step size": float(data[f"{name}/lr"]),
            **{f"{role} {key}": float(data[f"{name}/{role}/{key}"].mean()) for role in ROLES for key in MEASURES},
        }
        for name in data["names"].tolist()
    }


def shows(data: Arrays) -> str:
    names = data["names"].tolist()
    told = ", ".join(
        f"{name} {spread(100 * float(values.mean()), std_of(100 * values))}"
        for name in names
        for values in [data[f"{name}/last_test_accuracy"]]
    )
    hoyer = sorted(names, key=lambda name: -float(data[f"{name}/key/hoyer"].mean()))
    zeros = sorted(names, key=lambda name: -_near_zero(data, name))
    return (
        f"Test accuracy in percent after the last epoch on {data['data']}: {told}. "
        f"Key weights from most to least concentrated are {', '.join(hoyer)} by the Hoyer index, and by how many are "
        f"below 0.01 {', '.join(zeros)}."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    names = data["names"].tolist()
    rows = []
    adam = PUBLISHED_ACCURACY["Adam"]
    for name in names:
        if name == "AdamW":
            continue
        gap = 100 * (PUBLISHED_ACCURACY[name] - adam)
        pair = data[f"{name}/last_test_accuracy"], data["AdamW/last_test_accuracy"]
        why = (
            f"Trained for {data[f'{name}/epochs'].max():.0f} epochs on {data['data']}, where the paper has 2,000 on "
            "CIFAR-10: how fast each learns at first, not where it ends."
        )
        quantity = "last test accuracy above Adam's, points"
        rows.append(same_gap(quantity, gap, *pair, unit=100, resolution=2, why=why, column=name))
    if {"ℓ1.1", "ℓ2"} <= {*names}:
        counts = PUBLISHED_NEAR_ZERO
        size = (counts["ℓ1.1"] - counts["ℓ2"]) / PUBLISHED_KEYS
        shares = [data[f"{name}/key/near_zero"] / data[f"{name}/key/entries"] for name in ("ℓ1.1", "ℓ2")]
        quantity = "share of key weights below 0.01: ℓ1.1 above ℓ2"
        rows.append(greater(quantity, number(size, 2, sign=True), *shares, size=size))
        rows.append(
            greater(
                "Hoyer index of the keys: ℓ1.1 above ℓ2", "sparser", *(data[f"{n}/key/hoyer"] for n in ("ℓ1.1", "ℓ2"))
            )
        )
    for name in names:
        last = 100 * data[f"{name}/last_test_accuracy"]
        rows.append(ours_alone("last test accuracy, percent", spread(float(last.mean()), std_of(last)), column=name))
        rows.append(ours_alone("key weights below 0.01", percent(_near_zero(data, name), 1), column=name))
    return rows


def claims(data: Arrays) -> list[Claim]:
    rows = comparisons(data)
    gaps = [row for row in rows if row.quantity.startswith("last test accuracy above")]
    sparser = [row for row in rows if "ℓ1.1 above ℓ2" in row.quantity]
    first = next(row for row in gaps if row.column == "ℓ1.1")
    return [
        Claim(
            "A vision transformer under ℓp mirror descent is as accurate as under Adam",
            f"ℓ1.1 {first.ours.rpartition(', ')[0]} points from AdamW on {data['data']} (paper {first.published})",
            worst(gaps),
            larger="adam",
        ),
        Claim(
            "… and sparser under ℓ1.1 than under ℓ2",
            " against ".join(percent(_near_zero(data, name), 1) for name in ("ℓ1.1", "ℓ2")) + " of the keys below 0.01",
            worst(sparser),
            larger="keys",
        ),
    ]


def _near_zero(data: Arrays, name: str) -> float:
    return float(data[f"{name}/key/near_zero"].mean() / data[f"{name}/key/entries"])


def draw(data: Arrays) -> Figure:
    """Accuracy while training, the keys' histogram, and their concentration."""
    fig, axes = row_of_axes(3, width=12, height=3.8)
    for name in data["names"].tolist():
        curves, look = 100 * data[f"{name}/curve/test_accuracy"], look_of(name)
        epochs = np.arange(1, curves.shape[1] + 1)
        every = max(len(epochs) // 6, 1)
        axes[0].plot(epochs, curves.mean(0), label=name, **look.style(markersize=4, markevery=every))
        axes[0].fill_between(epochs, curves.min(0), curves.max(0), color=look.colour, alpha=0.15, linewidth=0)
    axes[0].set(xlabel="epoch", ylabel="percent")
    axes[0].set_title(f"test accuracy, {data['data']}: mean and range of runs", fontsize=10)
    axes[0].legend(fontsize=8)
    draw_histogram(axes[1], data, "key")
    axes[1].set_ylabel("share of the weights")
    draw_measures(axes[2], data, ("key",))
    headline(fig, _finding(data))
    return fig


def _finding(data: Arrays) -> str:
    first, second = (data[f"{name}/last_test_accuracy"] for name in ("ℓ1.1", "AdamW"))
    low, mean, high = (100 * end for end in welch_interval(first, second))
    words = "ahead of" if low > 0 else "behind" if high < 0 else "not decidedly apart from"
    hoyer = [float(data[f"{name}/key/hoyer"].mean()) for name in ("ℓ1.1", "ℓ2")]
    return (
        f"ℓ1.1 is {words} AdamW ({number(mean, 2, sign=True)} points{interval(low, high, sign=True)}); "
        f"Hoyer index of its keys {hoyer[0]:.2f}, of ℓ2's {hoyer[1]:.2f}"
    )
