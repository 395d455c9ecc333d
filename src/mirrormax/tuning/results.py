"""What a study came to, as plain files: ``trials.csv`` with a row a trial, and ``best.json``."""

from __future__ import annotations

import csv
import shlex
from collections.abc import Sequence
from dataclasses import asdict, fields
from pathlib import Path
from typing import Any

from optuna.trial import FrozenTrial, TrialState

from mirrormax._files import replacing, save_json
from mirrormax.training import PROFILES, TrainConfig
from mirrormax.training.config import with_choices
from mirrormax.tuning.study import Plan, trial_folder

Row = dict[str, Any]
COLUMNS = (
    *("trial", "state", "optimizer", "p", "multiple", "lr", "validation_accuracy", "validation_loss"),
    *("train_accuracy", "epoch", "epochs", "hoyer", "top_mass"),
)


def rows_of(trials: Sequence[FrozenTrial]) -> list[Row]:
    """A row a trial; what a trial has not is None. Test accuracies are left out: nothing may be chosen by them."""
    rows = []
    for trial in trials:
        row = {name: trial.user_attrs.get(name) for name in COLUMNS}
        row |= {"trial": trial.number, "state": trial.state.name.lower(), "validation_accuracy": trial.value}
        row["epochs"] = len(trial.intermediate_values)
        rows.append(row)
    return rows


def best_of(rows: Sequence[Row]) -> Row:
    """The finished trial of highest validation accuracy; of equals, the one with the lower validation loss."""
    complete = [row for row in rows if row["state"] == "complete"]
    return max(complete, key=lambda row: (row["validation_accuracy"], -_loss(row)))


def _loss(row: Row) -> float:
    return float("inf") if row["validation_loss"] is None else float(row["validation_loss"])


def write_results(plan: Plan, folder: Path, trials: Sequence[FrozenTrial], data_dir: Path | None) -> Row:
    """Write both files and return what ``best.json`` says."""
    rows = rows_of(trials)
    with replacing(folder / "trials.csv") as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=COLUMNS)
        writer.writeheader()
        writer.writerows(rows)
    best = best_of(rows)
    choices = {"optimizer": best["optimizer"], "lr": best["lr"]} | ({} if best["p"] is None else {"p": best["p"]})
    config = with_choices(plan.base, choices)
    told = {
        **best,
        "test_accuracy": trials[best["trial"]].user_attrs["test_accuracy"],
        "command": train_command(config, data_dir),
        "config": config.to_dict(),
        "model": str(trial_folder(Path(), best["trial"]) / "model"),
        "trials": len(rows),
        "pruned": sum(row["state"] == TrialState.PRUNED.name.lower() for row in rows),
    }
    save_json(folder / "best.json", told)
    return told


def train_command(config: TrainConfig, data_dir: Path | None) -> str:
    """The ``mirrormax train`` that does the same run: a flag for all that is not the default."""
    usual, words = asdict(PROFILES[config.task]["small"]), ["mirrormax", "train", config.task]
    for field in fields(config):
        value, flag = getattr(config, field.name), field.name.replace("_", "-")
        if isinstance(value, bool):
            words += [f"--{flag}" if value else f"--no-{flag}"] if value != usual[field.name] else []
        elif value != usual[field.name] or field.name in ("p", "lr"):
            words += [f"--{flag}", str(value)]
    return shlex.join(words + ([] if data_dir is None else ["--data-dir", str(data_dir)]))
