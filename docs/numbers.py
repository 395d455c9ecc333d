"""Write docs/results/figures.md from finished results: ``python docs/numbers.py results``.

No number of that page is typed. It holds what ``mirrormax reproduce`` compared, with the command beside each table.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from mirrormax.experiments import EXPERIMENTS
from mirrormax.experiments.contract import load_experiment
from mirrormax.experiments.runner import config_of
from mirrormax.experiments.store import Result, Store

DOCS = Path(__file__).parent
TRAINED = ("table1", "fig8", "fig9", "vit")  # these take hours, and have pages of their own
NAMES = tuple(name for name in EXPERIMENTS if name not in TRAINED)
HEAD = """# Figures and theorems

What `mirrormax reproduce` printed in its quick profile, table by table; [what the verdicts mean](../paper.md#verdicts).
This page is written by `python docs/numbers.py results` from the files which that command left.
"""


def page(results: Sequence[Result]) -> str:
    """The whole page."""
    return "\n".join([HEAD, *(section(result) for result in results)])


def section(result: Result) -> str:
    """One experiment: its command, what it shows, its figure if there is one, its table."""
    picture = f"![{load_experiment(result.name).TITLE}](../images/results/{result.name}.png)\n\n"
    rows = [f"| {_cell(row.quantity)} | {_cell(row.published)} | {_cell(row.ours)} | {row.verdict} |" for row in result.comparisons]
    reasons = [f"- {_cell(row.quantity)}: {_text(row.why)}" for row in result.comparisons if row.why]
    return "\n".join(
        [
            f"## {load_experiment(result.name).TITLE}\n",
            f"`mirrormax reproduce {result.name}`\n",
            f"{_text(result.shows)}\n",
            picture + "| quantity | published | ours | verdict |\n|---|---|---|---|",
            *rows,
            *(["\nWhy:\n", *dict.fromkeys(reasons)] if reasons else []),
            "",
        ]
    )


def _cell(text: str) -> str:
    return _text(text).replace("|", "\\|")


def _text(text: str) -> str:
    """Formulas have stars and underscores of their own."""
    return text.replace("_", "\\_").replace("*", "\\*").replace("<", "&lt;")


def main(out: Path) -> int:
    """Write the page and copy the pictures; refuse if a result is missing."""
    store = Store(out, tuple(EXPERIMENTS))
    found = {name: store.load(name, config_of(name, "quick")) for name in NAMES}
    missing = [name for name, result in found.items() if result is None]
    if missing:
        print(f"{out} has no current result of {', '.join(missing)}; run `mirrormax reproduce {' '.join(missing)}`.")
        return 2
    results = [result for result in found.values() if result is not None]
    pictures = DOCS / "images" / "results"
    pictures.mkdir(exist_ok=True, parents=True)
    for result in results:
        shutil.copyfile(result.folder / f"{result.name}.png", pictures / f"{result.name}.png")
    (DOCS / "results" / "figures.md").write_text(page(results), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
