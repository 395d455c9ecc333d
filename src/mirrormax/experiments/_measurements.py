"""What an experiment measures: each number once, with what it is compared with and how that came out.

``measure(data)`` of an experiment gives a list of :class:`Measurement`. Tables, sentences, claims and headlines are all
made from that list (:class:`Measured` looks rows up by their quantity), so that no number is worked out twice. No
verdict is given without the uncertainty of what it compares, unless both numbers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from mirrormax._statistics import Estimate, Sample, Values, difference, estimate, number, percent, sample, spread
from mirrormax._statistics import mean as mean_of

Arrays = dict[str, np.ndarray[Any, Any]]
Rows = Iterator["Measurement"]
Ours = str | float | Estimate | Sample

MET = "met"
BETTERED = "bettered"
DIFFERS = "differs"
"""The verdict on a number that neither meets nor betters the one it is compared with."""
ERRATUM = "erratum"
"""What the paper prints is wrong, and ours is right."""
SMALLER = "smaller than published"
"""The sign is open, and the size that was published lies outside our interval."""
UNDECIDED = "undecided"
"""The sign is open, and the size that was published would fit as well."""
NOT_PUBLISHED = "not published"
"""The verdict on a number that is compared with nothing."""
VERDICTS = (MET, BETTERED, DIFFERS, ERRATUM, SMALLER, UNDECIDED, NOT_PUBLISHED)
"""All that a comparison may come to."""

PAPER = "paper"
"""What the paper prints or claims (arXiv 2410.14581 v1, whose numbering is used throughout)."""
NOTEBOOK = "authors' notebook"
"""What a notebook in the authors' repository printed; the paper itself has no number."""
RERUN = "rerun"
"""What the authors' protocol gave when it was run again, where the paper shows a curve without numbers."""
OURS = "our threshold"
"""A threshold that we set before the first run."""
LATE = "our threshold, set after measuring"
"""A threshold that we set when a first run had been seen."""
SOURCES = (PAPER, NOTEBOOK, RERUN, OURS, LATE)
"""Where the number comes from that ours is compared with."""


