"""Theorem 1: the regularisation path, the minimisers of the risk over growing ℓp balls, turns to the attention SVM.

The risk is not convex, so the minimiser is looked for from several starts, and one of them is the attention SVM itself:
the theorem's own answer. Each radius therefore says which start led to the point that is kept, and how far the best
point from the *other* starts is from the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.dynamics import regularization_path
from mirrormax.experiments._contract import Arrays, Claim, Comparison, Rows, number, our_bar, ours_alone, percent, worst
from mirrormax.experiments._trials import max_margin, sphere_problems
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Theorem 1: the regularisation path turns to the attention SVM"
SHORT = "Theorem 1"
PLACE = 120
SECONDS = 15
BELOW = 1e-3
AS_LOW = 1e-6  # of log(L − L*): two searches have found the same minimum


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
    random_starts: int = 2
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, radii=25, largest=1e5, random_starts=4)}


def run(config: Config, work: Work) -> Arrays:
    """D, the first-order residual and log(L − L*) along the path, (p, problems, radii), with and without the theorem's
    own answer among the starts."""
    seeds = range(config.seed, config.seed + config.problems)
    found = work.map(_path, [(config, p, seed) for p, seed in product(config.p, seeds)])
    shape = (len(config.p), config.problems, config.radii)
    return {
        "p": np.array(config.p),
        "radii": np.geomspace(config.smallest, config.largest, config.radii),
        **{name: np.stack([arrays[name] for arrays in found]).reshape(shape) for name in found[0]},
    }


def _path(task: tuple[Config, float, int]) -> Arrays:
    config, p, seed = task
    problem = sphere_problems([seed], config.n, config.T, config.d)
    radii = np.geomspace(config.smallest, config.largest, config.radii)
    found: Arrays = {}
    for name, svm_start in (("", True), ("alone/", False)):
        path = regularization_path(
            **problem, p=p, radii=radii, random_starts=config.random_starts, seed=seed, svm_start=svm_start
        )
        W_mm = max_margin(problem, path.alpha, p)
        found[f"{name}D"] = np.asarray(path.divergence_to(W_mm))[:, 0]
        found[f"{name}residual"] = np.asarray(path.residual)[:, 0]
        found[f"{name}log_excess"] = np.asarray(path.log_excess)[:, 0]
    return found


def as_low(data: Arrays) -> np.ndarray[Any, Any]:
    """Where the search without the SVM came as low, (p, problems, radii)."""
    return np.asarray(data["alone/log_excess"] <= data["log_excess"] + AS_LOW)


def lower(data: Arrays) -> np.ndarray[Any, Any]:
    """Where it came lower: there the SVM did not lead to the minimiser."""
    return np.asarray(data["alone/log_excess"] < data["log_excess"] - AS_LOW)


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}": {
            **{f"median D at R = {R:.3g}": float(m) for R, m in zip(data["radii"], np.median(D, 0), strict=True)},
            "largest residual": float(residual.max()),
            "share as low without the SVM as a start": float(low.mean()),
        }
        for p, D, residual, low in zip(data["p"], data["D"], data["residual"], as_low(data), strict=True)
    }


def shows(data: Arrays) -> str:
    return (
        "As R grows, the minimiser of the risk over ‖W‖_p ≤ R turns to the attention SVM of the globally optimal "
        f"tokens. Its median divergence falls from {number(np.median(data['D'][:, :, 0]), 2)} at R = "
        f"{data['radii'][0]:g} to {number(np.median(data['D'][:, :, -1]), 1)} at R = {data['radii'][-1]:g}. "
        f"The search starts at the theorem's own answer, among others: without that start it comes as low at "
        f"{percent(as_low(data).mean())} of the points and lower at {percent(lower(data).mean())}, and where it comes "
        f"as low at the largest R, D is at most {number(_alone(data), 1)}."
    )


def _alone(data: Arrays) -> float:
    """The largest D at the largest radius, of searches without the SVM that came as low as those with it."""
    return float(np.where(as_low(data)[:, :, -1], data["alone/D"][:, :, -1], 0.0).max())


def comparisons(data: Arrays) -> list[Comparison]:
    limits, beaten, residuals = [], [], []
    for k, (p, D) in enumerate(zip(data["p"].tolist(), data["D"], strict=True)):
        column = f"p = {p:g}"
        why = (
            "Theorem 1's limit. A search from elsewhere that came lower, and stayed away from the SVM, would refute it."
        )
        limits.append(
            our_bar(
                f"largest D to the attention SVM of the best tokens at R = {data['radii'][-1]:g}, {len(D)} problems",
                f"below {number(BELOW)}, and no lower risk elsewhere",
                number(D[:, -1].max(), 2),
                bool((D[:, -1] < BELOW).all() and not lower(data)[k, :, -1].any()),
                why,
                column=column,
                late=True,
            )
        )
        low, under = as_low(data)[k], lower(data)[k]
        told = f"as low in {low.sum()} of {low.size}, lower in {under.sum()}"
        beaten.append(ours_alone("the search without the SVM among its starts", told, STARTS, column=column))
        residual = number(data["residual"][k].max(), 1)
        residuals.append(ours_alone("largest first-order residual on the path", residual, RESIDUAL, column=column))
    return limits + beaten + residuals


STARTS = (
    "Points of all radii and problems; both searches also start at random, at zero, from the radius before, and from "
    "the SVMs of other tokens."
)
RESIDUAL = "0 is a first-order optimal point of the ball; the risk is not convex, the best of several starts is kept."


def claims(data: Arrays) -> list[Claim]:
    measured = f"D at most {number(data['D'][:, :, -1].max(), 1)} at R = {data['radii'][-1]:g}; other starts come "
    measured += f"lower at {percent(lower(data).mean())} of the points"
    rows = comparisons(data)[: len(data["p"])]
    return [Claim("The regularisation path turns to the attention SVM (Theorem 1)", measured, worst(rows))]


def draw(data: Arrays) -> Figure:
    """Divergence along the regularisation path, one line for each problem, the median thick."""
    fig, axes = row_of_axes(len(data["p"]), width=3.5 * len(data["p"]), height=3.5)
    for ax, p, D in zip(axes, data["p"], data["D"], strict=True):
        look = look_of(p)
        ax.plot(data["radii"], D.T, color=look.colour, linewidth=0.8, alpha=0.5)
        ax.plot(data["radii"], np.median(D, 0), label="median", **look.style(markersize=5))
        ax.set(xscale="log", yscale="log", xlabel="radius R")
        ax.set_title(f"p = {p:g}, {len(D)} problems", fontsize=10)
        ax.legend(loc="lower left")
    axes[0].set_ylabel("divergence to the attention SVM")
    largest = number(data["D"][:, :, -1].max(), 2)
    told = f"largest D {largest} at R = {data['radii'][-1]:g}"
    headline(fig, f"The regularisation path turns to the attention SVM: {told}")
    return fig
