"""Experiments: one file for each figure, table or theorem, with all that is known of it.

A module of this package whose name has no underscore in front is an experiment, and ``mirrormax reproduce`` knows it
by that name; nothing else lists them. ``_results`` says what such a module holds, runs it and keeps what it made.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.experiments._errata import ERRATA as ERRATA
    from mirrormax.experiments._errata import LIMITS as LIMITS
    from mirrormax.experiments._errata import MISPRINTS as MISPRINTS
    from mirrormax.experiments._errata import READINGS as READINGS
    from mirrormax.experiments._measurements import DIFFERS as DIFFERS
    from mirrormax.experiments._measurements import ERRATUM as ERRATUM
    from mirrormax.experiments._measurements import LATE as LATE
    from mirrormax.experiments._measurements import NOT_PUBLISHED as NOT_PUBLISHED
    from mirrormax.experiments._measurements import NOTEBOOK as NOTEBOOK
    from mirrormax.experiments._measurements import OURS as OURS
    from mirrormax.experiments._measurements import PAPER as PAPER
    from mirrormax.experiments._measurements import RERUN as RERUN
    from mirrormax.experiments._measurements import SMALLER as SMALLER
    from mirrormax.experiments._measurements import VERDICTS as VERDICTS
    from mirrormax.experiments._measurements import Claim as Claim
    from mirrormax.experiments._measurements import Measured as Measured
    from mirrormax.experiments._measurements import Measurement as Measurement
    from mirrormax.experiments._measurements import worst_of as worst_of
    from mirrormax.experiments._numbers import interval as interval
    from mirrormax.experiments._numbers import number as number
    from mirrormax.experiments._results import BEYOND as BEYOND
    from mirrormax.experiments._results import Experiment as Experiment
    from mirrormax.experiments._results import Result as Result
    from mirrormax.experiments._results import Results as Results
    from mirrormax.experiments._results import config_of as config_of
    from mirrormax.experiments._work import Work as Work
    from mirrormax.experiments._work import open_work as open_work

# Loaded when they are asked for: a list of names must not wait for torch.
__getattr__, __dir__ = lazy(__name__)


def experiment_names() -> list[str]:
    """The names of all experiments, by their files: none of them is imported."""
    return sorted(module.name for module in pkgutil.iter_modules(__path__) if not module.name.startswith("_"))


def load_experiment(name: str) -> Experiment:
    """The module of an experiment."""
    module: Any = import_module(f"{__name__}.{name}")
    return module  # type: ignore[no-any-return]


def in_order(names: list[str]) -> list[str]:
    """These experiments in the order of the report."""
    return sorted(names, key=lambda name: load_experiment(name).PLACE)
