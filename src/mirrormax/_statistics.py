"""Statistics for the whole package: a number with its 95 % interval.

Means over runs have Student's interval, differences of two means Welch's, shares Clopper and Pearson's (all by
:mod:`scipy.stats`); means over reviews or texts, whose values are far from normal, a percentile bootstrap. Where the
data cannot give an interval, as of a single run, it is the whole line: such a number decides nothing. The functions at
the end write numbers as people do.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import scipy

LEVEL = 0.95
ENDS = (1 - LEVEL) / 2, (1 + LEVEL) / 2
RESAMPLES = 2000
Values = Sequence[float] | np.ndarray[Any, Any]
SUPERSCRIPTS = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")


@dataclass(frozen=True)
class Estimate:
    """A number, and the ends of its interval."""

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """The three numbers by name."""
        return asdict(self)


class Sample(NamedTuple):
    """A mean, the standard deviation of what it is the mean of, and how many these are."""

    mean: float
    std: float
    trials: int

    @classmethod
    def of(cls, values: Values) -> Sample:
        """That of these numbers; NaN, as of a trial without a solution, are left out."""
        known = finite(values)
        std = float(known.std(ddof=1)) if len(known) > 1 else math.nan
        return cls(float(known.mean()) if len(known) else math.nan, std, len(known))


def finite(values: Values) -> npt.NDArray[np.float64]:
    """The finite ones of these numbers, in one row."""
    known = np.asarray(values, float).ravel()
    return np.asarray(known[np.isfinite(known)])


def median(values: Values) -> float:
    """The median of the finite ones of these numbers; NaN of none."""
    known = finite(values)
    return float(np.median(known)) if len(known) else math.nan


def mean(values: Values) -> Estimate:
    """A mean over runs with Student's interval."""
    sample = Sample.of(values)
    return difference(sample, Sample(0.0, 0.0, sample.trials))


def difference(first: Sample | Values, second: Sample | Values) -> Estimate:
    """The difference of two means over runs, first − second, with Welch's interval; either may be a published
    :class:`Sample`."""
    a, b = (each if isinstance(each, Sample) else Sample.of(each) for each in (first, second))
    middle = a.mean - b.mean
    if min(a.trials, b.trials) < 2 or not math.isfinite(middle):
        return Estimate(middle, -math.inf, math.inf)
    parts = a.std**2 / a.trials, b.std**2 / b.trials
    if sum(parts) == 0:
        return Estimate(middle, middle, middle)
    # Satterthwaite's degrees of freedom; those of the first alone where the second has no spread.
    freedom = sum(parts) ** 2 / (parts[0] ** 2 / (a.trials - 1) + parts[1] ** 2 / (b.trials - 1))
    low, high = scipy.stats.t.interval(LEVEL, freedom, middle, math.sqrt(sum(parts)))
    return Estimate(middle, float(low), float(high))


def share(hits: npt.ArrayLike, count: int | None = None) -> Estimate:
    """A share, of true values or of ``hits`` in ``count`` independent trials, with Clopper and Pearson's interval.

    >>> share([True] * 19 + [False]).mean
    0.95
    """
    flags = np.asarray(hits)
    wins, trials = (int(flags.sum()), flags.size) if count is None else (int(flags), count)
    if trials == 0:
        return Estimate(math.nan, 0.0, 1.0)
    ends = scipy.stats.binomtest(wins, trials).proportion_ci(LEVEL)
    return Estimate(wins / trials, float(ends.low), float(ends.high))


def bootstrap_mean(values: npt.ArrayLike, *, seed: int = 0) -> Estimate:
    """The mean of values (n,) and the interval that holds the middle 95 % of the means of resampled values.

    The same seed draws the same resamples of n values, so two calls on arrays of one length are paired.

    >>> bootstrap_mean([0.5, 0.5, 0.5])
    Estimate(mean=0.5, low=0.5, high=0.5)
    """
    values = _vector("values", values)
    drawn = np.random.default_rng(seed).integers(0, values.size, (RESAMPLES, values.size))
    low, high = np.quantile(values[drawn].mean(axis=1), ENDS)
    return Estimate(float(values.mean()), float(low), float(high))


def paired_difference(first: npt.ArrayLike, second: npt.ArrayLike, *, seed: int = 0) -> Estimate:
    """The mean of first − second, (n,) each and measured on the same things, with its bootstrap interval."""
    first, second = _vector("first", first), _vector("second", second)
    if first.size != second.size:
        raise ValueError(f"first has {first.size} values and second {second.size}; give the same things in one order.")
    return bootstrap_mean(first - second, seed=seed)


def rank_correlation(first: npt.ArrayLike, second: npt.ArrayLike) -> Estimate:
    """Spearman's correlation of two numbers of the same n things, with its interval over resampled things.

    >>> rank_correlation([1, 2, 3, 4], [2, 4, 8, 9]).mean
    1.0
    """
    first, second = _vector("first", first), _vector("second", second)
    if first.size != second.size or first.size < 3:
        raise ValueError(f"first has {first.size} values and second {second.size}; give 3 or more of the same things.")
    drawn = np.random.default_rng(0).integers(0, first.size, (RESAMPLES, first.size))
    low, high = np.nanquantile(_spearman(first[drawn], second[drawn]), ENDS)
    return Estimate(round(float(_spearman(first, second)), 12), float(low), float(high))


def _spearman(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> npt.NDArray[np.float64]:
    """Along the last axis; NaN where one of them is constant."""
    ranks = [scipy.stats.rankdata(part, axis=-1) for part in (first, second)]
    a, b = (part - part.mean(-1, keepdims=True) for part in ranks)
    size = np.asarray(np.linalg.norm(a, axis=-1) * np.linalg.norm(b, axis=-1))
    return np.asarray(np.divide((a * b).sum(-1), size, out=np.full_like(size, np.nan), where=size > 0))


def _vector(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be one row of numbers with something in it, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~np.isfinite(array)][0]}; every number must be finite.")
    return array


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


def estimate(value: Estimate, *, digits: int = 3, sign: bool = False) -> str:
    """A number with its interval."""
    return f"{number(value.mean, digits, sign=sign)}{interval(value.low, value.high, sign=sign)}"


def sample(value: Sample) -> str:
    """A mean with its spread, and over how many trials."""
    return f"{spread(value.mean, value.std)}, {value.trials} trials"
