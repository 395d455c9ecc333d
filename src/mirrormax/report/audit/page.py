"""The page of an audit: one HTML file that runs no script and fetches nothing."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

from mirrormax.auditing import Audit, Example, Head
from mirrormax.report import maps
from mirrormax.report.audit.summary import sentences
from mirrormax.report.pages import style as page_style

COLUMNS = (  # field, heading, what it means
    ("mass", "mass", "mean attention on the selected token"),
    ("entropy", "entropy", "normalised, 1 is uniform"),
    ("on_first", "first", "share of rows that select the first token"),
    ("on_last", "last", "share of rows that select the last token"),
    ("margin_all", "margin, all", "realised margin over every row of the data"),
    ("margin", "margin", "realised margin on the sample"),
    ("optimal_margin", "optimum", "best margin of any weights on the sample"),
    ("ratio", "ratio", "margin / optimum"),
    ("quantile_ratio", "at quantile", "the same at the quantile of the rows"),
    ("divergence", "divergence", "of the direction from the optimal one"),
    ("support_tokens", "support", "tokens on the optimal margin"),
    ("in_order", "in order", "share of support tokens that the model scores below the selected one"),
    ("hoyer", "Hoyer", "sparsity of W"),
    ("effective_rank", "eff. rank", "of W"),
)


def audit_page(audit: Audit, title: str, command: str, pictures: Sequence[tuple[str, Path]]) -> str:
    """The document. Whatever comes from data goes through ``escape``."""
    notes = "".join(f"<li>{escape(note)}</li>" for note in audit.notes)
    told = "".join(f"<li>{escape(one)}</li>" for one in sentences(audit))
    config = json.dumps({k: v for k, v in audit.config.items() if k != "sampled_rows"}, indent=2, sort_keys=True)
    body = f"""<header>
<h1>{escape(title)}</h1>
<p>What every attention head selects, with what margin, and how near that is to the best margin its own data allow.</p>
<ul>{told}</ul>
<p class="soft">How it was measured:</p>
<ul class="soft">{notes}</ul>
</header>
<main>
{"".join(figure(caption, path) for caption, path in pictures)}
<section><h2>Attention maps</h2>
{legend()}
{"".join(_example(example, k) for k, example in enumerate(audit.examples))}
</section>
<section><h2>Every head</h2>
{_table(audit.heads)}
</section>
<section><h2>How this page was made</h2>
<pre>{escape(command)}</pre>
<details><summary>Configuration</summary><pre>{escape(config)}</pre></details>
</section>
</main>"""
    return document(title, body)


def document(title: str, body: str) -> str:
    """A page in the house style around a body."""
    extra = files("mirrormax.report").joinpath("audit").joinpath("audit.css").read_text("utf-8")
    style = f"{page_style('page.css')}{page_style('maps.css')}{extra}"
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body>
{body}
</body>
</html>
"""


def figure(caption: str, path: Path) -> str:
    """A picture as a data URI: an image runs no script."""
    kind = "image/png" if path.suffix == ".png" else "image/svg+xml"
    source = base64.b64encode(path.read_bytes()).decode("ascii")
    name = escape(caption)
    return f'<section><h2>{name}</h2><figure><img alt="{name}" src="data:{kind};base64,{source}"></figure></section>'


def legend() -> str:
    """What the shades and marks of :func:`shaded` mean."""
    scale = "".join(f'<span class="shade-{k}">{k / (maps.LEVELS - 1):.0%}</span>' for k in range(0, maps.LEVELS, 3))
    return (
        f'<p class="soft">Shade: attention of the query, <span class="tokens">{scale}</span> of the row. '
        '<span class="tokens"><span class="selected">framed</span></span>: the selected token; '
        '<span class="tokens"><span class="support">underlined</span></span>: support tokens, those on the margin of '
        "the optimal weights; the query is in bold.</p>"
    )


def _example(example: Example, number: int) -> str:
    layers = []
    for layer, (attention, selected, support) in enumerate(
        zip(example.attention, example.selected, example.support, strict=True)
    ):
        rows = "".join(
            f"<li>{shaded(example.tokens, weights, one, marks, example.query)}</li>"
            for weights, one, marks in zip(attention, selected, support, strict=True)
        )
        state = " open" if number == 0 and layer == len(example.attention) - 1 else ""
        layers.append(
            f'<details{state}><summary>layer {layer}</summary><ol start="0" class="maps">{rows}</ol></details>'
        )
    text = escape(" ".join(example.tokens[:12])) + (" …" if len(example.tokens) > 12 else "")
    return f"<h3>Sequence {example.sequence}: <span>{text}</span></h3>{''.join(layers)}"


def shaded(tokens: Sequence[str], weights: Sequence[float], selected: int, support: Sequence[int], query: int) -> str:
    """One row of attention as shaded words."""
    marks = {"selected": [selected], "support": support, "query": [query]}
    return f'<span class="tokens">{maps.shaded(maps.of_tokens(tokens, weights, marks))}</span>'


def _table(heads: Sequence[Head]) -> str:
    used = [column for column in COLUMNS if any(getattr(head, column[0]) is not None for head in heads)]
    titles = "".join(f'<th title="{escape(what)}">{escape(heading)}</th>' for _, heading, what in used)
    meaning = "; ".join(f"{heading}: {what}" for _, heading, what in used)
    rows = "".join(
        f"<tr><th>{head.layer}.{head.head}</th>"
        + "".join(f"<td>{number(getattr(head, name))}</td>" for name, _, _ in used)
        + f"<td>{_verdicts(head)}</td></tr>"
        for head in heads
    )
    return (
        f'<p class="soft">{escape(meaning)}.</p>'
        f'<div class="wide"><table class="heads"><thead><tr><th>head</th>{titles}<th>problem</th></tr></thead>'
        f"<tbody>{rows}</tbody></table></div>"
    )


def _verdicts(head: Head) -> str:
    told = head.problem if head.status == "optimal" else f"{head.problem}: {head.status}"
    if head.locally_optimal is not None:
        told += ", locally optimal" if head.locally_optimal else ", not locally optimal"
    return escape(told)


def number(value: float | bool | None) -> str:
    """Three digits, an em dash where there is no number."""
    if value is None or math.isnan(value):
        return "—"
    return str(value) if isinstance(value, int) else f"{value:.3g}"
