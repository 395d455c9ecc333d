"""What every experiment has, and the verdicts that it may come to.

A module of this package holds ``TITLE``, ``SHORT`` (its name in lists), ``PLACE`` (where it stands in the report),
``SECONDS`` (about, in the quick profile on two cores), a frozen ``Config`` with its ``PROFILES``, and the functions of
:class:`Experiment`. ``run(config, work)`` makes arrays, the others read nothing but these. Some have more:

- ``claims(data)``: statements of the paper that this experiment bears on, for the table that opens the report;
- ``on_data(config, data_dir)``: the configuration for what a data folder holds;
- ``sources(config, data_dir)``: a digest of every data file that is read;
- ``maps(data)``: reviews, and by model how it reads them, to be shown as attention maps.

A comparison sets a number of ours beside another, says what the other one is and how they compare, and, where they
differ, why. No verdict is given without the uncertainty of what it compares, unless both numbers are exact.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

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
"""The verdict on a number that neither meets nor betters the one beside it."""
ERRATUM = "erratum"
"""What the paper prints is wrong, and ours is right."""
SMALLER = "smaller than published"
"""The sign is open, and the size that was published lies outside our interval."""
UNDECIDED = "undecided"
"""The sign is open, and the size that was published would fit as well."""
NOT_PUBLISHED = "not published"
"""The verdict on a number that stands beside nothing."""
VERDICTS = (MET, BETTERED, DIFFERS, ERRATUM, SMALLER, UNDECIDED, NOT_PUBLISHED)
"""All that a comparison may come to."""

PAPER = ""
"""Beside ours stands what the paper prints or claims."""
RERUN = "rerun"
"""Beside ours stands what the authors' protocol gave when it was run again."""
OUR_BAR = "our bar"
"""Beside ours stands a bar that we set before the first run."""
LATE_BAR = "our bar, set after measuring"
"""Beside ours stands a bar that we set when a first run had been seen."""
SOURCES = (PAPER, RERUN, OUR_BAR, LATE_BAR)
"""What a number is compared with: what the paper prints or claims; what the authors' protocol gave when it was run
again, where the paper shows a curve without numbers; a bar that we set ourselves, before or after the first run."""


@dataclass(frozen=True)
class Comparison:
    """One row of a report's table; rows of one ``quantity`` that differ in ``column`` (a p, a method) fold into one."""

    quantity: str
    published: str
    ours: str
    verdict: str
    why: str = ""
    column: str = ""
    source: str = PAPER

    def __post_init__(self) -> None:
        if self.verdict not in VERDICTS:
            raise ValueError(f"verdict must be one of {', '.join(VERDICTS)}, got {self.verdict!r}.")
        if self.source not in SOURCES:
            raise ValueError(f"source must be one of {', '.join(map(repr, SOURCES))}, got {self.source!r}.")

    @property
    def name(self) -> str:
        """The quantity, of which p or method."""
        return f"{self.quantity}, {self.column}" if self.column else self.quantity

    @property
    def beside(self) -> str:
        """What ours is compared with, and where that comes from."""
        return f"{self.source}: {self.published}" if self.source else self.published


@dataclass(frozen=True)
class Claim:
    """A statement of the paper, what we measured of it, and how that came out; a row of the table that opens a report.

    ``larger`` is given for statements about trained models, on which the quick profile has two seeds only: by that key
    the report finds what the committed larger studies decided (``studies.json``), and lets these decide.
    """

    statement: str
    measured: str
    verdict: str
    larger: str = ""

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


class Sample(NamedTuple):
    """A mean, the standard deviation of what it is the mean of, and how many these are."""

    mean: float
    std: float
    trials: int

    @classmethod
    def of(cls, values: Values) -> Sample:
        """That of these numbers; NaN, as of a trial without a solution, are left out."""
        known = np.asarray(values, float)
        known = known[np.isfinite(known)]
        std = float(known.std(ddof=1)) if len(known) > 1 else math.nan
        return cls(float(known.mean()) if len(known) else math.nan, std, len(known))

    def __str__(self) -> str:
        return f"{spread(self.mean, None if math.isnan(self.std) else self.std)}, {self.trials} trials"


def smaller_is_better(quantity: str, published: Sample, ours: Sample, *, why: str = "", column: str = "") -> Comparison:
    """A distance that should vanish: bettered if the 95 % interval of ours − published lies below zero, differs if it
    lies above, else met."""
    low, _, high = difference(ours, published)
    verdict = BETTERED if high < 0 else DIFFERS if low > 0 else MET if math.isfinite(low) else UNDECIDED
    return Comparison(quantity, str(published), str(ours), verdict, why, column)


