"""Running experiments, each at most once."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

from mirrormax.experiments.contract import load_experiment
from mirrormax.experiments.store import Result, Store
from mirrormax.experiments.work import Work


def config_of(name: str, profile: str, data_dir: Path | None = None) -> Any:
    """The configuration of an experiment in a profile, on the data of a folder if it uses any.

    ``small`` is for trained models; other experiments have no such profile and are quick.
    """
    experiment = load_experiment(name)
    config = experiment.PROFILES.get(profile, experiment.PROFILES["quick"])
    on_data = getattr(experiment, "on_data", None)
    return config if on_data is None or data_dir is None else on_data(config, data_dir)


def run_experiment(name: str, config: Any, store: Store, work: Work, force: bool = False) -> Result:
    """The result of an experiment: the finished one if it is there, else a new one, which is then kept."""
    found = None if force else store.load(name, config)
    if found is not None:
        return found
    experiment = load_experiment(name)
    start = time.perf_counter()
    data = experiment.run(config, work)
    return store.save(experiment, name, config, data, time.perf_counter() - start)
