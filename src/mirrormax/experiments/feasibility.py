"""When can attention separate any choice of tokens? The paper: almost always if d ≥ max(T − 1, n).

Random problems with a random token chosen in every sequence, for dimensions below and above that bound; each either
comes with max-margin weights or with a Farkas certificate that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, Figure, panel, row_of_axes
from mirrormax._statistics import percent, share
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, claim
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Problems
from mirrormax.svm import att_svm

ABOUT = About("Feasibility: which choices of tokens attention can separate", place=25, seconds=3, revision=1)
SEPARATED = "random selections that can be separated, d ≥ max(T − 1, n)"
SUFFICIENT = "The bound makes all n(T − 1) constraint rows linearly independent, which is more than is needed."


@dataclass(frozen=True)
class Config:
    shapes: tuple[tuple[int, int], ...] = ((6, 8), (10, 4), (4, 10))  # (n, T)
    d: tuple[int, ...] = (2, 3, 4, 5, 6, 7, 8, 9, 10, 11)
    problems: int = 60
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=1000)}


def run(config: Config, work: Work) -> Arrays:
    """How many of the problems are feasible, (shapes, d)."""
    tasks = [(config, n, T, d) for (n, T), d in product(config.shapes, config.d)]
    counts = np.array(work.each(_feasible, tasks)).reshape(len(config.shapes), len(config.d))
    return {**{name: np.array(getattr(config, name)) for name in ("shapes", "d", "problems")}, "feasible": counts}


def _feasible(config: Config, n: int, T: int, d: int) -> int:
    problem = Problems(n, T, d, config.seed, config.problems).batch()
    alpha = np.random.default_rng((config.seed, n, T)).integers(T, size=(config.problems, n))
    solution = att_svm(problem, alpha, p=2, throw=False)
    feasible, known = np.asarray(solution.optimal), np.asarray(solution.optimal) | np.asarray(solution.infeasible)
    if not known.all():
        raise ValueError(f"{int((~known).sum())} problems with n={n}, T={T}, d={d} were not decided; report this.")
    return int(feasible.sum())


def bounds(data: Arrays) -> Any:
    """max(T − 1, n) of every shape."""
    n, T = data["shapes"].T
    return np.maximum(T - 1, n)


def measure(data: Arrays) -> Rows:
    d, problems = data["d"], int(data["problems"])
    for (n, T), bound, feasible in zip(data["shapes"], bounds(data), data["feasible"], strict=True):
        column, there = f"n = {n}, T = {T}", feasible[d >= bound]
        ours, holds = f"{there.sum():,} of {there.size * problems:,}", bool((there == problems).all())
        yield claim(SEPARATED, "almost all", ours, holds, column=column, where="section 2")
        for below in feasible[d == bound - 1] / problems:
            yield alone("the same, d one less than the bound", float(below), SUFFICIENT, column=column)
        half = min(d[2 * feasible >= problems], default=np.nan)
        yield alone("least d at which half can be separated", float(half), column=column)


def tell(data: Arrays, table: Measured) -> Told:
    there = data["feasible"][data["d"] >= bounds(data)[:, None]]
    part = share(int(there.sum()), there.size * int(data["problems"]))
    finding = f"From d = max(T − 1, n) on, {percent(part.mean)} of random selections can be separated"
    statement = "Any choice of tokens can be separated almost always if d ≥ max(T − 1, n)"
    return Told(
        finding,
        f"With 95 % confidence it is at least {percent(part.low, 1)}. The condition is not necessary: half of the "
        f"choices can be separated from d = {table.ours('least d')} on, for bounds of "
        f"{', '.join(map(str, bounds(data)))}.",
        table.claim(statement, f"{finding}; the condition is not necessary.", SEPARATED),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """The share of feasible problems over d, with the bound of each shape."""
    fig, (ax,) = row_of_axes(1, width=7.5, height=3.6)
    for k, ((n, T), bound, row) in enumerate(zip(data["shapes"], bounds(data), data["feasible"], strict=True)):
        label = f"n = {n}, T = {T}: bound {bound}"
        ax.plot(data["d"], 100 * row / data["problems"], color=SHADES[k], marker=MARKERS[k], label=label)
        ax.axvline(bound + 0.04 * (k - 1), color=SHADES[k], linestyle=":", linewidth=1.6)
    panel(ax, "", "dimension d", "selections that can be separated, %", xticks=data["d"])
    ax.legend(loc="center", bbox_to_anchor=(0.38, 0.4), fontsize=9)
    return fig
