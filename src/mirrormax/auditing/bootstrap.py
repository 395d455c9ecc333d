"""Means with percentile bootstrap intervals."""

from __future__ import annotations

from dataclasses import asdict, dataclass

import numpy as np
import numpy.typing as npt
from scipy.stats import rankdata

from mirrormax._checks import number

RESAMPLES = 2000


@dataclass(frozen=True)
class Estimate:
    """A mean, and the interval that holds the middle ``level`` of the means of resampled values."""

    mean: float
    low: float
    high: float

    def to_dict(self) -> dict[str, float]:
        """The three numbers by name."""
        return asdict(self)


def mean_interval(values: npt.ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95) -> Estimate:
    """The mean of values (n,) and its percentile bootstrap interval.

    The same seed draws the same resamples of n values, so two calls on arrays of one length are paired.

    >>> mean_interval([0.5, 0.5, 0.5])
    Estimate(mean=0.5, low=0.5, high=0.5)
    """
    values = _vector("values", values)
    level = number("level", level, above=0, below=1)
    if number("resamples", resamples, at_least=1) != int(resamples):
        raise ValueError(f"resamples must be a whole number, got {resamples!r}.")
    drawn = np.random.default_rng(seed).integers(0, values.size, (int(resamples), values.size))
    low, high = np.quantile(values[drawn].mean(axis=1), [(1 - level) / 2, (1 + level) / 2])
    return Estimate(float(values.mean()), float(low), float(high))


def paired_difference(
    first: npt.ArrayLike, second: npt.ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95
) -> Estimate:
    """The mean of first − second, (n,) each and measured on the same things, with its interval."""
    first, second = _vector("first", first), _vector("second", second)
    if first.size != second.size:
        raise ValueError(f"first has {first.size} values and second {second.size}; give the same things in one order.")
    return mean_interval(first - second, seed=seed, resamples=resamples, level=level)


def rank_correlation(
    first: npt.ArrayLike, second: npt.ArrayLike, *, seed: int = 0, resamples: int = RESAMPLES, level: float = 0.95
) -> Estimate:
    """Spearman's correlation of two numbers of the same n things, with its interval over resampled things.

    >>> rank_correlation([1, 2, 3, 4], [2, 4, 8, 9]).mean
    1.0
    """
    first, second = _vector("first", first), _vector("second", second)
    if first.size != second.size or first.size < 3:
        raise ValueError(f"first has {first.size} values and second {second.size}; give 3 or more of the same things.")
    drawn = np.random.default_rng(seed).integers(0, first.size, (resamples, first.size))
    means = [_spearman(first[one], second[one]) for one in drawn]
    low, high = np.nanquantile(means, [(1 - level) / 2, (1 + level) / 2])
    return Estimate(round(_spearman(first, second), 12), float(low), float(high))


def _spearman(first: npt.NDArray[np.float64], second: npt.NDArray[np.float64]) -> float:
    """NaN where one of them is constant."""
    ranks = [rankdata(values) for values in (first, second)]
    centred = [one - one.mean() for one in ranks]
    size = float(np.linalg.norm(centred[0]) * np.linalg.norm(centred[1]))
    return float(centred[0] @ centred[1]) / size if size else float("nan")


def _vector(name: str, values: npt.ArrayLike) -> npt.NDArray[np.float64]:
    array = np.asarray(values, dtype=np.float64)
    if array.ndim != 1 or array.size == 0:
        raise ValueError(f"{name} must be one row of numbers with something in it, got shape {array.shape}.")
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~np.isfinite(array)][0]}; every number must be finite.")
    return array
