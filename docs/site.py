"""What mkdocs does not do by itself, as hooks: typeset mathematics, and show notebooks.

A fenced block ``math``, and text between $` and `$, are TeX. They become MathML while the site is built, so that a
reader's browser needs no script, no font of ours and no network. ``<!-- notebook: NAME -->`` becomes the text, the code
and the printed output of ``docs/notebooks/NAME.ipynb``.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from latex2mathml.converter import convert

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
