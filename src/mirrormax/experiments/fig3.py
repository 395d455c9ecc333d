"""Fig 3: the label margin of every selection of tokens in Example 1."""

from __future__ import annotations

from itertools import product

import numpy as np

from mirrormax._drawing import SHADES, Figure, row_of_axes
from mirrormax._statistics import number
from mirrormax.data import example1
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, claim
from mirrormax.experiments._running import Work
from mirrormax.experiments.fig2 import PROFILES as PROFILES
from mirrormax.experiments.fig2 import Config, draw_tokens, frame, line
from mirrormax.svm import lp_svm

ABOUT = About("Fig 3: what the selected tokens do to the label margin, Example 1", place=30, seconds=1, revision=1)


def run(config: Config, work: Work) -> Arrays:
    problem = example1()
    n, T, _ = problem.X.shape
    selections = np.array(list(product(range(T), repeat=n)))
    chosen = problem.X[np.arange(n), selections]
    v = [lp_svm(chosen, problem.y, p=p, tol=config.tol).v for p in config.p]
    margin = [1 / np.linalg.norm(each, p, axis=-1) for each, p in zip(v, config.p, strict=True)]
    given = {"p": np.array(config.p), "X": problem.X, "y": problem.y, "selections": selections}
    return {**given, "v": np.stack(v), "margin": np.stack(margin)}


def measure(data: Arrays) -> Rows:
    names = [", ".join(f"x_{i + 1}{token + 1}" for i, token in enumerate(chosen)) for chosen in data["selections"]]
    for p, margins in zip(data["p"], data["margin"], strict=True):
        quantity, best = "selection of the largest label margin", int(margins.argmax())
        yield claim(quantity, names[0], names[best], best == 0, column=p, where="Fig 3")
        for name, margin in zip(names, margins.tolist(), strict=True):
            yield alone(f"label margin of {name}", margin, column=p)


def tell(data: Arrays, table: Measured) -> Told:
    column = f"p = {data['p'][0]:g}"
    first, second, *_, last = sorted(table.values("label margin of", column), reverse=True)
    tokens = table.ours("selection", column).replace("_", "").translate(str.maketrans("0123456789", "₀₁₂₃₄₅₆₇₈₉"))
    measured = f"Label margin {number(first)} with them, at most {number(second)} with others (Example 1)."
    return Told(
        f"Reading {tokens} gives the widest label margin: {number(first)} at {column}",
        f"These are the optimal tokens. Every other choice narrows the margin, down to {number(last)}.",
        table.claim("Optimal tokens give the largest label margin", measured, "selection"),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """The label margin of every selection, at the first p."""
    count = len(data["selections"])
    fig, axes = row_of_axes(count, width=3.1 * count, height=2.25)
    for ax, selection, v, margin in zip(axes, data["selections"], data["v"][0], data["margin"][0], strict=True):
        frame(ax, f"margin {margin:.3g}")
        far = 20 * np.array([-v[1], v[0]]) / np.linalg.norm(v)
        out = v / (v @ v)  # where the margin ends: vᵀx = 1
        line(ax, np.zeros(2), far, color="black", linewidth=1.2)
        ax.fill(*np.transpose([out - far, out + far, far - out, -out - far]), color=SHADES[2], alpha=0.4, linewidth=0)
        for i, X in enumerate(data["X"]):
            draw_tokens(ax, X, i, chosen=int(selection[i]))
    for ax in axes[1:]:
        ax.set_ylabel("")
    return fig
