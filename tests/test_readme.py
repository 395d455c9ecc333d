"""What the README shows must run as it stands, in its order."""

import re
from pathlib import Path

import pytest

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10
    import tomli as tomllib

ROOT = Path(__file__).parents[1]
README = ROOT / "README.md"


def test_the_python_of_the_readme_runs(capsys):
    blocks = re.findall(r"```python\n(.*?)```", README.read_text(encoding="utf-8"), re.S)
    names = {}
    for block in blocks:
        exec(block, names)
    assert "0.8000" in capsys.readouterr().out  # of the weights are zero
    assert names["solution"].gap <= 1e-9


def test_the_files_that_the_readme_names_exist():
    for path in re.findall(r"\]\(((?!http)[^)#]+)", README.read_text(encoding="utf-8")):
        assert (README.parent / path).exists(), path


@pytest.mark.parametrize(
    "page", ["README.md", *sorted(str(p.relative_to(ROOT)) for p in (ROOT / "docs").rglob("*.md"))]
)
def test_the_extras_that_a_page_names_exist(page):
    known = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for named in re.findall(r"(?:mirrormax|\.)\[([a-z, ]+)\]", (ROOT / page).read_text("utf-8")):
        assert {name.strip() for name in named.split(",")} <= known.keys(), named