@dataclass(frozen=True)
class Measurement:
    """A number of ours and what it is compared with; rows of one ``quantity`` that differ in ``column`` (a p, a method)
    stand side by side.

    ``where`` says in which file or table a published number stands. ``value``, ``low`` and ``high`` are the number
    itself and its interval, where ``ours`` is a single number, and ``target`` the number it is compared with.
    """

    quantity: str
    published: str
    ours: str
    verdict: str
    why: str = ""
    column: str = ""
    source: str = PAPER
    where: str = ""
    value: float | None = None
    low: float | None = None
    high: float | None = None
    target: float | None = None

    def __post_init__(self) -> None:
        _known("verdict", self.verdict, VERDICTS)
        _known("source", self.source, SOURCES)

    @property
    def name(self) -> str:
        """The quantity, of which p or method."""
        return f"{self.quantity}, {self.column}" if self.column else self.quantity

    @property
    def compared(self) -> str:
        """What ours is compared with, and where that comes from."""
        return self.published if self.source == PAPER or self.published == "—" else f"{self.source}: {self.published}"

    @property
    def note(self) -> str:
        """Why it came out so, and where the published number stands."""
        return " ".join(filter(None, (self.why, f"Published in {self.where}." if self.where else "")))


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what we measured of it, and how that came out; a row of the table that opens a report.

    ``larger`` is given for statements about trained models, on which the quick profile has two seeds only: by that key
    the report finds what the committed larger studies decided (``studies.json``), and lets these decide. ``marks`` are
    what it rests on, where there is a published number: for each our value, the ends of its interval, the published
    number, a name, and the source.
    """

    statement: str
    measured: str
    verdict: str
    larger: str = ""
    marks: Sequence[Mark] = ()

    def __post_init__(self) -> None:
        _known("verdict", self.verdict, VERDICTS)


@dataclass(frozen=True)
class About:
    """What is known of an experiment before it has run."""

    title: str  # up to a colon its name in lists
    place: int  # in the report; from ``BEYOND`` on it goes beyond the paper
    seconds: int  # of processor time, about, in the quick profile
    revision: int  # raised when ``run`` comes to other numbers for the same configuration
    after: str = ""  # the experiment whose training runs this one shares, and which therefore goes first


class Told:
    """What an experiment says: its finding, which stands above the figure and opens the text; what else there is to
    say; and claims of the paper."""

    def __init__(self, headline: str, further: str = "", *claims: Claim) -> None:
        self.headline, self.further, self.claims = headline, further, claims

    @property
    def shows(self) -> str:
        """The finding as a sentence, and those after it."""
        return f"{'; '.join(self.headline.splitlines())}. {self.further}".rstrip()


Mark = tuple[float, float, float, float, str, str]


class Measured(list[Measurement]):
    """The measurements of an experiment, looked up by their quantity, or else by how it begins; what was not measured
    is an error."""

    def rows(self, quantity: str, column: str = "") -> list[Measurement]:
        """The rows of a quantity, of one column or of all."""
        begins = [row for row in self if row.quantity.startswith(quantity) and column in ("", row.column)]
        exact = [row for row in begins if row.quantity == quantity] or begins
        if not exact:
            raise KeyError(f"{quantity!r} of {column or 'any column'} was not measured")
        return exact

    def ours(self, quantity: str, column: str = "") -> str:
        """Our numbers of a quantity, as they are printed."""
        return ", ".join(row.ours for row in self.rows(quantity, column))

    def values(self, quantity: str, column: str = "") -> list[float]:
        """Our numbers of a quantity."""
        return [math.nan if row.value is None else row.value for row in self.rows(quantity, column)]

    def claim(self, statement: str, measured: str, *quantities: str, larger: str = "", only: str = "") -> Claim:
        """A claim that rests on these quantities, by the least favourable verdict; ``only`` names one column."""
        rows = [row for quantity in quantities for row in self.rows(quantity, only) if row.verdict != NOT_PUBLISHED]
        marks: list[Mark] = []
        for row in rows:
            if row.value is not None and row.target is not None and row.source not in (OURS, LATE):
                low, high = (row.value if end is None else end for end in (row.low, row.high))
                marks.append((row.value, low, high, row.target, row.name, row.source))
        return Claim(statement, measured, worst_of([row.verdict for row in rows] or [NOT_PUBLISHED]), larger, marks)


def worst_of(verdicts: Sequence[str]) -> str:
    """The least favourable of several verdicts."""
    order = (DIFFERS, UNDECIDED, SMALLER, ERRATUM, MET, BETTERED, NOT_PUBLISHED)
    return min(verdicts, key=order.index)


def _known(name: str, value: str, known: Sequence[str]) -> None:
    if value not in known:
        raise ValueError(f"{name} must be one of {', '.join(known)}, got {value!r}.")


# What makes a measurement. All take its other fields (why, column, source, where) by name; a column may be a p.


def alone(quantity: str, ours: Ours, /, why: str = "", **more: Any) -> Measurement:
    """A number that nobody published."""
    return _row(quantity, "—", ours, NOT_PUBLISHED, why=why, **more)


def claim(quantity: str, published: str, ours: Ours, holds: bool, /, why: str = "", **more: Any) -> Measurement:
    """A statement of the paper that a number of ours bears out, or does not."""
    return _row(quantity, published, ours, MET if holds else DIFFERS, why=why, **more)


def threshold(
    quantity: str, criterion: str, ours: Ours, holds: bool, /, why: str = "", *, late: bool = False, **more: Any
) -> Measurement:
    """A threshold that we set ourselves: the paper has no number here. ``late`` if it was set after the first run."""
    return claim(quantity, criterion, ours, holds, why, source=LATE if late else OURS, **more)


def at_most(quantity: str, bound: float, ours: float, why: str = "", **more: Any) -> Measurement:
    """A number that should not be larger than a threshold of ours."""
    return threshold(quantity, f"≤ {number(bound)}", ours, ours <= bound, why, **more)


def most(quantity: str, flags: Any, least: float = 1.0, why: str = "", **more: Any) -> Measurement:
    """A share of runs that should be all, or at least ``least``; no runs at all do not meet it."""
    flags = np.asarray(flags)
    criterion, holds = "all" if least == 1 else f"at least {percent(least)}", bool(flags.size and flags.mean() >= least)
    value = float(flags.mean()) if flags.size else None
    return threshold(quantity, criterion, f"{flags.sum()} of {flags.size}", holds, why, value=value, **more)


def above(quantity: str, criterion: str, bound: float, mean: Estimate, why: str = "", **more: Any) -> Measurement:
    """A number that should lie above ``bound``, decided by its interval."""
    return _row(quantity, criterion, mean, decided(mean.low - bound, mean.high - bound), why=why, **more)


def at_least(quantity: str, published: str, bound: float, values: Values, *, why: str = "", **more: Any) -> Measurement:
    """The claim that a mean over trials is at least ``bound``: decided by its 95 % interval (Student's)."""
    ours = mean_of(values)
    fields = {"ours": f"{estimate(ours)}, {len(values)} trials", "target": bound, **more}
    return above(quantity, published, bound, ours, why, **fields)


def same_mean(quantity: str, published: Sample, values: Values, below: str = DIFFERS, **more: Any) -> Measurement:
    """A mean that should be the same: met if the 95 % interval of ours − published holds zero. ``below`` is the verdict
    if it lies below, which of a distance that should vanish is ``BETTERED``."""
    gap = difference(values, published)
    verdict = UNDECIDED if not math.isfinite(gap.low) else below if gap.high < 0 else DIFFERS if gap.low > 0 else MET
    fields = {"ours": sample(Sample.of(values)), "target": published.mean, **more}
    return _row(quantity, sample(published), mean_of(values), verdict, **fields)


def exactly_smaller(quantity: str, published: float, ours: float, **more: Any) -> Measurement:
    """A distance that should vanish, without any chance in it, such as that of one run from a given start."""
    verdict = BETTERED if ours < published else MET if ours == published else DIFFERS
    return _row(quantity, number(published), ours, verdict, target=published, **more)


def greater(
    quantity: str, published: str, first: Values, second: Values, *, size: Any = None, **more: Any
) -> Measurement:
    """The claim that a mean over runs is greater than another: met or not if the 95 % interval of the difference
    (Welch's) is on one side of zero. Else undecided, or smaller than published if all of the interval lies below
    ``size``, the least difference that was published."""
    gap = difference(first, second)
    verdict = decided(gap.low, gap.high, size)
    ours = f"{estimate(gap, sign=True)}, {len(first)} and {len(second)} runs"
    return _row(quantity, published, gap, verdict, why=REASONS.get(verdict, ""), ours=ours, target=size, **more)


REASONS = {
    UNDECIDED: "The interval holds zero and the published size alike.",
    SMALLER: "The interval holds zero, and ends below the published size.",
}


def decided(low: float, high: float, size: float | None = None) -> str:
    """The verdict on a claim of more, by the interval of the difference and the least size that was published."""
    if low > 0:
        return MET
    if high < 0:
        return DIFFERS
    return SMALLER if size is not None and high < size else UNDECIDED


def same_gap(
    quantity: str, published: float, first: Values, second: Values, *, resolution: float, why: str, **more: Any
) -> Measurement:
    """A published difference of means: met if the 95 % interval of ours holds it, and differs if not; undecided if
    the interval reaches further than ``resolution`` to either side, and so would hold anything. ``why`` is said of a
    difference."""
    gap = difference(first, second)
    if not gap.low <= published <= gap.high:
        verdict = DIFFERS
    elif gap.high - gap.mean > resolution:
        verdict, why = UNDECIDED, f"With so few runs the interval is wider than ± {resolution:g}."
    else:
        verdict, why = MET, ""
    criterion, ours = number(published, sign=True), f"{estimate(gap, sign=True)}, {len(first)} and {len(second)} runs"
    return _row(quantity, criterion, gap, verdict, why=why, ours=ours, target=published, **more)


def _row(
    quantity: str, published: str, value: Ours, verdict: str, /, *, column: str | float = "", **more: Any
) -> Measurement:
    """Of a text itself, of a number its text and itself, of an estimate its interval too, of a sample its spread."""
    numbers = {}
    if isinstance(value, str):
        printed = value
    elif isinstance(value, Estimate):
        printed, numbers = estimate(value), {"value": value.mean, "low": value.low, "high": value.high}
    elif isinstance(value, Sample):
        printed, numbers = spread(value.mean, value.std), {"value": value.mean}
    else:
        printed, numbers = number(value, 2), {"value": float(value)}
    known = {name: each if math.isfinite(each) else None for name, each in numbers.items()}
    column = column if isinstance(column, str) else f"p = {column:g}"
    return Measurement(quantity, published, verdict=verdict, column=column, **{"ours": printed, **known, **more})
