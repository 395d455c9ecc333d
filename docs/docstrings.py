"""Docstrings as Markdown: examples fenced, roles turned into links, aligned lists into lists.

Our docstrings are written to be read in a terminal. ``mkdocs`` calls this for each of them while it makes the API
pages.
"""

from __future__ import annotations

import re
from functools import cache
from importlib import import_module
from typing import Any

from griffe import Extension, Object

ROOMS = ("geometry", "optim", "attention", "data", "svm", "dynamics", "theory", "nets", "training", "auditing")
ROLE = re.compile(r":[a-z]+:`~?([\w.]+)`")
DIRECTIVE = re.compile(r"^\.\. code-block:: (\w+)\n\n((?:(?: {4}.*)?\n?)+)", re.M)
EXAMPLE = re.compile(r"^>>> .*\n?(?:.+\n?)*", re.M)
UP_TO_A_GAP = r"``[^`]+``(?:\S| (?! ))*(?=  )"  # a name with its shape
TERM = re.compile(rf"^({UP_TO_A_GAP}|``[^`]+``) +(\S.*(?:\n {{4,}}\S.*)*)", re.M)


@cache
def pages() -> dict[str, str]:
    """Every public name with the place where the API reference has it."""
    found = {}
    for room in ROOMS:
        for name in getattr(import_module(f"mirrormax.{room}"), "__all__", ()):
            found.setdefault(name, f"mirrormax.{room}.{name}")
    return found


def as_markdown(text: str) -> str:
    """One docstring, rewritten."""
    text = DIRECTIVE.sub(lambda m: f"```{m[1]}\n{_dedented(m[2])}\n```\n\n", text)
    text = EXAMPLE.sub(lambda m: f"```pycon\n{m[0].rstrip()}\n```\n", text)
    parts = re.split(r"^(```\w+\n.*?^```$)", text, flags=re.M | re.S)
    return "".join(part if part.startswith("```") else _prose(part) for part in parts)


def _prose(text: str) -> str:
    """Text and formulas between the examples."""
    paragraphs = text.split("\n\n")
    return "\n\n".join(one if _is_formula(one) else ROLE.sub(_link, _escaped(_listed(one))) for one in paragraphs)


def _is_formula(paragraph: str) -> bool:
    """Markdown shows a paragraph that is indented throughout as it stands."""
    lines = paragraph.strip("\n").splitlines()
    return bool(lines) and all(line.startswith("    ") for line in lines)


def _escaped(text: str) -> str:
    """The underscores and stars of formulas, which are not Markdown's; not those of code, roles and argument names."""
    kept = re.split(r"(`+[^`]+`+|^\s*\*{0,2}\w+:\s|^\* )", text, flags=re.M)
    return "".join(part if k % 2 else re.sub(r"([_*])", r"\\\1", part) for k, part in enumerate(kept))


def _dedented(block: str) -> str:
    return "\n".join(line[4:] for line in block.rstrip().splitlines())


def _link(role: re.Match[str]) -> str:
    name = role[1].rpartition(".")[2]
    return f"[`{name}`][{pages()[name]}]" if name in pages() else f"`{role[1]}`"


def _listed(paragraph: str) -> str:
    """A paragraph of ``name`` (shape)  text, with what follows indented, as a list."""
    terms = list(TERM.finditer(paragraph))
    whole = "\n".join(term[0] for term in terms).split() == paragraph.split()
    if not whole or not re.match(UP_TO_A_GAP, paragraph):
        return paragraph
    return "\n".join(f"- {m[1].replace('``', '`')}: {' '.join(m[2].split())}" for m in terms)


class Docstrings(Extension):
    """Rewrites the docstring of every object that griffe reads."""

    def on_object(self, *, obj: Object, **_: Any) -> None:
        if obj.docstring is not None:
            obj.docstring.value = as_markdown(obj.docstring.value)