def exactly_smaller(quantity: str, published: float, ours: float, *, why: str = "", column: str = "") -> Comparison:
    """The same for two numbers without any chance in them, such as those of one run from a given start."""
    verdict = BETTERED if ours < published else MET if ours == published else DIFFERS
    return Comparison(quantity, number(published), number(ours), verdict, why, column)


def same_mean(quantity: str, published: Sample, ours: Sample, *, why: str = "", column: str = "") -> Comparison:
    """A mean that should be the same: met if the 95 % interval of the difference holds zero."""
    low, _, high = difference(ours, published)
    verdict = UNDECIDED if not math.isfinite(low) else MET if low <= 0 <= high else DIFFERS
    return Comparison(quantity, str(published), str(ours), verdict, why, column)


def same_within(
    quantity: str, published: float, tolerance: float, ours: float, *, why: str = "", column: str = ""
) -> Comparison:
    """A number without chance in it that should be the same, up to the digits that were printed."""
    verdict = MET if abs(ours - published) <= tolerance else DIFFERS
    return Comparison(quantity, number(published, 4), number(ours, 4), verdict, why, column)


def target(quantity: str, at_most: float, ours: float, why: str = "", *, column: str = "") -> Comparison:
    """A bound that we set ourselves, with nothing published beside it."""
    return our_bar(quantity, f"≤ {number(at_most)}", number(ours), ours <= at_most, why, column=column)


def our_bar(
    quantity: str, bar: str, ours: str, holds: bool, why: str = "", *, column: str = "", late: bool = False
) -> Comparison:
    """A bar that we set ourselves: the paper has no number here. ``late`` if it was set after the first run."""
    return Comparison(quantity, bar, ours, MET if holds else DIFFERS, why, column, LATE_BAR if late else OUR_BAR)


def claim(quantity: str, published: str, ours: str, holds: bool, why: str = "", *, column: str = "") -> Comparison:
    """A statement of the paper that a number of ours bears out, or does not."""
    return Comparison(quantity, published, ours, MET if holds else DIFFERS, why, column)


def at_least(
    quantity: str, published: str, bound: float, values: Values, *, why: str = "", column: str = ""
) -> Comparison:
    """The claim that a mean over trials is at least ``bound``: decided by its 95 % interval (Student's)."""
    low, mean, high = mean_interval(values)
    ours = f"{number(mean)}{interval(low, high)}, {len(values)} trials"
    return Comparison(quantity, published, ours, decided(low - bound, high - bound), why, column)


def greater(
    quantity: str,
    published: str,
    first: Values,
    second: Values,
    *,
    unit: float = 1,
    size: float | None = None,
    column: str = "",
) -> Comparison:
    """The claim that a mean over runs is greater than another: met or not if the 95 % interval of the difference
    (Welch's) is on one side of zero. Else undecided, or smaller than published if all of the interval lies below
    ``size``, the least difference that was published."""
    low, mean, high = (end * unit for end in welch_interval(first, second))
    ours = f"{number(mean, sign=True)}{interval(low, high, sign=True)}, {len(first)} and {len(second)} runs"
    verdict = decided(low, high, size)
    return Comparison(quantity, published, ours, verdict, REASONS.get(verdict, ""), column)


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
    quantity: str,
    published: float,
    first: Values,
    second: Values,
    *,
    unit: float,
    resolution: float,
    why: str,
    column: str = "",
) -> Comparison:
    """A published difference of means: met if the 95 % interval of ours holds it, and differs if not; undecided if
    the interval reaches further than ``resolution`` to either side, and so would hold anything. ``why`` is said of a
    difference."""
    low, mean, high = (end * unit for end in welch_interval(first, second))
    ours = f"{number(mean, sign=True)}{interval(low, high, sign=True)}, {len(first)} and {len(second)} runs"
    if low <= published <= high and high - mean > resolution:
        verdict, why = UNDECIDED, f"With so few runs the interval is wider than ± {resolution:g}."
    else:
        verdict, why = (MET, "") if low <= published <= high else (DIFFERS, why)
    return Comparison(quantity, number(published, sign=True), ours, verdict, why, column)


def difference(first: Sample, second: Sample, level: float = 0.95) -> tuple[float, float, float]:
    """Lower end, mean and upper end of the difference of two means (Welch's); the whole line where a sample has no
    spread to tell of."""
    mean = first.mean - second.mean
    if min(first.trials, second.trials) < 2:
        return -np.inf, mean, np.inf
    parts = first.std**2 / first.trials, second.std**2 / second.trials
    spread = math.sqrt(sum(parts))
    if spread == 0:
        return mean, mean, mean
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (first.trials - 1) + parts[1] ** 2 / (second.trials - 1))
    reach = float(stats.t.ppf(0.5 + level / 2, freedom)) * spread
    return mean - reach, mean, mean + reach


