"""Fig 1: runs that start in a thin cone around the attention SVM stay in a wider one (Lemma 17).

The lemma promises it for plain steps from μ' = μ/3, for all μ up to a constant of the proof and norms from another on,
which are extreme at this size: a plain step there moves nothing. These runs take *normalised* steps, which point the
same way, from several μ and norms. A matrix is in S_μ if its directional divergence to W_mm is at most μ.

A normalised step adds about η to ‖W‖^{p−1}, so any cone "holds" a run of few steps. Every run here is long enough for
its norm to grow by half, (1.5^{p−1} − 1) R^{p−1}/η steps from norm R; where that would take more than ``most_steps``,
η is larger. The control is the same run seen from a cone around a random direction.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import Any

import numpy as np

from mirrormax._drawing import MARKERS, SHADES, Figure, panel, row_of_axes
from mirrormax._statistics import percent, share
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Floats, Problems, log_grid, max_margin, stacked
from mirrormax.geometry import direction
from mirrormax.theory import boundary_starts

ABOUT = About("Fig 1: the cone that training does not leave (Lemma 17)", place=10, seconds=25, revision=1)
PICTURED_P = 2.0  # whose cones are circular, so that a plane shows them
CENTRES = ("W_mm", "random")
LEMMA = "Training does not leave a cone around the SVM direction (Lemma 17)"
STAY = "share of runs from C_μ/3 that stay in C_μ, every μ, ‖W(0)‖"
CONTROL, GROWN = "around a random direction", "least growth of the norm, ‖W(0)‖"
WHY = (
    "The lemma promises all for μ and norms beyond constants that no run of this size comes near, for plain steps, and "
    "publishes no count; these steps are normalised. That most runs leave a random direction's cone shows that they "
    "are long enough to leave."
)
NEAR = "Close to the origin the direction is made by the first few steps, and a cone holds nobody."


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.1, 1.75, 2.0, 3.0, 6.0)
    mu: tuple[float, ...] = (0.03, 0.1, 0.3)
    radii: tuple[float, ...] = (1.0, 3.0, 10.0, 30.0)
    growth: float = 1.5  # of the norm, about
    least_steps: int = 500
    most_steps: int = 12_000
    lr: float = 0.1
    points: int = 40
    pictured_steps: int = 500
    pictured_radius: float = 4.0
    pictured_mu: float = 0.3
    pictured_starts: int = 12


LONG = replace(Config(), problems=200, growth=10.0, least_steps=5000, most_steps=1_000_000)
PROFILES = {"quick": Config(), "paper": LONG}


def steps_from(config: Config, p: float, R: float) -> tuple[int, float]:
    """So many steps, and such a step size, that a normalised run from norm R grows to ``growth`` · R."""
    growth = (config.growth ** (p - 1) - 1) * R ** (p - 1)
    steps = int(np.clip(np.ceil(growth / config.lr), config.least_steps, config.most_steps))
    return steps, max(config.lr, growth / steps)


def run(config: Config, work: Work) -> Arrays:
    parts = work.each(_from_norm, [(config, p, R) for p, R in product(config.p, config.radii)], share=0.95)
    return {
        **{name: np.array(getattr(config, name)) for name in ("p", "mu", "radii")},
        **stacked(parts, len(config.p), len(config.radii)),
        **work.each(_picture, [(config,)], share=0.05)[0],
    }


def _from_norm(config: Config, p: float, R: float) -> Arrays:
    """The largest divergence on the way from the cone's centre, and the growth of the norm, (centres, μ, problems), of
    runs from norm R that start at a third of μ."""
    problem = config.batch()
    W_mm = max_margin(problem, problem.best_tokens(), p)
    centres = np.stack([W_mm, np.random.default_rng((config.seed, 3)).standard_normal(W_mm.shape)])
    W0 = np.stack([boundary_starts(centres, p, mu / 3, R, starts=1, seed=(config.seed, 1))[0] for mu in config.mu], 1)
    steps, lr = steps_from(config, p, R)
    options = SimulationOptions(references=np.broadcast_to(centres[:, None], W0.shape), weights="last")
    record = log_grid(steps, config.points)
    run = simulate(problem, p=p, lr=lr, steps=steps, W0=W0, record=record, options=options)
    return {"farthest": run.divergence["reference"].max(0), "growth": run.norm[-1] / run.norm[0]}


def _picture(config: Config) -> Arrays:
    """Some runs of one problem, seen as distance along W_mm and away from it."""
    batch = config.drawn([0])
    W_mm = max_margin(batch, batch.best_tokens(), PICTURED_P)[0]
    mu, R, starts = config.pictured_mu, config.pictured_radius, config.pictured_starts
    W0 = boundary_starts(W_mm, PICTURED_P, mu / 3, R, starts=starts, seed=(config.seed, 2))
    run = simulate(batch, p=PICTURED_P, lr=config.lr, steps=config.pictured_steps, W0=W0, record=config.points)
    axis: Floats = np.asarray(direction(W_mm, PICTURED_P))
    along = (run.W * axis).sum((-1, -2))
    away = np.sqrt(((run.W - along[..., None, None] * axis) ** 2).sum((-1, -2)))
    return {"picture/along": along, "picture/away": away, "picture/radius": np.array(R), "picture/mu": np.array(mu)}


def stays(data: Arrays, centre: str) -> Any:
    """Whether a run never leaves S_μ of this centre, (p, radii, μ, problems)."""
    return data["farthest"][:, :, CENTRES.index(centre)] <= data["mu"][:, None]


def measure(data: Arrays) -> Rows:
    """Met if all runs from the largest norm stay, and a cone around a random direction holds decidedly fewer."""
    around = [stays(data, centre) for centre in CENTRES]
    for (k, p), (r, R) in product(enumerate(data["p"]), enumerate(data["radii"])):
        real, control = (share(kept[k, r]) for kept in around)
        if data["radii"][-1] == R:
            criterion = "all, and decidedly fewer around a random direction"
            holds = real.mean == 1 and control.high < real.low
            yield threshold(f"{STAY} = {R:g}", criterion, real.mean, holds, WHY, column=p, late=True)
        else:
            yield alone(f"{STAY} = {R:g}", real.mean, NEAR, column=p)
        yield alone(f"{CONTROL}: {STAY} = {R:g}", control.mean, column=p)
        yield alone(f"{GROWN} = {R:g}", float(data["growth"][k, r, 0].min() - 1), column=p)


def tell(data: Arrays, table: Measured) -> Told:
    at = f"{data['radii'][-1]:g}"
    real, control = (percent(float(np.mean(table.values(f"{name} = {at}")))) for name in (STAY, f"{CONTROL}: {STAY}"))
    finding = f"{real} of runs from norm {at} stay in the cone, {control} in one around a random direction"
    grown = percent(min(table.values(f"{GROWN} = {at}")))
    return Told(
        f"{finding}, while their norm grows by {grown} or more",
        "Runs start at μ/3 from W_mm and should stay within μ. The lemma is about plain steps; these are normalised, "
        "in cones far wider and at norms far smaller than its proof asks for.",
        table.claim(LEMMA, f"{finding}.", f"{STAY} = {at}"),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Runs inside their cone at p = 2, and the share of runs that stay for every p, μ and norm."""
    count = len(data["p"])
    fig, axes = row_of_axes(1 + count, width=4.4 + 2.2 * count, height=3.9, ratios=[1.8] + [1.0] * count)
    # Distance along W_mm and away from it; every other run drawn below the axis.
    cone, (mu, radius, along) = axes[0], (data[f"picture/{name}"] for name in ("mu", "radius", "along"))
    away = np.where(np.arange(along.shape[1]) % 2, -1, 1) * data["picture/away"]
    for part, alpha, name in ((mu, 0.16, "μ"), (mu / 3, 0.3, "μ/3")):
        arc = np.arccos(1 - part) * np.linspace(-1, 1, 60)
        inner, outer = (r * np.stack([np.cos(arc), np.sin(arc)]) for r in (radius, 5 * radius))
        area = cone.fill(*np.concatenate([inner, outer[:, ::-1]], 1), color=SHADES[1], alpha=alpha, linewidth=0)
        area[0].set_label(f"divergence ≤ {name}, norm ≥ {radius:g}")
    cone.plot(along, away, color="#3D3D3D", linewidth=1.1)
    cone.scatter(along[0], away[0], s=16, color="#3D3D3D", zorder=3, label="starts, and runs from them")
    cone.axhline(0, color="black", linewidth=1)
    limits: dict[str, Any] = {"xlim": (0.6 * radius, 2.5 * radius), "ylim": (-1.5 * radius, 1.5 * radius)}
    panel(cone, "p = 2, one problem", "distance along $W_{mm}$", "distance away from it", **limits)
    styles: list[dict[str, Any]] = [{"linestyle": "-"}, {"linestyle": ":", "mfc": "white"}]
    for k, (ax, p) in enumerate(zip(axes[1:], data["p"], strict=True)):
        for m, (width, colour, marker) in enumerate(zip(data["mu"], SHADES, MARKERS, strict=False)):
            for centre, style, label in zip(CENTRES, styles, (f"μ = {width:g}", None), strict=True):
                kept = 100 * stays(data, centre)[k, :, m].mean(-1)
                ax.plot(data["radii"], kept, color=colour, marker=marker, markersize=5, label=label, **style)
        panel(ax, f"p = {p:g}", "norm of the start", log="x", ylim=(-4, 104))
    axes[1].set_ylabel("runs from μ/3 that stay within μ, %")
    axes[1].plot([], [], color="black", marker="o", markersize=5, label="random direction", **styles[1])
    fig.legend(*cone.get_legend_handles_labels(), loc="outside lower left", ncols=2, fontsize=9)
    fig.legend(*axes[1].get_legend_handles_labels(), loc="outside lower right", ncols=4, fontsize=9)
    return fig
