"""One trial: a training run in a folder of its own, given up early if the others did better by then."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import optuna
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.trial import FrozenTrial

from mirrormax._files import locked
from mirrormax.auditing.sparsity import attention_weights, sparsity
from mirrormax.nets import load_model
from mirrormax.training import TrainConfig
from mirrormax.training.history import History, chosen_epoch
from mirrormax.training.run import Machine, read_metrics, train

FULL_TRIALS = 4  # that must have finished before one is given up
WARMUP = 0.25  # the share of the epochs that every trial gets


@dataclass(frozen=True)
class Task:
    """A trial to do: its run, where, and the trials that it is compared with."""

    config: TrainConfig
    folder: Path
    earlier: Sequence[FrozenTrial]
    data_dir: Path | None = None
    accelerator: str = "cpu"


@dataclass(frozen=True)
class Outcome:
    """What came out: validation accuracy by epoch, and the numbers of a trial that was not given up."""

    accuracies: dict[int, float]
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def pruned(self) -> bool:
        return not self.numbers


def run_trial(task: Task) -> Outcome:
    """Do a trial, or go on with it, or read what it came to.

    A process whose parent was killed may still be at it; it is waited for, and then nothing is left to do.
    """
    with locked(task.folder.with_suffix(".lock"), wait=True):
        pruning = Pruning(task)
        try:
            machine = Machine(accelerator=task.accelerator)
            train(task.config, task.folder, task.data_dir, machine=machine, callbacks=[pruning])
        except optuna.TrialPruned:
            return Outcome(pruning.accuracies)
        return read_outcome(task.folder)


def read_outcome(folder: Path) -> Outcome:
    """The numbers of a finished run: at the epoch that validation chose, and how sparse attention is there."""
    try:
        rows = read_metrics(folder)
        chosen = chosen_epoch(rows)
        names = ("epoch", "validation_accuracy", "validation_loss", "train_accuracy", "test_accuracy")
        numbers = {name: chosen[name] for name in names} | {"epochs": float(len(rows))}
        model = load_model(folder / "model").model
        accuracies = {int(row["epoch"]): row["validation_accuracy"] for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the finished run in {folder} is damaged; delete this folder and run again.") from error
    matrices = [matrix for found in attention_weights(model).values() for matrix in found]
    if all(matrix.isfinite().all() and matrix.any() for matrix in matrices):  # else there are no shares to speak of
        measured = sparsity(*matrices)
        numbers |= {"hoyer": measured.hoyer, "top_mass": measured.top_mass}
    return Outcome(accuracies, {name: value for name, value in numbers.items() if math.isfinite(value)})


class Pruning(Callback):
    """Ends a run whose best validation accuracy so far is below the median of the earlier trials at this epoch."""

    def __init__(self, task: Task) -> None:
        self.epochs = task.config.epochs
        warmup = math.ceil(WARMUP * self.epochs)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FULL_TRIALS, n_warmup_steps=warmup)
        self.trial = in_memory(task.earlier, pruner=pruner).ask()
        self.accuracies: dict[int, float] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        history = next(other for other in trainer.callbacks if isinstance(other, History))  # type: ignore[attr-defined]
        for row in history.rows[len(self.accuracies) :]:  # those before an interruption among them
            epoch, accuracy = int(row["epoch"]), row["validation_accuracy"]
            self.accuracies[epoch] = accuracy
            self.trial.report(accuracy, epoch)
        if len(history.rows) < self.epochs and not trainer.should_stop and self.trial.should_prune():
            raise optuna.TrialPruned


def in_memory(trials: Sequence[FrozenTrial], **options: Any) -> optuna.Study:
    """A study of its own that knows these trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", **options)
    study.add_trials(trials)
    return study
