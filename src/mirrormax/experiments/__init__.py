"""Experiments: one file for each figure, table or theorem, with all that is known of it.

A module of this package whose name has no underscore in front is an experiment, and ``mirrormax reproduce`` knows it
by that name; nothing else lists them. ``_running`` says what such a module holds, runs it and keeps what it made.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax._statistics import interval, number
    from mirrormax.experiments._errata import ERRATA, LIMITS, MISPRINTS, READINGS
    from mirrormax.experiments._measurements import (
        DIFFERS,
        ERRATUM,
        LATE,
        NOT_PUBLISHED,
        NOTEBOOK,
        OURS,
        PAPER,
        RERUN,
        SMALLER,
        VERDICTS,
        Claim,
        Measured,
        Measurement,
        worst_of,
    )
    from mirrormax.experiments._running import BEYOND, Experiment, Result, Results, Work, config_of, open_work

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
    return sorted(names, key=lambda name: load_experiment(name).ABOUT.place)
