"""Theorem 1: the regularisation path, the minimisers of the risk over growing ℓp balls, turns to the attention SVM."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import COLOURS, MARKERS, row_of_axes
from mirrormax.dynamics import regularization_path
from mirrormax.experiments._contract import Arrays, Comparison, Rows, claim, ours_alone
from mirrormax.experiments._trials import max_margin, sphere_problems
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Theorem 1: the regularisation path turns to the attention SVM"
SHORT = "Theorem 1"
PLACE = 120
SECONDS = 7
BELOW = 1e-3


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    smallest: float = 1.0
    largest: float = 3000.0
    radii: int = 9
    problems: int = 4
    n: int = 6
    T: int = 8
    d: int = 10
    random_starts: int = 1
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, radii=25, largest=1e5, random_starts=4)}


def run(config: Config, work: Work) -> Arrays:
    """D and the first-order residual along the path, (p, problems, radii)."""
    seeds = range(config.seed, config.seed + config.problems)
    found = work.map(_path, [(config, p, seed) for p, seed in product(config.p, seeds)])
    shape = (len(config.p), config.problems, config.radii)
    return {
        "p": np.array(config.p),
        "radii": np.geomspace(config.smallest, config.largest, config.radii),
        **{name: np.stack([arrays[name] for arrays in found]).reshape(shape) for name in ("D", "residual")},
    }


def _path(task: tuple[Config, float, int]) -> Arrays:
    config, p, seed = task
    problem = sphere_problems([seed], config.n, config.T, config.d)
    radii = np.geomspace(config.smallest, config.largest, config.radii)
    path = regularization_path(**problem, p=p, radii=radii, random_starts=config.random_starts, seed=seed)
    W_mm = max_margin(problem, path.alpha, p)
    return {"D": np.asarray(path.divergence_to(W_mm))[:, 0], "residual": np.asarray(path.residual)[:, 0]}


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}": {
            **{f"median D at R = {R:.3g}": float(m) for R, m in zip(data["radii"], np.median(D, 0), strict=True)},
            "largest residual": float(residual.max()),
        }
        for p, D, residual in zip(data["p"], data["D"], data["residual"], strict=True)
    }


def shows(data: Arrays) -> str:
    return (
        "The minimiser of the risk over the ball ‖W‖_p ≤ R turns to the attention SVM of the globally optimal tokens "
        f"as R grows: from a median divergence of {np.median(data['D'][:, :, 0]):.2g} at R = {data['radii'][0]:g} to "
        f"{np.median(data['D'][:, :, -1]):.1g} at R = {data['radii'][-1]:g}. "
        f"Every point is first-order optimal up to a relative residual of {data['residual'].max():.1g}."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p, D, residual in zip(data["p"], data["D"], data["residual"], strict=True):
        rows.append(
            claim(
                f"limit of W(R)/R, p = {p:g}",
                "the attention SVM of the best tokens",
                f"D at most {D[:, -1].max():.1g} at R = {data['radii'][-1]:g}",
                bool((D[:, -1] < BELOW).all()),
                f"Met means below {BELOW:g} for each of {len(D)} problems, a bar of ours.",
            )
        )
        why = (
            "0 is a first-order optimal point of the ball; the risk is not convex, the best of several starts is kept."
        )
        rows.append(ours_alone(f"largest first-order residual on the path, p = {p:g}", f"{residual.max():.1g}", why))
    return rows


def draw(data: Arrays) -> Figure:
    """Divergence along the regularisation path, one line per problem, the median thick."""
    fig, axes = row_of_axes(len(data["p"]), width=3.5 * len(data["p"]), height=3.2)
    for ax, p, D, colour, marker in zip(axes, data["p"], data["D"], COLOURS, MARKERS, strict=False):
        ax.plot(data["radii"], D.T, color=colour, linewidth=0.8, alpha=0.5)
        ax.plot(data["radii"], np.median(D, 0), color=colour, marker=marker, markersize=5, label="median")
        ax.set(xscale="log", yscale="log", xlabel="radius R", title=f"p = {p:g}, {len(D)} problems")
        ax.title.set_fontsize(10)
        ax.legend(loc="lower left")
    axes[0].set_ylabel("divergence to the attention SVM")
    return fig
