"""The settings of an audit, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirrormax._checks import number
from mirrormax.auditing.selection import Query, check_query
from mirrormax.geometry import Lp, check_exponent

TARGETS = ("prediction", "label")


@dataclass(frozen=True)
class Settings:
    """See :func:`~mirrormax.auditing.audit` for what each means."""

    p: float
    query: Query
    scan: tuple[float, ...]
    samples: int
    rivals: int
    controls: int
    quantile: float
    C: float
    target: str
    examples: int
    seed: int

    @property
    def exponents(self) -> list[float]:
        """Every p to solve for, the main one included."""
        return sorted({self.p, *self.scan})


def check_settings(p: Any, query: Any, scan: Any, target: Any, quantile: Any, C: Any, **counts: Any) -> Settings:
    """Settings in range, or one sentence that names what is not."""
    if isinstance(scan, str) or not isinstance(scan, Sequence):
        raise TypeError(f"scan must be a sequence of numbers above 1, got {scan!r}; for example (1.1, 1.5, 2, 3).")
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}.")
    least = {"samples": 1, "rivals": 1, "controls": 0, "examples": 0, "seed": 0}
    whole = {name: _count(name, value, least[name]) for name, value in counts.items()}
    return Settings(
        p=_exponent("p", p),
        query=check_query(query),
        scan=tuple(sorted({_exponent("scan", value) for value in scan})),
        target=target,
        quantile=number("quantile", quantile, at_least=0.0, below=1.0),
        C=number("C", C, above=0.0),
        **whole,
    )


def _exponent(name: str, value: Any) -> float:
    return check_exponent(value.p if isinstance(value, Lp) else value, name)


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__}).")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    return value
