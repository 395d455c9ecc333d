"""Theorem 1: the regularisation path, the minimisers of the risk over growing ℓp balls, converges to the attention SVM.

The risk is not convex, so the minimiser is looked for from several starts. One search starts at the attention SVM, the
theorem's own answer, and another everywhere else; the lower point of the two is kept, and each radius says whether the
*other* starts came as low, and how far their point is from the limit.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, curve, look_of, panel, row_of_axes
from mirrormax._statistics import median, number, percent
from mirrormax.dynamics import regularization_path
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Problems, max_margin, stacked

ABOUT = About("Theorem 1: the regularisation path converges to the attention SVM", place=120, seconds=40, revision=3)
BELOW = 1e-3
MINIMISER = 1e-6  # a first-order residual above this is no minimiser, and is not judged
AS_LOW = 1e-6  # of log(L − L*): two searches have found the same minimum
LARGEST = "largest D to the attention SVM of the best tokens"
LIMIT = "Theorem 1's limit. A search from elsewhere that came lower, and stayed away from the SVM, would refute it."
NO_MINIMISER = (
    "The search left a first-order residual at the largest radius, so these points say nothing of the theorem."
)
OTHER = "the search without the SVM among its starts comes"
STARTS = (
    "Points of all radii and problems; both searches also start at random, at zero, from the radius before, and from "
    "the SVMs of other tokens."
)
RESIDUAL = "0 is a first-order optimal point of the ball; the risk is not convex, the best of several starts is kept."


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.1, 1.75, 2.0, 3.0, 6.0)
    smallest: float = 1.0
    largest: float = 3000.0
    radii: int = 9
    problems: int = 3
    random_starts: int = 2


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=20, radii=25, largest=1e5, random_starts=4)}


def run(config: Config, work: Work) -> Arrays:
    """D, the first-order residual and log(L − L*) along the path, (p, problems, radii): of the lower of both
    searches, and of the one from other starts alone."""
    radii = np.geomspace(config.smallest, config.largest, config.radii)
    parts = work.each(_path, [(config, radii, p, k) for p, k in product(config.p, range(config.problems))])
    return {"p": np.array(config.p), "radii": radii, **stacked(parts, len(config.p), config.problems)}


def _path(config: Config, radii: Any, p: float, k: int) -> Arrays:
    problem, paths = config.drawn([k]), {}
    settings: Any = {"p": p, "radii": radii, "random_starts": config.random_starts, "seed": config.seed + k}
    for starts in ("svm", "others"):
        path = regularization_path(problem, **settings, starts=starts)
        D = path.divergence_to(max_margin(problem, path.alpha, p))
        paths[starts] = {"D": D[:, 0], "residual": path.residual[:, 0], "log_excess": path.log_excess[:, 0]}
    near, others = paths["svm"], paths["others"]
    lower = near["log_excess"] <= others["log_excess"]
    best = {name: np.where(lower, values, others[name]) for name, values in near.items()}
    return best | {f"alone/{name}": values for name, values in others.items()}


def measure(data: Arrays) -> Rows:
    R, apart = f"{data['radii'][-1]:g}", data["alone/log_excess"] - data["log_excess"]
    # Where the search without the SVM came as low, and where lower, so that the SVM did not lead to the minimiser.
    low, under = apart <= AS_LOW, apart < -AS_LOW
    for k, (p, D, residual) in enumerate(zip(data["p"], data["D"], data["residual"], strict=True)):
        quantity, largest = f"{LARGEST} at R = {R}, {len(D)} problems", float(D[:, -1].max())
        holds = bool(largest < BELOW and not under[k, :, -1].any())
        if residual[:, -1].max() > MINIMISER:
            yield alone(f"{quantity}, no minimiser found", largest, NO_MINIMISER, column=p)
        else:
            criterion = f"below {number(BELOW)}, and no lower risk elsewhere"
            yield threshold(quantity, criterion, largest, holds, LIMIT, column=p, late=True)
        for r in (0, -1):
            yield alone(f"median D at R = {data['radii'][r]:g}", median(D[:, r]), column=p)
        yield alone(f"{OTHER} as low, share of points", float(low[k].mean()), STARTS, column=p)
        yield alone(f"{OTHER} lower, share of points", float(under[k].mean()), column=p)
        found_alone = np.where(low[k, :, -1], data["alone/D"][k, :, -1], 0.0).max()
        yield alone(f"largest D at R = {R} where it comes as low", float(found_alone), column=p)
        yield alone("largest first-order residual on the path", float(residual.max()), RESIDUAL, column=p)


def tell(data: Arrays, table: Measured) -> Told:
    R, largest = f"{data['radii'][-1]:g}", number(max(table.values(LARGEST)), 1)
    low, under = (percent(float(np.mean(table.values(f"{OTHER} {word}")))) for word in ("as low", "lower"))
    measured = f"Divergence at most {largest} at R = {R}; other starts find less risk at {under} of the points."
    return Told(
        f"The regularisation path converges to the attention SVM: largest divergence {largest} at R = {R}",
        f"Without the SVM among its starts the search comes as low at {low} of the points and lower at {under}; where "
        f"it comes as low at R = {R}, D is at most {number(max(table.values('largest D at R')), 1)}.",
        table.claim("The regularisation path converges to the attention SVM (Theorem 1)", measured, LARGEST),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Divergence along the regularisation path, one line for each problem, the median thick."""
    fig, axes = row_of_axes(len(data["p"]), width=2.6 * len(data["p"]), height=3.5)
    for ax, p, D in zip(axes, data["p"], data["D"], strict=True):
        ax.plot(data["radii"], D.T, color=look_of(p).colour, linewidth=0.8, alpha=0.5)
        curve(ax, data["radii"], np.median(D, 0), p, label="median")
        panel(ax, f"p = {p:g}, {len(D)} problems", "radius R", log="xy", legend="lower left")
    axes[0].set_ylabel("divergence to the attention SVM")
    return fig
