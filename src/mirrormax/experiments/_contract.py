"""What every experiment has.

A module of this package holds ``TITLE``, ``SHORT`` (its name in lists), ``PLACE`` (where it stands in the report; from
``BEYOND`` on it goes beyond the paper), ``SECONDS`` (of processor time, about, in the quick profile), ``REVISION``
(raised when ``run`` comes to other numbers for the same configuration), a frozen ``Config`` with its ``PROFILES``, and
the functions of :class:`Experiment`. ``run(config, work)`` makes arrays, ``measure(data)`` works every number out once,
and what is said and drawn is made from these. Some have more:

- ``claims(data, found)``: statements of the paper that this experiment bears on, for the table that opens the report;
- ``on_data(config, data_dir)``: the configuration for what a data folder holds;
- ``sources(config, data_dir)``: a digest of every data file that is read;
- ``maps(data)``: reviews, and by model how it reads them, to be shown as attention maps;
- ``AFTER``: the name of an experiment whose training runs this one shares, and which therefore goes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mirrormax.experiments._measurements import Arrays, Measured, Measurement
    from mirrormax.experiments._work import Work

BEYOND = 150.0
"""Experiments placed here or later go beyond the paper, and are run only if they are asked for."""


class Experiment(Protocol):
    """A module of this package, seen from outside."""

    TITLE: str
    SHORT: str
    PLACE: float
    SECONDS: float
    REVISION: int
    PROFILES: dict[str, Any]

    def run(self, config: Any, work: Work) -> Arrays: ...

    def measure(self, data: Arrays) -> list[Measurement]: ...

    def shows(self, data: Arrays, found: Measured) -> str: ...

    def draw(self, data: Arrays, found: Measured) -> Figure: ...
