"""Optimizers compared fairly: the same number of step sizes tried for each, chosen on held-out data, then seeds.

Every run is a folder of its own under ``work.runs``, named by its configuration and data, so that finished runs
are never done again, interrupted ones go on, and experiments share them.
"""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax.training import TrainConfig

if TYPE_CHECKING:
    from mirrormax.experiments._measurements import Arrays
    from mirrormax.experiments._work import Work

# What is kept of a finished run.
NUMBERS = ("validation_accuracy", "test_accuracy", "best_test_accuracy", "last_test_accuracy", "epochs")


@dataclass(frozen=True)
class Contender:
    """An optimizer, the step sizes to try for it, and how many seeds to train it with."""

    optimizer: str
    p: float
    lrs: tuple[float, ...]
    seeds: int

    @property
    def name(self) -> str:
        return f"ℓ{self.p:g}" if self.optimizer == "md" else {"adamw": "AdamW", "sgd": "SGD"}[self.optimizer]


@dataclass(frozen=True)
class Sweep:
    """Contenders on one task. Step sizes are tried for ``tuning_epochs``, each with the first seed; a single one, which
    leaves nothing to choose, is not."""

    base: TrainConfig
    contenders: tuple[Contender, ...]
    tuning_epochs: int

    def __post_init__(self) -> None:
        if len({len(contender.lrs) for contender in self.contenders}) > 1:
            raise ValueError("every contender must get the same number of step sizes; a fair budget is the point.")


@dataclass(frozen=True)
class Finished:
    """The runs of one contender: its step sizes with their validation accuracies, and a folder for each seed."""

    contender: Contender
    lr: float
    tuning: tuple[float, ...]
    folders: tuple[Path, ...]

    @property
    def summaries(self) -> list[dict[str, Any]]:
        return [json.loads((folder / "summary.json").read_text("utf-8")) for folder in self.folders]


def run_sweep(sweep: Sweep, work: Work, share: float = 1.0) -> list[Finished]:
    """Tune every contender on the validation split, then train it with every seed."""
    trials = [
        replace(_with(sweep.base, contender, lr, seed=0), epochs=sweep.tuning_epochs)
        for contender in sweep.contenders
        for lr in contender.lrs
        if len(contender.lrs) > 1
    ]
    cost = len(trials) * sweep.tuning_epochs
    longest = sweep.base.epochs * sum(contender.seeds for contender in sweep.contenders)
    tuning = np.full((len(sweep.contenders), len(sweep.contenders[0].lrs)), np.nan)
    if trials:
        folders = _train_all(trials, work, share * cost / (cost + longest))
        tuning = np.reshape(_accuracies(folders), tuning.shape)
    best = [contender.lrs[int(row.argmax())] for contender, row in zip(sweep.contenders, tuning, strict=True)]
    runs = [
        _with(sweep.base, contender, lr, seed)
        for contender, lr in zip(sweep.contenders, best, strict=True)
        for seed in range(contender.seeds)
    ]
    finished = iter(_train_all(runs, work, share * longest / (cost + longest)))
    return [
        Finished(contender, lr, tuple(row.tolist()), tuple(next(finished) for _ in range(contender.seeds)))
        for contender, lr, row in zip(sweep.contenders, best, tuning, strict=True)
    ]


def data_of(sweeps: Sequence[Sweep], data_dir: Path | None) -> dict[str, str]:
    """A digest of every data file that these sweeps read, and the revision of what trains on them."""
    from mirrormax.training import REVISION, data_digests

    found = {"training": f"revision {REVISION}"}
    for sweep in sweeps:
        found |= data_digests(sweep.base, data_dir)
    return found


def arrays(finished: Sequence[Finished]) -> Arrays:
    """The numbers of a sweep, by the contender's name."""
    data: Arrays = {"names": np.array([each.contender.name for each in finished])}
    for each in finished:
        name, summaries = each.contender.name, each.summaries
        data |= {f"{name}/{key}": np.array([_number(told[key]) for told in summaries]) for key in NUMBERS}
        data[f"{name}/lr"] = np.array(each.lr)
        data[f"{name}/lrs"], data[f"{name}/tuning"] = np.array(each.contender.lrs), np.array(each.tuning)
    return data


def _with(base: TrainConfig, contender: Contender, lr: float, seed: int) -> TrainConfig:
    p = contender.p if contender.optimizer == "md" else base.p
    return replace(base, optimizer=contender.optimizer, p=p, lr=lr, seed=seed)


def _accuracies(folders: Sequence[Path]) -> list[float]:
    summaries = [json.loads((folder / "summary.json").read_text("utf-8")) for folder in folders]
    return [_number(summary["validation_accuracy"]) for summary in summaries]


def _number(value: float | None) -> float:
    """A number of a summary; the paper's protocol has no validation split, and so none of its numbers."""
    return math.nan if value is None else float(value)


def _train_all(configs: Sequence[TrainConfig], work: Work, share: float) -> list[Path]:
    from mirrormax.training import run_key

    folders = [work.runs / f"{config.task}-{run_key(config, work.data_dir)}" for config in configs]
    tasks = [
        (config, folder, work.data_dir, work.begins_anew(folder))
        for config, folder in zip(configs, folders, strict=True)
    ]
    return work.map(_train, tasks, share)


def _train(task: tuple[TrainConfig, Path, Path | None, bool]) -> Path:
    from mirrormax.training import train

    config, folder, data_dir, force = task
    return train(config, folder, data_dir, force=force)
