"""Starts inside the cone: how often training ends with the best tokens, by where it began."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np
import torch
from scipy import stats

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.attention import gradient
from mirrormax.dynamics import simulate, warm_start
from mirrormax.experiments._contract import LATE_BAR, Arrays, Comparison, Rows, decided, ours_alone, percent
from mirrormax.experiments._trials import best_tokens, sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.geometry import Lp
from mirrormax.theory import boundary_starts

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Starts inside the cone, and how wide its basin is"
SHORT = "Starts"
PLACE = 210
SECONDS = 40
HIGH = 0.95  # of runs: what a warm start should surpass


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 0.5)
    steps: tuple[int, ...] = (1500, 2000, 4000)
    problems: int = 100
    leads: tuple[float, ...] = (0.3, 1.0, 3.0)
    basin_problems: int = 30
    directions: int = 3
    mu: tuple[float, ...] = (0.03, 0.1, 0.2, 0.4, 0.7, 1.0)
    basin_lead: float = 3.0
    n: int = 6
    T: int = 8
    d: int = 10
    seed: int = 0


PROFILES = {"quick": replace(Config(), basin_problems=12), "paper": replace(Config(), directions=6)}


def run(config: Config, work: Work) -> Arrays:
    """Whether each run ended with all globally optimal tokens: (p, starts, problems) and (p, mu, runs)."""
    found = work.map(_runs, [(config, k) for k in range(len(config.p))])
    return {
        "p": np.array(config.p),
        "starts": np.array(_names(config)),
        "mu": np.array(config.mu),
        "lead": np.array(config.basin_lead),
        "best": np.stack([part["best"] for part in found]),
        "basin": np.stack([part["basin"] for part in found]),
    }


def _names(config: Config) -> list[str]:
    warm = [f"{method}, lead {lead:g}" for method in ("Hebbian", "SVM") for lead in config.leads]
    return ["zero", "N(0, 1)", "one gradient step", *warm]


def _runs(task: tuple[Config, int]) -> Arrays:
    config, k = task
    p, options = config.p[k], {"p": config.p[k], "lr": config.lr[k], "steps": config.steps[k]}
    problem = sphere_problems(range(config.seed, config.seed + config.problems), config.n, config.T, config.d)
    alpha = best_tokens(problem)
    warm = [warm_start(**problem, lead=lead, p=p, method=m).W0 for m in ("hebbian", "svm") for lead in config.leads]
    zero = np.zeros_like(warm[0])
    noise = np.stack([np.random.default_rng([7, seed]).standard_normal(zero.shape[1:]) for seed in range(len(zero))])
    starts = np.stack([zero, noise, _gradient_step(problem, zero, warm[-1], p), *warm])
    best = _ends_best(problem, starts, alpha, options)
    few: dict[str, Any] = {name: array[: config.basin_problems] for name, array in problem.items()}
    solution = warm_start(**few, p=p).solution
    R = config.basin_lead / np.asarray(solution.margin)
    around = np.stack(
        [boundary_starts(solution.W, p, mu, 1.0, starts=config.directions, seed=config.seed) for mu in config.mu]
    )
    basin = _ends_best(few, around * R[..., None, None], alpha[: config.basin_problems], options)
    return {"best": best, "basin": basin.reshape(len(config.mu), -1)}


def _gradient_step(problem: Any, zero: Any, like: Any, p: float) -> Any:
    """The direction of one step from zero, at the norm of the warm start."""
    psi = Lp(p)
    W = psi.inverse_map(torch.from_numpy(-np.asarray(gradient(**problem, W=zero))), (-2, -1))
    size = psi.norm(torch.from_numpy(like), (-2, -1)) / psi.norm(W, (-2, -1))
    return (W * size[..., None, None]).numpy()


def _ends_best(problem: Any, W0: Any, alpha: Any, options: Any) -> Any:
    run = simulate(**problem, W0=W0, weights="last", record=2, **options)
    return np.asarray((run.alpha == alpha).all(-1))


def bounds(hits: Any) -> tuple[float, float, float]:
    """A share of runs with its 95 % interval (Clopper and Pearson)."""
    hits = np.asarray(hits)
    low, high = stats.binomtest(int(hits.sum()), hits.size).proportion_ci(0.95)
    return float(low), float(hits.mean()), float(high)


def summary(data: Arrays) -> Rows:
    rows: Rows = {}
    for k, p in enumerate(data["p"]):
        for name, hits in zip(data["starts"].tolist(), data["best"][k], strict=True):
            low, share, high = bounds(hits)
            rows[f"p={p:g}, {name}"] = {"share": share, "low": low, "high": high, "runs": hits.size}
        for mu, hits in zip(data["mu"], data["basin"][k], strict=True):
            low, share, high = bounds(hits)
            rows[f"p={p:g}, divergence {mu:g}"] = {"share": share, "low": low, "high": high, "runs": hits.size}
    return rows


def shows(data: Arrays) -> str:
    names = data["starts"].tolist()
    of = {name: data["best"][:, k].mean() for k, name in enumerate(names)}
    return (
        f"From zero {percent(of['zero'])} of runs end with all of the best tokens, from N(0, 1) "
        f"{percent(of['N(0, 1)'])}, and from the attention SVM at a lead of {data['lead']:g} logits "
        f"{percent(of[names[-1]])}. Starts at that lead keep the best tokens from a divergence of "
        f"{_basin(data):g} too, in every run tried."
    )


def _basin(data: Arrays) -> float:
    """The largest μ of the grid at and below which every run of every p ended best; 0 if none."""
    whole = np.logical_and.accumulate(data["basin"].all(axis=(0, 2)))
    return float(data["mu"][whole].max(initial=0.0))


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    names = data["starts"].tolist()
    for k, p in enumerate(data["p"]):
        hits = data["best"][k, -1]
        low, share, high = bounds(hits)
        said = f"{percent(share)} [{percent(low)}, {percent(high)}]"
        why = f"Met if the 95 % interval lies above {percent(HIGH)}, undecided if it holds it; {hits.size} problems."
        rows.append(_over(f"{names[-1]}, p = {p:g}", "all best tokens", said, low, high, why))
        for at in (0, 1, 2):
            low, share, high = bounds(data["best"][k, at])
            rows.append(ours_alone(f"{names[at]}, p = {p:g}", f"{percent(share)} [{percent(low)}, {percent(high)}]"))
        hits = data["basin"][k][data["mu"] <= 0.2].ravel()
        low, share, high = bounds(hits)
        said = f"{percent(share, 1)} [{percent(low, 1)}, {percent(high, 1)}], {hits.size} runs"
        name = f"divergence of at most 0.2 at a lead of {data['lead']:g}, p = {p:g}"
        rows.append(_over(name, "the best tokens kept", said, low, high))
    return rows


def _over(quantity: str, what: str, said: str, low: float, high: float, why: str = "") -> Comparison:
    """Whether the interval of a share lies above our bar; that the interval decides was settled after a first run."""
    verdict = decided(low - HIGH, high - HIGH)
    return Comparison(quantity, f"{what} in over {percent(HIGH)}", said, verdict, why, source=LATE_BAR)


def draw(data: Arrays) -> Figure:
    """Shares by start, and by the divergence of the start, with 95 % intervals."""
    fig, (left, right) = row_of_axes(2, width=10, height=3.8, ratios=[1.4, 1.0])
    names = data["starts"].tolist()
    for k, p in enumerate(data["p"]):
        for ax, x, hits in (
            (left, np.arange(len(names)) + 0.15 * (k - 1), data["best"][k]),
            (right, data["mu"] * 1.04 ** (k - 1), data["basin"][k]),
        ):
            low, share, high = np.array([bounds(h) for h in hits]).T
            ax.errorbar(
                x, share, [share - low, high - share], label=f"p = {p:g}", **look_of(float(p)).style(linestyle="")
            )
    left.set_xticks(range(len(names)), names, rotation=30, ha="right", fontsize=8)
    left.set(ylabel="share with all best tokens", ylim=(0, 1.05))
    right.set(xscale="log", xlabel=f"divergence of the start (lead {data['lead']:g})", ylim=(0, 1.05))
    right.legend(loc="lower left")
    of = {name: data["best"][:, k].mean() for k, name in enumerate(names)}
    told = (("zero", "zero"), ("N(0, 1)", "N(0, 1)"), (f"the SVM at lead {data['lead']:g}", names[-1]))
    shares = ", ".join(f"{name} {percent(of[key])}" for name, key in told)
    headline(fig, f"Starts from which runs end with all best tokens: {shares}")
    return fig
