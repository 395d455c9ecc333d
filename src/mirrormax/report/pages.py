"""Pages from templates: one skeleton, everything escaped, one file that runs no script and fetches nothing.

A page is a template in ``templates/`` that extends ``skeleton.html``. What is put into it is escaped, whoever wrote it;
a template itself is the only place for markup.
"""

from __future__ import annotations

import base64
import json
import re
from functools import cache, partial
from pathlib import Path
from typing import Any

from jinja2 import Environment, PackageLoader, StrictUndefined
from markupsafe import Markup, escape

from mirrormax._drawing import WIDEST

KINDS = {".png": "image/png", ".svg": "image/svg+xml"}


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
