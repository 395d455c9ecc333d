"""What users read is plain English in the words of the field."""

import ast
import re
from pathlib import Path

import pytest

import mirrormax

ROOT = Path(__file__).parents[1]
PAGES = [ROOT / name for name in ("README.md", "CONTRIBUTING.md")] + sorted((ROOT / "docs").rglob("*.md"))
SOURCES = sorted(Path(mirrormax.__file__).parent.rglob("*.py"))
UNITS = "epoch|trial|token|head|layer|problem|sample|pair|sequence|member|worker|row|weight|core"
ODD = [
    rf"\bone (?!of\b|for\b|to\b|in\b|at\b|by\b|as\b|is\b|with\b|over\b|on\b)\w+ an? (?:{UNITS})\b",  # "per" is meant
    rf"\bone an? (?:{UNITS})\b",
    rf"\b(?:numbers|rows|entries|lines|values) an? (?:{UNITS})\b",
    r"\bforth and back\b",
    r"\bas is told\b",
    r"\bGlobal Interpreter Lock\b",  # people search for GIL
]


def strings(path):
    """The texts of a module: messages, help, docstrings."""
    for node in ast.walk(ast.parse(path.read_text("utf-8"))):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield node.lineno, node.value


def odd(text):
    flat = " ".join(text.split())
    return [found.group() for pattern in ODD for found in re.finditer(pattern, flat, re.IGNORECASE)]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_pages_read_like_plain_english(page):
    assert odd(page.read_text("utf-8")) == []


def test_messages_help_and_docstrings_read_like_plain_english():
    found = [(path.name, line, odd(text)) for path in SOURCES for line, text in strings(path) if odd(text)]
    assert found == []


def test_the_patterns_find_what_they_are_for():
    for text in (
        "p=one a member",
        "mapped forth and back",
        "two numbers an epoch",
        "one entry a trial",
    ):
        assert odd(text), text
    for text in ("one of a problem", "a row per epoch", "one number for a head"):
        assert not odd(text), text


def test_docstrings_of_the_public_face_raise_and_do_not_refuse():
    said = {name: getattr(mirrormax, name).__doc__ or "" for name in mirrormax.__all__}
    assert [name for name, text in said.items() if re.search(r"\brefus", text, re.IGNORECASE)] == []


def test_every_word_of_the_glossary_has_one_row():
    rows = re.findall(r"^\| \*\*([^*]+)\*\*", (ROOT / "docs" / "glossary.md").read_text("utf-8"), re.MULTILINE)
    assert {"margin", "lead", "score", "head", "readout", "row", "support", "selected"} <= set(rows)
    assert len(rows) == len(set(rows))
