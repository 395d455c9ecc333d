"""What every experiment has, and the verdicts that it may come to.

A module of this package holds ``TITLE``, ``SHORT`` (its name in lists), ``PLACE`` (where it stands in the report),
``SECONDS`` (about, in the quick profile on two cores), a frozen ``Config`` with its ``PROFILES``, and the functions of
:class:`Experiment`. ``run(config, work)`` makes arrays, the others read nothing but these. Some have more:

- ``on_data(config, data_dir)``: the configuration for what a data folder holds;
- ``sources(config, data_dir)``: a digest of every data file that is read;
- ``maps(data)``: reviews, and by model how it reads them, to be shown as attention maps.

A comparison sets a number of ours beside what was published, says how they compare, and, where they differ, why.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from scipy import stats

if TYPE_CHECKING:
    from matplotlib.figure import Figure

    from mirrormax.experiments._work import Work

Arrays = dict[str, np.ndarray[Any, Any]]
Rows = dict[str, dict[str, float]]
Values = Sequence[float] | np.ndarray[Any, Any]

MET = "met"
BETTERED = "bettered"
DIFFERS = "differs"
"""The verdict on a number that neither meets nor betters the published one."""
ERRATUM = "erratum"
UNDECIDED = "undecided"
NOT_PUBLISHED = "not published"
RERUN = "rerun:"
"""Stands before a published value that is not in the paper's text but from a rerun of its authors' protocol."""
VERDICTS = (MET, BETTERED, DIFFERS, ERRATUM, UNDECIDED, NOT_PUBLISHED)
"""All that a comparison may come to."""


@dataclass(frozen=True)
class Comparison:
    """One row of a report's table."""

    quantity: str
    published: str
    ours: str
    verdict: str
    why: str = ""

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}.")


class Experiment(Protocol):
    """A module of this package, seen from outside."""

    TITLE: str
    SHORT: str
    PLACE: float
    SECONDS: float
    PROFILES: dict[str, Any]

    def run(self, config: Any, work: Work) -> Arrays: ...

    def summary(self, data: Arrays) -> Rows: ...

    def shows(self, data: Arrays) -> str: ...

    def comparisons(self, data: Arrays) -> list[Comparison]: ...

    def draw(self, data: Arrays) -> Figure: ...


def smaller_is_better(
    quantity: str, published: float, std: float | None, ours: float, *, why: str = "", ours_std: float | None = None
) -> Comparison:
    """A distance that should vanish: bettered below the published value, met within its standard deviation."""
    verdict = BETTERED if ours < published else MET if ours <= published + (std or 0.0) else DIFFERS
    return Comparison(quantity, spread(published, std), spread(ours, ours_std), verdict, why)


def same_within(
    quantity: str, published: float, tolerance: float, ours: float, *, why: str = "", ours_std: float | None = None
) -> Comparison:
    """A number that should be the same: met if it is, up to ``tolerance`` (a published standard deviation)."""
    verdict = MET if abs(ours - published) <= tolerance else DIFFERS
    return Comparison(quantity, spread(published, tolerance), spread(ours, ours_std), verdict, why)


def target(quantity: str, at_most: float, ours: float, why: str = "") -> Comparison:
    """A bound that we set ourselves, with nothing published beside it."""
    return our_bar(quantity, f"≤ {at_most:g}", f"{ours:.3g}", ours <= at_most, why)


def our_bar(quantity: str, bar: str, ours: str, holds: bool, why: str = "") -> Comparison:
    """A bar in words that we set ourselves: the paper has no number here."""
    return Comparison(quantity, f"target (ours): {bar}", ours, MET if holds else DIFFERS, why)


def claim(quantity: str, published: str, ours: str, holds: bool, why: str = "") -> Comparison:
    """A statement of the paper that a number of ours bears out, or does not."""
    return Comparison(quantity, published, ours, MET if holds else DIFFERS, why)


def greater(quantity: str, published: str, first: Values, second: Values, *, unit: float = 1) -> Comparison:
    """The claim that a mean over runs is greater than another: met or not if the 95 % interval of the difference
    (Welch's) is on one side of zero, else undecided."""
    low, mean, high = welch_interval(first, second)
    ours = f"{mean * unit:+.3g}{interval(low * unit, high * unit)}, {len(first)} and {len(second)} runs"
    verdict = decided(low, high)
    return Comparison(quantity, published, ours, verdict, "" if verdict != UNDECIDED else "The interval contains zero.")


def decided(low: float, high: float) -> str:
    """The verdict on a claim of more, by the interval of the difference."""
    return MET if low > 0 else DIFFERS if high < 0 else UNDECIDED


def interval(low: float, high: float) -> str:
    """An interval in brackets; nothing where there is none, as for a single run."""
    return f" [{low:+.3g}, {high:+.3g}]" if np.isfinite(low) and np.isfinite(high) else ""


def same_gap(
    quantity: str, published: float, first: Values, second: Values, *, unit: float, resolution: float, why: str
) -> Comparison:
    """A published difference of means: met if the 95 % interval of ours holds it, and differs if not; undecided if
    the interval reaches further than ``resolution`` to either side, and so would hold anything. ``why`` is said of a
    difference."""
    low, mean, high = (end * unit for end in welch_interval(first, second))
    ours = f"{mean:+.3g}{interval(low, high)}, {len(first)} and {len(second)} runs"
    if high - mean > resolution:
        verdict, why = UNDECIDED, f"With so few runs the interval is wider than ± {resolution:g}."
    else:
        verdict, why = (MET, "") if low <= published <= high else (DIFFERS, why)
    return Comparison(quantity, f"{published:+.3g}", ours, verdict, why)


def welch_interval(first: Values, second: Values, level: float = 0.95) -> tuple[float, float, float]:
    """Lower end, mean and upper end of the difference of two means; the whole line for a single run each."""
    a, b = np.asarray(first, float), np.asarray(second, float)
    mean = float(a.mean() - b.mean())
    if min(len(a), len(b)) < 2:
        return -np.inf, mean, np.inf
    parts = a.var(ddof=1) / len(a), b.var(ddof=1) / len(b)
    spread = float(np.sqrt(sum(parts)))
    if spread == 0:
        return mean, mean, mean
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (len(a) - 1) + parts[1] ** 2 / (len(b) - 1))
    reach = float(stats.t.ppf(0.5 + level / 2, freedom)) * spread
    return mean - reach, mean, mean + reach


def ours_alone(quantity: str, ours: str, why: str = "") -> Comparison:
    """A number that nobody published."""
    return Comparison(quantity, "—", ours, NOT_PUBLISHED, why)


def rerun(row: Comparison) -> Comparison:
    """The same row, its published side marked as from a rerun of the authors' protocol: the paper prints no number."""
    return replace(row, published=f"{RERUN} {row.published}")


def std_of(values: Values) -> float | None:
    """The standard deviation over runs; a single one has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


def spread(mean: float, std: float | None) -> str:
    """A number, with its standard deviation if there is one."""
    return f"{mean:.3g}" if std is None else f"{mean:.3g} ± {std:.2g}"
