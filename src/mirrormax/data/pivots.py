"""The pivotal-token benchmark: short film reviews with the words marked that decide each one.

A file has the columns ``id, label, kind, text``. The label is 1 for a positive review and 0 for a negative one;
decisive words stand in square brackets, one word in each pair: ``It is [not] [boring] for a second.`` The kinds are

* ``plain``: no other word of the review carries its sentiment;
* ``negation``: the negator and the word it turns are both marked, and the label is that of the two together;
* ``contrast``: an unmarked word of the opposite sentiment is there on purpose, to distract.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from mirrormax.data.files import read_columns

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
    columns = read_columns(Path(__file__).with_name("pivots.csv"), ("id", "label", "kind", "text"), "benchmark")
    pivots = []
    for identity, label, kind, marked in zip(*columns, strict=True):
        text, spans = "", list[Span]()
        for number, piece in enumerate(re.split(r"\[([^][]*)\]", marked)):
            if number % 2:  # it stood in brackets
                spans.append((len(text), len(text) + len(piece)))
            text += piece
        pivots.append(Pivot(identity, text, int(label), kind, tuple(spans)))
    return tuple(pivots)
