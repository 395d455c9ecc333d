"""When can attention separate any choice of tokens? The paper: almost always if d ≥ max(T − 1, n).

Random problems with a random token chosen in every sequence, for dimensions below and above that bound; each either
comes with max-margin weights or with a Farkas certificate that there are none.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, Figure, panel, row_of_axes
from mirrormax._statistics import share
from mirrormax.experiments._measurements import Arrays, Measured, Measurement, Told, alone, claim
from mirrormax.experiments._numbers import percent
from mirrormax.experiments._trials import sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.svm import att_svm

TITLE = "Feasibility: which choices of tokens attention can separate"
PLACE = 25
SECONDS = 3
REVISION = 1


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
    problem = sphere_problems(range(config.seed, config.seed + config.problems), n, T, d)
    alpha = np.random.default_rng((config.seed, n, T)).integers(T, size=(config.problems, n))
    solution = att_svm(problem["X"], problem["z"], alpha, p=2, throw=False)
    feasible, known = np.asarray(solution.optimal), np.asarray(solution.optimal) | np.asarray(solution.infeasible)
    if not known.all():
        raise ValueError(f"{int((~known).sum())} problems with n={n}, T={T}, d={d} were not decided; report this.")
    return int(feasible.sum())


def bound(shape: Any) -> int:
    """max(T − 1, n)."""
    n, T = (int(k) for k in shape)
    return max(T - 1, n)


def above(data: Arrays, k: int) -> tuple[int, int]:
    """Feasible problems of a shape with d at or above the bound, and all of these."""
    there = data["d"] >= bound(data["shapes"][k])
    return int(data["feasible"][k][there].sum()), int(there.sum()) * int(data["problems"])


def measure(data: Arrays) -> Iterator[Measurement]:
    for k, shape in enumerate(data["shapes"]):
        column, problems = f"n = {shape[0]}, T = {shape[1]}", int(data["problems"])
        hits, count = above(data, k)
        ours = f"{hits:,} of {count:,}"
        yield claim(SEPARATED, "almost all", ours, hits == count, column=column, where="section 2")
        shares = {int(d): hits / problems for d, hits in zip(data["d"], data["feasible"][k], strict=True)}
        if bound(shape) - 1 in shares:
            yield alone("the same, d one less than the bound", shares[bound(shape) - 1], SUFFICIENT, column=column)
        half = next((d for d, part in shares.items() if part >= 0.5), np.nan)
        yield alone("least d at which half can be separated", float(half), column=column)


SEPARATED = "random selections that can be separated, d ≥ max(T − 1, n)"
SUFFICIENT = "The bound makes all n(T − 1) constraint rows linearly independent, which is more than is needed."


def tell(data: Arrays, table: Measured) -> Told:
    hits, count = np.sum([above(data, k) for k in range(len(data["shapes"]))], 0).tolist()
    statement = "Any choice of tokens can be separated almost always if d ≥ max(T − 1, n)"
    measured = f"{hits:,} of {count:,} were separable; the condition is sufficient, not necessary."
    return Told(
        f"From d = max(T − 1, n) on, {percent(hits / count)} of random selections can be separated",
        f"With d ≥ max(T − 1, n), {hits:,} of {count:,} random choices of tokens can be separated (at least "
        f"{percent(share(hits, count).low, 1)} at 95 % confidence). "
        f"The condition is not necessary: half of the choices can be separated from d = {table.ours('least d')} on, "
        f"for bounds of {', '.join(str(bound(shape)) for shape in data['shapes'])}.",
        [table.claim(statement, measured, SEPARATED)],
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """The share of feasible problems over d, with the bound of each shape."""
    fig, (ax,) = row_of_axes(1, width=7.5, height=3.6)
    for k, ((n, T), row) in enumerate(zip(data["shapes"], data["feasible"], strict=True)):
        label = f"n = {n}, T = {T}: bound {bound((n, T))}"
        ax.plot(data["d"], 100 * row / data["problems"], color=SHADES[k], marker=MARKERS[k], label=label)
        ax.axvline(bound((n, T)) + 0.04 * (k - 1), color=SHADES[k], linestyle=":", linewidth=1.6)
    panel(ax, "", "dimension d", "selections that can be separated, %", xticks=data["d"])
    ax.legend(loc="center", bbox_to_anchor=(0.38, 0.4), fontsize=9)
    return fig
