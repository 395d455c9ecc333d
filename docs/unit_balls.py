"""The picture of docs/math/norms.md: unit balls, and the solutions of Example 1 in each norm.

Run ``python docs/unit_balls.py`` from the root of the repository; it writes docs/images/norms.png.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import matplotlib.pyplot as plt
import numpy as np

import mirrormax as mm

NORMS = {"l1": "ℓ1", "l2": "ℓ2", "linf": "ℓ∞", "spectral": "spectral", "nuclear": "nuclear", "rows-max": "largest row"}


def size(W: Any, norm: str) -> Any:
    """The norm of matrices (..., 2, 2)."""
    if norm == "l2":
        return np.linalg.norm(W, axis=(-2, -1))
    return mm.svm.Norm(norm, (2, 2)).sizes(W.reshape(-1, 2, 2)).reshape(W.shape[:-2])


def main() -> None:
    problem = mm.data.example1()
    alpha = problem.best_tokens()
    solutions = {
        norm: mm.att_svm(problem, alpha, **({"p": 2} if norm == "l2" else {"norm": norm}))  # type: ignore[arg-type]
        for norm in NORMS
    }
    angle = np.linspace(0, 2 * np.pi, 721)
    plane = np.stack([np.cos(angle), np.sin(angle)], -1)
    planes = {
        "entries w₁₁ and w₁₂": plane[:, None, :] * np.array([[1.0], [0.0]]),
        "entries w₁₁ and w₂₂": plane[:, :, None] * np.eye(2),
    }
    colours = plt.get_cmap("tab10")
    figure = plt.figure(figsize=(11, 6), layout="constrained")
    top, bottom = figure.subfigures(2, 1, height_ratios=(1.7, 1))
    for axes, (name, W) in zip(top.subplots(1, 2), planes.items(), strict=True):
        for k, (norm, label) in enumerate(NORMS.items()):
            ball = plane / size(W, norm)[:, None]
            axes.plot(*ball.T, color=colours(k), linewidth=5 - 0.7 * k, alpha=0.85, label=label)
        axes.set(aspect="equal", title=f"unit balls, {name}")
    axes.legend(loc="center left", bbox_to_anchor=(1.02, 0.5), frameon=False)
    largest = max(np.abs(solution.W).max() for solution in solutions.values())
    for axes, (norm, label) in zip(bottom.subplots(1, len(NORMS)), NORMS.items(), strict=True):
        W = solutions[norm].W
        axes.imshow(W, cmap="RdBu_r", vmin=-largest, vmax=largest)
        for place, value in np.ndenumerate(W):
            shade = "white" if abs(value) > largest / 2 else "black"
            axes.text(place[1], place[0], f"{value + 0.0:.3f}", ha="center", va="center", fontsize=9, color=shade)
        only = "" if solutions[norm].unique else "\n(not the only one)"
        axes.set(xticks=[], yticks=[])
        axes.set_title(f"{label}: margin {float(solutions[norm].margin):.3g}{only}", fontsize=9)
    bottom.suptitle("W of Example 1's attention SVM in each norm", fontsize=10)
    figure.savefig(Path(__file__).parent / "images" / "norms.png", dpi=110)


if __name__ == "__main__":
    main()
