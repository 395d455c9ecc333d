"""What an audit is asked to do: every option once, with its default, its meaning and what it may be.

Arguments of :func:`~mirrormax.auditing.audit`, flags of ``mirrormax audit`` and the checks follow from the fields.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields, replace
from typing import Any

from mirrormax._checks import Among, Check, check_exponent, check_options, count, flag, option, within

Query = int | str
Progress = Callable[[str, int, int | None], None]
"""Told a stage, what is done of it, and the total, if known."""
QUERIES = {"first": "the first token, usually [CLS]", "last": "the last token that is there", "all": "every token"}
TARGETS = ("prediction", "label")
FORMS = ("token", "query")
SCHEMES = ("bf16", *(f"int{bits}{by}" for bits in (8, 4, 3) for by in ("", "/tensor", "/group")))
"""What weights may be rounded to: with one scale per row, per tensor, or per group of 128 weights."""
WANDA = "/wanda"
SAMPLE = {True: (64, 128), False: (24, 12)}
"""Rows and rivals of a margin problem where none are asked for: with p = 2 alone, which is quick, and with other p."""


def _exponent(name: str, value: Any) -> float:
    return check_exponent(getattr(value, "p", value), name)


def several(example: str, each: Check) -> Check:
    """A check for sequences of what ``each`` checks."""

    def check(name: str, value: Any) -> tuple[Any, ...]:
        if isinstance(value, str) or not isinstance(value, Sequence):
            raise TypeError(f"{name} must be a sequence such as {example}, got {value!r}.")
        return tuple(each(name, part) for part in value)

    return check


def _query(name: str, value: Any) -> Query:
    if isinstance(value, bool) or not isinstance(value, int | str):
        raise TypeError(f"{name} must be a position or one of {', '.join(QUERIES)}, got {value!r}.")
    if value not in QUERIES if isinstance(value, str) else value < 0:
        raise ValueError(f"{name} must be a position from 0 on or one of {', '.join(QUERIES)}, got {value!r}.")
    return value


def _scheme(name: str, value: Any) -> str | float:
    share = value.removesuffix(WANDA) if isinstance(value, str) and value.endswith(WANDA) else value
    try:
        known = value in SCHEMES or ((share != value or isinstance(share, float)) and 0 < float(share) < 1)
    except ValueError:
        known = False
    if not known:
        raise ValueError(f"{name} must hold {', '.join(SCHEMES)}, shares such as 0.5, or '0.5/wanda', got {value!r}.")
    scheme: str | float = value
    return scheme


def place_of(name: str) -> tuple[int, int]:
    """Layer and head of a name such as "3.1", both counted from 0."""
    # No numbers: 3.10 would be head 1.
    layer, dot, head = name.partition(".") if isinstance(name, str) else ("", "", "")
    if not dot or not (name.isascii() and layer.isdigit() and head.isdigit()):
        raise ValueError(f"heads must be names such as '3.1', layer and head counted from 0, got {name!r}.")
    return int(layer), int(head)


def _name(_: str, value: Any) -> str:
    layer, head = place_of(value)
    return f"{layer}.{head}"  # as results name it: 03.1 is 3.1


@dataclass(frozen=True)
class AuditOptions:
    """What an audit is asked to do.

    Ratios depend on the size of the sample. With ``settle`` heads are solved for ``p`` on 16 rows, then 32, 64, … of
    the sample, until in the median head ratio and divergence move by at most this share twice in a row (a divergence by
    this much); all else is then about the rows of the last size, and ``Audit.growth`` has what was found at each.

    >>> AuditOptions(scan=(3, 1.5)).scan
    (1.5, 3.0)
    """

    p: float = option(2.0, "the geometry of the margins, p > 1", _exponent)
    scan: tuple[float, ...] = option(
        (), "p to compare, such as 1.1,1.5,2,3; '' for none", several("(1.1, 2)", _exponent), metavar="P,P,…"
    )
    query: int | str | None = option(
        None,
        "whose attention: first, last, all, or a position (default: the last of a language model, all of others)",
        _query,
    )
    skip_sink: bool = option(False, "leave out the first token and a learned sink, as if they were not there", flag)
    form: str | None = option(None, "of the margin problems (default: token where there is one)", Among(FORMS))
    samples: int = option(
        None, "rows in each margin problem (default: 64 for p = 2 alone, 24 where other p are solved too)", count(1)
    )
    rivals: int = option(
        None, "strongest rivals kept of a row (default: 128 for p = 2 alone, 12 where other p are solved too)", count(1)
    )
    settle: float | None = option(
        None,
        "solve 16, 32, … rows, at most --samples, until ratios and divergences move by no more than this share "
        "(default: all at once)",
        within(above=0, below=1),
        metavar="SHARE",
    )
    controls: int = option(2, "heads of shuffled weights per layer, solved alike", count(0, at_most=1000))
    shuffled: int = option(
        99, "heads of shuffled weights, over all layers, by which kinds are judged", count(0, at_most=100_000)
    )
    robustness: tuple[str | float, ...] = option(
        (),
        "change queries and keys, such as int8,0.5: to int8, int4, int3 (per row; int4/tensor, int4/group), bf16, or "
        "pruned by a share (by magnitude; 0.5/wanda)",
        several("('int8', 0.5)", _scheme),
        metavar="TO,TO,…",
    )
    quantile: float = option(
        0.1, "of the rows' margins, for one that does not hang on a single row", within(at_least=0, below=1)
    )
    C: float = option(10.0, "price of soft margins, where a problem cannot be separated", within(above=0))
    target: str = option("prediction", "score tokens for the predicted class or for the label", Among(TARGETS))
    heads: tuple[str, ...] = option(
        (),
        "heads to switch off and to give their mean output, such as 3.1,7.0",
        several("('3.1', '7.0')", _name),
        metavar="NAME,…",
    )
    removal: bool = option(
        False, "remove heads by sink-likeness and at random too, and not by Taylor importance alone", flag
    )
    interventions: int = option(0, "heads per layer to switch off and to change, drawn with the seed", count(0))
    intervention_texts: int = option(
        16, "first texts that heads are changed on and their importance is measured on; 0 for none", count(0)
    )
    examples: int = option(4, "sampled rows whose attention is kept in full", count(0))
    seed: int = option(0, "of every random choice", count(0))

    def __post_init__(self) -> None:
        check_options(self)
        object.__setattr__(self, "scan", tuple(sorted(set(self.scan))))
        if (self.heads or self.interventions or self.removal) and not self.intervention_texts:
            raise ValueError("intervention_texts must be at least 1 where heads are to be changed or removed, got 0.")

    @property
    def exponents(self) -> tuple[float, ...]:
        """Every p to solve for, the main one included."""
        return tuple(sorted({self.p, *self.scan}))

    def sized(self) -> AuditOptions:
        """The same with rows and rivals of margin problems, where none were asked for."""
        samples, rivals = SAMPLE[set(self.exponents) == {2.0}]
        return replace(self, samples=self.samples or samples, rivals=self.rivals or rivals)


@dataclass(frozen=True, eq=False)
class Vocabulary:
    """What is known of a model's tokens, for people to read and for the kinds of heads."""

    names: Callable[[list[int]], list[str]] | None = None  # from token numbers to words
    separators: Sequence[int] = ()  # numbers of tokens that end or part texts
    ordinary: Sequence[int] = ()  # numbers of ordinary tokens of a language model, to find induction heads
    start: int | None = None  # the token that goes before a sequence, if the model wants one


def options_of(options: AuditOptions | None, choices: Mapping[str, Any]) -> AuditOptions:
    """The options with some fields in their place by name; TypeError, naming it, for one that there is not."""
    if options is not None and not isinstance(options, AuditOptions):
        raise TypeError(f"options must be AuditOptions, got {options!r}; give single options by name, such as p=1.5.")
    known = [choice.name for choice in fields(AuditOptions)]
    for name in choices:
        if name not in known:
            raise TypeError(f"{name} is no option of an audit; there are {', '.join(known)}.")
    return replace(options or AuditOptions(), **choices)
