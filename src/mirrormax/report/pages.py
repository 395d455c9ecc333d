"""Pages from templates: one skeleton, everything escaped, one file that runs no script and fetches nothing.

A page is a template in ``templates/`` that extends ``skeleton.html``. What is put into it is escaped, whoever wrote it;
a template itself is the only place for markup.

Attention is shown as shaded text, in one hue that needs no colour vision: a row of it becomes :class:`Piece` s, which
the macros of ``templates/maps.html`` set, and ``templates/maps.css`` shades.
"""

from __future__ import annotations

import base64
import json
import math
import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mirrormax._drawing import WIDEST
from mirrormax.auditing import Reading, score_review
from mirrormax.data import Pivot

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}
LEVELS = 10
LABELS = ("negative", "positive")


def render(template: str, **values: Any) -> str:
    """The page of a template. A value that the template wants and does not get is an error."""
    return _environment().get_template(template).render(**values)


def macro(template: str, name: str, *values: Any) -> Markup:
    """What one macro of a template makes, as part of a page."""
    return Markup(getattr(_environment().get_template(template).module, name)(*values))


@cache
def _environment() -> Environment:
    environment = Environment(
        loader=PackageLoader("mirrormax.report"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        keep_trailing_newline=True,
    )
    plain_json = partial(json.dumps, indent=2, sort_keys=True, ensure_ascii=False)
    environment.filters |= {"subscripts": subscripts, "data_uri": data_uri, "rem": rem, "plain_json": plain_json}
    return environment


def subscripts(text: str) -> Markup:
    """Escaped, with W_mm and the like set as subscripts, ‖W‖^{p−1} and 4e-7 and the like with superscripts.

    >>> str(subscripts("W_mm, x^2, 1e-16 and 4e8"))
    'W<sub>mm</sub>, x<sup>2</sup>, 10<sup>−16</sup> and 4×10<sup>8</sup>'
    """
    text = re.sub(r"(?<![\w.])(\d+(?:\.\d+)?)e([+-]?\d+)\b", _power, text)
    lowered = re.sub(r"([A-Za-z‖])_([0-9A-Za-zμδπ]+(?:/\d)?)", r"\1<sub>\2</sub>", str(escape(text)))
    return Markup(re.sub(r"\^(?:\{([^{}<>]*)\}|([\d.]+))", r"<sup>\1\2</sup>", lowered))


def _power(number: re.Match[str]) -> str:
    """4e-7 as people write it."""
    times = "" if number[1] == "1" else f"{number[1]}×"
    return f"{times}10^{{{str(int(number[2])).replace('-', '−')}}}"


def data_uri(picture: Path) -> str:
    """A PNG or SVG file as the source of an image: an image runs no script and shares no ids with the others."""
    return f"data:{KINDS[picture.suffix]};base64,{base64.b64encode(picture.read_bytes()).decode('ascii')}"


def rem(picture: Path) -> float:
    """How wide a figure (.svg, or the .png beside it) is shown at most: all at one scale, the widest fill the page."""
    with picture.with_suffix(".svg").open("rb") as file:
        box = file.read(2000).decode("utf-8", "replace").partition('viewBox="')[2].partition('"')[0].split()
    return min(86.0, round(86 * float(box[2]) / (72 * WIDEST), 1)) if len(box) == 4 else 86.0


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
