"""The vision transformer: accuracy while training, and how its attention weights are spread."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, curve, panel, row_of_axes
from mirrormax._statistics import Sample, number, percent
from mirrormax.experiments._measurements import NOTEBOOK, About, Arrays, Measured, Rows, Told, alone, greater, same_gap
from mirrormax.experiments._running import Work
from mirrormax.experiments._sweeps import Sweep, contenders, data_of, draw_measures, run_sweep, weight_arrays
from mirrormax.training import PROFILES as TRAINING
from mirrormax.training import TrainConfig, VisionTraining, read_metrics

ABOUT = About("Vision transformer: accuracy and weights", place=110, seconds=35, revision=1)
CIFAR = "cifar-10-batches-bin"
# CIFAR-10: last test accuracy, and key weights with |w| < 0.01 of 1.57 million: the first bars of the notebook's
# histograms, which can be read to about a thousand. The paper's text says "about 82 %".
NOTEBOOK_FILE = "real-data/vit_plotters.ipynb of addskj2002/AttentionMD, commit 92e2395"
PUBLISHED_ACCURACY = {"Adam": 0.8263, "ℓ1.1": 0.8241, "ℓ1.75": 0.8192, "ℓ2": 0.8232, "ℓ3": 0.8248}
PUBLISHED_NEAR_ZERO = {"Adam": 249e3, "ℓ1.1": 427e3, "ℓ1.75": 472e3, "ℓ2": 323e3, "ℓ3": 72e3}
PUBLISHED_KEYS = 1.57e6
THEIRS = "where the authors have 2,000 on CIFAR-10: how fast each learns at first, not where it ends."
LAST, SMALL, HOYER = "last test accuracy", "share of key weights below 0.01", "Hoyer index of the keys"


@dataclass(frozen=True)
class Config:
    sweep: Sweep


DIGITS = replace(TRAINING["vision"]["small"], epochs=8)
SIZES: Any = {"image_size": 32, "patch": 4, "dim": 64, "hidden": 128, "blocks": 2, "heads": 2, "head_dim": 32}
CIFAR_SMALL = VisionTraining(data="cifar10", augment=True, schedule="cosine", warmup=1.0, epochs=8, **SIZES)

STEPS = dict.fromkeys((1.1, 1.75, 2.0), (0.03, 0.1, 0.3)) | {3.0: (0.003, 0.01, 0.03)}
CONTENDERS = contenders(STEPS, (3e-4, 1e-3, 3e-3), seeds=2)
CHOSEN = (0.3, 0.3, 0.3, 0.03, 3e-3)  # of the step sizes of CONTENDERS, by validation after eight epochs on digits


def _with_steps(base: TrainConfig, lrs: tuple[float, ...]) -> Config:
    """A step size for each of the contenders, so that nothing is tuned."""
    given = zip(CONTENDERS, lrs, strict=True)
    return Config(Sweep(base, tuple(replace(contender, lrs=(lr,)) for contender, lr in given), base.epochs))


QUICK = _with_steps(DIGITS, CHOSEN)
FIVE = tuple(replace(contender, seeds=5) for contender in CONTENDERS)
SMALL_DIGITS = Config(Sweep(replace(DIGITS, epochs=40), FIVE, tuning_epochs=10))
ON_CIFAR = contenders(dict.fromkeys((1.1, 2.0), (0.1, 0.3, 0.9)), (1e-3, 3e-3, 9e-3), seeds=2)
SMALL_CIFAR = Config(Sweep(CIFAR_SMALL, ON_CIFAR, tuning_epochs=2))
PUBLISHED_STEPS = (0.1, 0.1, 0.1, 0.01, 1e-4)
PROFILES = {"quick": QUICK, "small": SMALL_DIGITS, "paper": _with_steps(TRAINING["vision"]["paper"], PUBLISHED_STEPS)}
QUICK_CIFAR = Config(Sweep(replace(CIFAR_SMALL, train_limit=2000, epochs=4), CONTENDERS, tuning_epochs=2))


def on_data(config: Config, data_dir: Path) -> Config:
    """The same on CIFAR-10 if the folder holds it; else the embedded digits stay."""
    if not (data_dir / CIFAR).is_dir():
        return config
    return {QUICK: QUICK_CIFAR, SMALL_DIGITS: SMALL_CIFAR}.get(config, config)


def sources(config: Config, data_dir: Path | None) -> dict[str, str]:
    return data_of([config.sweep], data_dir)


def run(config: Config, work: Work) -> Arrays:
    numbers, finished = run_sweep(config.sweep, work)
    data = {"data": np.array(config.sweep.base.data), **numbers, **weight_arrays(finished)}
    for name, key in product(finished, ("test_accuracy", "train_accuracy")):  # (seeds, epochs)
        rows = [[row[key] for row in read_metrics(folder)] for folder in finished[name]]
        longest = max(map(len, rows))  # a run that stopped early keeps its last
        data[f"{name}/curve/{key}"] = np.array([row + row[-1:] * (longest - len(row)) for row in rows])
    return data


def measure(data: Arrays) -> Rows:
    source: dict[str, Any] = {"source": NOTEBOOK, "where": NOTEBOOK_FILE}
    for name in data["names"].tolist():
        last, key = 100 * data[f"{name}/last_test_accuracy"], f"{name}/key"
        if name != "AdamW":
            trained = f"Trained for {data[f'{name}/epochs'].max():.0f} epochs on {data['data']}"
            more = {"why": f"{trained}, {THEIRS}", "column": name, **source}
            gap = 100 * (PUBLISHED_ACCURACY[name] - PUBLISHED_ACCURACY["Adam"])
            rival = 100 * data["AdamW/last_test_accuracy"]
            yield same_gap(f"{LAST} above Adam's, points", gap, last, rival, resolution=2, **more)
        yield alone(f"{LAST}, percent", Sample.of(last), column=name)
        zeros = float(data[f"{key}/near_zero"].mean() / data[f"{key}/entries"])
        yield alone(SMALL, zeros, column=name, ours=percent(zeros, 1))
        yield alone(HOYER, float(data[f"{key}/hoyer"].mean()), column=name)
        yield alone("step size", float(data[f"{name}/lr"]), column=name)
    rivals = ("ℓ1.1", "ℓ2")
    if {*rivals} <= {*data["names"].tolist()}:
        size = (PUBLISHED_NEAR_ZERO["ℓ1.1"] - PUBLISHED_NEAR_ZERO["ℓ2"]) / PUBLISHED_KEYS
        shares = (data[f"{name}/key/near_zero"] / data[f"{name}/key/entries"] for name in rivals)
        yield greater(f"{SMALL}: ℓ1.1 above ℓ2", number(size, 2, sign=True), *shares, size=size, **source)
        yield greater(f"{HOYER}: ℓ1.1 above ℓ2", "sparser", *(data[f"{name}/key/hoyer"] for name in rivals))


def tell(data: Arrays, table: Measured) -> Told:
    (gap,) = table.rows(f"{LAST} above", "ℓ1.1")
    low, high, points = gap.low or 0.0, gap.high or 0.0, gap.ours.rpartition(", ")[0]
    words = "ahead of" if low > 0 else "behind" if high < 0 else "not decidedly apart from"
    hoyer, shares = ([table.ours(quantity, name) for name in ("ℓ1.1", "ℓ2")] for quantity in (HOYER, SMALL))
    as_good = "A vision transformer under ℓp mirror descent is as accurate as under Adam"
    measured = f"ℓ1.1 {points} points from AdamW on {data['data']} (notebook {gap.published})"
    sparser = "A vision transformer's keys are sparser under ℓ1.1 than under ℓ2"
    small = f"{' against '.join(shares)} of the key weights are below 0.01"
    return Told(
        f"ℓ1.1 is {words} AdamW ({points} points); Hoyer index of its keys {hoyer[0]}, of ℓ2's {hoyer[1]}",
        f"Accuracies are those after the last epoch on {data['data']}.",
        table.claim(as_good, f"{measured}.", f"{LAST} above", larger="adam"),
        table.claim(sparser, f"{small}.", f"{SMALL}: ", f"{HOYER}: ", larger="keys"),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Accuracy while training, the keys' histogram, and their concentration."""
    middles = (data["edges"][1:] + data["edges"][:-1]) / 2
    fig, axes = row_of_axes(3, width=12, height=3.8)
    for name in data["names"].tolist():
        curves = 100 * data[f"{name}/curve/test_accuracy"]
        curve(axes[0], np.arange(1, curves.shape[1] + 1), curves.mean(0), name, (curves.min(0), curves.max(0)))
        share = data[f"{name}/key/histogram"] / data[f"{name}/key/entries"]
        curve(axes[1], middles, np.where(share > 0, share, np.nan), name, marker="")
    panel(axes[0], f"test accuracy, {data['data']}: mean and range of runs", "epoch", "percent", legend="best")
    options: dict[str, Any] = {"log": "y", "legend": "best", "ylim": (1e-5, None)}
    panel(axes[1], "key weights", "weight", "share of the weights", **options)
    draw_measures(axes[2], data, ("key",))
    return fig
