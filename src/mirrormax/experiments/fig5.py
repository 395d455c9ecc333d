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
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import KERNEL, Size, by_p, log_grid, max_margin
from mirrormax.problem import Problem

ABOUT = About("Fig 5: two entries of W against the direction of the attention SVM", place=50, seconds=4, revision=1)
DEGREES = 3.0
ROUNDING = 1e-6  # degrees: an angle that cannot become less has not become more
ANGLE = "degrees to the SVM's direction in this plane"
FIGURE = "The paper shows this as a figure, without a number; p = 1.1 and 6 are not in it."


@dataclass(frozen=True)
class Config(Size):
    p: tuple[float, ...] = (1.1, 1.75, 2.0, 3.0, 6.0)
    lr: tuple[float, ...] = (0.1, 0.1, 0.1, 0.1, 4000.0)
    steps: tuple[int, ...] = (1500, 1500, 2000, 20000, 5000)  # published for 1.75, 2 and 3
    longer: int = 10  # so many times the published steps, to see where the path goes on to
    entries: tuple[tuple[int, int], tuple[int, int]] = ((1, 2), (3, 4))  # as indices; the texts count from 1
    points: int = 200
    seed: int = 1


PROFILES = {"quick": Config(), "paper": replace(Config(), longer=100, points=400)}


def run(config: Config, work: Work) -> Arrays:
    given = {name: np.array(getattr(config, name)) for name in ("p", "entries", "longer")}
    tasks = zip(config.p, config.lr, config.steps, strict=True)
    return given | by_p(config.p, work.each(_path, [(config, *task) for task in tasks]))


def _path(config: Config, p: float, lr: float, steps: int) -> Arrays:
    n, T, d, generator = config.n, config.T, config.d, torch.Generator().manual_seed(config.seed)
    v, signs, X, z = (torch.randn(shape, generator=generator) for shape in ((d,), (n,), (n, T, d), (n, d)))
    unit = {name: normalize(each, dim=-1).double().numpy()[None] for name, each in (("X", X), ("z", z), ("v", v))}
    batch = Problem(**unit, y=np.where(signs.numpy() > 0, 1.0, -1.0)[None])
    grid = log_grid(config.longer * steps, config.points, steps)
    run = simulate(batch, p=p, lr=lr, steps=int(grid[-1]), record=grid, options=KERNEL)
    W_mm = max_margin(batch, run.alpha, p)
    i, j = np.transpose(config.entries)
    return {
        "steps": run.steps,
        "published": np.array(steps),
        "path": run.W[:, 0, i, j],
        "svm": W_mm[0, i, j],
        "D": run.divergence_to(W_mm)[:, 0],
    }


def angles(data: Arrays, p: float) -> Any:
    """Degrees between each point of a path and the SVM's direction, in the plane of the entries; NaN at the origin."""
    path, svm = data[f"path/{p:g}"], data[f"svm/{p:g}"]
    scale = np.abs(path).max(1, keepdims=True)  # near p = 1 entries are too large to be squared
    path = np.divide(path, scale, out=np.full(path.shape, np.nan), where=scale > 0)
    across = path[:, 0] * svm[1] - path[:, 1] * svm[0]
    return np.degrees(np.arctan2(np.abs(across), path @ svm))  # which keeps its digits near zero


def measure(data: Arrays) -> Rows:
    longer = f"after {data['longer']} times these"
    for p in data["p"].tolist():
        D, angle = data[f"D/{p:g}"], angles(data, p)
        published = int(np.searchsorted(data[f"steps/{p:g}"], data[f"published/{p:g}"]))
        early, late = float(angle[published]), float(angle[-1])
        yield alone(f"{ANGLE} after the published steps", early, column=p)
        criterion, holds = f"at most {DEGREES:g}°, and not more than before", late <= min(DEGREES, early + ROUNDING)
        yield threshold(f"{ANGLE} {longer}", criterion, late, holds, FIGURE, column=p, late=True)
        yield alone("D after the published steps", float(D[published]), column=p)
        yield alone(f"D {longer}", float(D[-1]), column=p)


def tell(data: Arrays, table: Measured) -> Told:
    late, entries = f"{ANGLE} after {data['longer']}", [f"W[{i + 1}, {j + 1}]" for i, j in data["entries"]]
    early, end = (f"{max(table.values(quantity)):.1f}°" for quantity in (f"{ANGLE} after the", late))
    finding = f"Two entries of W come to run along the SVM's line: at most {end} off at the end"
    return Told(
        finding,
        f"The entries {' and '.join(entries)} grow without bound. After the published steps they are at most "
        f"{early} off this line; runs are {data['longer']} times as long.",
        table.claim("Single entries of W run along the SVM's line", f"{finding}.", late),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Above, two entries of W until they meet the line of the SVM; below, the angle between the two over the steps."""
    count = len(data["p"])
    fig, (planes, courses) = grid_of_axes(2, count, width=3.1 * count, height=6.2, height_ratios=[1.5, 1])
    for plane, course, p in zip(planes, courses, data["p"], strict=True):
        path, svm, steps, published = (data[f"{name}/{p:g}"] for name in ("path", "svm", "steps", "published"))
        look, at = look_of(p), int(np.searchsorted(steps, published))
        path = path / np.abs(path).max()  # of interest is the direction; near p = 1 the size is astronomical
        ray = np.outer(svm / np.linalg.norm(svm), [0, 1.06 * np.linalg.norm(path, axis=1).max()])
        plane.plot(*ray, color="0.72", linewidth=5, solid_capstyle="butt", label="SVM direction")
        plane.plot(*path.T, color=look.colour, label="path of W, scaled to 1")
        ends = ((path[at], "white", "published steps"), (path[-1], look.colour, f"{data['longer']} times as many"))
        for end, face, label in ends:
            plane.scatter(end[0], end[1], s=42, color=face, edgecolors=look.colour, zorder=3, label=label)
        panel(plane, f"p = {p:g}", *(f"W[{i + 1}, {j + 1}]" for i, j in data["entries"]))
        course.plot(steps[1:], np.maximum(angles(data, p)[1:], ROUNDING), color=look.colour)
        course.axvline(float(published), color="grey", linewidth=0.9, linestyle="--")
        panel(course, "", "step (dashed: published)", log="xy")
    planes[0].legend(loc="best", fontsize=9)
    courses[0].set_ylabel("angle to the SVM's line, degrees")
    return fig
