"""Potentials that are no power of a norm: to whose attention SVM do weights converge?

Derived in :mod:`mirrormax.theory.horizon`: that of the norm which ψ looks like from afar, ℓp for SquaredLp(p), ℓ2 for
ElasticNet, whose ℓ1 part is lost, and ℓ1 for Hypentropy. A solution in ℓ1 need not be unique, so that margins are
compared: a run's shortfall (``WHY``) should vanish in the potential's own norm, and be less than in any other.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, curve, panel, row_of_axes
from mirrormax._statistics import finite, median, percent
from mirrormax.dynamics import simulate
from mirrormax.experiments._measurements import OURS, About, Arrays, Measured, Rows, Told, alone, at_least, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Problems
from mirrormax.geometry import ElasticNet, Hypentropy, Potential, SquaredLp

ABOUT = About("Potentials beyond ℓp: the horizon decides", place=260, seconds=6, revision=1)
NORMS = (1.0, 1.5, 2.0, 3.0)
POTENTIALS: dict[str, Potential] = {
    "SquaredLp(1.5)": SquaredLp(1.5),
    "SquaredLp(3)": SquaredLp(3.0),
    "ElasticNet(λ = 1)": ElasticNet(1.0),
    "Hypentropy(β = 1)": Hypentropy(1.0),
}
BELOW = 0.05
LEAST = 1e-6  # of a shortfall: what solvers leave
LEAD = "log(least shortfall in another norm / in that of the horizon)"
SHORT_OF = "median shortfall in the norm of the horizon at the end"
WHY = "Shortfall: 1 − (smallest lead of W/‖W‖_r)/(margin of the ℓr attention SVM); norms compared: ℓ1, ℓ1.5, ℓ2, ℓ3."


@dataclass(frozen=True)
class Config(Problems):
    n: int = 4
    T: int = 5
    d: int = 6
    problems: int = 8
    steps: tuple[int, ...] = (3000, 1500, 1500, 3000)  # for each potential
    lr: tuple[float, ...] = (0.1, 0.1, 0.1, 0.02)  # Hypentropy multiplies weights by e^η
    records: int = 7


PROFILES = {
    "quick": Config(),
    "paper": replace(Config(), n=6, T=8, d=10, problems=40, steps=(20_000, 20_000, 20_000, 20_000)),
}


def run(config: Config, work: Work) -> Arrays:
    """Shortfalls (potentials, norms, records, problems) at shares of the steps, and each potential's own norm."""
    share = np.geomspace(0.5 ** (config.records - 1), 1.0, config.records)
    given = zip(POTENTIALS.values(), config.steps, config.lr, strict=True)
    return {
        "potentials": np.array(list(POTENTIALS)),
        "norms": np.array(NORMS),
        "horizon": np.array([potential.horizon for potential in POTENTIALS.values()]),
        "share": share,
        "shortfall": np.stack(work.each(_shortfalls, [(config, share, *each) for each in given])),
    }


def _shortfalls(config: Config, share: Any, potential: Potential, steps: int, lr: float) -> Any:
    grid = np.rint(steps * share).astype(int)
    run = simulate(config.batch(), p=potential, lr=lr, steps=steps, record=grid)
    return np.stack([run.margins(r if r > 1 else "l1").shortfall[-config.records :] for r in NORMS])


def measure(data: Arrays) -> Rows:
    norms = data["norms"].tolist()
    for name, r, shortfall in zip(data["potentials"].tolist(), data["horizon"], data["shortfall"], strict=True):
        own, ends = norms.index(r), np.maximum(shortfall[:, -1], LEAST)
        others = finite(np.log(np.delete(ends, own, 0).min(0) / ends[own]))
        yield at_least(LEAD, f"ℓ{r:g}: above 0", 0.0, others, why=WHY, column=name, source=OURS)
        end, half = (median(shortfall[own, at]) for at in (-1, shortfall.shape[1] // 2))
        criterion, holds = f"below {percent(BELOW)} and falling", end < BELOW and end < half
        yield threshold(SHORT_OF, criterion, end, holds, WHY, column=name, late=True)
        for norm, values in zip(norms, shortfall[:, -1], strict=True):
            yield alone(f"median shortfall in ℓ{norm:g} at the end", median(values), column=name)


def tell(data: Arrays, table: Measured) -> Told:
    rows = zip(table.rows(SHORT_OF), data["horizon"], strict=True)
    ends = [f"{percent(row.value or 0.0, 1)} ({row.column}, ℓ{r:g})" for row, r in rows]
    leads = table.values(LEAD)
    return Told(
        f"{sum(lead > 0 for lead in leads)} of {len(leads)} potentials end nearest to the SVM of their horizon",
        f"In the norm of its horizon function each run has all but {', '.join(ends)} of the largest margin (medians): "
        "the ℓ1 part of an elastic net does not matter in the end, and hyperbolic entropy leads to the ℓ1 SVM.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Shortfall over the run in each norm, one panel for each potential, its own norm thick."""
    fig, axes = row_of_axes(len(data["potentials"]), width=12, height=3.4)
    for ax, name, horizon, shortfall in zip(axes, data["potentials"], data["horizon"], data["shortfall"], strict=True):
        for r, values in zip(data["norms"], shortfall, strict=True):
            middle = np.maximum(np.nanmedian(values, -1), LEAST)
            curve(ax, data["share"], middle, r, label=f"ℓ{r:g}", linewidth=2.8 if r == horizon else 1.2)
        panel(ax, f"{name}: ℓ{horizon:g}", "share of the steps", log="xy", ylim=(4e-3, 3))
    axes[0].set_ylabel("shortfall of the margin")
    axes[0].legend(loc="lower left", fontsize=9, title="in the norm", title_fontsize=9)
    return fig
