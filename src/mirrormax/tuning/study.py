"""A study in one folder: it goes on where it was interrupted, and its result depends on the plan alone.

``study.db`` is Optuna's, for its dashboard too. It holds finished trials only, each added whole; the runs are in
``trials/NUMBER``. What is proposed for trial n is a function of (seed, n), of the trials before the round that n is in
and of what was proposed in that round; whether it is given up depends on the former alone. However many processes
there are, and whenever they are killed, the trials are therefore the same.
"""

from __future__ import annotations

import sqlite3
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import optuna
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
from mirrormax.experiments import Work
from mirrormax.training import WITH_P, TrainConfig, data_digests
from mirrormax.tuning import CHOSEN
from mirrormax.tuning.trials import Outcome, configured, first_points, in_memory, run_trial, suggest

KIND = "study"
"""What the folder of a study holds, in its manifest."""
NAME, STUDY, TRIALS = "mirrormax", "study.db", "trials"
ROUND = 4  # trials that know nothing of each other's outcome, so that as many can run at once
STARTUP = 8  # trials before the sampler draws conclusions
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
    """The point to try as trial ``number``: where finished ones were good, and away from those still running."""
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
    suggest(trial, plan.optimizers)
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
        state=TrialState.PRUNED if outcome.pruned else TrialState.COMPLETE,
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
