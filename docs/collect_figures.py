"""Write docs/results/figures.md from finished results: ``python docs/collect_figures.py results``.

No number of that page is typed. It holds what ``mirrormax reproduce`` compared, with the command beside each table.
"""

from __future__ import annotations

import json
import shutil
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

from mirrormax.experiments import Measurement, Results, config_of, experiment_names, in_order, load_experiment
from mirrormax.report import Block, fold

DOCS = Path(__file__).parent
TRAINED = ("table1", "fig8", "fig9", "vit", "practice")  # these take hours, and have pages of their own
NAMES = tuple(name for name in in_order(experiment_names()) if name not in TRAINED)
HEAD = """# Figures and theorems

What `mirrormax reproduce` printed in its quick profile, table by table; [what the verdicts mean](../paper.md#verdicts).
This page is written by `python docs/collect_figures.py results` from the files which that command left.
"""


def page(folders: Mapping[str, Path], missing: Sequence[str] = ()) -> str:
    """The whole page, from the folder of each experiment's result; what was not run is named, not shown."""
    rest = f"Not run with this version yet: {', '.join(f'`{name}`' for name in missing)}.\n"
    parts = [HEAD, *([rest] if missing else []), *(section(name, folder) for name, folder in folders.items())]
    return "\n".join(parts)


def section(name: str, folder: Path) -> str:
    """One experiment: its command, what it shows, its figure, its table."""
    told = json.loads((folder / "measurements.json").read_text("utf-8"))
    rows = [Measurement(**row) for row in told["rows"]]
    title = load_experiment(name).ABOUT.title
    return "\n".join(
        [
            f"## {title}\n",
            f"`mirrormax reproduce {name}`\n",
            f"{_text(told['shows'])}\n",
            f"![{title}](../images/results/{name}.png)\n",
            *(line for block in fold(rows) for line in table(block)),
            *_reasons(rows),
        ]
    )


def _reasons(rows: list[Measurement]) -> list[str]:
    """Each reason once, with the first quantity that it is given for."""
    given: dict[str, list[str]] = {}
    for row in rows:
        if row.note:
            given.setdefault(row.note, []).append(row.name)
    lines = []
    for why, quantities in given.items():
        others = f" and {len(quantities) - 1} more" if len(quantities) > 1 else ""
        lines.append(f"- *{_text(quantities[0])}*{others}: {_text(why)}")
    return [*lines, ""] if lines else []


def table(block: Block) -> list[str]:
    """A block of measurements: one per row, or a quantity per row with a column for each p or method."""
    if not block.columns:
        rows = [
            (cell.quantity, cell.compared, cell.ours, cell.verdict) for _, (cell,) in block.rows if cell is not None
        ]
        return [*_table(("quantity", "compared with", "ours", "verdict"), rows), ""]
    rows = []
    for quantity, cells in block.rows:
        compared = list(dict.fromkeys(cell.compared for cell in cells if cell is not None))
        shared = len(compared) == 1
        name = f"{quantity} ({compared[0]})" if block.decides and shared else quantity
        rows.append((name, *(_cell(cell, block.decides, shared) for cell in cells)))
    return [*_table(("", *block.columns), rows), ""]


def _cell(cell: Measurement | None, decides: bool, shared: bool) -> str:
    if cell is None:
        return ""
    if not decides:
        return cell.ours
    return f"{cell.ours}: {cell.verdict}" if shared else f"{cell.ours} ({cell.compared}): {cell.verdict}"


def _table(header: Sequence[str], rows: Sequence[Sequence[str]]) -> list[str]:
    lines = [header, ["---"] * len(header), *rows]
    return [f"| {' | '.join(_text(cell).replace('|', chr(92) + '|') for cell in line)} |" for line in lines]


def _text(text: str) -> str:
    """Formulas have stars and underscores of their own."""
    return text.replace("_", "\\_").replace("*", "\\*").replace("<", "&lt;")


def main(out: Path) -> int:
    """Write the page and copy the pictures; what has no current result is named on the page and left out."""
    results = {name: Results(out).load(name, config_of(name, "quick")) for name in NAMES}
    found = {name: None if result is None else result.folder for name, result in results.items()}
    missing = [name for name, folder in found.items() if folder is None]
    if missing:
        print(f"{out} has no current result of {', '.join(missing)}; run `mirrormax reproduce {' '.join(missing)}`.")
    folders = {name: folder for name, folder in found.items() if folder is not None}
    pictures = DOCS / "images" / "results"
    pictures.mkdir(exist_ok=True, parents=True)
    for name, folder in folders.items():
        shutil.copyfile(folder / f"{name}.png", pictures / f"{name}.png")
    (DOCS / "results" / "figures.md").write_text(page(folders, missing), encoding="utf-8")
    return 0


if __name__ == "__main__":
    raise SystemExit(main(Path(sys.argv[1] if len(sys.argv) > 1 else "results")))
