"""A study in one folder: it goes on where it was interrupted, and its result depends on the plan alone.

``study.db`` is Optuna's, for its dashboard too. It holds finished trials only, each added whole; the runs are in
``trials/NUMBER``. What is proposed for trial n is a function of (seed, n), of the trials before the round that n is in
and of what was proposed in that round; whether it is given up depends on the former alone. However many processes
there are, and whenever they are killed, the trials are therefore the same.

A trial is a training run at a point of the space that is searched: the optimizer, p, and the step size as a multiple of
the one that the rule gives. It is given up early if others did better.
"""

from __future__ import annotations

import json
import math
import sqlite3
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
from lightning.pytorch import Callback, LightningModule, Trainer
from optuna.storages import RDBStorage
from optuna.trial import FrozenTrial, Trial, TrialState, create_trial
from sqlalchemy.engine import URL
from sqlalchemy.exc import SQLAlchemyError
from sqlalchemy.pool import NullPool
from torch import nn

from mirrormax import training
from mirrormax._checks import integer
from mirrormax._identity import choices, identity
from mirrormax._results import ResultFolder
from mirrormax.auditing import attention_weights, sparsity
from mirrormax.experiments import Work
from mirrormax.nets import load_model
from mirrormax.training import WITH_P, TrainConfig, data_digests
from mirrormax.tuning import CHOSEN

KIND = "study"
"""What the folder of a study holds, in its manifest."""
NAME, STUDY, TRIALS = "mirrormax", "study.db", "trials"
ROUND = 4  # trials that know nothing of each other's outcome, so that as many can run at once
STARTUP = 8  # trials before the sampler draws conclusions
LEAST_P, MOST_P = 1.05, 4.0
FARTHEST = 30.0  # multiples of the rule's step size go from 1/30 to 30
STARTS = (1.1, 1.5, 2.0, 3.0)  # the values of p that every study begins with
FULL_TRIALS = 4  # that must have finished before one is given up
WARMUP = 0.25  # the share of the epochs that every trial gets
REVISION = 1
"""Raised when the same plan would try other points."""


@dataclass(frozen=True)
class Plan:
    """A study: the base of its runs, the optimizers to try, and how many trials."""

    base: TrainConfig
    optimizers: tuple[str, ...] = ("mirror",)
    trials: int = 20
    accelerator: str = "cpu"

    def __post_init__(self) -> None:
        integer("--trials", self.trials, at_least=1)
        if self.base.validation == 0:
            raise ValueError("validation must be greater than 0 to choose by, got 0.")
        for name in self.optimizers:
            config = replace(self.base, optimizer=name)  # refuses choices that an optimizer has not
            if name in WITH_P and "p" in config.ignored():
                raise ValueError(
                    f"optimizers={name!r} has no p to tune with potential={config.potential!r} and "
                    f"sparsity={config.sparsity:g}; leave these two out."
                )

    def identity(self, data_dir: Path | None) -> dict[str, Any]:
        """All that the trials depend on: the choices, the content of the data, and the revisions of both rooms."""
        base = {name: value for name, value in choices(self.base).items() if name not in CHOSEN}
        config = {"task": self.base.task, **base, "optimizers": list(self.optimizers), "training": training.REVISION}
        return identity(config, revision=REVISION, data=data_digests(self.base, data_dir))


def run_study(
    plan: Plan, folder: ResultFolder, work: Work, model: nn.Module, tell: Callable[[FrozenTrial], None] | None = None
) -> list[FrozenTrial]:
    """Do what is missing of a study and return its trials; the caller has opened the folder.

    ``model`` has the first weights of every run, by which the rule for step sizes goes; ``tell`` gets each trial when
    it has ended.
    """
    study = open_study(folder)
    work.advance(min(1.0, len(study.trials) / plan.trials))
    while (done := len(trials := study.get_trials())) < plan.trials:
        start = done - done % ROUND
        earlier, numbers = trials[:start], range(done, min(start + ROUND, plan.trials))
        running = [_running(trial) for trial in trials[start:]]  # whose outcome is not looked at
        proposed = []
        for number in numbers:
            proposed.append(propose(plan, [*earlier, *running], number))
            running.append(_running(proposed[-1]))
        configs = [configured(plan.base, trial.params, model) for trial in proposed]
        tasks = [
            (config, trial_folder(folder.path, number), earlier, work.data_dir, plan.accelerator)
            for number, config in zip(numbers, configs, strict=True)
        ]
        outcomes = work.each(run_trial, tasks, len(tasks) / plan.trials)
        for config, trial, outcome in zip(configs, proposed, outcomes, strict=True):
            with _naming_full_disks(folder.claim(STUDY)):
                study.add_trial(finished(config, trial, outcome))
            if tell is not None:
                tell(study.get_trials()[-1])
        for pruned in study.get_trials(states=[TrialState.PRUNED]):  # their runs are of no use, and take room
            forget_run(folder.path, pruned.number)
    return study.get_trials()


