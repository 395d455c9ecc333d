"""Fig 5: two entries of W on their way, against the direction of the attention SVM; one trial from zero.

The trial is the authors' own: torch's generator with seed 1 draws v, then the labels' signs, X and z, in float32.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch.nn.functional import normalize

from mirrormax._drawing import Figure, grid_of_axes, look_of, panel
from mirrormax.dynamics import simulate
from mirrormax.experiments._measurements import Arrays, Measured, Measurement, Told, alone, threshold
from mirrormax.experiments._trials import Batch, log_grid, max_margin, name_of
from mirrormax.experiments._work import Work

TITLE = "Fig 5: two entries of W against the direction of the attention SVM"
SHORT = "Fig 5"
PLACE = 50
SECONDS = 10
REVISION = 1
DEGREES = 3.0
ROUNDING = 1e-6  # degrees: an angle that cannot become less has not become more


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.1, 1.75, 2.0, 3.0, 6.0)
    lr: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1, 4000.0)
    steps: tuple[int, ...] = (1500, 1500, 2000, 20000, 5000)  # published for 1.75, 2 and 3
    longer: int = 10  # so many times the published steps, to see where the path goes on to
    entries: tuple[tuple[int, int], tuple[int, int]] = ((1, 2), (3, 4))  # as indices; the texts count from 1
    n: int = 6
    T: int = 8
    d: int = 10
    points: int = 200
    seed: int = 1


PROFILES = {"quick": Config(), "paper": replace(Config(), longer=100, points=400)}


def authors_problem(seed: int, n: int, T: int, d: int) -> Batch:
    """The problem that the authors' scripts draw for a seed, as a batch of one."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Any:
        return torch.randn(shape, generator=generator)

    v, signs, X, z = draw(d), draw(n), draw(n, T, d), draw(n, d)
    unit = {name: normalize(each, dim=-1).double().numpy()[None] for name, each in (("X", X), ("z", z), ("v", v))}
    return {**unit, "y": np.where(signs.numpy() > 0, 1.0, -1.0)[None]}


def run(config: Config, work: Work) -> Arrays:
    tasks = [(config, k) for k in range(len(config.p))]
    data: Arrays = {"p": np.array(config.p), "entries": np.array(config.entries), "longer": np.array(config.longer)}
    for p, found in zip(config.p, work.map(_path, tasks), strict=True):
        data |= {f"{name}/{name_of(p)}": array for name, array in found.items()}
    return data


def _path(task: tuple[Config, int]) -> Arrays:
    config, k = task
    p, steps = config.p[k], config.steps[k]
    batch = authors_problem(config.seed, config.n, config.T, config.d)
    grid = log_grid(config.longer * steps, config.points, steps)
    run = simulate(**batch, p=p, lr=config.lr[k], steps=int(grid[-1]), record=grid)
    W_mm = max_margin(batch, run.alpha, p)
    at = tuple(np.transpose(config.entries))
    return {
        "steps": run.steps,
        "published": np.array(steps),
        "path": run.W[:, 0][:, at[0], at[1]],
        "svm": W_mm[0][at],
        "D": run.divergence_to(W_mm)[:, 0],
    }


def angles(data: Arrays, p: float) -> np.ndarray[Any, Any]:
    """Degrees between each point of a path and the SVM's direction, in the plane of the entries; NaN at the origin."""
    path, svm = data[f"path/{name_of(p)}"], data[f"svm/{name_of(p)}"]
    scale = np.abs(path).max(1, keepdims=True)  # near p = 1 entries are too large to be squared
    path = np.divide(path, scale, out=np.full(path.shape, np.nan), where=scale > 0)
    across = path[:, 0] * svm[1] - path[:, 1] * svm[0]
    return np.asarray(np.degrees(np.arctan2(np.abs(across), path @ svm)))  # which keeps its digits near zero


