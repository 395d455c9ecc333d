"""One trial: a point of the space that is searched, and a training run there, given up early if others did better.

Searched are the optimizer, p, and the step size as a multiple of the one that the rule gives.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import optuna
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.trial import BaseTrial, FrozenTrial
from torch import nn

from mirrormax import training
from mirrormax.auditing import attention_weights, sparsity
from mirrormax.nets import load_model
from mirrormax.training import TrainConfig

LEAST_P, MOST_P = 1.05, 4.0
FARTHEST = 30.0  # multiples of the rule's step size go from 1/30 to 30
STARTS = (1.1, 1.5, 2.0, 3.0)  # the values of p that every study begins with
FULL_TRIALS = 4  # that must have finished before one is given up
WARMUP = 0.25  # the share of the epochs that every trial gets


def first_points(optimizers: Sequence[str]) -> list[dict[str, Any]]:
    """Where a study begins: each optimizer, and four values of p, with the rule's own step size."""
    points: list[dict[str, Any]] = []
    for name in optimizers:
        point: dict[str, Any] = {"optimizer": name, f"{name} multiple": 1.0}
        points += [{**point, "p - 1": p - 1} for p in STARTS] if name in training.WITH_P else [point]
    return points


def suggest(trial: BaseTrial, optimizers: Sequence[str]) -> None:
    """Let Optuna choose the point of a trial: p − 1 and the multiple on logarithmic scales."""
    optimizer = trial.suggest_categorical("optimizer", optimizers)
    if optimizer in training.WITH_P:
        trial.suggest_float("p - 1", LEAST_P - 1, MOST_P - 1, log=True)
    trial.suggest_float(f"{optimizer} multiple", 1 / FARTHEST, FARTHEST, log=True)


def configured(base: TrainConfig, point: Mapping[str, Any], model: nn.Module) -> TrainConfig:
    """The run at a point, p to two decimals; ``model`` holds the first weights, by which the rule goes."""
    optimizer = point["optimizer"]
    p = round(1 + point["p - 1"], 2) if "p - 1" in point else base.p
    config = replace(base, optimizer=optimizer, p=p, lr=None)
    return replace(config, lr=float(f"{point[f'{optimizer} multiple'] * training.default_lr(model, config):.3g}"))


@dataclass(frozen=True)
class Outcome:
    """What came out: the score on the validation split by epoch (accuracy, or minus the loss of a language model), and
    the numbers of a trial that was not given up."""

    scores: dict[int, float]
    numbers: dict[str, float] = field(default_factory=dict)

    @property
    def pruned(self) -> bool:
        return not self.numbers


def run_trial(
    config: TrainConfig,
    folder: Path,
    earlier: Sequence[FrozenTrial],
    data_dir: Path | None = None,
    accelerator: str = "cpu",
) -> Outcome:
    """Do a trial, or go on with it, or read what it came to; ``earlier`` trials are those that it is compared with.

    A process whose parent was killed may still be at it; it is waited for, and then nothing is left to do.
    """
    pruning, machine, study = Pruning(config, earlier), training.Machine(accelerator=accelerator), folder.parents[1]
    try:
        training.train(config, folder, data_dir, machine=machine, wait=True, within=study, callbacks=[pruning])
    except optuna.TrialPruned:
        return Outcome(pruning.scores)
    return read_outcome(folder, config.chosen_by)


def read_outcome(folder: Path, chosen_by: str) -> Outcome:
    """The numbers of a finished run: at the epoch that validation chose, and how sparse attention is there."""
    try:
        rows = training.read_metrics(folder)
        chosen = training.chosen_epoch(rows, chosen_by)
        names = ("epoch", "validation_accuracy", "validation_loss", "train_accuracy", "test_accuracy", "test_loss")
        numbers = {name: chosen[name] for name in names} | {"epochs": float(len(rows))}
        summary = json.loads((folder / "summary.json").read_text("utf-8"))
        numbers["majority"] = float(summary["no_better_than_majority"])
        model = load_model(folder / "model").model
        scores = {int(row["epoch"]): training.score(row, chosen_by) for row in rows}
    except (OSError, ValueError, KeyError, TypeError) as error:
        raise ValueError(f"the finished run in {folder} is damaged; delete this folder and run again.") from error
    matrices = [matrix for weights in attention_weights(model).values() for matrix in weights]
    if all(matrix.isfinite().all() and matrix.any() for matrix in matrices):  # else there are no shares to speak of
        measured = sparsity(*matrices)
        numbers |= {"hoyer": measured.hoyer, "top_mass": measured.top_mass}
    return Outcome(scores, {name: value for name, value in numbers.items() if math.isfinite(value)})


class Pruning(Callback):
    """Ends a run whose best validation score so far is below the median of the earlier trials at this epoch."""

    def __init__(self, config: TrainConfig, earlier: Sequence[FrozenTrial]) -> None:
        self.epochs, self.chosen_by = config.epochs, config.chosen_by
        warmup = math.ceil(WARMUP * self.epochs)
        pruner = optuna.pruners.MedianPruner(n_startup_trials=FULL_TRIALS, n_warmup_steps=warmup)
        self.trial = in_memory(earlier, pruner=pruner).ask()
        self.scores: dict[int, float] = {}

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        history = next(other for other in trainer.callbacks if isinstance(other, training.History))  # type: ignore[attr-defined]
        for row in history.rows[len(self.scores) :]:  # those before an interruption among them
            epoch = int(row["epoch"])
            self.scores[epoch] = training.score(row, self.chosen_by)
            self.trial.report(self.scores[epoch], epoch)
        if len(history.rows) < self.epochs and not trainer.should_stop and self.trial.should_prune():
            raise optuna.TrialPruned


def in_memory(trials: Sequence[FrozenTrial], **options: Any) -> optuna.Study:
    """A study of its own that knows these trials."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(direction="maximize", **options)
    study.add_trials(trials)
    return study