def _running(trial: FrozenTrial | Trial) -> FrozenTrial:
    return create_trial(state=TrialState.RUNNING, params=trial.params, distributions=trial.distributions)


def propose(plan: Plan, known: Sequence[FrozenTrial], number: int) -> Trial:
    """The point to try as trial ``number``: where finished ones were good, and away from those still running.

    Both p − 1 and the multiple are drawn on logarithmic scales.
    """
    seed = int(np.random.SeedSequence((plan.base.seed, number)).generate_state(1)[0])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", optuna.exceptions.ExperimentalWarning)
        sampler = optuna.samplers.TPESampler(
            seed=seed, n_startup_trials=STARTUP, multivariate=True, group=True, constant_liar=True
        )
    study = in_memory(known, sampler=sampler)
    points = first_points(plan.optimizers)
    if number < len(points):
        study.enqueue_trial(points[number])
    trial = study.ask()
    optimizer = trial.suggest_categorical("optimizer", plan.optimizers)
    if optimizer in WITH_P:
        trial.suggest_float("p - 1", LEAST_P - 1, MOST_P - 1, log=True)
    trial.suggest_float(f"{optimizer} multiple", 1 / FARTHEST, FARTHEST, log=True)
    return trial


def trial_folder(folder: Path, number: int) -> Path:
    return folder / TRIALS / f"{number:04d}"


def finished(config: TrainConfig, trial: Trial, outcome: Outcome) -> FrozenTrial:
    """A trial as Optuna keeps it: the best score on the validation split is its value."""
    multiple = trial.params[f"{config.optimizer} multiple"]
    chosen = {"optimizer": config.optimizer, "multiple": multiple, "lr": config.lr}
    if "p - 1" in trial.params:
        chosen["p"] = config.p
    return create_trial(
        state=TrialState.COMPLETE if outcome.numbers else TrialState.PRUNED,
        value=max(outcome.scores.values()),
        params=trial.params,
        distributions=trial.distributions,
        user_attrs={**chosen, **outcome.numbers},
        intermediate_values=outcome.scores,
    )


def forget_run(folder: Path, number: int) -> None:
    """Take away what a trial's run has written, and nothing else."""
    ResultFolder(trial_folder(folder, number), "training run", within=folder).clear()


def forget_runs(folder: Path) -> None:
    """Take away the runs of all trials that there are."""
    for path in sorted((folder / TRIALS).glob("[0-9][0-9][0-9][0-9]")):
        forget_run(folder, int(path.name))


def open_study(folder: ResultFolder) -> optuna.Study:
    """The study in a folder, made if there is none; ValueError if it is damaged."""
    path = folder.path / STUDY
    if not path.exists():
        with _naming_full_disks(path), folder.writing(STUDY) as temporary:
            storage = _storage(temporary)
            optuna.create_study(storage=storage, study_name=NAME, direction="maximize")
            storage.remove_session()
            storage.engine.dispose()
    try:
        with closing(sqlite3.connect(path)) as connection:  # Optuna would write into any database
            (verdict,) = connection.execute("PRAGMA integrity_check").fetchone()
            names = connection.execute("SELECT study_name FROM studies").fetchall()
        if verdict != "ok" or names != [(NAME,)]:
            raise ValueError(f"integrity check: {verdict}; studies: {names}")
        study = optuna.load_study(study_name=NAME, storage=_storage(path))
        study.get_trials()
    except (sqlite3.Error, SQLAlchemyError, optuna.exceptions.OptunaError, KeyError, RuntimeError, ValueError) as error:
        raise ValueError(f"{path} is damaged or not a study of mirrormax; begin anew with --force.") from error
    return study


@contextmanager
def _naming_full_disks(path: Path) -> Iterator[None]:
    """SQLite knows no OSError: what it cannot write becomes one."""
    try:
        yield
    except (SQLAlchemyError, optuna.exceptions.StorageInternalError) as error:
        raise OSError(f"{path} could not be written; make room on the disk, and start again.") from error


def _storage(path: Path) -> RDBStorage:
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    # Without a pool every connection is closed when its work is done, and none is left for the garbage collector.
    url = URL.create("sqlite", database=str(path)).render_as_string()
    return RDBStorage(url, engine_kwargs={"poolclass": NullPool})


def first_points(optimizers: Sequence[str]) -> list[dict[str, Any]]:
    """Where a study begins: each optimizer, and four values of p, with the rule's own step size."""
    points: list[dict[str, Any]] = []
    for name in optimizers:
        point: dict[str, Any] = {"optimizer": name, f"{name} multiple": 1.0}
        points += [{**point, "p - 1": p - 1} for p in STARTS] if name in WITH_P else [point]
    return points


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


def run_trial(
    config: TrainConfig, folder: Path, earlier: Sequence[FrozenTrial], data_dir: Path | None, accelerator: str
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
