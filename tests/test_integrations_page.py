"""What docs/integrations.md shows runs as it stands, and what it names exists."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
PAGE = (ROOT / "docs" / "integrations.md").read_text("utf-8")


def test_the_blocks_run_in_their_order_with_nothing_defined_before(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    names = {"__name__": "page"}
    for text in re.findall(r"```python\n(.*?)```", PAGE, re.S):
        exec(text, names)
    assert names["trainer"].optimizer_cls_and_kwargs is not None
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
