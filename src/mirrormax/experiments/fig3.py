"""Fig 3: the label margin of every selection of tokens in Example 1."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import SHADES, headline, row_of_axes
from mirrormax.data import example1
from mirrormax.experiments._contract import Arrays, Claim, Comparison, Rows, claim, number, worst
from mirrormax.experiments._example1 import draw_tokens, frame, line
from mirrormax.experiments._work import Work
from mirrormax.svm import lp_svm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Fig 3: what the selected tokens do to the label margin, Example 1"
SHORT = "Fig 3"
PLACE = 30
SECONDS = 1


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
        rest = ", ".join(number(m) for k, m in enumerate(margins) if k != best)
        rows.append(
            claim(
                "selection of the largest label margin",
                "x_11, x_21 (figure only)",
                f"{name_of_selection(data['selections'][best])}: {number(margins[best])}; the others {rest}",
                best == 0,
                column=f"p = {p:g}",
            )
        )
    return rows


def claims(data: Arrays) -> list[Claim]:
    first = np.sort(data["margin"][0])[::-1]
    return [
        Claim(
            "Optimal tokens give the largest label margin",
            f"{number(first[0])} with them, at most {number(first[1])} with others (Example 1)",
            worst(comparisons(data)),
        )
    ]


def draw(data: Arrays) -> Figure:
    """The label margin of every selection, at the first p."""
    count = len(data["selections"])
    fig, axes = row_of_axes(count, width=3.1 * count, height=2.25)
    for ax, selection, v, margin in zip(axes, data["selections"], data["v"][0], data["margin"][0], strict=True):
        frame(ax)
        along = np.array([-v[1], v[0]]) / np.linalg.norm(v)
        out = v / (v @ v)  # where the margin ends: vᵀx = 1
        line(ax, np.zeros(2), along, color="black", linewidth=1.2)
        far = 20 * along
        corners = np.stack([out - far, out + far, -out + far, -out - far])
        ax.fill(*corners.T, color=SHADES[2], alpha=0.4, linewidth=0)
        for i, X in enumerate(data["X"]):
            draw_tokens(ax, X, i, chosen=int(selection[i]))
        ax.set_title(f"margin {margin:.3g}", fontsize=10)
    for ax in axes[1:]:
        ax.set_ylabel("")
    best = int(data["margin"][0].argmax())
    tokens = (
        name_of_selection(data["selections"][best])
        .replace("_", "")
        .translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    )
    headline(fig, f"Reading {tokens} gives the widest label margin")
    return fig
