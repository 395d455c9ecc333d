"""What an audit is asked to do, checked before anything runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from mirrormax._checks import number
from mirrormax.auditing.layers import QUERY, TOKEN
from mirrormax.geometry import Lp, check_exponent

Query = int | str
NAMED = {"first": "the first token, usually [CLS]", "last": "the last token that is there", "all": "every token"}
TARGETS = ("prediction", "label")
SAMPLE = {True: (64, 128), False: (24, 12)}
"""Rows and rivals of a margin problem where none are asked for: with p = 2 alone, which is quick, and with other p."""


@dataclass(frozen=True)
class Settings:
    """See :func:`~mirrormax.auditing.audit` for what each means."""

    p: float
    query: Query | None
    scan: tuple[float, ...]
    samples: int
    rivals: int
    controls: int
    quantile: float
    C: float
    target: str
    examples: int
    seed: int
    skip_sink: bool
    form: str | None
    settle: float | None
    interventions: int
    intervention_texts: int

    @property
    def exponents(self) -> tuple[float, ...]:
        """Every p to solve for, the main one included."""
        return tuple(sorted({self.p, *self.scan}))


def check_settings(
    p: Any, query: Any, scan: Any, target: Any, quantile: Any, C: Any, skip_sink: Any = False, form: Any = None,
    settle: Any = None, **counts: Any,
) -> Settings:  # fmt: skip
    """Settings in range, or one sentence that names what is not."""
    if isinstance(scan, str) or not isinstance(scan, Sequence):
        raise TypeError(f"scan must be a sequence of numbers above 1, got {scan!r}; for example (1.1, 1.5, 2, 3).")
    if target not in TARGETS:
        raise ValueError(f"target must be one of {', '.join(TARGETS)}, got {target!r}.")
    if form not in (None, TOKEN, QUERY):
        raise ValueError(f"form must be {TOKEN!r}, {QUERY!r} or None for what each layer has, got {form!r}.")
    if not isinstance(skip_sink, bool):
        raise TypeError(f"skip_sink must be True or False, got {skip_sink!r}.")
    least = {"samples": 1, "rivals": 1, "controls": 0, "examples": 0, "seed": 0}
    least |= {"interventions": 0, "intervention_texts": 1}
    p, scan = _exponent("p", p), tuple(sorted({_exponent("scan", value) for value in scan}))
    counts = {"samples": None, "rivals": None, "interventions": 0, "intervention_texts": 16, **counts}
    for name, default in zip(("samples", "rivals"), SAMPLE[{p, *scan} == {2.0}], strict=True):
        counts[name] = default if counts[name] is None else counts[name]
    whole = {name: _count(name, value, least[name]) for name, value in counts.items()}
    return Settings(
        p=p,
        query=check_query(query),
        scan=scan,
        target=target,
        skip_sink=skip_sink,
        form=form,
        settle=None if settle is None else number("settle", settle, above=0.0, below=1.0),
        quantile=number("quantile", quantile, at_least=0.0, below=1.0),
        C=number("C", C, above=0.0),
        **whole,
    )


def check_query(query: Any) -> Query | None:
    """``query`` as given, refused if it names nothing; None leaves it to the kind of model."""
    if query is None:
        return None
    if isinstance(query, bool) or not isinstance(query, int | str):
        raise TypeError(f"query must be a position or one of {', '.join(NAMED)}, got {query!r}.")
    if (isinstance(query, str) and query not in NAMED) or (isinstance(query, int) and query < 0):
        raise ValueError(f"query must be a position from 0 on or one of {', '.join(NAMED)}, got {query!r}.")
    return query


def _exponent(name: str, value: Any) -> float:
    return check_exponent(value.p if isinstance(value, Lp) else value, name)


def _count(name: str, value: Any, least: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int):
        raise TypeError(f"{name} must be a whole number, got {value!r} ({type(value).__name__}).")
    if value < least:
        raise ValueError(f"{name} must be at least {least}, got {value}.")
    return value
