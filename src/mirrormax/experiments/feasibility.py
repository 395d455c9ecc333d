"""When can attention separate any choice of tokens? The paper: almost always if d ≥ max(T − 1, n).

Random problems with a random token chosen in every sequence, for dimensions below and above that bound; each either
comes with max-margin weights or with a Farkas certificate that there are none.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, headline, row_of_axes
from mirrormax.experiments._contract import Arrays, Claim, Comparison, Rows, claim, ours_alone, percent, share_interval
from mirrormax.experiments._trials import sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.svm import att_svm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Feasibility: which choices of tokens attention can separate"
SHORT = "Feasibility"
PLACE = 25
SECONDS = 5


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
    counts = np.array(work.map(_feasible, tasks)).reshape(len(config.shapes), len(config.d))
    return {
        "shapes": np.array(config.shapes),
        "d": np.array(config.d),
        "problems": np.array(config.problems),
        "feasible": counts,
    }


def _feasible(task: tuple[Config, int, int, int]) -> int:
    config, n, T, d = task
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


def summary(data: Arrays) -> Rows:
    return {
        f"n={n}, T={T}": {f"d={d}": float(c) / int(data["problems"]) for d, c in zip(data["d"], row, strict=True)}
        for (n, T), row in zip(data["shapes"], data["feasible"], strict=True)
    }


def shows(data: Arrays) -> str:
    hits, count = (sum(pair) for pair in zip(*(above(data, k) for k in range(len(data["shapes"]))), strict=True))
    low = share_interval(hits, count)[0]
    return (
        f"With d ≥ max(T − 1, n), {hits:,} of {count:,} random choices of tokens can be separated (at least "
        f"{percent(low, 1)} at 95 % confidence). "
        f"The condition is not necessary: half of the choices can be separated from d = {_half(data)} on, for bounds "
        f"of {', '.join(str(bound(shape)) for shape in data['shapes'])}."
    )


def _half(data: Arrays) -> str:
    """For each shape the least d from which half of the problems are feasible."""
    first = [data["d"][int(np.argmax(row >= data["problems"] / 2))] for row in data["feasible"]]
    return ", ".join(str(int(d)) for d in first)


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for k, shape in enumerate(data["shapes"]):
        column = f"n = {shape[0]}, T = {shape[1]}"
        hits, count = above(data, k)
        quantity = "random selections that can be separated, d ≥ max(T − 1, n)"
        rows.append(claim(quantity, "almost all", f"{hits:,} of {count:,}", hits == count, column=column))
        below = np.flatnonzero(data["d"] == bound(shape) - 1)
        if len(below):
            told = f"{int(data['feasible'][k][below[0]])} of {int(data['problems'])}"
            rows.append(ours_alone("the same, d one less than the bound", told, SUFFICIENT, column=column))
    return rows


SUFFICIENT = "The bound makes all n(T − 1) constraint rows linearly independent, which is more than is needed."


def claims(data: Arrays) -> list[Claim]:
    hits, count = (sum(pair) for pair in zip(*(above(data, k) for k in range(len(data["shapes"]))), strict=True))
    rows = [row for row in comparisons(data) if row.published == "almost all"]
    statement = "Any choice of tokens can be separated almost always if d ≥ max(T − 1, n)"
    verdict = rows[0].verdict if len({row.verdict for row in rows}) == 1 else "differs"
    return [Claim(statement, f"{hits:,} of {count:,} random choices; not necessary", verdict)]


def draw(data: Arrays) -> Figure:
    """The share of feasible problems over d, with the bound of each shape."""
    fig, (ax,) = row_of_axes(1, width=7.5, height=3.6)
    for k, ((n, T), row) in enumerate(zip(data["shapes"], data["feasible"], strict=True)):
        label = f"n = {n}, T = {T}: bound {bound((n, T))}"
        ax.plot(data["d"], 100 * row / data["problems"], color=SHADES[k], marker=MARKERS[k], label=label)
        ax.axvline(bound((n, T)) + 0.04 * (k - 1), color=SHADES[k], linestyle=":", linewidth=1.6)
    ax.set(xlabel="dimension d", ylabel="selections that can be separated, %", xticks=data["d"])
    ax.legend(loc="center", bbox_to_anchor=(0.38, 0.4), fontsize=9)
    hits, count = (sum(pair) for pair in zip(*(above(data, k) for k in range(len(data["shapes"]))), strict=True))
    headline(fig, f"From d = max(T − 1, n) on, {percent(hits / count)} of random selections can be separated")
    return fig
