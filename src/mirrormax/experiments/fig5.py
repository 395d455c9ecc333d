"""Fig 5: two entries of W on their way, against the direction of the attention SVM; one trial from zero."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import grid_of_axes, headline, look_of
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import Arrays, Claim, Comparison, Rows, our_bar, worst
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
    entries: tuple[tuple[int, int], tuple[int, int]] = ((1, 2), (3, 4))  # as indices; the texts count from 1
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


def angles(data: Arrays, p: float) -> np.ndarray[Any, Any]:
    """Degrees between each point of a path and the SVM's direction, in the plane of the entries; NaN at the origin."""
    path, svm = data[f"path/{name_of(p)}"], data[f"svm/{name_of(p)}"]
    lengths = np.linalg.norm(path, axis=1) * np.linalg.norm(svm)
    cosine = np.divide(path @ svm, lengths, out=np.full(len(path), np.nan), where=lengths > 0)
    return np.asarray(np.degrees(np.arccos(np.clip(cosine, -1, 1))))


def angle(data: Arrays, p: float, published: bool = False) -> float:
    """The angle at a path's end, or after the published steps."""
    return float(angles(data, p)[_index(data, p, published)])


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
    first, second = _entries(data)
    return (
        f"The entries {first} and {second} grow without bound along the line of the attention SVM of the same p. "
        f"For p = {', '.join(f'{p:g}' for p in data['p'])} the two directions are {early} apart in this plane after "
        f"the published steps, and {late} after {_times(data)} times as many."
    )


def _entries(data: Arrays) -> tuple[str, str]:
    """The names of the two entries, counted from 1."""
    first, second = (f"W[{i + 1}, {j + 1}]" for i, j in data["entries"].tolist())
    return first, second


def _times(data: Arrays) -> int:
    key = name_of(data["p"][0])
    return int(data[f"steps/{key}"][-1] // data[f"published/{key}"])


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"]:
        early, late = angle(data, p, True), angle(data, p)
        rows.append(
            our_bar(
                f"angle to the SVM's direction in this plane, after the published steps → {_times(data)} times these",
                f"falls, to {DEGREES:g}° at most",
                f"{early:.2f}° → {late:.2f}°",
                late <= DEGREES and late < early,
                "The paper shows this as a figure, without a number, and of another random draw.",
                column=f"p = {p:g}",
                late=True,
            )
        )
    return rows


def claims(data: Arrays) -> list[Claim]:
    late = ", ".join(f"{angle(data, p):.1f}°" for p in data["p"])
    ps = ", ".join(f"{p:g}" for p in data["p"])
    statement = "Single entries of W run along the SVM's line"
    return [Claim(statement, f"{late} off at the end, for p = {ps}", worst(comparisons(data)))]


def draw(data: Arrays) -> Figure:
    """Above, two entries of W until they meet the line of the SVM; below, the angle between the two over the steps."""
    count = len(data["p"])
    fig, (planes, courses) = grid_of_axes(2, count, width=3.7 * count, height=6.2, height_ratios=[1.5, 1])
    first, second = _entries(data)
    for plane, course, p in zip(planes, courses, data["p"], strict=True):
        key, look = name_of(p), look_of(p)
        path, steps, published = data[f"path/{key}"], data[f"steps/{key}"], int(data[f"published/{key}"])
        at = _index(data, p, True)
        svm = data[f"svm/{key}"] / np.linalg.norm(data[f"svm/{key}"])
        ray = np.stack([0 * svm, 1.06 * np.linalg.norm(path, axis=1).max() * svm])
        plane.plot(*ray.T, color="0.72", linewidth=5, solid_capstyle="butt", label="SVM direction")
        plane.plot(*path.T, color=look.colour, label="path of W")
        plane.scatter(
            path[at][0], path[at][1], s=42, color="white", edgecolors=look.colour, zorder=3, label="published steps"
        )
        plane.scatter(
            path[-1][0], path[-1][1], s=42, color=look.colour, zorder=3, label=f"{_times(data)} times as many"
        )
        plane.set(xlabel=first, ylabel=second)
        plane.set_title(f"p = {p:g}", fontsize=10)
        moved = steps > 0
        course.plot(steps[moved], angles(data, p)[moved], color=look.colour)
        course.axvline(published, color="grey", linewidth=0.9, linestyle="--")
        course.set(xscale="log", yscale="log", xlabel="step")
        low, high = course.get_ylim()
        shown = [degrees for degrees in (0.1, 0.2, 0.5, 1, 2, 5, 10, 20, 50) if low <= degrees <= high]
        course.set_yticks(shown, [f"{degrees:g}°" for degrees in shown])
        course.minorticks_off()
    planes[0].legend(loc="best", fontsize=8)
    courses[0].set_ylabel("angle to the SVM's line")
    courses[0].annotate(
        "published steps",
        (int(data[f"published/{name_of(data['p'][0])}"]), courses[0].get_ylim()[0]),
        (-3, 3),
        textcoords="offset points",
        fontsize=8,
        color="grey",
        ha="right",
        rotation=90,
        va="bottom",
    )
    late = max(angle(data, p) for p in data["p"])
    headline(fig, f"Two entries of W come to run along the SVM's line: at most {late:.1f}° off at the end")
    return fig
