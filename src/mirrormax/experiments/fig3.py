"""Fig 3: the label margin of every selection of tokens in Example 1."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import Any

import numpy as np

from mirrormax.data import example1
from mirrormax.experiments.contract import Arrays, Comparison, Rows, claim
from mirrormax.experiments.work import Work
from mirrormax.svm import lp_svm

TITLE = "Fig 3: what the selected tokens do to the label margin, Example 1"


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (2.0, 3.0)
    tol: float = 1e-10


PROFILES = {"quick": Config(), "paper": Config()}


def run(config: Config, work: Work) -> Arrays:
    problem = example1()
    n, T, _ = problem.X.shape
    selections = np.array(list(product(range(T), repeat=n)))
    tasks = [(problem.X[np.arange(n), choice], problem.y, p, config.tol) for p in config.p for choice in selections]
    found = np.stack(work.map(_solve, tasks)).reshape(len(config.p), len(selections), -1)
    norms = np.stack([(np.abs(v) ** p).sum(-1) ** (1 / p) for p, v in zip(config.p, found, strict=True)])
    return {
        "p": np.array(config.p),
        "X": problem.X,
        "y": problem.y,
        "selections": selections,
        "v": found,
        "margin": 1 / norms,
    }


def _solve(task: tuple[Any, Any, float, float]) -> np.ndarray[Any, Any]:
    points, y, p, tol = task
    return np.asarray(lp_svm(points, y, p=p, tol=tol).v)


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}": {name_of_selection(s): float(m) for s, m in zip(data["selections"], margins, strict=True)}
        for p, margins in zip(data["p"], data["margin"], strict=True)
    }


def name_of_selection(selection: Any) -> str:
    """The tokens of a selection, by the paper's numbers."""
    return ", ".join(f"x_{i + 1}{int(token) + 1}" for i, token in enumerate(selection))


def shows(data: Arrays) -> str:
    first = data["margin"][0]
    return (
        f"The optimal tokens x_11 and x_21 give the largest label margin ({first[0]:.3g} at p = {data['p'][0]:g}). "
        f"Every other choice narrows it, down to {first.min():.3g}."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p, margins in zip(data["p"], data["margin"], strict=True):
        best = int(margins.argmax())
        rest = ", ".join(f"{m:.4g}" for k, m in enumerate(margins) if k != best)
        rows.append(
            claim(
                f"selection of the largest label margin, p = {p:g}",
                "x_11, x_21 (figure only)",
                f"{name_of_selection(data['selections'][best])}: {margins[best]:.4g}; the others {rest}",
                best == 0,
            )
        )
    return rows
