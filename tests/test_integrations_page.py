"""What docs/integrations.md shows runs, or stands word for word in the example it names."""

import re
import textwrap
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "integrations.md").read_text("utf-8")
BLOCK = re.compile(r"(?:<!-- (examples/\S+) -->\n)?```python\n(.*?)```", re.S)


def without_indent(text):
    return "\n".join(line.strip() for line in text.splitlines())


def test_blocks_that_name_an_example_are_in_it():
    shown = [(path, text) for path, text in BLOCK.findall(PAGE) if path]
    assert len(shown) >= 5
    for path, text in shown:
        assert without_indent(textwrap.dedent(text)).strip() in without_indent((ROOT / path).read_text("utf-8")), text


def test_the_other_blocks_run_in_their_order(capsys):
    names = {}
    for path, text in BLOCK.findall(PAGE):
        if not path:
            exec(text, names)
    assert names["machine"].score(*names["load_iris"](return_X_y=True)) > 0.9
    assert names["weights"].shape == (60, 5)
    assert names["params"]["query"].shape == (2,)


@pytest.mark.parametrize("page", ["integrations.md", "clusters.md"])
def test_files_that_the_pages_name_exist(page):
    text = (ROOT / "docs" / page).read_text("utf-8")
    for path in re.findall(r"\b((?:examples|tests)/[\w/.]+\w)", text):
        assert (ROOT / path).exists(), path
    for path in re.findall(r"\]\(((?!http)[^)#]+)", text):
        assert (ROOT / "docs" / path).exists(), path
