"""What arguments may be: a refusal is one sentence that names the argument, its value and what it must be.

A dataclass of options declares each of them once, by :func:`option`; its checks and its flags follow from the fields.
"""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any

Check = Callable[[str, Any], Any]
"""From the name of an option and what was given to the value that is meant; TypeError or ValueError, naming it."""

LARGEST_P = 10_000.0
LARGEST_INTEGER = 2**63 - 1  # that numpy and torch hold


def number(
    name: str,
    value: Any,
    *,
    at_least: float = -math.inf,
    above: float = -math.inf,
    below: float = math.inf,
    at_most: float = math.inf,
) -> float:
    """``value`` as a float, or a TypeError if it is no number, a ValueError if it is out of bounds."""
    if isinstance(value, bool) or not isinstance(value, Real):
        raise TypeError(f"{name} must be a number, got {value!r} ({type(value).__name__}).")
    try:
        result = float(value)
    except OverflowError:  # an integer of hundreds of digits
        result = math.inf
    if not (at_least <= result <= at_most and above < result < below and math.isfinite(result)):
        bounds = {"at least": at_least, "greater than": above, "less than": below, "at most": at_most}
        wanted = " and ".join(f"{words} {bound:g}" for words, bound in bounds.items() if math.isfinite(bound))
        raise ValueError(f"{name} must be a finite number {wanted}".rstrip() + f", got {value!r}.")
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
        raise TypeError(f"{name} must be a list of {of}, got {described(values)}; put a single one into a list.")
    return values


def instance(name: str, value: Any, kind: Any, what: str) -> Any:
    """``value``, or a TypeError if it is not of the ``kind``, which is ``what`` in words."""
    if not isinstance(value, kind):
        raise TypeError(f"{name} must be {what}, got {described(value)}.")
    return value


def as_path(name: str, value: Any) -> Path:
    """``value`` as a path, or a TypeError if it is none."""
    return Path(instance(name, value, str | os.PathLike, "a path"))


def described(value: Any) -> str:
    """A value in a sentence: ``3 (int)``, and of what may be long, its type alone."""
    kind = type(value).__name__
    return f"{value!r} ({kind})" if value is None or isinstance(value, str | int | float) else kind


def check_exponent(p: object, name: str = "p") -> float:
    """The one validator of p: a float with 1 < p ≤ 10000, else TypeError or ValueError."""
    exponent = number(name, p, above=1.0)
    if exponent > LARGEST_P:
        raise ValueError(
            f"{name} must be at most {LARGEST_P:g}, got {p!r}: beyond it, |w|^p has no digits left in double precision."
        )
    return exponent


def option(default: Any, meaning: str, check: Check, **more: Any) -> Any:
    """A field with its meaning, what makes of a given value the one that is meant, and how the shell shows it."""
    return field(default=default, metadata={"meaning": meaning, "check": check, **more})


def check_options(options: Any) -> None:
    """Put what the check of each field makes of its value in its place; None stays where it is no value."""
    for each in fields(options):
        value = getattr(options, each.name)
        if value is not None or not (each.default is None or "None" in str(each.type)):
            object.__setattr__(options, each.name, each.metadata["check"](each.name, value))


def count(least: int = 1, **most: int) -> Check:
    """A check for integers from ``least`` on, up to ``at_most`` where more would take for ever."""
    return lambda name, value: integer(name, value, at_least=least, **most)


def within(**limits: float) -> Check:
    """A check for numbers within limits, see :func:`number`."""
    return lambda name, value: number(name, value, **limits)


@dataclass(frozen=True)
class Among:
    """A check for one of a few words, which the help of a flag lists."""

    known: tuple[str, ...]

    def __call__(self, name: str, value: Any) -> Any:
        return one_of(name, text(name, value), self.known)


def text(name: str, value: Any) -> str:
    """A check for words."""
    return str(instance(name, value, str, "a string"))


def flag(name: str, value: Any) -> bool:
    """A check for switches."""
    return bool(instance(name, value, bool, "true or false"))
