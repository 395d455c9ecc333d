"""Fig 1: runs that start in a thin cone around the attention SVM stay in a wider one (Lemma 17).

The lemma promises it for μ' = μ/3, for all μ up to a constant of the proof and norms from another on. Those constants
are extreme at this size, so here both are varied and the share of runs that stay is counted: an answer where the
lemma gives none. A matrix is in S_μ if its directional divergence to W_mm is at most μ.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import COLOURS, MARKERS, row_of_axes
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import Arrays, Comparison, Rows, our_bar, ours_alone
from mirrormax.experiments._trials import Floats, best_tokens, log_grid, max_margin, sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.geometry import direction
from mirrormax.theory import boundary_starts

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

TITLE = "Fig 1: the cone that training does not leave (Lemma 17)"
SHORT = "Fig 1"
PLACE = 10
SECONDS = 6
PICTURED_P = 2.0  # whose cones are circular, so that a plane shows them


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    mu: tuple[float, ...] = (0.03, 0.1, 0.3)
    radii: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    problems: int = 20
    n: int = 6
    T: int = 8
    d: int = 10
    lr: float = 0.1
    steps: int = 500
    points: int = 40
    pictured_radius: float = 4.0
    pictured_mu: float = 0.3
    pictured_starts: int = 12
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=200, steps=5000)}


def run(config: Config, work: Work) -> Arrays:
    tasks = [(config, p, mu) for p, mu in product(config.p, config.mu)]
    found = work.map(_farthest, tasks, share=0.9)
    shape = (len(config.p), len(config.mu), len(config.radii), config.problems)
    return {
        "p": np.array(config.p),
        "mu": np.array(config.mu),
        "radii": np.array(config.radii),
        "farthest": np.stack(found).reshape(shape),
        **work.map(_picture, [config], share=0.1)[0],
    }


def _farthest(task: tuple[Config, float, float]) -> np.ndarray[Any, Any]:
    """The largest divergence on the way, (radii, problems), of runs that start at a third of μ."""
    config, p, mu = task
    problem = sphere_problems(range(config.seed, config.seed + config.problems), config.n, config.T, config.d)
    W_mm = max_margin(problem, best_tokens(problem), p)
    directions = boundary_starts(W_mm, p, mu / 3, starts=len(config.radii), seed=(config.seed, 1))
    run = simulate(
        **problem,
        p=p,
        lr=config.lr,
        steps=config.steps,
        W0=np.reshape(config.radii, (-1, 1, 1, 1)) * directions,
        references=W_mm,
        weights="last",
        record=log_grid(config.steps, config.points),
    )
    return np.asarray(run.divergence["reference"].max(0))


def _picture(config: Config) -> Arrays:
    """Some runs of one problem, seen as distance along W_mm and away from it."""
    batch = sphere_problems([config.seed], config.n, config.T, config.d)
    W_mm = max_margin(batch, best_tokens(batch), PICTURED_P)[0]
    W0 = boundary_starts(
        W_mm,
        PICTURED_P,
        config.pictured_mu / 3,
        config.pictured_radius,
        starts=config.pictured_starts,
        seed=(config.seed, 2),
    )
    run = simulate(**batch, p=PICTURED_P, lr=config.lr, steps=config.steps, W0=W0, record=config.points)
    axis: Floats = np.asarray(direction(W_mm, PICTURED_P))
    along = (run.W * axis).sum((-1, -2))
    away = np.sqrt(((run.W - along[..., None, None] * axis) ** 2).sum((-1, -2)))
    return {
        "picture/along": along,
        "picture/away": away,
        "picture/radius": np.array(config.pictured_radius),
        "picture/mu": np.array(config.pictured_mu),
    }


def stay(data: Arrays) -> np.ndarray[Any, Any]:
    """The share of runs that never leave S_μ, (p, μ, radii)."""
    return np.asarray((data["farthest"] <= data["mu"][None, :, None, None]).mean(-1))


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}, μ={mu:g}": {
            f"stay, ‖W(0)‖ = {R:g}": float(share) for R, share in zip(data["radii"], row, strict=True)
        }
        for p, block in zip(data["p"], stay(data), strict=True)
        for mu, row in zip(data["mu"], block, strict=True)
    }


def shows(data: Arrays) -> str:
    shares = stay(data)
    return (
        f"Of the runs that start a third of μ away from W_mm, {shares[:, :, -1].mean():.0%} never come to μ when they "
        f"start at norm {data['radii'][-1]:g}, and {shares[:, :, 0].mean():.0%} at norm {data['radii'][0]:g}. "
        "That is the lemma's picture, for cones far wider and norms far smaller than the constants of its proof ask "
        "for."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    shares = stay(data)
    why = (
        "The lemma promises all for μ and norms beyond constants that no run of this size comes near, and publishes no "
        "count; to ask it of these cones is our choice."
    )
    rows = [
        our_bar(
            f"runs from C_μ/3 that stay in C_μ, p = {p:g}, ‖W(0)‖ = {data['radii'][-1]:g}, every μ",
            "all",
            f"{shares[k, :, -1].min():.0%}",
            bool((shares[k, :, -1] == 1).all()),
            why,
        )
        for k, p in enumerate(data["p"])
    ]
    low = ", ".join(f"{p:g}: {shares[k, :, 0].min():.0%}" for k, p in enumerate(data["p"]))
    why = "Close to the origin the direction is made by the first few steps, and a cone holds nobody."
    return [*rows, ours_alone(f"the least such share by p at ‖W(0)‖ = {data['radii'][0]:g}", low, why)]


def draw(data: Arrays) -> Figure:
    """Runs inside their cone at p = 2, and the share of runs that stay for every p, μ and norm."""
    fig, axes = row_of_axes(
        1 + len(data["p"]), width=4.4 + 2.7 * len(data["p"]), height=3.6, ratios=[1.6] + [1.0] * len(data["p"])
    )
    _cone(axes[0], data)
    for k, (ax, p) in enumerate(zip(axes[1:], data["p"], strict=True)):
        for mu, share, colour, marker in zip(data["mu"], stay(data)[k], COLOURS, MARKERS, strict=False):
            ax.plot(data["radii"], 100 * share, color=colour, marker=marker, markersize=5, label=f"μ = {mu:g}")
        ax.set(xscale="log", xlabel="norm of the start", ylim=(-4, 104), title=f"p = {p:g}")
        ax.title.set_fontsize(10)
    axes[1].set_ylabel("runs from μ/3 that stay within μ, %")
    axes[-1].legend(loc="lower right")
    return fig


def _cone(ax: Axes, data: Arrays) -> None:
    """Distance along W_mm and away from it; every other run drawn below the axis."""
    mu, radius = float(data["picture/mu"]), float(data["picture/radius"])
    along, away = data["picture/along"], data["picture/away"]
    sides = np.where(np.arange(along.shape[1]) % 2, -1, 1)
    reach = 2.5 * radius
    for part, alpha, name in ((mu, 0.16, "μ"), (mu / 3, 0.3, "μ/3")):
        angle = np.arccos(1 - part)
        arc = np.linspace(-angle, angle, 60)
        inner, outer = (r * np.stack([np.cos(arc), np.sin(arc)]) for r in (radius, 2 * reach))
        label = f"divergence ≤ {name}, norm ≥ {radius:g}"
        ax.fill(*np.concatenate([inner, outer[:, ::-1]], 1), color=COLOURS[4], alpha=alpha, linewidth=0, label=label)
    ax.plot(along, sides * away, color=COLOURS[0], linewidth=1.1)
    ax.scatter(along[0], sides * away[0], s=16, color=COLOURS[0], zorder=3, label="starts, and runs from them")
    ax.axhline(0, color="black", linewidth=1)
    ax.set(
        xlim=(0.6 * radius, reach),
        ylim=(-1.5 * radius, 1.5 * radius),
        xlabel="distance along $W_{mm}$",
        ylabel="distance away from it",
    )
    ax.set_title("p = 2, one problem", fontsize=10)
    ax.legend(loc="lower left", fontsize=7.5)
