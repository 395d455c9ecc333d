"""Theorems 2 and 3: from a cone around the SVM of locally optimal tokens, norms grow and directions converge.

Plain ℓp-AttGD from starts at a stated divergence and norm, around the attention SVM of tokens α. Three groups of α: the
globally optimal ones; ones that a run of training ended with and that are locally, not globally, optimal; and as a
control ones that are not locally optimal, of which the theorems say nothing and the derivation says that runs leave.

A plain step changes the dual, of size ‖W‖^{p−1}, by η‖∇L‖: at p = 6 and norm 8, a step of 1 moves nothing in 10,000
steps, and rounding of D then decides who "comes nearer" (the control did, in 6 of 20 runs). So η is 8^{p−2} for p > 2.
At p = 1.1 the cone at norm 8 is too wide: some runs leave it. From norm 30 on none do.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, curve, look_of, mark_decade, panel, row_of_axes
from mirrormax._statistics import median, number, percent, share
from mirrormax.dynamics import simulate
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, alone, most, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Problems, locally_optimal, log_grid, max_margin, some
from mirrormax.theory import boundary_starts, step_size_ok

ABOUT = About("Theorems 2 and 3: norms grow, directions converge", place=125, seconds=7, revision=1)
NAMES = {"global": "globally optimal", "local": "locally optimal only", "neither": "not locally optimal"}
GROUPS = tuple(NAMES)
GROWS = "Theorem 2: runs whose norm grows at every record"
NEARER = "Theorem 3: runs that keep α and come nearer in the last decade of steps; control"
WIDER = "From cones wider and norms smaller than the theorems', whose own no run can start in and move."
FIRST = f"{WIDER} A first threshold, nearer than at the start and than at half of the records, was met by 81 of 85."
REMARK = (
    "ψ − ηL convex at the points looked at. For p > 2 ψ is flat at zero weights, and for any p the condition is "
    "sufficient, not necessary."
)


@dataclass(frozen=True)
class Case:
    """An exponent, and where runs start: their norm (Theorem 3 asks for more than e²) and step size."""

    p: float
    radius: float = 8.0
    lr: float = 1.0

    @property
    def key(self) -> str:
        return f"{self.p:g}-{self.radius:g}"


CASES = (Case(1.1), Case(1.1, radius=30.0), Case(1.75), Case(2.0), Case(3.0, lr=8.0), Case(6.0, lr=8.0**4))


@dataclass(frozen=True)
class Config(Problems):
    cases: tuple[Case, ...] = CASES
    steps: int = 10_000
    divergence: float = 0.1
    search: int = 3000  # steps of the runs that look for locally optimal tokens
    points: int = 40
    checked: int = 2  # runs whose step size is held against Remark 1

    @property
    def grid(self) -> Any:
        """Recorded steps, each with its successor, which Remark 1 is about."""
        grid = log_grid(self.steps, self.points)
        return np.union1d(grid, grid[:-1] + 1)


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=100, steps=1_000_000)}


def run(config: Config, work: Work) -> Arrays:
    data: Arrays = {"steps": config.grid, "keys": np.array([case.key for case in config.cases])}
    data |= {name: np.array([getattr(case, name) for case in config.cases]) for name in ("p", "radius", "lr")}
    for case, arrays in zip(config.cases, work.each(_runs, [(config, case) for case in config.cases]), strict=True):
        data |= {f"{case.key}/{name}": array for name, array in arrays.items()}
    return data


def _runs(config: Config, case: Case) -> Arrays:
    """For each group D, norm (K, runs) and whether a run ended with its α."""
    p, problem, grid = case.p, config.batch(), config.grid
    arrays: Arrays = {}
    rng = np.random.default_rng((config.seed, 4))
    W0 = rng.standard_normal((config.problems, config.d, config.d))
    reached = simulate(problem, p=2.0, lr=0.1, steps=config.search, W0=W0, record=1).alpha
    random = rng.integers(config.T, size=(config.problems, config.n))
    # Tokens of each group, or candidates for it.
    for group, alpha in zip(GROUPS, (problem.best_tokens(), np.asarray(reached), random), strict=True):
        W_mm = max_margin(problem, alpha, p)
        optimal = locally_optimal(problem, alpha, W_mm)
        is_best = (alpha == problem.best_tokens()).all(-1)
        kept = {"global": is_best, "local": optimal & ~is_best, "neither": ~optimal & np.isfinite(W_mm).all((1, 2))}
        at = np.flatnonzero(kept[group])
        D, norm, ends = np.zeros((len(grid), 0)), np.zeros((len(grid), 0)), np.zeros(0, bool)
        if len(at):
            W0 = boundary_starts(W_mm[at], p, config.divergence, case.radius, starts=1, seed=(config.seed, 1))[0]
            run = simulate(some(problem, at), p=p, lr=case.lr, steps=config.steps, normalize=None, W0=W0, record=grid)
            D, norm, ends = run.divergence_to(W_mm[at]), run.norm, (run.alpha == alpha[at]).all(-1)
        arrays |= {f"{group}/D": D, f"{group}/norm": norm, f"{group}/kept": ends}
        if group == "global":
            checks = [step_size_ok(run[k].problem, run=run[k]) for k in range(min(config.checked, len(at)))]
            arrays["largest_lr"] = np.array([check.largest_lr for check in checks])
    return arrays


def converges(data: Arrays, key: str, group: str) -> Any:
    """Runs that are with their α at the end, and nearer to the SVM than a decade of steps before."""
    D, before = data[f"{key}/{group}/D"], int(np.searchsorted(data["steps"], data["steps"][-1] / 10))
    return (D[-1] < D[before]) & data[f"{key}/{group}/kept"]


def grows(data: Arrays, key: str, group: str) -> Any:
    """Runs whose norm is larger at every record than at the one before."""
    return (np.diff(data[f"{key}/{group}/norm"], axis=0) > 0).all(0)


def _optimal(data: Arrays, function: Any, *keys: str) -> Any:
    """Of the runs around locally optimal tokens."""
    return np.concatenate([function(data, key, group) for key in keys for group in GROUPS[:2]])


def _largest(data: Arrays) -> dict[str, float]:
    """p of the case of the largest norm of each p, by its key."""
    cases = zip(*(data[name].tolist() for name in ("keys", "p", "radius")), strict=True)
    return {key: p for key, p, radius in cases if radius == data["radius"][data["p"] == p].max()}


def measure(data: Arrays) -> Rows:
    for key, p, radius, lr in zip(*(data[name].tolist() for name in ("keys", "p", "radius", "lr")), strict=True):
        column, largest = f"p = {p:g}, norm {radius:g}", float(data[f"{key}/largest_lr"].min())
        good, other, beyond = _optimal(data, converges, key), converges(data, key, "neither"), ""
        where = "at the points looked at"
        if lr > largest > 0:
            times = f"{number(lr / largest, 2)} times the bound of Remark 1 {where}"
            beyond = f" The step size of {lr:,g} is {times}: these runs are outside the theorems' condition."
        elif lr > largest:
            beyond = f" Remark 1 allows no step size {where}; {lr:,g} is outside the theorems' condition."
        ours = f"{good.sum()} of {len(good)}; {other.sum()} of {len(other)}"
        yield most(GROWS, _optimal(data, grows, key), why=f"{WIDER}{beyond}", column=column)
        if key in _largest(data):
            holds = bool(good.all() and len(other) and share(other).high < share(good).low)
            criterion = "all, and of the control decidedly fewer"
            yield threshold(NEARER, criterion, ours, holds, f"{FIRST}{beyond}", column=column, late=True)
        else:
            yield alone(f"{NEARER}, a start that is too near", ours, column=column)
        for group, name in NAMES.items():
            end = data[f"{key}/{group}/D"][-1]
            yield alone(f"median D at the end, α {name}", median(end) if len(end) else "no such α found", column=column)
        growth = np.concatenate([data[f"{key}/{g}/norm"][-1] / data[f"{key}/{g}/norm"][0] for g in GROUPS])
        yield alone("growth of the norm over the run, median", median(growth), column=column)
        yield alone("step size", lr, column=column)
        yield alone("step size up to which Remark 1's condition holds", largest, REMARK, column=column)


def tell(data: Arrays, table: Measured) -> Told:
    keys = [*_largest(data)]
    good, grown = (_optimal(data, function, *keys) for function in (converges, grows))
    other = np.concatenate([converges(data, key, "neither") for key in keys])
    around, others = percent(good.mean()), percent(other.mean())
    finding = f"{around} of runs around locally optimal tokens converge, {others} around others"
    theorem_2 = "From a cone around the SVM of locally optimal tokens ‖W‖ grows for ever (Theorem 2)"
    theorem_3 = "From such a cone the direction of W converges to that SVM (Theorem 3)"
    measured = f"{good.sum()} of {len(good)} runs converge; {other.sum()} of {len(other)} around tokens that are not"
    return Told(
        f"Local optimality decides: {finding}" if good.mean() > other.mean() else finding,
        "To converge is to keep the tokens and to have a smaller divergence after the last decade of steps. "
        f"{percent(grown.mean())} of norms grow from record to record. Where a p has starts of two norms, those of the "
        "smaller are not counted.",
        table.claim(theorem_2, f"‖W‖ grows at every record in {grown.sum()} of {len(grown)} runs.", GROWS),
        table.claim(theorem_3, f"{measured} locally optimal.", NEARER),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """D of every run over the steps, by group, and the norm."""
    cases = _largest(data).items()
    fig, axes = row_of_axes(len(cases) + 1, width=2.6 * (len(cases) + 1), height=3.7)
    steps = np.maximum(data["steps"], 1)
    for ax, (key, p) in zip(axes, cases, strict=False):
        for group, line in zip(GROUPS, ("-", "--", ":"), strict=True):
            style: Any = {"color": "0.55" if group == "neither" else look_of(p).colour, "linestyle": line}
            D = data[f"{key}/{group}/D"]
            ax.plot(steps, D, linewidth=0.7, alpha=0.45, **style)
            if D.shape[1]:
                ax.plot(steps, np.median(D, 1), linewidth=2.2, label=NAMES[group], **style)
        panel(ax, f"D to the SVM of α, p = {p:g}", "step", log="xy")
        mark_decade(ax.yaxis)
        norm = np.concatenate([data[f"{key}/{g}/norm"] for g in GROUPS[:2]], 1)
        curve(axes[-1], steps, np.median(norm / norm[0], 1), p)
    axes[0].legend(loc="lower left", fontsize=9, title="α", title_fontsize=9)
    panel(axes[-1], "‖W‖ over ‖W(0)‖, median", "step", log="xy", legend="best")
    return fig
