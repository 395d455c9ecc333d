"""Attention as shaded text: one shader for every page, in one hue that needs no colour vision.

A row of attention becomes :class:`Piece` s, by :func:`of_tokens` or :func:`of_text`; the macros of
``templates/maps.html`` set them, and ``templates/maps.css`` holds the shades.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from mirrormax.auditing import Reading, score_review
from mirrormax.data import Pivot
from mirrormax.report.pages import macro, render

LEVELS = 10
LABELS = ("negative", "positive")


@dataclass(frozen=True)
class Piece:
    """Some text, shaded by ``weight``, its share of attention from 0 to 1; plain where there is none.

    The shade is the root of the share, as in the explorer: a few percent are seen, and one shade means the same in
    every text and of every model.
    """

    text: str
    weight: float | None = None
    marks: tuple[str, ...] = ()

    @property
    def classes(self) -> str:
        """The shade and the marks, as classes of the style sheet."""
        level = round(math.sqrt(min(max(self.weight or 0.0, 0.0), 1.0)) * (LEVELS - 1))
        return " ".join((f"shade-{level}", *self.marks))


def of_tokens(tokens: Sequence[str], weights: Sequence[float], marks: Mapping[str, Collection[int]]) -> list[Piece]:
    """Tokens with a space between, shaded by their weights; ``marks`` says which tokens have each mark."""
    pieces: list[Piece] = []
    for t, (token, weight) in enumerate(zip(tokens, weights, strict=True)):
        kinds = tuple(mark for mark, places in marks.items() if t in places)
        pieces += [*([Piece(" ")] if t else []), Piece(token, float(weight), kinds)]
    return pieces


def of_text(review: Pivot, reading: Reading) -> list[Piece]:
    """A text as it is, its tokens shaded by their shares of its attention, decisive words marked ``pivot``."""
    tokens = reading.text_tokens
    total = reading.attention[tokens].sum()
    pieces, written = [], 0
    for token in tokens:
        start, end = reading.offsets[token]
        start = max(start, written)
        if end <= start:  # several tokens may stand for one character
            continue
        weight = float(reading.attention[token] / total) if total > 0 else 0.0
        decisive = any(first <= start and end <= last for first, last in review.spans)
        pieces += [Piece(review.text[written:start])] if start > written else []
        pieces.append(Piece(review.text[start:end], weight, ("pivot",) * decisive))
        written = end
    return [*pieces, Piece(review.text[written:])]


def attention_maps(reviews: Sequence[Pivot], models: Mapping[str, Sequence[Reading]]) -> Markup:
    """The maps of every review, one column per model, as part of a page that has ``maps.css``.

    ``models`` holds the readings of each model by its name, in the order of the reviews.
    """
    return macro("maps.html", "reviews", _rows(reviews, models))


def attention_page(reviews: Sequence[Pivot], models: Mapping[str, Sequence[Reading]]) -> str:
    """A whole page with the maps of every review."""
    return render("attention.html", reviews=_rows(reviews, models))


def _rows(reviews: Sequence[Pivot], models: Mapping[str, Sequence[Reading]]) -> list[dict[str, Any]]:
    rows = []
    for place, review in enumerate(reviews):
        columns = [_column(name, review, readings[place]) for name, readings in models.items()]
        best, *others = sorted(columns, key=lambda column: -column["mass"])
        best["better"] = bool(others) and best["mass"] > others[0]["mass"]
        rows.append({"id": review.id, "label": LABELS[review.label], "kind": review.kind, "columns": columns})
    return rows


def _column(name: str, review: Pivot, reading: Reading) -> dict[str, Any]:
    return {
        "name": name,
        "right": reading.prediction == review.label,
        "better": False,
        "pieces": of_text(review, reading),
        "mass": score_review(reading, review)["mass"],
        "aside": reading.attention[reading.special].sum() / reading.attention.sum(),
    }
