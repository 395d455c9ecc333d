"""What mkdocs does not do by itself, as hooks: typeset mathematics, show notebooks, and run the explorer in a browser.

A fenced block ``math``, and text between $` and `$, are TeX. They become MathML while the site is built, so that a
reader's browser needs no script, no font of ours and no network. ``<!-- notebook: NAME -->`` becomes the text, the code
and the printed output of ``docs/notebooks/NAME.ipynb``.
"""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

import mirrormax
from mirrormax import app, data
from mirrormax.app.question import STARTS

STATIC = Path(app.__file__).parent / "static"
LIVE_SEEDS = 20

NOTEBOOKS = Path(__file__).parent / "notebooks"
BLOCK = re.compile(r"^```math\n(.*?)^```$", re.S | re.M)
INLINE = re.compile(r"\$`([^`\n]+)`\$")
FENCED = re.compile(r"(^```.*?^```$)", re.S | re.M)
NOTEBOOK = re.compile(r"^<!-- notebook: (\w+) -->$", re.M)
TAGS = re.compile(r"(<(code|pre|script|style|title)\b.*?</\2>|<[^>]+>)", re.S)
LOWERED = re.compile(
    r"((?<![A-Za-z0-9_])[A-Za-zα-ωΓ]\u0304?|[‖)\]]|ℓ)(?:_|(?<=ℓ))(mm|[∞*]|[a-zA-Z0-9α-ωψ]{1,3}(?:[.,][0-9A-Z]+)?)(?![A-Za-z0-9_])"
)
RAISED = re.compile(r"\^(?:[({]([^(){}]{1,12})[)}]|([A-Za-z0-9−]{1,3})(?![A-Za-z0-9]))")
PLACE = "mathematics%dplace"
_formulas: dict[str, list[str]] = {}


def on_page_markdown(markdown: str, page: Any, **_: Any) -> str:
    """Notebooks are put in, and formulas are taken out: Markdown would read their stars and underscores."""
    markdown = NOTEBOOK.sub(lambda found: notebook(found[1]), markdown)
    formulas = _formulas[page.file.src_uri] = []

    def keep(display: str, tex: str) -> str:
        formulas.append(convert(tex.strip(), display=display))
        return PLACE % (len(formulas) - 1)

    markdown = BLOCK.sub(lambda found: f"\n{keep('block', found[1])}\n", markdown)
    parts = FENCED.split(markdown)  # code stays as it is
    return "".join(
        part if part.startswith("```") else INLINE.sub(lambda found: keep("inline", found[1]), part) for part in parts
    )


def on_page_content(html: str, page: Any, **_: Any) -> str:
    """The formulas are put back, those on lines of their own so that they can be moved sideways on a phone."""
    html = raised_and_lowered(html)
    for k, formula in reversed(list(enumerate(_formulas.pop(page.file.src_uri, [])))):
        html = html.replace(f"<p>{PLACE % k}</p>", f'<div class="formula">{formula}</div>').replace(PLACE % k, formula)
    return html


def raised_and_lowered(html: str) -> str:
    """Symbols in running text, as W_mm, ‖W‖_p, x_iα, ℓp and e^(−x), with their indices and exponents in place.

    >>> raised_and_lowered("<p>‖W_mm‖_p of ℓp, <code>x_1</code></p>")
    '<p>‖W<sub>mm</sub>‖<sub>p</sub> of ℓ<sub>p</sub>, <code>x_1</code></p>'
    """
    parts = TAGS.split(html)
    parts[::3] = [_placed(text) for text in parts[::3]]
    return "".join(part for k, part in enumerate(parts) if k % 3 != 2)


def _placed(text: str) -> str:
    text = LOWERED.sub(r"\1<sub>\2</sub>", text)
    return RAISED.sub(lambda found: f"<sup>{found[1] or found[2]}</sup>", text)


def notebook(name: str) -> str:
    """A notebook as Markdown."""
    parts = []
    for cell in json.loads((NOTEBOOKS / f"{name}.ipynb").read_text("utf-8"))["cells"]:
        text = "".join(cell["source"])
        parts.append(text if cell["cell_type"] == "markdown" else f"```py\n{text}\n```")
        for output in cell.get("outputs", []):
            parts.append(f"```text\n{''.join(output['text']).rstrip()}\n```")
    parts.append(f"[Download this notebook](notebooks/{name}.ipynb)")
    return "\n\n".join(parts)


def on_post_build(config: Any, **_: Any) -> None:
    """The explorer's Geometry page as a part of the site, with problems of its own and no server behind it."""
    folder = Path(config["site_dir"]) / "live"
    shutil.copytree(STATIC, folder / "static", ignore=shutil.ignore_patterns("index.html"), dirs_exist_ok=True)
    (folder / "index.html").write_text(live_page((STATIC / "index.html").read_text("utf-8")), "utf-8")
    (folder / "problems.json").write_text(json.dumps(live_problems()), "utf-8")


def live_page(html: str) -> str:
    """The explorer's page with its first tab alone, and an import map that sends its questions to docs/live/api.js."""
    section = html[
        html.index('<section role="tabpanel" id="geometry"') : html.index('<section role="tabpanel" id="att')
    ]
    head = html[: html.index("<script")].replace("/static/", "static/")
    return f"""{head}<script type="importmap">{{"imports": {{"./static/api.js": "./api.js"}}}}</script>
<script type="module" src="page.js"></script>
</head>
<body data-live>
<header>
<div class="brand"><img src="static/icon.svg" alt="" width="28" height="28">
<h1>mirrormax <span>geometry</span></h1></div>
<p class="soft"><a href="../explorer.html">The whole explorer</a> also takes your own problems and models.</p>
</header>
<main>
{section}</main>
<footer class="soft">mirrormax {mirrormax.__version__}, computed in your browser.</footer>
<noscript><p class="error">This page needs JavaScript, all of it its own.</p></noscript>
</body>
</html>
"""


def live_problems() -> dict[str, Any]:
    """The paper's examples, random problems, and the random starts that the explorer has."""

    def plain(problem: mirrormax.Problem) -> dict[str, Any]:
        return {name: getattr(problem, name).tolist() for name in ("X", "y", "z", "v")}

    return {
        "example1": plain(data.example1()),
        "example2": plain(data.example2()),
        "sphere": [plain(data.sphere_problem(seed)) for seed in range(LIVE_SEEDS)],
        "starts": {d: STARTS["random"](d, 0).ravel().tolist() for d in (2, 10)},
    }
