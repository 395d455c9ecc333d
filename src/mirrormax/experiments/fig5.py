"""Fig 5: two entries of W on their way, against the direction of the attention SVM; one trial from zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import COLOURS, row_of_axes
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import Arrays, Comparison, Rows, our_bar
from mirrormax.experiments._trials import log_grid, max_margin, name_of, sphere_problems
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Fig 5: two entries of W against the direction of the attention SVM"
SHORT = "Fig 5"
PLACE = 50
SECONDS = 5
DEGREES = 3.0


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    steps: tuple[int, ...] = (1500, 2000, 20000)
    longer: int = 10  # so many times the published steps, to see where the path goes on to
    entries: tuple[tuple[int, int], tuple[int, int]] = ((1, 2), (3, 4))  # counted from 0
    n: int = 6
    T: int = 8
    d: int = 10
    lr: float = 0.1
    points: int = 200
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), longer=100, points=400)}


def run(config: Config, work: Work) -> Arrays:
    tasks = [(config, p, steps) for p, steps in zip(config.p, config.steps, strict=True)]
    data: Arrays = {"p": np.array(config.p), "entries": np.array(config.entries)}
    for p, found in zip(config.p, work.map(_path, tasks), strict=True):
        data |= {f"{name}/{name_of(p)}": array for name, array in found.items()}
    return data


def _path(task: tuple[Config, float, int]) -> Arrays:
    config, p, steps = task
    batch = sphere_problems([config.seed], config.n, config.T, config.d)
    grid = log_grid(config.longer * steps, config.points, steps)
    run = simulate(**batch, p=p, lr=config.lr, steps=int(grid[-1]), record=grid)
    W_mm = max_margin(batch, run.alpha, p)
    at = tuple(np.transpose(config.entries))
    return {
        "steps": run.steps,
        "published": np.array(steps),
        "path": run.W[:, 0][:, at[0], at[1]],
        "svm": W_mm[0][at],
        "D": run.divergence_to(W_mm)[:, 0],
        "alpha": run.alpha[0],
    }


def angle(data: Arrays, p: float, published: bool = False) -> float:
    """Degrees between a path's last point (or that of the published steps) and the SVM, in the plane of the entries."""
    end, svm = data[f"path/{name_of(p)}"][_index(data, p, published)], data[f"svm/{name_of(p)}"]
    cosine = end @ svm / (np.linalg.norm(end) * np.linalg.norm(svm))
    return float(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def _index(data: Arrays, p: float, published: bool) -> int:
    steps = data[f"steps/{name_of(p)}"]
    return int(np.searchsorted(steps, data[f"published/{name_of(p)}"])) if published else len(steps) - 1


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}, {'published steps' if published else 'longer'}": {
            "steps": int(data[f"steps/{name_of(p)}"][_index(data, p, published)]),
            "divergence": float(data[f"D/{name_of(p)}"][_index(data, p, published)]),
            "degrees off the SVM's direction": angle(data, p, published),
        }
        for p in data["p"]
        for published in (True, False)
    }


def shows(data: Arrays) -> str:
    early, late = (", ".join(f"{angle(data, p, now):.1f}°" for p in data["p"]) for now in (True, False))
    first, second = (list(map(int, entry)) for entry in data["entries"])
    times = int(data[f"steps/{name_of(data['p'][0])}"][-1] // data[f"published/{name_of(data['p'][0])}"])
    return (
        f"The entries W{first} and W{second} (counted from 0) grow without bound along the line that the attention SVM "
        "of the same p gives. "
        f"For p = {', '.join(f'{p:g}' for p in data['p'])} the two directions are {early} apart in this plane after "
        f"the published steps, and {late} after {times} times as many."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"]:
        early, late = angle(data, p, True), angle(data, p)
        rows.append(
            our_bar(
                f"direction of the ℓ{p:g} path in this plane",
                f"comes closer to the SVM's, to within {DEGREES:g}°",
                f"{early:.2g}° off after the published steps, {late:.2g}° after {data[f'steps/{name_of(p)}'][-1]}",
                late <= DEGREES and late < early,
                "The paper shows this as a figure, without a number, and of another random draw.",
            )
        )
    return rows


def draw(data: Arrays) -> Figure:
    """Two entries of W up to the published number of steps, and the line of the SVM through the origin."""
    fig, axes = row_of_axes(len(data["p"]), width=3.7 * len(data["p"]), height=3.5)
    first, second = (tuple(int(k) for k in entry) for entry in data["entries"])
    for ax, p in zip(axes, data["p"], strict=True):
        key = name_of(p)
        path = data[f"path/{key}"][data[f"steps/{key}"] <= data[f"published/{key}"]]
        reach = 1.1 * np.linalg.norm(path, axis=1).max()
        svm = data[f"svm/{key}"] / np.linalg.norm(data[f"svm/{key}"])
        ax.plot(*np.stack([0 * svm, reach * svm]).T, color=COLOURS[1], linestyle="--", label="SVM direction")
        ax.plot(
            *path.T, color=COLOURS[0], marker="o", markersize=3, markevery=max(len(path) // 12, 1), label="path of W"
        )
        ax.scatter(path[-1][0], path[-1][1], s=45, color=COLOURS[0], zorder=3)
        ax.set(xlabel=f"W{list(first)}", ylabel=f"W{list(second)}", title=f"p = {p:g}")
        ax.title.set_fontsize(10)
    axes[0].legend(loc="best")
    return fig
