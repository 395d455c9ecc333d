"""The pivotal-token benchmark: short film reviews with the words marked that decide each one.

A file has the columns ``id, label, kind, text``. The label is 1 for a positive review and 0 for a negative one;
decisive words stand in square brackets, one word in each pair: ``It is [not] [boring] for a second.`` The kinds are

* ``plain``: no other word of the review carries its sentiment;
* ``negation``: the negator and the word it turns are both marked, and the label is that of the two together;
* ``contrast``: an unmarked word of the opposite sentiment is there on purpose, to distract.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Iterator
from dataclasses import dataclass
from importlib.resources import files
from io import StringIO
from pathlib import Path

COLUMNS = ("id", "label", "kind", "text")
KINDS = ("plain", "negation", "contrast")
"""The kinds of reviews; see above."""

Span = tuple[int, int]
"""Where something begins and ends in a text."""

# Letters and digits, joined by hyphens or apostrophes inside; else one punctuation mark.
_WORD = re.compile(r"\w+(?:['’-]\w+)*|[^\w\s]")


@dataclass(frozen=True)
class Pivot:
    """A review, its label (0 negative, 1 positive), and the decisive words as ``text[start:end]`` spans."""

    id: str
    text: str
    label: int
    kind: str
    spans: tuple[Span, ...]

    @property
    def words(self) -> tuple[str, ...]:
        """The decisive words."""
        return tuple(self.text[start:end] for start, end in self.spans)


def word_spans(text: str) -> tuple[Span, ...]:
    """Where the words of a text are; a punctuation mark is a word of its own, an inner hyphen or apostrophe is not.

    >>> [text[a:b] for text in ["It isn't half-bad."] for a, b in word_spans(text)]
    ['It', "isn't", 'half-bad', '.']
    """
    return tuple(match.span() for match in _WORD.finditer(text))


def load_pivots() -> tuple[Pivot, ...]:
    """The benchmark that comes with the package: 252 reviews, half of them positive.

    >>> load_pivots()[0].words
    ('Superb',)
    """
    return _parse(files("mirrormax.data").joinpath("pivots.csv").read_text("utf-8"), "the benchmark pivots.csv")


def read_pivots(path: str | Path) -> tuple[Pivot, ...]:
    """A benchmark of the same layout from a CSV file in UTF-8; what is not right raises, naming the row."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"the benchmark {path} does not exist; check the path.")
    if path.is_dir():
        raise IsADirectoryError(f"the benchmark {path} is a directory; give a .csv file in it.")
    try:
        content = path.read_text("utf-8-sig")
    except UnicodeDecodeError as error:
        raise ValueError(f"the benchmark {path} is not UTF-8 text; save it as CSV in UTF-8.") from error
    return _parse(content, f"the benchmark {path}")


def _parse(content: str, what: str) -> tuple[Pivot, ...]:
    pivots: list[Pivot] = []
    ids: set[str] = set()
    texts: set[str] = set()
    for line, row in _rows(content, what):
        try:
            pivot = _pivot(*row)
            if pivot.id in ids:
                raise ValueError(f"the id {pivot.id!r} was used before; give every review its own")
            if pivot.text.casefold() in texts:
                raise ValueError(f"the review {pivot.text!r} is there already; remove one of the two")
        except ValueError as error:
            raise ValueError(f"{what}, line {line}: {error}.") from error
        ids.add(pivot.id)
        texts.add(pivot.text.casefold())
        pivots.append(pivot)
    if not pivots:
        raise ValueError(f"{what} holds no review; write one a line below the header.")
    return tuple(pivots)


def _rows(content: str, what: str) -> Iterator[tuple[int, list[str]]]:
    """Lines below the header with their numbers, each of four fields."""
    reader = csv.reader(StringIO(content, newline=""), strict=True)
    try:
        header = next(reader, [])
        if tuple(header) != COLUMNS:
            raise ValueError(f"{what} must begin with the line {','.join(COLUMNS)!r}, got {','.join(header)!r}.")
        for row in reader:
            if len(row) != len(COLUMNS):
                raise ValueError(
                    f"{what}, line {reader.line_num}: {len(row)} fields instead of {len(COLUMNS)}; "
                    "put a text with commas in double quotes."
                )
            yield reader.line_num, row
    except csv.Error as error:
        raise ValueError(f"{what}, line {reader.line_num}: not CSV ({error}); check the double quotes.") from error


def _pivot(identity: str, label: str, kind: str, marked: str) -> Pivot:
    if not identity.strip():
        raise ValueError("the id is empty; give every review its own")
    if label not in ("0", "1"):
        raise ValueError(f"the label must be 0 (negative) or 1 (positive), got {label!r}")
    if kind not in KINDS:
        raise ValueError(f"the kind must be one of {', '.join(KINDS)}, got {kind!r}")
    text, spans = _unmark(marked)
    if kind == "negation" and len(spans) < 2:
        raise ValueError(f"a negation marks the negator and the word it turns, got {marked!r}")
    return Pivot(identity, text, int(label), kind, spans)


def _unmark(marked: str) -> tuple[str, tuple[Span, ...]]:
    """The text without its brackets, and where in it the marked words are."""
    pieces = re.split(r"\[([^][]*)\]", marked)
    text = ""
    spans: list[Span] = []
    for number, piece in enumerate(pieces):
        if number % 2:
            spans.append((len(text), len(text) + len(piece)))
        text += piece
    if "[" in text or "]" in text:
        raise ValueError(f"a square bracket has no partner in {marked!r}; mark each decisive word [so]")
    if not spans:
        raise ValueError(f"no word is marked in {marked!r}; put the decisive word in square brackets")
    words = set(word_spans(text))
    for start, end in spans:
        if (start, end) not in words or not text[start].isalnum():
            raise ValueError(
                f"the mark [{repr(text[start:end])[1:-1]}] is not one whole word; mark each decisive word on its own"
            )
    return text, tuple(spans)
