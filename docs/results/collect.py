"""Copy what ``mirrormax reproduce`` has measured into this folder: ``python docs/results/collect.py OUT NAME COMMAND``.

Of every experiment over trained models in OUT: its configuration, numbers, verdicts and picture, a row for each
run that the numbers come from, and a page with all of it, headed by the COMMAND that measured it.
"""

import csv
import json
import shutil
import sys
from pathlib import Path

from mirrormax._files import load_arrays
from mirrormax._results import ResultFolder
from mirrormax.experiments import Measurement, load_experiment
from mirrormax.experiments._sweeps import NUMBERS
from mirrormax.report import fold
from mirrormax.report.pages import attention_page

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE.parent))
from collect_figures import table  # noqa: E402

EXPERIMENTS = ("table1", "fig8", "fig9", "vit", "practice")


def newest(out: Path, experiment: str) -> Path | None:
    """The result that was finished last."""
    found = sorted((out / experiment).glob("*/mirrormax.json"), key=lambda path: path.stat().st_mtime)
    whole = [place.parent for place in found if _is_whole(ResultFolder(place.parent, f"result of {experiment}"))]
    return whole[-1] if whole else None


def _is_whole(folder: ResultFolder) -> bool:
    manifest = folder.manifest()
    return manifest is not None and manifest.complete and folder.damaged() is None


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


def section(experiment: str, told: dict, has_runs: bool) -> str:
    """What an experiment shows, as Markdown."""
    files = ["config.json", "measurements.csv", "comparisons.json", *(["runs.csv", "tuning.csv"] if has_runs else [])]
    links = ", ".join(f"[{file}]({experiment}-{file})" for file in files)
    if experiment == "fig9":
        links += ", [attention maps](fig9.html)"
    found = [Measurement(**row) for row in told["comparisons"]]
    tables = "\n".join(line for block in fold(found) for line in table(block))
    title = load_experiment(experiment).ABOUT.title
    return f"## {title}\n\n{told['shows']}\n\n![{title}]({experiment}.png)\n\n{tables}\n{links}\n"


def main(out: Path, name: str, command: str) -> None:
    target = HERE / name
    target.mkdir(exist_ok=True)
    page = [f"# Measured: {name}\n\n    {command}\n"]
    for experiment in EXPERIMENTS:
        folder = newest(out, experiment)
        if folder is None:
            continue
        for file in ("config.json", "measurements.csv"):
            shutil.copy(folder / file, target / f"{experiment}-{file}")
        shutil.copy(folder / f"{experiment}.png", target / f"{experiment}.png")
        saved = json.loads((folder / "measurements.json").read_text("utf-8"))
        told = {"shows": saved["shows"], "comparisons": saved["rows"]}  # as studies.py reads them
        (target / f"{experiment}-comparisons.json").write_text(json.dumps(told, indent=1, ensure_ascii=False) + "\n")
        if experiment in ("table1", "vit"):
            arrays = load_arrays(folder / "data.npz")
            prefixes = [f"{size}/" for size in arrays["sizes"].tolist()] if experiment == "table1" else [""]
            for kind, header in HEADERS.items():
                rows = [row for prefix in prefixes for row in TABLES[kind](arrays, prefix)]
                write(target / f"{experiment}-{kind}.csv", header, rows)
        if experiment == "fig9":
            shown = load_experiment(experiment).maps(load_arrays(folder / "data.npz"))
            (target / "fig9.html").write_text(attention_page(*shown), encoding="utf-8")
        page.append(section(experiment, told, experiment in ("table1", "vit")))
    (target / "README.md").write_text("\n".join(page), encoding="utf-8")


if __name__ == "__main__":
    main(Path(sys.argv[1]), *sys.argv[2:])
