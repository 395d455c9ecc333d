"""Mini-batches: normalised steps leave the attention SVM, a running scale and plain steps do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, Figure, panel, row_of_axes
from mirrormax._statistics import number
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, at_most, most, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Problems, max_margin, stacked

ABOUT = About("Mini-batches: which steps still lead to the attention SVM", place=220, seconds=17, revision=1)
ALONE, RUNNING = "b = 1, normalised", "b = 1, running scale"
WAYS: dict[str, tuple[Any, int | None]] = {  # how steps are normalised, and the size of batches
    "full batch": ("tensor", None),
    ALONE: ("tensor", 1),
    RUNNING: ("running", 1),
    "b = 2, normalised": ("tensor", 2),
    "b = 2, running scale": ("running", 2),
}
NEAR = 0.01  # a threshold of ours, after a study with another seed: b = 1 stays above, a running scale below


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    steps: int = 2000
    problems: int = 10
    start: float = 10.0  # times W_mm: what is asked is whether a run stays there
    points: int = 30
    seed: int = 100


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, steps=4000, points=60)}


def run(config: Config, work: Work) -> Arrays:
    """D to the attention SVM, (p, ways, records, problems)."""
    tasks = [(config, p, lr, *way) for p, lr in zip(config.p, config.lr, strict=True) for way in WAYS.values()]
    arrays = stacked(work.each(_divergence, tasks), len(config.p), len(WAYS))
    return {"p": np.array(config.p), "steps": arrays["steps"][0, 0], "D": arrays["D"]}


def _divergence(config: Config, p: float, lr: float, normalize: Any, batch: int | None) -> Arrays:
    problem = config.batch()
    W_mm = max_margin(problem, problem.best_tokens(), p)
    options = SimulationOptions(batch=batch, references=W_mm, weights="last", seed=config.seed)
    start: Any = {"W0": config.start * W_mm, "normalize": normalize, "options": options}
    run = simulate(problem, p=p, lr=lr, steps=config.steps, record=config.points, **start)
    return {"steps": run.steps, "D": run.divergence["reference"]}


def measure(data: Arrays) -> Rows:
    for p, D in zip(data["p"], data["D"], strict=True):
        ends = dict(zip(WAYS, D[:, -1], strict=True))
        for way, every in ends.items():
            quantity, end = f"median D, {way}", float(np.median(every))  # NaN if any run diverged
            if way == ALONE:
                yield threshold(quantity, f"above {NEAR:g}: not the SVM", end, end > NEAR, column=p)
            elif way == RUNNING:
                yield at_most(quantity, NEAR, end, column=p)
            else:
                yield alone(quantity, end, column=p)
        nearer = ends[ALONE] > ends[RUNNING]
        yield most("problems in which the running scale ends nearer", nearer, 0.9, column=p)


def tell(data: Arrays, table: Measured) -> Told:
    alone, running = (number(max(table.values(f"median D, {way}")), 2) for way in (ALONE, RUNNING))
    return Told(
        f"One sample per batch: median D up to {alone} with normalised steps, {running} with a running scale",
        "Normalised sample by sample, runs leave the attention SVM on which they start; divided by a running scale "
        "they stay. A batch that is well separated already has a small gradient, and normalising it away gives it the "
        "same weight as the others.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Median divergence along the runs."""
    fig, axes = row_of_axes(len(data["p"]), width=3.6 * len(data["p"]), height=3.4)
    steps, every = data["steps"][1:], max(len(data["steps"]) // 8, 1)
    for k, (ax, p) in enumerate(zip(axes, data["p"], strict=True)):
        for (way, (_, batch)), D, marker in zip(WAYS.items(), data["D"][k], MARKERS, strict=False):
            shade = SHADES[{None: 0, 2: 1, 1: 2}[batch]]  # the smaller the batch, the lighter
            line: Any = {"color": shade, "linestyle": "--" if "normalised" in way else "-", "label": way}
            ax.plot(steps, np.median(D, -1)[1:], marker=marker, markersize=4, markevery=every, **line)
        panel(ax, f"p = {p:g}, {D.shape[-1]} problems", "step", log="xy")
    axes[0].set_ylabel("median divergence to the attention SVM")
    axes[-1].legend(loc="lower right")
    return fig
