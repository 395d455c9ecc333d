"""The page docs/results/interventions prints what its program does."""

import runpy
from pathlib import Path

PAGE = Path(__file__).parents[2] / "docs" / "results" / "interventions"


def test_every_row_that_the_program_prints_stands_on_the_page(capsys):
    runpy.run_path(str(PAGE / "tables.py"), run_name="__main__")
    rows = [line for line in capsys.readouterr().out.splitlines() if line.startswith(("| off", "| max-margin"))]
    page = (PAGE / "README.md").read_text("utf-8").splitlines()
    assert len(rows) == 12
    assert set(rows) <= set(page)
