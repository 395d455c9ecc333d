"""Starts inside the cone: how often training ends with the best tokens, by where it began."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, look_of, panel, row_of_axes
from mirrormax._statistics import percent, share
from mirrormax.dynamics import simulate, warm_start
from mirrormax.experiments._measurements import LATE, About, Arrays, Measured, Rows, Told, above, alone
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import LAST, Problems, some, stacked
from mirrormax.geometry import lp_norm
from mirrormax.theory import boundary_starts

ABOUT = About("Starts: inside the cone, and how wide its basin is", place=210, seconds=8, revision=1)
BEST = "share with all best tokens"
HIGH = 0.95  # of runs: what a warm start should surpass; that the interval decides was settled after a run
INTERVAL = f"Met if the 95 % interval lies above {percent(HIGH)}, undecided if it holds it."


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 0.5)
    steps: tuple[int, ...] = (1500, 2000, 4000)
    problems: int = 100
    leads: tuple[float, ...] = (0.3, 1.0, 3.0)
    basin_problems: int = 30
    directions: int = 3
    mu: tuple[float, ...] = (0.03, 0.1, 0.2, 0.4, 0.7, 1.0)
    basin_lead: float = 3.0


PROFILES = {"quick": replace(Config(), basin_problems=12), "paper": replace(Config(), directions=6)}


def run(config: Config, work: Work) -> Arrays:
    """Whether each run ended with all globally optimal tokens: (p, starts, problems) and (p, mu, runs)."""
    warm = [f"{method}, lead {lead:g}" for method in ("Hebbian", "SVM") for lead in config.leads]
    data: Arrays = {"p": np.array(config.p), "starts": np.array(["zero", "N(0, 1)", "one gradient step", *warm])}
    data |= {"mu": np.array(config.mu), "lead": np.array(config.basin_lead)}
    return data | stacked(work.each(_runs, [(config, k) for k in range(len(config.p))]))


def _runs(config: Config, k: int) -> Arrays:
    p, problem = config.p[k], config.batch()

    def best(problem: Any, W0: Any) -> Any:
        run = simulate(problem, W0=W0, p=p, lr=config.lr[k], steps=config.steps[k], record=2, options=LAST)
        return np.asarray((run.alpha == problem.best_tokens()).all(-1))

    warm = [warm_start(problem, lead=lead, p=p, method=m).W0 for m in ("hebbian", "svm") for lead in config.leads]
    zero = np.zeros_like(warm[0])
    noise = np.stack([np.random.default_rng([7, seed]).standard_normal(zero.shape[1:]) for seed in range(len(zero))])
    # One gradient step from zero, at the norm of the last warm start.
    step = simulate(problem, p=p, lr=1.0, steps=1, normalize=None, record=1).W[-1]
    step = step * np.asarray(lp_norm(warm[-1], p) / lp_norm(step, p))[..., None, None]
    few = some(problem, slice(config.basin_problems))
    solution = warm_start(few, p=p).solution
    R = config.basin_lead / np.asarray(solution.margin)
    around = [boundary_starts(solution.W, p, mu, 1.0, starts=config.directions, seed=config.seed) for mu in config.mu]
    return {
        "best": best(problem, np.stack([zero, noise, step, *warm])),
        "basin": best(few, np.stack(around) * R[..., None, None]).reshape(len(config.mu), -1),
    }


def measure(data: Arrays) -> Rows:
    names = data["starts"].tolist()
    for p, best, basin in zip(data["p"], data["best"], data["basin"], strict=True):
        for name, hits in zip(names[:-1], best, strict=False):
            yield alone(f"{BEST}, {name}", share(hits), column=p)
        near = f"divergence of at most 0.2 at a lead of {data['lead']:g}"
        for name, hits in ((names[-1], best[-1]), (near, basin[data["mu"] <= 0.2])):
            criterion = f"over {percent(HIGH)}"
            yield above(f"{BEST}, {name}", criterion, HIGH, share(hits), INTERVAL, column=p, source=LATE)
        for mu, hits in zip(data["mu"], basin, strict=True):
            yield alone(f"{BEST}, divergence {mu:g}", share(hits), column=p)


def tell(data: Arrays, table: Measured) -> Told:
    starts, lead = ("zero", "N(0, 1)", data["starts"].tolist()[-1]), f"{data['lead']:g}"
    zero, normal, svm = (percent(float(np.mean(table.values(f"{BEST}, {start}")))) for start in starts)
    whole = np.logical_and.accumulate(data["basin"].all(axis=(0, 2)))  # every run of every p, up to this μ
    return Told(
        f"Starts from which runs end with all best tokens: zero {zero}, N(0, 1) {normal}, the SVM at lead {lead} {svm}",
        f"Starts at that lead keep the best tokens from a divergence of {data['mu'][whole].max(initial=0.0):g} too, in "
        "every run tried.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """Shares by start, and by the divergence of the start, with 95 % intervals."""
    fig, (left, right) = row_of_axes(2, width=10, height=3.8, ratios=[1.4, 1.0])
    names = data["starts"].tolist()
    for k, p in enumerate(data["p"]):
        best = left, np.arange(len(names)) + 0.15 * (k - 1), data["best"][k]
        basin = right, data["mu"] * 1.04 ** (k - 1), data["basin"][k]
        for ax, x, hits in (best, basin):
            middle, low, high = np.array([tuple(share(h).to_dict().values()) for h in hits]).T
            style = look_of(p).style(linestyle="", label=f"p = {p:g}")
            ax.errorbar(x, middle, [middle - low, high - middle], **style)
    left.set_xticks(range(len(names)), names, rotation=30, ha="right")
    panel(left, "", "", "share with all best tokens", ylim=(0, 1.05))
    about = f"divergence of the start (lead {data['lead']:g})"
    panel(right, "", about, log="x", legend="lower left", ylim=(0, 1.05))
    return fig
