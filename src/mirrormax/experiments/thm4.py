"""Theorem 4: how fast the direction is found, and what is left when a run goes on for long.

Plain ℓp-AttGD from inside a cone, which the theorem is about: D should be O(rate(k)), and the norm Ω(log k). And
normalised steps from zero, which it is not about: D after 10⁵ of them, for p from 1.1 to 6.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import COLOURS, LINES, MARKERS, row_of_axes
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import Arrays, Comparison, Rows, claim, ours_alone
from mirrormax.experiments._trials import best_tokens, log_grid, max_margin, name_of, sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.theory import SMALLEST_STEP, RateFit, boundary_starts, fit_rate

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Theorem 4: rates of convergence"
SHORT = "Theorem 4"
PLACE = 130
SECONDS = 15
GROWS = "Met means a positive slope over the last two decades, a test of ours."


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    normalised_p: tuple[float, ...] = (1.1, 1.25, 1.75, 2.0, 3.0, 6.0)
    steps: int = 100_000
    trials: int = 8
    lr_plain: float = 1.0
    lr_normalised: float = 0.1
    radius: float = 8.0  # the theorem asks for more than e²
    divergence: float = 0.1  # of the start
    n: int = 6
    T: int = 8
    d: int = 10
    points: int = 80
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), trials=40, steps=1_000_000)}


def run(config: Config, work: Work) -> Arrays:
    tasks = [(config, "plain", p) for p in config.p] + [(config, "normalised", p) for p in config.normalised_p]
    data: Arrays = {
        "p": np.array(config.p),
        "normalised_p": np.array(config.normalised_p),
        "steps": log_grid(config.steps, config.points, *_decades(config.steps)),
    }
    for (_, kind, p), found in zip(tasks, work.map(_runs, tasks), strict=True):
        data |= {f"{kind}/{name_of(p)}/{name}": array for name, array in found.items()}
    return data


def _runs(task: tuple[Config, str, float]) -> Arrays:
    """D (K, trials), norm (K, trials) and whether each run ended finite."""
    config, kind, p = task
    problem = sphere_problems(range(config.seed, config.seed + config.trials), config.n, config.T, config.d)
    grid = log_grid(config.steps, config.points, *_decades(config.steps))
    if kind == "plain":
        W_mm = max_margin(problem, best_tokens(problem), p)
        W0 = boundary_starts(W_mm, p, config.divergence, config.radius, starts=1, seed=(config.seed, 1))[0]
        run = simulate(**problem, p=p, lr=config.lr_plain, steps=config.steps, normalize=False, W0=W0, record=grid)
    else:
        run = simulate(**problem, p=p, lr=config.lr_normalised, steps=config.steps, record=grid)
        W_mm = max_margin(problem, run.alpha, p)
    return {"D": run.divergence_to(W_mm), "norm": run.norm, "finite": run.status == "steps"}


def _decades(steps: int) -> list[int]:
    return [10**k for k in range(int(np.log10(max(steps, 1))) + 1)]


def rate_fit(data: Arrays, p: float, late: bool = False) -> RateFit:
    """The median over trials of D against the theorem's rate, from step 16 on or over the last two decades."""
    start = max(data["steps"][-1] / 100, 3) if late else SMALLEST_STEP
    return fit_rate(data["steps"], np.median(data[f"plain/{name_of(p)}/D"], -1), p, start=start)


def growth(data: Arrays, p: float) -> float:
    """The slope of the norm over log k in the last two decades."""
    last = data["steps"] >= data["steps"][-1] / 100
    return float(np.polyfit(np.log(data["steps"][last]), np.median(data[f"plain/{name_of(p)}/norm"][last], -1), 1)[0])


