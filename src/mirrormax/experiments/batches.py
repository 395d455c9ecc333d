"""Mini-batches: normalised steps leave the attention SVM, a running scale and plain steps do not."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, headline, row_of_axes
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import Arrays, Comparison, Rows, number, our_bar, ours_alone
from mirrormax.experiments._trials import best_tokens, max_margin, sphere_problems
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Mini-batches: which steps still lead to the attention SVM"
SHORT = "Batches"
PLACE = 220
SECONDS = 60
WAYS = ("full batch", "b = 1, normalised", "b = 1, running scale", "b = 2, normalised", "b = 2, running scale")
OPTIONS: tuple[dict[str, Any], ...] = (
    {"normalize": True},
    {"normalize": True, "batch": 1},
    {"normalize": "running", "batch": 1},
    {"normalize": True, "batch": 2},
    {"normalize": "running", "batch": 2},
)
APART, TOGETHER = 0.01, 0.01  # bars of ours, after a study with another seed: b = 1 stays above, the others below


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    steps: int = 2000
    problems: int = 10
    start: float = 10.0  # times W_mm: what is asked is whether a run stays there
    points: int = 30
    n: int = 6
    T: int = 8
    d: int = 10
    seed: int = 100


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, steps=4000, points=60)}


def run(config: Config, work: Work) -> Arrays:
    """D to the attention SVM, (p, ways, records, problems)."""
    tasks = [(config, p, lr, way) for p, lr in zip(config.p, config.lr, strict=True) for way in range(len(WAYS))]
    found = work.map(_divergence, tasks)
    D = np.stack([part["D"] for part in found])
    return {
        "p": np.array(config.p),
        "steps": found[0]["steps"],
        "D": D.reshape(len(config.p), len(WAYS), *D.shape[1:]),
    }


def _divergence(task: tuple[Config, float, float, int]) -> Arrays:
    config, p, lr, way = task
    problem = sphere_problems(range(config.seed, config.seed + config.problems), config.n, config.T, config.d)
    W_mm = max_margin(problem, best_tokens(problem), p)
    run = simulate(
        **problem,
        p=p,
        lr=lr,
        steps=config.steps,
        W0=config.start * W_mm,
        references=W_mm,
        record=config.points,
        weights="last",
        seed=config.seed,
        **OPTIONS[way],
    )
    return {"steps": run.steps, "D": run.divergence["reference"]}


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}, {way}": {"median D": float(np.median(D[-1])), "largest D": float(D[-1].max())}
        for k, p in enumerate(data["p"])
        for way, D in zip(WAYS, data["D"][k], strict=True)
    }


def shows(data: Arrays) -> str:
    last = np.median(data["D"][:, :, -1], axis=-1)
    return (
        "Normalised sample by sample, runs leave the attention SVM on which they start; divided by a running scale "
        f"they stay. Their median divergences end at {number(last[:, 1].min(), 2)} to {number(last[:, 1].max(), 2)}, "
        f"and at {number(last[:, 2].max(), 2)} or less. A batch that is well separated already has a small gradient, "
        "and normalising it away gives it the same weight as the others."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for k, p in enumerate(data["p"]):
        of = {way: float(np.median(D[-1])) for way, D in zip(WAYS, data["D"][k], strict=True)}
        alone, running = of["b = 1, normalised"], of["b = 1, running scale"]
        rows.append(
            our_bar(
                f"median D, b = 1, normalised, p = {p:g}",
                f"above {APART:g}: not the SVM",
                number(alone, 2),
                alone > APART,
            )
        )
        rows.append(
            our_bar(
                f"median D, b = 1, running scale, p = {p:g}", f"≤ {TOGETHER:g}", number(running, 2), running <= TOGETHER
            )
        )
        paired = data["D"][k, 1, -1] > data["D"][k, 2, -1]
        rows.append(
            our_bar(
                f"the running scale ends nearer, p = {p:g}",
                "in at least 90 % of problems",
                f"{int(paired.sum())} of {len(paired)}",
                float(paired.mean()) >= 0.9,
            )
        )
        rows.extend(ours_alone(f"median D, {way}, p = {p:g}", number(of[way], 2)) for way in (WAYS[0], *WAYS[3:]))
    return rows


def draw(data: Arrays) -> Figure:
    """Median divergence along the runs."""
    fig, axes = row_of_axes(len(data["p"]), width=3.6 * len(data["p"]), height=3.4)
    for k, (ax, p) in enumerate(zip(axes, data["p"], strict=True)):
        for way, D, options, marker in zip(WAYS, data["D"][k], OPTIONS, MARKERS, strict=False):
            style: dict[str, Any] = {
                "color": SHADES[{None: 0, 2: 1, 1: 2}[options.get("batch")]],  # the smaller the batch, the lighter
                "linestyle": "-" if options["normalize"] == "running" or way == WAYS[0] else "--",
            }
            every = max(len(data["steps"]) // 8, 1)
            median = np.median(D, -1)[1:]
            ax.plot(data["steps"][1:], median, marker=marker, markersize=4, markevery=every, label=way, **style)
        ax.set(xscale="log", yscale="log", xlabel="step", title=f"p = {p:g}, {D.shape[-1]} problems")
        ax.title.set_fontsize(10)
    axes[0].set_ylabel("median divergence to the attention SVM")
    axes[-1].legend(fontsize=7, loc="lower right")
    last = np.median(data["D"][:, :, -1], axis=-1)
    ends = [number(last[:, k].max(), 2) for k in (1, 2)]
    headline(
        fig, f"One sample per batch: median D up to {ends[0]} with normalised steps, {ends[1]} with a running scale"
    )
    return fig