def welch_interval(first: Values, second: Values, level: float = 0.95) -> tuple[float, float, float]:
    """The same for two sets of runs."""
    return difference(Sample.of(first), Sample.of(second), level)


def mean_interval(values: Values, level: float = 0.95) -> tuple[float, float, float]:
    """Lower end, mean and upper end of a mean (Student's); the whole line for a single one."""
    sample = Sample.of(values)
    if sample.trials < 2:
        return -np.inf, sample.mean, np.inf
    reach = float(stats.t.ppf(0.5 + level / 2, sample.trials - 1)) * sample.std / math.sqrt(sample.trials)
    return sample.mean - reach, sample.mean, sample.mean + reach


def share_interval(hits: int, count: int, level: float = 0.95) -> tuple[float, float]:
    """Clopper and Pearson's interval of a share, of ``hits`` in ``count`` independent trials."""
    side = (1 - level) / 2
    low = 0.0 if hits == 0 else float(stats.beta.ppf(side, hits, count - hits + 1))
    high = 1.0 if hits == count else float(stats.beta.ppf(1 - side, hits + 1, count - hits))
    return low, high


def ours_alone(quantity: str, ours: str, why: str = "", *, column: str = "") -> Comparison:
    """A number that nobody published."""
    return Comparison(quantity, "—", ours, NOT_PUBLISHED, why, column)


def rerun(row: Comparison) -> Comparison:
    """The same row, its published side marked as from a rerun of the authors' protocol: the paper prints no number."""
    return replace(row, source=RERUN)


def worst(rows: Sequence[Comparison]) -> str:
    """One verdict for several rows: the least favourable there is."""
    return worst_of([row.verdict for row in rows])


def worst_of(verdicts: Sequence[str]) -> str:
    """The least favourable of several verdicts."""
    order = (DIFFERS, UNDECIDED, SMALLER, ERRATUM, MET, BETTERED, NOT_PUBLISHED)
    return min(verdicts, key=order.index)


def std_of(values: Values) -> float | None:
    """The standard deviation over runs; a single one has none."""
    return float(np.std(values, ddof=1)) if len(values) > 1 else None


SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


def number(value: float, digits: int = 3, *, sign: bool = False) -> str:
    """A number with so many significant digits, a true minus sign, and powers of ten instead of many zeros.

    >>> number(-0.01234), number(0.0), number(3.1e-7, 2), number(2.0, sign=True), number(123456.0)
    ('−0.0123', '0', '3.1×10⁻⁷', '+2', '123,000')
    """
    value = float(value)
    if not math.isfinite(value):
        return "—" if math.isnan(value) else "∞" if value > 0 else "−∞"
    mark = "−" if value < 0 else "+" if sign and value > 0 else ""
    size = float(f"{abs(value):.{digits - 1}e}")
    if size and not 1e-3 <= size < 1e6:
        mantissa, power = f"{size:.{digits - 1}e}".split("e")
        mantissa = mantissa.rstrip("0").rstrip(".") if "." in mantissa else mantissa
        times = "" if mantissa == "1" else f"{mantissa}×"
        return f"{mark}{times}10{str(int(power)).translate(SUPERSCRIPTS)}"
    return f"{mark}{size:,.{digits}g}" if size < 10**digits else f"{mark}{size:,.0f}"


def percent(share: float, places: int = 0) -> str:
    """A share in percent.

    >>> percent(0.123), percent(-0.0123, 1)
    ('12 %', '−1.2 %')
    """
    return f"{100 * share:.{places}f} %".replace("-", "−")


def interval(low: float, high: float, *, digits: int = 2, sign: bool = False) -> str:
    """An interval in brackets; nothing where there is none, as for a single run."""
    if not (math.isfinite(low) and math.isfinite(high)):
        return ""
    return f" [{number(low, digits, sign=sign)}, {number(high, digits, sign=sign)}]"


def spread(mean: float, std: float | None) -> str:
    """A number with its standard deviation, if there is one, both to the decimal of the latter's second digit.

    >>> spread(80.0, 0.082), spread(0.00199, 0.0028), spread(1234.5, 12.0), spread(3.0, None)
    ('80.000 ± 0.082', '0.0020 ± 0.0028', '1,234 ± 12', '3')
    """
    if std is None or not math.isfinite(std) or not math.isfinite(mean):
        return number(mean)
    if std == 0:
        return f"{number(mean)} ± 0"
    places = max(0, 1 - math.floor(math.log10(std)))
    if places > 5:
        return f"{number(mean)} ± {number(std, 2)}"
    return f"{mean:,.{places}f} ± {std:,.{places}f}".replace("-", "−")