def falls(data: Arrays, p: float) -> tuple[float, float, bool]:
    """D a decade before the end and at the end, medians; and whether every trial is finite and fell."""
    D = data[f"normalised/{name_of(p)}/D"]
    before = D[int(np.searchsorted(data["steps"], data["steps"][-1] // 10))]
    whole = bool(data[f"normalised/{name_of(p)}/finite"].all())
    return float(np.median(before)), float(np.median(D[-1])), whole and bool((D[-1] < before).all())


def summary(data: Arrays) -> Rows:
    rows = {
        f"plain, p={p:g}": {
            "D at the end": float(np.median(data[f"plain/{name_of(p)}/D"][-1])),
            "D/rate at the end": float(rate_fit(data, p).ratio[-1]),
            "power of 1/log k": rate_fit(data, p, late=True).exponent,
            "power in the theorem": rate_fit(data, p, late=True).expected,
            "norm per log k": growth(data, p),
        }
        for p in data["p"]
    }
    for p in data["normalised_p"]:
        before, end, _ = falls(data, p)
        rows[f"normalised, p={p:g}"] = {"D a decade earlier": before, "D at the end": end}
    return rows


def shows(data: Arrays) -> str:
    fits = [rate_fit(data, p, late=True) for p in data["p"]]
    promised, found = (", ".join(f"{getattr(fit, name):.3g}" for fit in fits) for name in ("expected", "exponent"))
    ends = [falls(data, p)[1] for p in data["normalised_p"]]
    return (
        "D divided by the theorem's rate stays bounded and falls, so the bound holds with room: over the last two "
        f"decades the rate's power of 1/log k, which is {promised} for p = {', '.join(f'{p:g}' for p in data['p'])}, "
        f"comes out as {found}. "
        f"Normalised steps are far faster: after {data['steps'][-1]} of them the median D is between {min(ends):.1g} "
        f"and {max(ends):.1g}, and still falling."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"].tolist():
        ratio, late = rate_fit(data, p).ratio, rate_fit(data, p, late=True)
        promised = "loglog k / log k" if p > 2 else "(loglog k)² / log k" if p == 2 else f"loglog k / (log k)^{p - 1:g}"
        rows.append(
            claim(
                f"D of plain steps, p = {p:g}",
                f"O({promised})",
                f"D/rate {ratio[len(ratio) // 2]:.2g} halfway, {ratio[-1]:.2g} at the end; "
                f"power of 1/log k {late.exponent:.2f}",
                bool(ratio[-1] <= ratio[len(ratio) // 2]),
                "Met means that D/rate does not grow over the second half of the records: a test of ours, since no "
                "finite run decides an O(·).",
            )
        )
        slope = growth(data, p)
        rows.append(
            claim(f"norm of W, p = {p:g}", "Ω(log k)", f"grows by {slope:.2g} per unit of log k", slope > 0, GROWS)
        )
    for p in data["normalised_p"].tolist():
        before, end, good = falls(data, p)
        quantity = f"normalised steps, p = {p:g}: D a decade earlier → after {data['steps'][-1]}"
        why = "" if good else "Not every trial ended finite with a smaller D than a decade earlier."
        rows.append(
            ours_alone(quantity, f"{before:.2g} → {end:.2g}, {'all finite and falling' if good else 'not all'}", why)
        )
    return rows


def draw(data: Arrays) -> Figure:
    """D over its bound for plain steps, the norm over k, and D of long normalised runs."""
    fig, (left, middle, right) = row_of_axes(3, width=11.5, height=3.4)
    positive = data["steps"] > 0
    steps = data["steps"][positive]
    for p, colour, marker in zip(data["p"], COLOURS, MARKERS, strict=False):
        fit = rate_fit(data, p)
        style: dict[str, Any] = {
            "color": colour,
            "marker": marker,
            "markersize": 4,
            "markevery": max(len(fit.steps) // 7, 1),
        }
        left.plot(fit.steps, fit.ratio, label=f"p = {p:g}", **style)
        middle.plot(steps, np.median(data[f"plain/{name_of(p)}/norm"], -1)[positive], label=f"p = {p:g}", **style)
    for j, p in enumerate(data["normalised_p"]):
        D = np.median(data[f"normalised/{name_of(p)}/D"], -1)[positive]
        right.plot(steps, D, color=COLOURS[j % len(COLOURS)], linestyle=LINES[j % len(LINES)], label=f"p = {p:g}")
    left.set(
        xscale="log",
        yscale="log",
        xlabel="step k",
        title="plain steps: D / rate(k)\n(bounded, says the theorem)",
    )
    middle.set(xscale="log", xlabel="step k", title="plain steps: norm of W\n(a line here is growth like log k)")
    right.set(xscale="log", yscale="log", xlabel="step k", title="normalised steps: D\n(median)")
    for ax in (left, middle, right):
        ax.title.set_fontsize(10)
    middle.legend(loc="upper left")
    right.legend(loc="lower left", fontsize=8, ncols=2)
    return fig
