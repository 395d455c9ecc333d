"""The report: one HTML file with everything in it, that opens from disk and needs no network."""

from __future__ import annotations

import base64
import json
import re
import shlex
from collections import Counter
from collections.abc import Sequence
from html import escape
from importlib.resources import files
from pathlib import Path

import mirrormax
from mirrormax._files import replacing
from mirrormax.audit.maps import map_style
from mirrormax.experiments.contract import DIFFERS, VERDICTS, Comparison, load_experiment
from mirrormax.experiments.store import Result
from mirrormax.report.maps import fig9_maps

PAPER = "Optimizing Attention with Mirror Descent: Generalized Max-Margin Token Selection"


def write_report(path: Path, results: Sequence[Result], profile: str, data_dir: Path | None = None) -> None:
    """Write the report of these results, whole or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(page(results, profile, data_dir), encoding="utf-8")


def page(results: Sequence[Result], profile: str, data_dir: Path | None = None) -> str:
    """The document. Whatever comes from data goes through ``escape`` or ``_text``."""
    style = files("mirrormax.report").joinpath("page.css").read_text("utf-8")
    links = "".join(f'<li><a href="#{escape(r.name)}">{escape(_short(r.name))}</a></li>' for r in results)
    sections = "\n".join(_section(result, profile, data_dir) for result in results)
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta http-equiv="Content-Security-Policy" content="default-src 'none'; img-src data:; style-src 'unsafe-inline'">
<title>mirrormax: the paper's figures, reproduced</title>
<style>
{style}
{map_style()}</style>
</head>
<body>
<header>
<h1>The paper’s figures and theorems, reproduced</h1>
<p>The figures and tables of <cite>{escape(PAPER)}</cite>, made again by mirrormax
{escape(mirrormax.__version__)} in the {escape(profile)} profile, with the published numbers beside ours.</p>
{_tally(results)}
<nav aria-label="Experiments"><ul>{links}</ul></nav>
</header>
<main>
{sections}
</main>
</body>
</html>
"""


def _tally(results: Sequence[Result]) -> str:
    """How many comparisons came out how, and which differ."""
    rows = [(result, row) for result in results for row in result.comparisons]
    counts = Counter(row.verdict for _, row in rows)
    parts = "; ".join(f"{counts[verdict]} {verdict}" for verdict in VERDICTS if counts[verdict])
    differing = [f"{_short(result.name)}: {row.quantity}" for result, row in rows if row.verdict == DIFFERS]
    told = f" What differs: {'; '.join(differing)}." if differing else " No number differs."
    return f'<p class="soft">{len(rows)} comparisons: {escape(parts)}.{escape(told)}</p>'


def _section(result: Result, profile: str, data_dir: Path | None) -> str:
    data = [] if data_dir is None else ["--data-dir", str(data_dir)]
    command = shlex.join(["mirrormax", "reproduce", result.name, "--profile", profile, *data])
    config = json.dumps(result.config, indent=2, sort_keys=True, ensure_ascii=False)
    title = load_experiment(result.name).TITLE
    return f"""<section id="{escape(result.name)}">
<h2>{escape(title)}</h2>
<p>{_text(result.shows)}</p>
{_figure(result, title)}
{_maps(result)}
{_table(result.comparisons)}
<pre>{escape(command)}</pre>
<details><summary>Configuration, and {result.seconds:.1f} s on the machine that ran it</summary>
<pre>{escape(config)}</pre></details>
</section>"""


def _figure(result: Result, title: str) -> str:
    """The SVG as a data URI: an image runs no script and shares no ids with the other figures."""
    image = (result.folder / f"{result.name}.svg").read_bytes()
    kind = ' class="tall"' if _is_tall(image) else ""
    source = base64.b64encode(image).decode("ascii")
    return f'<figure{kind}><img alt="{escape(title)}" src="data:image/svg+xml;base64,{source}"></figure>'


def _maps(result: Result) -> str:
    """Attention maps, where an experiment has them, folded away."""
    if result.name != "fig9":
        return ""
    return f"<details><summary>Attention maps of ℓ1.1 and ℓ2 side by side</summary>{fig9_maps(result.folder)}</details>"


def _is_tall(svg: bytes) -> bool:
    """Whether a figure has several rows, from the size matplotlib writes at the top."""
    head = svg[:2000].decode("utf-8", "replace")
    box = head.partition('viewBox="')[2].partition('"')[0].split()
    return len(box) == 4 and float(box[3]) > 0.6 * float(box[2])


def _table(rows: Sequence[Comparison]) -> str:
    """Published value, ours, verdict; an explanation that several rows share is given once, below."""
    shared = [why for why, count in Counter(row.why for row in rows if row.why).items() if count > 1]
    body = "\n".join(_row(row, shared) for row in rows)
    notes = "".join(f"<li>{_text(why)}</li>" for why in shared)
    below = f'<ol class="notes">{notes}</ol>' if shared else ""
    return f"""<table class="compare">
<thead><tr><th>quantity</th><th>published</th><th>ours</th><th>verdict</th></tr></thead>
<tbody>
{body}
</tbody>
</table>
{below}"""


def _row(row: Comparison, shared: Sequence[str]) -> str:
    mark = f" <sup>{shared.index(row.why) + 1}</sup>" if row.why in shared else ""
    why = f'<span class="why">{_text(row.why)}</span>' if row.why and row.why not in shared else ""
    return (
        f"<tr><td>{_text(row.quantity)}{mark}{why}</td>"
        f'<td class="number" data-label="published">{_text(row.published)}</td>'
        f'<td class="number" data-label="ours">{_text(row.ours)}</td>'
        f'<td><span class="verdict {row.verdict.replace(" ", "-")}">{escape(row.verdict)}</span></td></tr>'
    )


def _text(text: str) -> str:
    """Escaped, with W_mm and the like as subscripts."""
    return re.sub(r"([A-Za-z‖])_([0-9A-Za-zμ]+(?:/\d)?)", r"\1<sub>\2</sub>", escape(text))


def _short(name: str) -> str:
    if name.startswith("fig"):
        return f"Fig {name[3:]}"
    if name.startswith("thm"):
        return f"Theorem {name[3:]}"
    return {"table1": "Table 1", "vit": "vision"}.get(name, name.replace("_", " "))
