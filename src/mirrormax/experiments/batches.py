"""Mini-batches: normalised steps leave the attention SVM, a running scale and plain steps do not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, Figure, panel, row_of_axes
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.experiments._measurements import Arrays, Measured, Measurement, Told, alone, at_most, most, threshold
from mirrormax.experiments._numbers import number
from mirrormax.experiments._trials import Problems, best_tokens, max_margin, stacked
from mirrormax.experiments._work import Work

TITLE = "Mini-batches: which steps still lead to the attention SVM"
PLACE = 220
SECONDS = 17
REVISION = 1
WAYS = ("full batch", "b = 1, normalised", "b = 1, running scale", "b = 2, normalised", "b = 2, running scale")
OPTIONS: tuple[tuple[Any, int | None], ...] = (
    ("tensor", None),
    ("tensor", 1),
    ("running", 1),
    ("tensor", 2),
    ("running", 2),
)
ALONE, RUNNING = WAYS[1:3]
APART, TOGETHER = 0.01, 0.01  # thresholds of ours, after a study with another seed: b = 1 stays above, the others below


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
    tasks = [(config, p, lr, way) for p, lr in zip(config.p, config.lr, strict=True) for way in range(len(WAYS))]
    arrays = stacked(work.each(_divergence, tasks), len(config.p), len(WAYS))
    return {"p": np.array(config.p), "steps": arrays["steps"][0, 0], "D": arrays["D"]}


def _divergence(config: Config, p: float, lr: float, way: int) -> Arrays:
    problem = config.batch()
    W_mm = max_margin(problem, best_tokens(problem), p)
    normalize, batch = OPTIONS[way]
    settings: Any = {"W0": config.start * W_mm, "record": config.points, "normalize": normalize}
    options = SimulationOptions(batch=batch, references=W_mm, weights="last", seed=config.seed)
    run = simulate(**problem, p=p, lr=lr, steps=config.steps, options=options, **settings)
    return {"steps": run.steps, "D": run.divergence["reference"]}


def measure(data: Arrays) -> Iterator[Measurement]:
    for k, p in enumerate(data["p"].tolist()):
        column, ends = f"p = {p:g}", data["D"][k][:, -1]
        for way, D in zip(WAYS, ends, strict=True):
            quantity, median = f"median D, {way}", float(np.median(D))
            if way == ALONE:
                criterion = f"above {APART:g}: not the SVM"
                yield threshold(quantity, criterion, median, median > APART, column=column)
            elif way == RUNNING:
                yield at_most(quantity, TOGETHER, median, column=column)
            else:
                yield alone(quantity, median, column=column)
        nearer = ends[WAYS.index(ALONE)] > ends[WAYS.index(RUNNING)]
        yield most("problems in which the running scale ends nearer", nearer, 0.9, column=column)


def tell(data: Arrays, table: Measured) -> Told:
    alone, running = (table.values(f"median D, {way}") for way in (ALONE, RUNNING))
    largest = number(max(alone), 2), number(max(running), 2)
    return Told(
        f"One sample per batch: median D up to {largest[0]} with normalised steps, {largest[1]} with a running scale",
        "Normalised sample by sample, runs leave the attention SVM on which they start; divided by a running scale "
        f"they stay. Their median divergences end at {number(min(alone), 2)} to {largest[0]}, and at {largest[1]} or "
        "less. A batch that is well separated already has a small gradient, and normalising it away gives it the same "
        "weight as the others.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Median divergence along the runs."""
    fig, axes = row_of_axes(len(data["p"]), width=3.6 * len(data["p"]), height=3.4)
    steps, every = data["steps"][1:], max(len(data["steps"]) // 8, 1)
    for k, (ax, p) in enumerate(zip(axes, data["p"], strict=True)):
        for way, D, (normalize, batch), marker in zip(WAYS, data["D"][k], OPTIONS, MARKERS, strict=False):
            style: dict[str, Any] = {
                "color": SHADES[{None: 0, 2: 1, 1: 2}[batch]],  # the smaller the batch, the lighter
                "linestyle": "-" if normalize == "running" or way == WAYS[0] else "--",
            }
            ax.plot(steps, np.median(D, -1)[1:], marker=marker, markersize=4, markevery=every, label=way, **style)
        panel(ax, f"p = {p:g}, {D.shape[-1]} problems", "step", log="xy")
    axes[0].set_ylabel("median divergence to the attention SVM")
    axes[-1].legend(loc="lower right")
    return fig
