"""Next-token prediction: W against the graph SVM, and the finite log-odds of tokens on a cycle against Luce's model."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, curve, mark_decade, panel, row_of_axes
from mirrormax._statistics import median, number
from mirrormax.dynamics import simulate_next_token
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, at_most, most, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import log_grid, stacked
from mirrormax.geometry import directional_divergence
from mirrormax.svm import Sample, graph_svm, priority_graph

ABOUT = About("Next-token prediction: the graph SVM, and what stays finite", place=230, seconds=17, revision=1)
NEAR = 0.01  # the divergence below which a run has arrived
ODDS = 0.05  # in logits: how far from Luce's log-odds the tokens of a cycle may end
ACYCLIC = "largest D without cycles"
LUCE = "largest distance from Luce's log-odds on cycles, logits"


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)  # normalised, for graphs without cycles
    plain_lr: tuple[float, ...] = (1.0, 2.0, 2.0)
    problems: int = 4
    steps: int = 1000
    plain: int = 3000
    points: int = 25
    tokens: int = 6
    d: int = 8
    T: int = 4
    samples: tuple[int, int] = (5, 8)  # without and with a cycle
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, steps=2000, plain=30000)}


def run(config: Config, work: Work) -> Arrays:
    """D to the graph SVM without (p, records, problems) and with cycles, and there max|BW − β| too."""
    tasks = [(config, k, seed) for k in range(len(config.p)) for seed in range(config.problems)]
    arrays = stacked(work.each(_problem, tasks), len(config.p), config.problems)
    grids = {"steps": log_grid(config.steps, config.points), "plain_steps": log_grid(config.plain, config.points)}
    arrays = {name: np.moveaxis(array, 1, 2) for name, array in arrays.items()}
    return {"p": np.array(config.p), **grids, **arrays}


def _problem(config: Config, k: int, seed: int) -> Arrays:
    p, arrays = config.p[k], {}
    normalised: Any = ("acyclic", config.steps, config.lr[k], "tensor")
    for name, steps, lr, normalize in (normalised, ("cyclic", config.plain, config.plain_lr[k], None)):
        E, samples = random_text(config, name == "cyclic", seed)
        answer, grid = graph_svm(E, samples, p=p), log_grid(steps, config.points)
        run = simulate_next_token(E, samples, p=p, lr=lr, steps=steps, normalize=normalize, record=grid)
        arrays[name] = np.array([float(directional_divergence(answer.W, W, p)) for W in run.W])
        if name == "cyclic":
            last, y, x = answer.graph.edges[answer.graph.within].T
            odds = np.einsum("md,rde,me->rm", E[y] - E[x], run.W, E[last])
            arrays["odds"] = np.abs(odds - answer.odds[answer.graph.within]).max(-1)
    return arrays


def random_text(config: Config, cyclic: bool, seed: int) -> tuple[Any, list[Sample]]:
    """Random embeddings and prefixes, drawn until their graph has (or has no) cycle, and an edge between components."""
    rng = np.random.default_rng([config.seed, seed, int(cyclic)])
    while True:
        E = rng.standard_normal((config.tokens, config.d))
        samples: list[Sample] = []
        for _ in range(config.samples[int(cyclic)]):
            prefix = rng.choice(config.tokens, config.T, replace=False).tolist()
            prefix[-1] = int(rng.integers(2))  # few last tokens, so that their samples meet
            samples.append((prefix, int(rng.choice(prefix))))
        graph = priority_graph(samples, config.tokens)
        if graph.cyclic == cyclic and not graph.within.all():
            return E / np.linalg.norm(E, axis=1, keepdims=True), samples


def measure(data: Arrays) -> Rows:
    early = int(np.searchsorted(data["plain_steps"], data["plain_steps"][-1] / 10))
    for p, acyclic, cyclic, odds in zip(*(data[name] for name in ("p", "acyclic", "cyclic", "odds")), strict=True):
        largest = float(acyclic[-1].max())
        yield threshold(ACYCLIC, f"below {NEAR:g}", largest, largest < NEAR, column=p)
        why = "Plain steps; the threshold was set before the runs."
        yield at_most(LUCE, ODDS, float(odds[-1].max()), why, column=p)
        yield most("runs with cycles whose D falls over the last nine tenths", cyclic[-1] < cyclic[early], column=p)
        yield alone("median D with cycles", median(cyclic[-1]), column=p)


def tell(data: Arrays, table: Measured) -> Told:
    D, odds = (number(max(table.values(quantity)), 2) for quantity in (ACYCLIC, LUCE))
    return Told(
        f"Without cycles W converges to the graph SVM (D ≤ {D}); tokens on a cycle come within {odds} logits of Luce's "
        "model",
        f"The former after {data['steps'][-1]} normalised steps, the latter after {data['plain_steps'][-1]} plain "
        "ones: on a cycle log-odds stay finite.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Medians over problems: D without cycles, D with cycles, and the distance from Luce's log-odds."""
    fig, axes = row_of_axes(3, width=10.5, height=3.4)
    panels = (
        ("acyclic", "steps", "no cycles, normalised steps", "divergence to the graph SVM"),
        ("cyclic", "plain_steps", "cycles, plain steps", "divergence to the graph SVM"),
        ("odds", "plain_steps", "cycles, plain steps", "distance from Luce's log-odds"),
    )
    for ax, (name, grid, title, label) in zip(axes, panels, strict=True):
        for values, p in zip(data[name], data["p"], strict=True):
            curve(ax, data[grid][1:], np.median(values, -1)[1:], p)
        panel(ax, title, "step", label, log="xy")
    mark_decade(axes[1].yaxis)
    axes[0].legend(loc="lower left")
    return fig
