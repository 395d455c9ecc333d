"""Running experiments, each at most once."""

from __future__ import annotations

import time
from typing import Any

from mirrormax.experiments.contract import load_experiment
from mirrormax.experiments.store import Result, Store
from mirrormax.experiments.work import Work

PROFILES = ("quick", "paper")


def config_of(name: str, profile: str) -> Any:
    """The configuration of an experiment in a profile."""
    return load_experiment(name).PROFILES[profile]


def run_experiment(name: str, config: Any, store: Store, work: Work, force: bool = False) -> Result:
    """The result of an experiment: the finished one if it is there, else a new one, which is then kept."""
    found = None if force else store.load(name, config)
    if found is not None:
        return found
    experiment = load_experiment(name)
    start = time.perf_counter()
    data = experiment.run(config, work)
    return store.save(experiment, name, config, data, time.perf_counter() - start)
