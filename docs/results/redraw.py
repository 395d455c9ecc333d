"""Draw the larger studies' pictures again from the tables beside them: ``python docs/results/redraw.py``.

A study keeps its numbers, not the arrays they came from, and takes hours to run. Where the tables hold all that a
picture shows it is drawn here as the experiment draws it now: Table 1 and Fig 9 of ``reviews`` and ``imdb``,
``tune-reviews``. Histograms and curves per epoch are not in the
tables: of Fig 8 and of the vision transformer the numbers are drawn, and their pages link the pictures of their time
(``*-then.png``).
"""

from __future__ import annotations

import csv
import json
import re
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax._drawing import headline, house_style, look_of, row_of_axes
from mirrormax._files import replacing
from mirrormax.experiments import Measured, fig9, table1
from mirrormax.tuning import results as tuning

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
        own = [row for row in runs if row["optimizer"] == name]
        for key in ("test_accuracy", "best_test_accuracy", "last_test_accuracy", "epochs"):
            data[f"{size}/{name}/{key}"] = np.array([float(row[key]) for row in own])
        data |= {
            f"{size}/{name}/lr": np.array(float(own[0]["lr"])),
            f"{size}/{name}/lrs": np.array([float(row["lr"]) for row in mine]),
            f"{size}/{name}/tuning": np.array([float(row["validation_accuracy"]) for row in mine]),
        }
    found = Measured(table1.measure(data))
    fig = table1.draw(data, found)
    headline(fig, table1.tell(data, found).headline)
    return fig


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
    fig = fig9.draw_scores(scores, gains)
    headline(fig, fig9.finding(told[f"ℓ1.1 above ℓ2, {fig9.LABELS['mass']}"]["verdict"], gains["mass"].mean))
    return fig


ROLES = ("key", "query", "value")
HOYER, LARGE, NEAR_ZERO = (
    "Hoyer index: 1 is all weight in one entry",
    "entries with |w| ≥ 0.06, %",
    "entries below 0.01, %",
)


def bars(ax: Any, title: str, values: dict[str, list[float]]) -> None:
    """A bar for each role, by method."""
    for place, (name, each) in enumerate(values.items()):
        at = np.arange(len(each)) + (place - (len(values) - 1) / 2) * 0.16
        ax.bar(at, each, 0.14, color=look_of(name).colour, label=name)
    ax.set(xticks=range(len(ROLES)), xticklabels=ROLES)
    ax.set_title(title, fontsize=10)
    ax.grid(axis="x", visible=False)


def of_fig8(folder: Path) -> Any:
    rows = {tuple(row[""].split(", ")): row for row in table(folder / "fig8-summary.csv")}
    names = list(dict.fromkeys(name for name, _ in rows))

    def values(measure: str, unit: float = 1) -> dict[str, list[float]]:
        per = {"large": "entries", "near_zero": "entries"}.get(measure)
        return {
            name: [
                unit * float(row[measure]) / (float(row[per]) if per else 1) for row in (rows[name, r] for r in ROLES)
            ]
            for name in names
        }

    fig, axes = row_of_axes(3, width=11, height=3.4)
    bars(axes[0], HOYER, values("hoyer"))
    bars(axes[1], LARGE, values("large", 100))
    bars(axes[2], NEAR_ZERO, values("near_zero", 100))
    axes[0].legend(fontsize=8, ncols=2)
    means = {name: np.mean(values("hoyer")[name]) for name in ("ℓ1.1", "ℓ2")}
    words = "sparser" if means["ℓ1.1"] > means["ℓ2"] else "less sparse"
    headline(
        fig, f"ℓ1.1 makes {words} attention weights than ℓ2: mean Hoyer index {means['ℓ1.1']:.3f}, {means['ℓ2']:.3f}"
    )
    return fig


def of_vit(folder: Path) -> Any:
    rows = {row[""]: row for row in table(folder / "vit-summary.csv")}
    runs = table(folder / "vit-runs.csv")
    fig, axes = row_of_axes(3, width=11, height=3.4)
    means = {}
    for place, name in enumerate(rows):
        ends = np.array([100 * float(run["last_test_accuracy"]) for run in runs if run["optimizer"] == name])
        look, means[name] = look_of(name), ends.mean()
        axes[0].scatter(np.full(len(ends), place), ends, color=look.colour, marker=look.marker, s=36, zorder=3)
        axes[0].hlines(ends.mean(), place - 0.3, place + 0.3, color=look.colour, linewidth=2.4)
    axes[0].set(xticks=range(len(rows)), xticklabels=list(rows), xlim=(-0.6, len(rows) - 0.4))
    axes[0].set_title("test accuracy after the last epoch, %", fontsize=10)
    axes[0].grid(axis="x", visible=False)
    bars(axes[1], HOYER, {name: [float(row[f"{role} hoyer"]) for role in ROLES] for name, row in rows.items()})
    counts = {name: [float(row[f"{role} near_zero"]) for role in ROLES] for name, row in rows.items()}
    bars(axes[2], "entries below 0.01", counts)
    axes[1].legend(fontsize=8)
    told = ", ".join(f"{name} {mean:.1f} %" for name, mean in means.items())
    hoyer = ", ".join(f"{name} {float(row['key hoyer']):.2f}" for name, row in rows.items())
    headline(fig, f"Test accuracy {told}; Hoyer index of the keys {hoyer}")
    return fig


def of_tune(folder: Path) -> Any:
    words = ("state", "optimizer")
    rows = [
        {key: value if key in words else float(value) if value else None for key, value in row.items()}
        for row in table(folder / "trials.csv")
    ]
    return tuning.picture([{**row, "score": row["validation_accuracy"]} for row in rows])


PICTURES = {
    "reviews/table1.png": of_table1,
    "reviews/fig8.png": of_fig8,
    "reviews/fig9.png": of_fig9,
    "imdb/table1.png": of_table1,
    "imdb/fig8.png": of_fig8,
    "imdb/fig9.png": of_fig9,
    "cifar10/vit.png": of_vit,
    "tune-reviews/tune.png": of_tune,
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
