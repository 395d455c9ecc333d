"""The pictures of docs/tour.md, and the numbers that it tells.

Run ``python docs/tour_figures.py`` from the root of the repository; it writes docs/images/tour-*.png.
"""

from __future__ import annotations

from pathlib import Path

import matplotlib.pyplot as plt
import numpy as np
from matplotlib.colors import LinearSegmentedColormap

import mirrormax as mm
from mirrormax._drawing import COLOURS, house_style

IMAGES = Path(__file__).parent / "images"
EXPONENTS = (1.1, 1.5, 2.0, 3.0, 6.0)
TOKENS = np.array([[2.0, 0.0], [0.5, 1.5], [-1.0, 0.5]])
QUERY = np.array([1.0, 0.0])
WEIGHTS = {
    "weights at the start": np.array([[0.1, 0.0], [0.4, 0.0]]),
    "larger weights": np.array([[0.4, 0.0], [1.6, 0.0]]),
}


def softmax(logits: np.ndarray) -> np.ndarray:
    shares = np.exp(logits - logits.max())
    return shares / shares.sum()


def shares() -> None:
    """Three tokens, the direction W z, and the shares that a softmax gives them, for W and for 4 W."""
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.4), layout="constrained", width_ratios=(1.2, 1, 1))
    direction = next(iter(WEIGHTS.values())) @ QUERY
    axes[0].scatter(*TOKENS.T, s=90, color=COLOURS[0], zorder=3)
    for k, (x, y) in enumerate(TOKENS):
        axes[0].annotate(f"token {k}", (x, y), xytext=(8, 8), textcoords="offset points")
    length = np.linalg.norm(direction)
    axes[0].annotate(
        "", 1.6 * direction / length, (0, 0), arrowprops={"arrowstyle": "->", "color": COLOURS[1], "lw": 2}
    )
    axes[0].text(0.35, 1.75, "the direction W z", color=COLOURS[1])
    axes[0].set(title="further along the arrow: more attention", xlim=(-1.8, 3.2), ylim=(-0.6, 2.2))
    for ax, (name, W) in zip(axes[1:], WEIGHTS.items(), strict=True):
        found = softmax(TOKENS @ W @ QUERY)
        print(name, [f"{100 * share:.1f} %" for share in found])
        bars = ax.bar([f"token {k}" for k in range(3)], found, color=COLOURS[0])
        ax.bar_label(bars, [f"{100 * share:.0f} %" for share in found])
        ax.set(title=name, ylim=(0, 1.1))
    fig.savefig(IMAGES / "tour-shares.png", dpi=110)


def training() -> None:
    """Weights grow without end, attention goes to one token, and the direction converges to the SVM's."""
    problem = mm.data.sphere_problem(seed=0)
    run = mm.simulate(problem, p=2.0, lr=0.1, steps=10_000)
    limit = mm.att_svm(problem, run.alpha, p=2.0).W
    apart = run.divergence_to(limit)
    for step in (1, 10, 100, 1000, 10_000):
        k = int(np.searchsorted(run.steps, step))
        print(f"step {int(run.steps[k])}: norm {float(run.norm[k]):.3g}, attention {float(run.mass[k]):.4f}, ", end="")
        print(f"divergence {float(apart[k]):.2g}")
    fig, axes = plt.subplots(1, 3, figsize=(11, 3.2), layout="constrained")
    panels = (("size of the weights, ‖W‖", run.norm), ("attention on the winning token", run.mass))
    for ax, (title, values), colour in zip(axes, panels, COLOURS, strict=False):
        ax.plot(run.steps[1:], values[1:], color=colour, lw=2)
        ax.set(title=title, xscale="log", xlabel="training step")
    axes[0].set_yscale("log")
    axes[2].plot(run.steps[1:], apart[1:], color=COLOURS[2], lw=2)
    axes[2].set(title="distance of the direction from the SVM", xscale="log", yscale="log", xlabel="training step")
    fig.savefig(IMAGES / "tour-training.png", dpi=110)


def exponents() -> None:
    """The ball of each p in two dimensions, and the solution of one problem for each p."""
    problem = mm.data.sphere_problem(seed=0)
    alpha = mm.simulate(problem, p=2.0, lr=0.1, steps=1500).alpha
    shades = LinearSegmentedColormap.from_list("", ("#b34700", "#f7f7f7", "#005aa0"))  # as in the explorer
    angle = np.linspace(0, 2 * np.pi, 400)
    circle = np.stack([np.cos(angle), np.sin(angle)])
    fig, axes = plt.subplots(2, len(EXPONENTS), figsize=(11, 4.8), layout="constrained")
    for (ball, heat), p in zip(axes.T, EXPONENTS, strict=True):
        edge = circle / (np.abs(circle) ** p).sum(0) ** (1 / p)
        ball.plot(*edge, color=COLOURS[0], lw=2)
        ball.set(title=f"p = {p:g}", aspect="equal", xticks=[], yticks=[], xlim=(-1.15, 1.15), ylim=(-1.15, 1.15))
        W = np.asarray(mm.att_svm(problem, alpha, p=p).W)
        large = int((np.abs(W) >= 0.01 * np.abs(W).max()).sum())
        print(f"p = {p:g}: {large} of {W.size} entries are at least 1 % of the largest")
        heat.imshow(W, cmap=shades, vmin=-np.abs(W).max(), vmax=np.abs(W).max())
        heat.set(title=f"{large} of {W.size} large", xticks=[], yticks=[])
        heat.grid(False)
    axes[0, 0].set_ylabel("weights of size 1")
    axes[1, 0].set_ylabel("the smallest W that works")
    fig.savefig(IMAGES / "tour-p.png", dpi=110)


if __name__ == "__main__":
    with house_style():
        shares()
        training()
        exponents()
