"""Fig 2: the attention SVM of Example 1, and which p its printed solution belongs to.

How Example 1 is read, as it is garbled in the text we have, stands among the readings of ``errata.json``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mirrormax._drawing import SHADES, Axes, Figure, panel, row_of_axes
from mirrormax._statistics import number
from mirrormax.data import example1
from mirrormax.experiments import _measurements as make
from mirrormax.experiments._measurements import About, Arrays, Measured, Measurement, Rows, Told, alone
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import stacked
from mirrormax.svm import att_svm

ABOUT = About("Fig 2: the attention SVM of Example 1", place=20, seconds=1, revision=1)
DIGITS = 6e-6  # the paper prints five places
# First column (the second is zero): the weights printed as those of p = 3, and those of p = 3.
PRINTED = (0.03846, -0.00769)
RIGHT_P3 = (0.03672, -0.01642)
READING = "Read with T = 2 and X_2 = −X_1; with the row (0, 0) of the text we have, W would be another for every p."
LABELS = (r"$x_{11}$", r"$x_{12}$"), (r"$x_{21}$", r"$x_{22}$")


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (2.0, 3.0)
    tol: float = 1e-10


PROFILES = {"quick": Config(), "paper": Config()}


def run(config: Config, work: Work) -> Arrays:
    problem = example1()
    solutions = [att_svm(problem.X, problem.z, problem.alpha, p=p, tol=config.tol) for p in config.p]
    parts = [{"W": solution.W, "gap": np.array(solution.gap)} for solution in solutions]
    return {"p": np.array(config.p), "X": problem.X, "z": problem.z, **stacked(parts)}


def measure(data: Arrays) -> Rows:
    for p, W, gap in zip(data["p"].tolist(), data["W"], data["gap"].tolist(), strict=True):
        quantity, known, verdict, why = f"W_mm, p = {p:g} (printed as p = 3)", PRINTED, make.MET, READING
        if p == 3.0:
            quantity, known, verdict = "W_mm, p = 3", RIGHT_P3, make.ERRATUM
            why = (
                "The printed W is the solution of p = 2, (25, −5)/650. At p = 3 its norm is "
                f"{np.linalg.norm(PRINTED, 3):.5f}; ours has {np.linalg.norm(W[:, 0], 3):.5f} and meets the same "
                f"constraints, with a duality gap of {number(max(gap, 0.0), 1)}. {READING}"
            )
        verdict = verdict if np.allclose(W[:, 0], known, atol=DIGITS, rtol=0) else make.DIFFERS
        yield Measurement(quantity, _column(PRINTED), _column(W[:, 0]), verdict, why, where="Example 1")
        yield alone("duality gap", gap, column=p)


def _column(W: Any) -> str:
    """The first column of a W whose second one is zero, to the digits of the print."""
    return f"[{W[0]:.5f}, 0; {W[1]:.5f}, 0]".replace("-", "−")


def tell(data: Arrays, table: Measured) -> Told:
    printed = [p for p, W in zip(data["p"], data["W"], strict=True) if np.allclose(W[:, 0], PRINTED, atol=DIGITS)]
    whose = " and ".join(f"p = {p:g}" for p in printed) or "no p shown here"
    statement, at_3 = "Example 1's attention SVM at p = 3 is [0.03846, 0; −0.00769, 0]", "W_mm, p = 3"
    return Told(
        f"Example 1's W as printed for p = 3 is the solution of {whose}",
        "At p = 3 the second entry weighs more. The lines through the midpoints of x_i1 and x_i2, orthogonal to W z_i, "
        "keep the chosen tokens x_11 and x_21 apart from the others with the largest margin.",
        table.claim(statement, f"That is p = 2; at p = 3 it is {table.ours(at_3)}.", at_3),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """One panel for each p: tokens, the directions W z_i, and the lines orthogonal to them."""
    fig, axes = row_of_axes(len(data["p"]), width=5.0 * len(data["p"]), height=3.3)
    for ax, p, W in zip(axes, data["p"], data["W"], strict=True):
        frame(ax, f"p = {p:g}:  W = {_column(W[:, 0])}")
        for i, (X, z) in enumerate(zip(data["X"], data["z"], strict=True)):
            colour, normal, middle = SHADES[i], W @ z, X.mean(0)
            line(ax, middle, np.array([-normal[1], normal[0]]), color=colour, linestyle="--")
            end, place = middle + 1.6 * normal / np.linalg.norm(normal), (0, -14 if i == 0 else 6)
            ax.annotate("", end, middle, arrowprops={"arrowstyle": "->", "color": colour, "lw": 1.6})
            ax.annotate(rf"$Wz_{i + 1}$", end, place, textcoords="offset points", color=colour, ha="center")
            draw_tokens(ax, X, i, chosen=0)
    return fig


def frame(ax: Axes, title: str) -> None:
    """The plane of Example 1: limits that hold every token, at one scale."""
    panel(ax, title, "first coordinate", "second", xlim=(-6.3, 6.3), ylim=(-3.4, 3.4), aspect="equal")


def line(ax: Axes, point: Any, along: Any, **style: Any) -> None:
    """A line through a point, across the whole plane."""
    unit = 20 * along / np.linalg.norm(along)
    ax.plot(*np.stack([point - unit, point + unit]).T, **style)


def draw_tokens(ax: Axes, X: Any, i: int, chosen: int) -> None:
    """The tokens of a sequence: the chosen one filled, the others open; labels away from the origin."""
    for t, x in enumerate(X):
        face = SHADES[i] if t == chosen else "white"
        ax.scatter(x[0], x[1], s=60, color=face, edgecolors=SHADES[i], linewidths=1.8, marker="os"[i], zorder=3)
        across = abs(x[0]) > abs(x[1])
        offset = (0, 9 if x[0] > 0 else -18) if across else (9, 6 if x[1] > 0 else -14)
        ax.annotate(LABELS[i][t], x, xytext=offset, textcoords="offset points", ha="center" if across else "left")
