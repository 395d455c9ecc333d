"""Experiments: one file for each figure, table or theorem, with all that is known of it.

A module of this package whose name has no underscore in front is an experiment, and ``mirrormax reproduce`` knows it
by that name; nothing else lists them. ``_contract`` says what such a module holds, ``_results`` runs and keeps it.
"""

from __future__ import annotations

import pkgutil
from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrormax.experiments._contract import (
        DIFFERS,
        ERRATUM,
        LATE_BAR,
        NOT_PUBLISHED,
        OUR_BAR,
        PAPER,
        RERUN,
        SMALLER,
        SOURCES,
        VERDICTS,
        Claim,
        Comparison,
        Experiment,
        worst_of,
    )
    from mirrormax.experiments._errata import ERRATA, Erratum
    from mirrormax.experiments._results import Result, Results, config_of
    from mirrormax.experiments._work import Work, open_work

__all__ = [
    "DIFFERS",
    "ERRATA",
    "ERRATUM",
    "LATE_BAR",
    "NOT_PUBLISHED",
    "OUR_BAR",
    "PAPER",
    "RERUN",
    "SMALLER",
    "SOURCES",
    "VERDICTS",
    "Claim",
    "Comparison",
    "Erratum",
    "Experiment",
    "Result",
    "Results",
    "Work",
    "config_of",
    "experiment_names",
    "in_order",
    "load_experiment",
    "open_work",
    "worst_of",
]
OUTCOMES = ("DIFFERS", "ERRATUM", "NOT_PUBLISHED", "SMALLER", "VERDICTS")
BASES = ("LATE_BAR", "OUR_BAR", "PAPER", "RERUN", "SOURCES")
HOMES = {
    **dict.fromkeys((*OUTCOMES, *BASES, "Claim", "Comparison", "Experiment", "worst_of"), "_contract"),
    **dict.fromkeys(("ERRATA", "Erratum"), "_errata"),
    **dict.fromkeys(("Result", "Results", "config_of"), "_results"),
    **dict.fromkeys(("Work", "open_work"), "_work"),
}


def __getattr__(name: str) -> Any:
    """Names of the modules within, loaded when they are asked for: a list of names must not wait for torch."""
    if name not in HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{HOMES[name]}"), name)


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
