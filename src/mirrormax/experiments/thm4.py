"""Theorem 4: how fast the direction is found, and what is left when a run goes on for long.

Plain ℓp-AttGD, which the theorem is about: D should be O(rate(k)), in terms of the norm O(rate(‖W‖)) (28), and the norm
Ω(log k). The theorem speaks of starts within μ0/3 of the SVM direction and beyond norm R_μ. No run of this size can
begin there and move (the gradient is about e^{−R_μ·margin}), so these start in a cone far wider and nearer. Exponents
are fitted trial by trial, for their uncertainty, and over two windows, for their drift. And normalised steps from zero,
which the theorem is not about: D after 10⁵ of them.

(29), a step of the proof, says that one update adds at most ηL to the norm, L Lemma 8's bound of the gradient. It is
judged along the plain runs, and beside them are single steps where it fails: from small W for p > 2, and for p < 2 on a
problem whose attention is not saturated at large W.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax import theory
from mirrormax._drawing import Figure, curve, look_of, mark_decade, panel, row_of_axes
from mirrormax._statistics import mean, median, number
from mirrormax.attention import gradient
from mirrormax.dynamics import simulate
from mirrormax.experiments._measurements import MET, About, Arrays, Measured, Rows, Told, alone, at_least, claim
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Size, log_grid, max_margin, some
from mirrormax.geometry import direction
from mirrormax.theory import SMALLEST_STEP, boundary_starts, fit_rate, rate

ABOUT = About("Theorem 4: rates of convergence", place=130, seconds=9, revision=2)
NORMS = (0.01, 1.0, 100.0)  # of the W from which one step is tried on random problems, for (29)
SCALE = 0.01  # of the two tokens of the problem of one dimension; its readout is 1/SCALE
POWER = "plain steps: power of 1/log k in D"
DRIFT = "the same power in the last decade, less that in the one before"
GROWTH = "plain steps: growth of ‖W‖"
STEP = "(29): largest growth of ‖W‖ in one step, over ηL"
NORMALISED = "normalised steps: median D after"
CONE = "No run here starts in it."
ORDER = (
    "Fitted trial by trial over the last two decades of steps; met if the 95 % interval of the mean lies above the "
    "theorem's power. No finite run decides an O(·), and none of these starts in the theorem's cone."
)
RUNS_STEP = "The mean growth per step between two records; the first steps, which are the longest, are recorded singly."
OUTSIDE_STEP = (
    "The step is made in the dual, and adds at most η‖∇L‖_q to ‖W‖^{p−1}: at p = 2 that is (29), elsewhere it needs "
    "the cone. Single plain steps from random W of norm 0.01, 1 and 100, and on one problem with d = 1 (tokens ±0.01, "
    "v = 100) from W up to 10⁴."
)


@dataclass(frozen=True)
class Config(Size):
    p: tuple[float, ...] = (1.1, 1.75, 2.0, 3.0, 6.0)
    lr: tuple[float, ...] = (1.0, 1.0, 1.0, 1.0, 8.0**4)  # of plain steps: at p = 6, a step of 1 moves nothing
    radius: tuple[float, ...] = (30.0, 8.0, 8.0, 8.0, 8.0)  # the theorem asks for more than e²
    normalised_p: tuple[float, ...] = (1.1, 1.25, 1.75, 2.0, 3.0, 6.0)
    steps: int = 100_000
    trials: int = 8
    lr_normalised: float = 0.1
    divergence: float = 0.1  # of the start
    single_steps: int = 30  # random W per trial and norm, for (29)
    points: int = 80

    @property
    def grid(self) -> Any:
        """Recorded steps, the powers of ten among them."""
        return log_grid(self.steps, self.points, *(10**k for k in range(len(str(self.steps)))))


PROFILES = {"quick": Config(), "paper": replace(Config(), trials=40, steps=1_000_000)}


def run(config: Config, work: Work) -> Arrays:
    tasks = [(config, "plain", p) for p in config.p] + [(config, "normalised", p) for p in config.normalised_p]
    kept = ("p", "normalised_p", "divergence", "radius", "lr")
    data: Arrays = {name: np.array(getattr(config, name)) for name in kept}
    data |= {"steps": config.grid, "growth_1d": np.array([one_dimension(p) for p in config.p])}
    for (_, kind, p), arrays in zip(tasks, work.each(_runs, tasks), strict=True):
        data |= {f"{kind}/{p:g}/{name}": array for name, array in arrays.items()}
    return data


def _runs(config: Config, kind: str, p: float) -> Arrays:
    """D (K, trials), norm (K, trials) and whether each run ended finite; of plain runs the theorem's cone too, μ0/3 and
    R_μ (trials,), and the growth of the norm in one step over ηL (norms, W, trials)."""
    problem = config.drawn(range(config.trials))
    settings: Any = {"p": p, "steps": config.steps, "record": config.grid}
    more: Arrays = {}
    if kind == "plain":
        alpha = problem.best_tokens()
        W_mm = max_margin(problem, alpha, p)
        lr, radius = (choice[config.p.index(p)] for choice in (config.lr, config.radius))
        W0 = boundary_starts(W_mm, p, config.divergence, radius, starts=1, seed=(config.seed, 1))[0]
        run = simulate(problem, lr=lr, normalize=None, W0=W0, **settings)
        constants = [theory.constants(some(problem, k), alpha=a, p=p, W_mm=W_mm[k]) for k, a in enumerate(alpha)]
        L, mu = np.array([each.gradient_bound for each in constants]), np.array([each.mu0 / 3 for each in constants])
        R_mu = np.array([each.R_mu(lr=lr) for each in constants])
        shape = (len(NORMS), config.single_steps, *W_mm.shape)
        random: Any = np.random.default_rng((config.seed, 2)).standard_normal(shape)
        W0 = np.reshape(NORMS, (-1, 1, 1, 1, 1)) * np.asarray(direction(random, p))
        step = simulate(problem, p=p, lr=1.0, steps=1, normalize=None, W0=W0, record=[0, 1])
        growth = np.asarray(step.norm[1] - step.norm[0])
        more = {"L": L, "mu": mu, "R_mu": R_mu, "growth_29": growth / L}
    else:
        run = simulate(problem, lr=config.lr_normalised, **settings)
        W_mm = max_margin(problem, run.alpha, p)
    return {"D": run.divergence_to(W_mm), "norm": run.norm, "finite": run.status == "steps", **more}


def one_dimension(p: float) -> float:
    """The largest growth of |W| in one step over η sup|∇L|, for d = 1, η = 1 and two tokens ±0.01 with v = 100."""
    X, z, v = np.array([[[SCALE], [-SCALE]]]), np.ones((1, 1)), np.array([1 / SCALE])
    sizes = np.geomspace(1e-3, 1e4, 2000)
    y, W = np.ones(1), np.concatenate([-sizes, sizes])[:, None, None]
    slope = np.abs(np.asarray(gradient(X, y, z, v, W=W))).ravel()
    step = simulate(X, y, z, v, p=p, lr=1.0, steps=1, normalize=None, W0=W, record=[0, 1])
    return float(np.max(step.norm[1] - step.norm[0]) / slope.max())


def powers(data: Arrays, p: float, first: float = 100, last: float = 1) -> tuple[Any, float]:
    """The fitted power of 1/log k of each trial between K/first and K/last, and the theorem's."""
    K, steps = data["steps"][-1], data["steps"]
    window = (steps >= max(K / first, 3)) & (steps <= K / last)
    fits = [fit_rate(steps[window], D[window], p, start=3) for D in data[f"plain/{p:g}/D"].T]
    return np.array([fit.exponent for fit in fits]), fits[0].expected


