"""Numbers among arguments: a refusal is one sentence that names the argument, its value and what it must be."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from numbers import Integral, Real
from typing import Any

LARGEST_P = 10_000.0
LARGEST_INTEGER = 2**63 - 1  # that numpy and torch hold


def number(
    name: str, value: Any, *, at_least: float = -math.inf, above: float = -math.inf, below: float = math.inf
) -> float:
    """``value`` as a float, or a TypeError if it is no number, a ValueError if it is out of bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__}).")
    try:
        result = float(value)
    except OverflowError:  # an integer of hundreds of digits
        result = math.inf
    if not (at_least <= result < below and result > above and math.isfinite(result)):
        wanted = [f"at least {at_least:g}"] if math.isfinite(at_least) else []
        wanted += [f"greater than {above:g}"] if math.isfinite(above) else []
        wanted += [f"less than {below:g}"] if math.isfinite(below) else []
        raise ValueError(f"{name} must be a finite number {' and '.join(wanted)}".rstrip() + f", got {value!r}.")
    return result


def integer(name: str, value: Any, *, at_least: int, at_most: int = LARGEST_INTEGER) -> int:
    """``value`` as an int, or a TypeError if it is no integer, a ValueError if it is out of bounds."""
    if isinstance(value, bool) or not isinstance(value, Integral):
        raise TypeError(f"{name} must be an integer, got {value!r} ({type(value).__name__}).")
    if value < at_least:
        raise ValueError(f"{name} must be at least {at_least}, got {value!r}.")
    if int(value) > at_most:
        raise ValueError(f"{name} must be at most {at_most}, got {value!r}.")
    return int(value)


def one_of(name: str, value: Any, known: Collection[Any]) -> Any:
    """``value``, or a ValueError if it is none of the known ones."""
    if isinstance(value, bool) or value not in list(known):
        raise ValueError(f"{name} must be one of {', '.join(map(str, known))}, got {value!r}.")
    return value


def several(name: str, values: Any, of: str) -> Any:
    """``values``, or a TypeError if they are no iterable, or look like a single one of those that it should hold."""
    if isinstance(values, str | bytes | Mapping) or hasattr(values, "ndim") or not hasattr(values, "__iter__"):
        raise TypeError(f"{name} must be a list of {of}, got {type(values).__name__}; put a single one into a list.")
    return values


def check_exponent(p: object, name: str = "p") -> float:
    """The one validator of p: a float with 1 < p ≤ 10000, else TypeError or ValueError."""
    exponent = number(name, p, above=1.0)
    if exponent > LARGEST_P:
        raise ValueError(
            f"{name} must be at most {LARGEST_P:g}, got {p!r}: beyond it, |w|^p has no digits left in double precision."
        )
    return exponent
