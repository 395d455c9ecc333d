"""Copy what ``mirrormax reproduce`` has measured into this folder: ``python docs/results/collect.py OUT NAME``.

Of every experiment over trained models in OUT: its configuration, numbers, verdicts and picture, and a row for each
run that the numbers come from.
"""

import csv
import json
import shutil
import sys
from pathlib import Path

from mirrormax._files import load_arrays
from mirrormax.experiments.sweeps import NUMBERS

HERE = Path(__file__).parent
EXPERIMENTS = ("table1", "fig8", "fig9", "vit")


def newest(folder: Path) -> Path | None:
    """The result that was finished last."""
    found = sorted(folder.glob("*/complete.json"), key=lambda path: path.stat().st_mtime)
    return found[-1].parent if found else None


def runs(arrays: dict, prefix: str) -> list[list]:
    """A row for each run of a sweep."""
    rows = []
    for name in arrays[f"{prefix}names"].tolist():
        columns = [arrays[f"{prefix}{name}/{key}"] for key in NUMBERS]
        lr = float(arrays[f"{prefix}{name}/lr"])
        rows += [[name, lr, seed, *(float(column[seed]) for column in columns)] for seed in range(len(columns[0]))]
    return rows


def tuning(arrays: dict, prefix: str) -> list[list]:
    """A row for each step size that was tried."""
    rows = []
    for name in arrays[f"{prefix}names"].tolist():
        tried = zip(arrays[f"{prefix}{name}/lrs"].tolist(), arrays[f"{prefix}{name}/tuning"].tolist(), strict=True)
        rows += [[name, lr, accuracy] for lr, accuracy in tried]
    return rows


TABLES = {"runs": runs, "tuning": tuning}
HEADERS = {
    "runs": ["optimizer", "lr", "seed", *NUMBERS],
    "tuning": ["optimizer", "lr", "validation_accuracy"],
}


def write(path: Path, header: list[str], rows: list[list]) -> None:
    with path.open("w", newline="", encoding="utf-8") as file:
        csv.writer(file).writerows([header, *rows])


def main(out: Path, name: str) -> None:
    target = HERE / name
    target.mkdir(exist_ok=True)
    for experiment in EXPERIMENTS:
        folder = newest(out / experiment)
        if folder is None:
            continue
        for file in ("config.json", "summary.csv"):
            shutil.copy(folder / file, target / f"{experiment}-{file}")
        shutil.copy(folder / f"{experiment}.png", target / f"{experiment}.png")
        told = json.loads((folder / "comparisons.json").read_text("utf-8"))
        (target / f"{experiment}-comparisons.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
        if experiment in ("table1", "vit"):
            arrays = load_arrays(folder / "data.npz")
            prefixes = [f"{size}/" for size in arrays["sizes"].tolist()] if experiment == "table1" else [""]
            for kind, header in HEADERS.items():
                rows = [row for prefix in prefixes for row in TABLES[kind](arrays, prefix)]
                write(target / f"{experiment}-{kind}.csv", header, rows)
        if experiment == "fig9":
            shutil.copy(folder / "fig9.html", target / "fig9.html")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