def measure(data: Arrays) -> list[Measurement]:
    rows = []
    for p in data["p"].tolist():
        column, key = f"p = {p:g}", name_of(p)
        published = int(np.searchsorted(data[f"steps/{key}"], data[f"published/{key}"]))
        early, late = (float(angles(data, p)[at]) for at in (published, -1))
        rows.append(alone(f"{ANGLE} after the published steps", early, column=column))
        asked, holds = f"at most {DEGREES:g}°, and not more than before", late <= min(DEGREES, early + ROUNDING)
        rows.append(
            threshold(f"{ANGLE} after {_times(data)} times these", asked, late, holds, FIGURE, column=column, late=True)
        )
        rows.append(alone("D after the published steps", float(data[f"D/{key}"][published]), column=column))
        rows.append(alone(f"D after {_times(data)} times these", float(data[f"D/{key}"][-1]), column=column))
    return rows


ANGLE = "degrees to the SVM's direction in this plane"
FIGURE = "The paper shows this as a figure, without a number; p = 1.1 and 6 are not in it."


def _times(data: Arrays) -> int:
    return int(data["longer"])


def _entries(data: Arrays) -> tuple[str, str]:
    """The names of the two entries, counted from 1."""
    first, second = (f"W[{i + 1}, {j + 1}]" for i, j in data["entries"].tolist())
    return first, second


def tell(data: Arrays, found: Measured) -> Told:
    late, ps = f"{ANGLE} after {_times(data)}", ", ".join(f"{p:g}" for p in data["p"])
    early, end = (
        ", ".join(f"{value:.1f}°" for value in found.values(quantity)) for quantity in (f"{ANGLE} after the", late)
    )
    statement = "Single entries of W run along the SVM's line"
    return Told(
        f"Two entries of W come to run along the SVM's line: at most {max(found.values(late)):.1f}° off at the end",
        f"The entries {' and '.join(_entries(data))} grow without bound along the line of the attention SVM of the "
        f"same p. For p = {ps} the two directions are {early} apart in this plane after the published steps, and "
        f"{end} after {_times(data)} times as many.",
        [found.claim(statement, f"{end} off at the end, for p = {ps}.", late)],
    )


def draw(data: Arrays, found: Measured) -> Figure:
    """Above, two entries of W until they meet the line of the SVM; below, the angle between the two over the steps."""
    count = len(data["p"])
    fig, (planes, courses) = grid_of_axes(2, count, width=3.1 * count, height=6.2, height_ratios=[1.5, 1])
    for plane, course, p in zip(planes, courses, data["p"], strict=True):
        key, look = name_of(p), look_of(p)
        path, steps, published = data[f"path/{key}"], data[f"steps/{key}"], int(data[f"published/{key}"])
        at = int(np.searchsorted(steps, published))
        path = path / np.abs(path).max()  # of interest is the direction; near p = 1 the size is astronomical
        svm = data[f"svm/{key}"] / np.linalg.norm(data[f"svm/{key}"])
        ray = np.stack([0 * svm, 1.06 * np.linalg.norm(path, axis=1).max() * svm])
        plane.plot(*ray.T, color="0.72", linewidth=5, solid_capstyle="butt", label="SVM direction")
        plane.plot(*path.T, color=look.colour, label="path of W, scaled to 1")
        ends = ((path[at], "white", "published steps"), (path[-1], look.colour, f"{_times(data)} times as many"))
        for (x, y), face, label in ends:
            plane.scatter(x, y, s=42, color=face, edgecolors=look.colour, zorder=3, label=label)
        panel(plane, f"p = {p:g}", *_entries(data))
        moved = steps > 0
        course.plot(steps[moved], np.maximum(angles(data, p)[moved], ROUNDING), color=look.colour)
        course.axvline(published, color="grey", linewidth=0.9, linestyle="--")
        panel(course, "", "step (dashed: published)", log="xy")
        low, high = course.get_ylim()
        shown = [degrees for degrees in (1e-6, 1e-4, 0.01, 0.1, 1, 10) if low <= degrees <= high]
        course.set_yticks(shown, [f"{degrees:g}°" for degrees in shown])
        course.minorticks_off()
    planes[0].legend(loc="best", fontsize=9)
    courses[0].set_ylabel("angle to the SVM's line")
    return fig