def norm_powers(data: Arrays, p: float) -> tuple[Any, float]:
    """The fitted e of D ≈ C (log ‖W‖)^j/‖W‖^e for each trial over the last two decades, and that of (28)."""
    late = data["steps"] >= data["steps"][-1] / 100
    D, norm = (np.log(data[f"plain/{p:g}/{name}"][late]) for name in ("D", "norm"))
    outer, expected = (0, p - 1) if p < 2 else (2 if p == 2 else 1, 1.0)
    scaled = D - outer * np.log(norm)
    return np.array([-np.polyfit(x, y, 1)[0] for x, y in zip(norm.T, scaled.T, strict=True)]), expected


def increments(data: Arrays, values: Any) -> Any:
    """How much something grew in the last decade of steps over how much in the one before: 1 for log k."""
    K = data["steps"][-1]
    first, second, third = values[np.searchsorted(data["steps"], [K // 100, K // 10, K])]
    return (third - second) / (second - first)


def loglog_ratio(data: Arrays) -> float:
    """The same ratio of log log k."""
    with np.errstate(all="ignore"):  # of the first steps, which are not looked at
        return float(increments(data, np.log(np.log(data["steps"].astype(float)))))


def measure(data: Arrays) -> Rows:
    loglog = loglog_ratio(data)
    decades = (
        f"How much the norm grows in the last decade of steps over the one before: 1 for log k, {number(loglog)} for "
        "log log k. Met if the interval lies above the middle of the two."
    )
    names = ("D", "norm", "L", "growth_29", "mu", "R_mu")
    for p, lr, in_one_dimension in zip(*(data[name].tolist() for name in ("p", "lr", "growth_1d")), strict=True):
        D, norm, L, single, mu, R_mu = (data[f"plain/{p:g}/{name}"] for name in names)
        promised = "loglog k / log k" if p > 2 else "(loglog k)² / log k" if p == 2 else f"loglog k / (log k)^{p - 1:g}"
        exponents, expected = powers(data, p)
        more: dict[str, Any] = {"why": ORDER, "column": p}
        yield at_least(POWER, f"O({promised}): at least {expected:g}", expected, exponents, where="Theorem 4", **more)
        yield alone(DRIFT, mean(powers(data, p, 10, 1)[0] - powers(data, p, 100, 10)[0]), column=p)
        in_norm, expected = norm_powers(data, p)
        quantity = "plain steps: power of 1/‖W‖ in D"
        yield at_least(quantity, f"at least {expected:g}", expected, in_norm, where="(28)", **more)
        # Ω(log k): nearer to what log k would give than to what log log k would.
        more = {"why": decades, "column": p, "where": "Theorem 4", "target": None}
        yield at_least(GROWTH, "Ω(log k)", (1 + loglog) / 2, increments(data, norm), **more)
        growth = np.diff(norm, axis=0) / np.diff(data["steps"])[:, None]
        along = float((growth / (lr * L)).max())
        yield claim(STEP, "at most 1", along, along <= 1, RUNS_STEP, column=p, where="(29)")
        elsewhere = max(float(single.max()), in_one_dimension)
        yield alone(f"{STEP}, from W outside any cone", elsewhere, OUTSIDE_STEP, column=p)
        yield alone("plain steps: D at the end, median", median(D[-1]), column=p)
        yield alone("the theorem's cone: largest D, median", median(mu), CONE, column=p)
        yield alone("the theorem's cone: least norm, median", median(R_mu), CONE, column=p)
    decade = int(np.searchsorted(data["steps"], data["steps"][-1] // 10))
    for p in data["normalised_p"].tolist():
        D, finite = (data[f"normalised/{p:g}/{name}"] for name in ("D", "finite"))
        falls = finite.all() and (D[-1] < D[decade]).all()
        why = "" if falls else "Not every trial ended finite with a smaller D than a decade earlier."
        yield alone("normalised steps: median D a decade earlier", median(D[decade]), column=p)
        yield alone(f"{NORMALISED} {data['steps'][-1]:,}", median(D[-1]), why, column=p)


def tell(data: Arrays, table: Measured) -> Told:
    mu, R = (np.concatenate([data[f"plain/{p:g}/{name}"] for p in data["p"]]) for name in ("mu", "R_mu"))
    cone = "D ≤ {} to {} and norm ≥ {} to {}".format(*(number(end, 1) for x in (mu, R) for end in (x.min(), x.max())))
    ps, ends = ", ".join(f"{p:g}" for p in data["p"]), table.values(NORMALISED)
    fitted = zip(table.values(POWER), data["p"], strict=True)
    both = ", ".join(f"{number(ours, 2)} (theorem {number(powers(data, p)[1])})" for ours, p in fitted)
    grown, loglog = ", ".join(number(value, 2) for value in table.values(GROWTH)), number(loglog_ratio(data))
    growth = f"Growth in the last decade ÷ the one before: {grown} (log k gives 1, log log k {loglog})"
    along, elsewhere = number(max(table.values(STEP)), 2), table.ours(f"{STEP}, from")
    steps = f"At most {along} ηL along the runs; from W outside any cone up to {elsewhere} ηL for p = {ps}"
    faster = [row.verdict == MET for row in table.rows(POWER)]
    return Told(
        f"The divergence falls faster than Theorem 4's bound for {sum(faster)} of {len(faster)} p, from starts outside "
        "its cone",
        f"Plain runs start at D = {data['divergence']:g} and norm "
        f"{' or '.join(f'{R:g}' for R in np.unique(data['radius']))}, where the theorem's cone asks for {cone}. "
        f"Normalised steps are far faster: after {data['steps'][-1]:,} of them the median D is between "
        f"{number(min(ends), 1)} and {number(max(ends), 1)}.",
        table.claim(
            "The divergence falls at least at the stated inverse power of log k (Theorem 4)",
            f"Power {both} for p = {ps}, from starts outside the theorem's cone.",
            POWER,
        ),
        table.claim("‖W(k)‖ grows at least like log k (Theorems 2 and 4)", f"{growth}.", GROWTH),
        table.claim("One step adds at most ηL to ‖W‖ (inequality 29, used for Theorem 4)", f"{steps}.", STEP),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """D of plain steps with the theorem's slope, the norm over k, and D of long normalised runs."""
    fig, (left, middle, right) = row_of_axes(3, width=12, height=4.0)
    steps = data["steps"]
    late, window = steps >= SMALLEST_STEP, steps >= steps[-1] / 100
    for p in data["p"]:
        D, norm = data[f"plain/{p:g}/D"], data[f"plain/{p:g}/norm"]
        median, bound = np.median(D, -1), rate(p, steps[window])
        label = f"p = {p:g}: {number(table.values(POWER, f'p = {p:g}')[0], 2)}, theorem {powers(data, p)[1]:g}"
        half = np.quantile(D[late], [0.25, 0.75], axis=1)
        curve(left, np.log(steps[late]), median[late], p, half, label=label)
        theirs = median[window][0] * bound / bound[0]
        left.plot(np.log(steps[window]), theirs, color=look_of(p).colour, linewidth=5, alpha=0.25)
        curve(middle, steps[late], np.median(norm, -1)[late], p)
    for p in data["normalised_p"]:
        curve(right, steps[1:], np.median(data[f"normalised/{p:g}/D"], -1)[1:], p)
    title = "plain steps: D over log k, median and middle half\n(broad lines: the theorem's rate)"
    panel(left, title, "log k", "D", log="xy")
    for axis in (left.xaxis, left.yaxis):
        mark_decade(axis)
    left.legend(loc="lower left", fontsize=9, title="power of 1/log k", title_fontsize=9)
    panel(middle, "plain steps: norm of W\n(a straight line is growth like log k)", "step k", "norm of W", log="x")
    panel(right, "normalised steps from zero: median D", "step k", "D", log="xy", legend="lower left")
    return fig
