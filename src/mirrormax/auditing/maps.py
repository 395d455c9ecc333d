"""Attention maps side by side: where each model looks in a review, as HTML that runs no script.

Tokens are shaded by their attention relative to the review's most attended token, in one hue that needs no colour
vision; decisive words are underlined. Everything that comes from data is escaped.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from importlib.resources import files

from mirrormax.auditing.pivots import Reading, score_review
from mirrormax.data import Pivot

LEVELS = 10
LABELS = ("negative", "positive")


def attention_page(
    reviews: Sequence[Pivot],
    models: Mapping[str, Sequence[Reading]],
    *,
    title: str = "Where the models look",
    note: str = "",
) -> str:
    """A whole page with the maps of every review: one column a model where the screen is wide enough.

    ``models`` holds the readings of each model by its name, in the order of the reviews.
    """
    scale = "".join(f'<span class="map-{level}">{_percent(level / (LEVELS - 1))}</span>' for level in range(0, 10, 3))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{map_style()}</style>
</head>
<body>
<header>
<h1>{escape(title)}</h1>
<p>The darker a token, the more attention the [CLS] query of the last block pays to it (mean over heads), relative to
the most attended token of the review: <span class="map-scale">{scale}</span>
<span class="map-pivot">Underlined</span> words decide the review.</p>
{f"<p>{escape(note)}</p>" if note else ""}
</header>
<main>
{attention_maps(reviews, models)}
</main>
</body>
</html>
"""


def map_style() -> str:
    """The style sheet that the maps need, for a page of one's own."""
    return files("mirrormax.auditing").joinpath("maps.css").read_text("utf-8")


def attention_maps(reviews: Sequence[Pivot], models: Mapping[str, Sequence[Reading]]) -> str:
    """The maps alone, as a fragment of a page that has :func:`map_style`."""
    if not models:
        raise ValueError("models is empty; give the readings of one model or two by name.")
    for name, readings in models.items():
        if len(readings) != len(reviews):
            raise ValueError(
                f"model {name!r} has {len(readings)} readings of {len(reviews)} reviews; give one of each."
            )
    return "\n".join(
        _review(review, {name: readings[place] for name, readings in models.items()})
        for place, review in enumerate(reviews)
    )


def _review(review: Pivot, readings: Mapping[str, Reading]) -> str:
    columns = "\n".join(_column(name, review, reading) for name, reading in readings.items())
    return f"""<section class="map-review">
<h2>{escape(review.id)} <span class="map-soft">{LABELS[review.label]}, {escape(review.kind)}</span></h2>
<div class="map-models">
{columns}
</div>
</section>"""


def _column(name: str, review: Pivot, reading: Reading) -> str:
    verdict = "✓ right" if reading.prediction == review.label else "✗ wrong"
    mass = score_review(reading, review).mass
    aside = reading.attention[reading.special].sum() / reading.attention.sum()
    return f"""<div>
<h3>{escape(name)} <span>{verdict}</span></h3>
<p class="map-text">{_shaded(review, reading)}</p>
<p class="map-soft">underlined: {_percent(mass)} of the text’s attention; [CLS], [SEP]: {_percent(aside)} of all</p>
</div>"""


def _shaded(review: Pivot, reading: Reading) -> str:
    """The text with a shade for each token; what is between tokens stays as it is."""
    tokens = reading.text_tokens
    strongest = reading.attention[tokens].max(initial=0)
    pieces, written = [], 0
    for token in tokens:
        start, end = reading.offsets[token]
        start = max(start, written)
        if end <= start:  # several tokens may stand for one character
            continue
        share = reading.attention[token] / strongest if strongest > 0 else 0.0
        decisive = any(first <= start and end <= last for first, last in review.spans)
        classes = f"map-{round(share * (LEVELS - 1))}" + (" map-pivot" if decisive else "")
        shown = (
            f'<span class="{classes}" title="{reading.attention[token]:.1%}">{escape(review.text[start:end])}</span>'
        )
        pieces += [escape(review.text[written:start]), shown]
        written = end
    return "".join(pieces) + escape(review.text[written:])


def _percent(share: float) -> str:
    return f"{share:.0%}".replace("%", "\N{NO-BREAK SPACE}%")
