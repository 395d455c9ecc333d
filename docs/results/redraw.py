"""Draw the larger studies' pictures again from the tables beside them: ``python docs/results/redraw.py``.

A study keeps its numbers, not the arrays they came from, and takes hours to run. Where the tables hold all that a
picture shows it is drawn here as the experiment draws it now: Table 1 and Fig 9 of ``reviews`` and ``imdb``, and
``practice`` without the row over step sizes. Histograms and curves per epoch are not in the tables: Fig 8 and the
vision transformer keep the pictures of their own time, and their pages say so.
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax._drawing import house_style
from mirrormax._files import replacing
from mirrormax.experiments import fig9, practice, table1

HERE = Path(__file__).parent
NUMBER = r"[+−-]?\d+(?:\.\d+)?"


def table(path: Path) -> list[dict[str, str]]:
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def comparisons(path: Path) -> dict[str, dict[str, str]]:
    """The rows of a study's comparisons by their names."""
    return {row["quantity"]: row for row in json.loads(path.read_text("utf-8"))["comparisons"]}


def of_table1(folder: Path) -> Any:
    runs, tried = table(folder / "table1-runs.csv"), table(folder / "table1-tuning.csv")
    (size,) = {row[""].split(", ")[0] for row in table(folder / "table1-summary.csv")}
    names = list(dict.fromkeys(row["optimizer"] for row in runs))
    data: dict[str, Any] = {"sizes": np.array([size]), f"{size}/names": np.array(names)}
    for name in names:
        mine = [row for row in tried if row["optimizer"] == name]
        data |= {
            f"{size}/{name}/test_accuracy": np.array(
                [float(row["test_accuracy"]) for row in runs if row["optimizer"] == name]
            ),
            f"{size}/{name}/lrs": np.array([float(row["lr"]) for row in mine]),
            f"{size}/{name}/tuning": np.array([float(row["validation_accuracy"]) for row in mine]),
        }
    return table1.draw(data)


def of_fig9(folder: Path) -> Any:
    rows = table(folder / "fig9-summary.csv")
    told = comparisons(folder / "fig9-comparisons.json")
    scores, gains = {}, {}
    for metric in fig9.SHOWN:
        scores[metric] = {
            row[""]: fig9.Score(*(float(row[f"{metric}{end}"]) for end in ("", " low", " high", " chance")))
            for row in rows
        }
        found = re.findall(NUMBER, told[f"ℓ1.1 above ℓ2, {fig9.LABELS[metric]}"]["ours"])
        mean, *ends = (float(one.replace("−", "-")) for one in found)
        gains[metric] = fig9.Gain(mean, (ends[0], ends[1]), (ends[2], ends[3]))
    return fig9.draw_scores(scores, gains, told[f"ℓ1.1 above ℓ2, {fig9.LABELS['mass']}"]["verdict"])


def of_practice(folder: Path) -> Any:
    rows = {tuple(row[""].split(", ", 1)): row for row in table(folder / "practice-summary.csv")}
    gradual = "AdamW with gradual pruning"
    tasks = list(dict.fromkeys(task for task, _ in rows))
    first = next(iter(rows.values()))
    shares = [float(name[4:-1]) / 100 for name in first if name.startswith("cut ")]
    again = [float(name[10:-1]) / 100 for name in first if name.startswith("retrained ")]
    data: dict[str, Any] = {
        "tasks": np.array(tasks),
        "units": np.array(["loss" if rows[task, "AdamW"]["loss whole"] else "accuracy" for task in tasks]),
        "rivals": np.array(list(dict.fromkeys(rival for _, rival in rows if rival != gradual))),
        "shares": np.array(shares),
        "retrained": np.array(again),
        "gradual": np.array([share for share in again if rows[tasks[0], gradual][f"retrained {share:.0%}"]]),
    }
    for (task, rival), row in rows.items():
        if rival == gradual:
            data[f"{task}/gradual"] = np.array([[float(row[f"retrained {s:.0%}"]) for s in data["gradual"]]])
            continue
        whole = row["loss whole"] or row["accuracy whole"]
        data[f"{task}/{rival}/test"] = np.array([[float(whole), *(float(row[f"cut {s:.0%}"]) for s in shares)]])
        data[f"{task}/{rival}/retrained"] = np.array([[float(row[f"retrained {s:.0%}"]) for s in again]])
    return practice.draw(data)


PICTURES = {
    "practice/practice.png": of_practice,
    "reviews/table1.png": of_table1,
    "reviews/fig9.png": of_fig9,
    "imdb/table1.png": of_table1,
    "imdb/fig9.png": of_fig9,
}


def main() -> None:
    with house_style():
        for place, of in PICTURES.items():
            figure = of((HERE / place).parent)
            with replacing(HERE / place) as temporary:
                figure.savefig(temporary)
            print(place)


if __name__ == "__main__":
    main()
