"""Theorems 2 and 3: from a cone around the SVM of locally optimal tokens, norms grow and directions converge.

Plain ℓp-AttGD from starts at a stated divergence and norm, around the attention SVM of tokens α. Three groups of α: the
globally optimal ones; ones that a run of training ended with and that are locally, not globally, optimal; and as a
control ones that are not locally optimal, of which the theorems say nothing and the derivation says that runs leave.
The theorems' own cone is out of reach (Theorem 4 tells how far), so these are wider and nearer cones.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import headline, look_of, mark_decade, row_of_axes
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import (
    Arrays,
    Claim,
    Comparison,
    Rows,
    number,
    our_bar,
    ours_alone,
    percent,
    share_interval,
    worst,
)
from mirrormax.experiments._trials import (
    best_tokens,
    locally_optimal,
    log_grid,
    max_margin,
    name_of,
    sphere_problems,
)
from mirrormax.experiments._work import Work
from mirrormax.theory import boundary_starts, step_size_ok

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Theorems 2 and 3: norms grow, directions converge"
SHORT = "Theorems 2, 3"
PLACE = 125
SECONDS = 12
GROUPS = ("global", "local", "neither")
NAMES = {"global": "globally optimal", "local": "locally optimal only", "neither": "not locally optimal"}


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    problems: int = 20
    steps: int = 10_000
    lr: float = 1.0
    radius: float = 8.0  # Theorem 3 asks for more than e²
    divergence: float = 0.1
    search: int = 3000  # steps of the runs that look for locally optimal tokens
    points: int = 40
    checked: int = 2  # runs whose step size is held against Remark 1
    n: int = 6
    T: int = 8
    d: int = 10
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=100, steps=1_000_000)}


def run(config: Config, work: Work) -> Arrays:
    data: Arrays = {"p": np.array(config.p), "steps": _grid(config)}
    for p, found in zip(config.p, work.map(_runs, [(config, p) for p in config.p]), strict=True):
        data |= {f"{name_of(p)}/{name}": array for name, array in found.items()}
    return data


def _grid(config: Config) -> np.ndarray[Any, Any]:
    """Recorded steps, each with its successor, which Remark 1 is about."""
    grid = log_grid(config.steps, config.points)
    return np.unique(np.concatenate([grid, grid[:-1] + 1]))


def _runs(task: tuple[Config, float]) -> Arrays:
    """For each group D, norm (K, runs) and whether a run ended with its α."""
    config, p = task
    problem = sphere_problems(range(config.seed, config.seed + config.problems), config.n, config.T, config.d)
    found: Arrays = {}
    for group, alpha in _selections(config, problem, p).items():
        W_mm = max_margin(problem, alpha, p)
        optimal = locally_optimal(problem, alpha, W_mm)
        is_best = (alpha == best_tokens(problem)).all(-1)
        kept = {"global": is_best, "local": optimal & ~is_best, "neither": ~optimal & np.isfinite(W_mm).all((1, 2))}
        at = np.flatnonzero(kept[group])
        if not len(at):
            found |= {f"{group}/{name}": np.zeros((len(_grid(config)), 0)) for name in ("D", "norm")}
            found[f"{group}/kept"] = np.zeros(0, bool)
            continue
        part = {name: array[at] for name, array in problem.items()}
        W0 = boundary_starts(W_mm[at], p, config.divergence, config.radius, starts=1, seed=(config.seed, 1))[0]
        run = simulate(**part, p=p, lr=config.lr, steps=config.steps, normalize=False, W0=W0, record=_grid(config))
        found[f"{group}/D"], found[f"{group}/norm"] = np.asarray(run.divergence_to(W_mm[at])), np.asarray(run.norm)
        found[f"{group}/kept"] = np.asarray((run.alpha == alpha[at]).all(-1))
        if group == "global":
            checks = [
                step_size_ok(*(part[name][k] for name in ("X", "y", "z", "v")), run=run[k])
                for k in range(min(config.checked, len(at)))
            ]
            found["largest_lr"] = np.array([check.largest_lr for check in checks])
            found["lr"] = np.array(config.lr)
    return found


def _selections(config: Config, problem: Any, p: float) -> dict[str, Any]:
    """Tokens (problems, n) of each group, or candidates for it."""
    rng = np.random.default_rng((config.seed, 4))
    W0 = rng.standard_normal((config.problems, config.d, config.d))
    reached = simulate(**problem, p=2.0, lr=0.1, steps=config.search, W0=W0, record=1).alpha
    return {
        "global": best_tokens(problem),
        "local": np.asarray(reached),
        "neither": rng.integers(config.T, size=(config.problems, config.n)),
    }


def converges(data: Arrays, p: float, group: str) -> np.ndarray[Any, Any]:
    """Runs that are with their α at the end, and nearer to the SVM than a decade of steps before."""
    D, steps = data[f"{name_of(p)}/{group}/D"], data["steps"]
    before = D[int(np.searchsorted(steps, steps[-1] / 10))]
    return np.asarray((D[-1] < before) & data[f"{name_of(p)}/{group}/kept"])


def grows(data: Arrays, p: float, group: str) -> np.ndarray[Any, Any]:
    """Runs whose norm is larger at every record than at the one before."""
    return np.asarray((np.diff(data[f"{name_of(p)}/{group}/norm"], axis=0) > 0).all(0))


def summary(data: Arrays) -> Rows:
    rows = {}
    for p in data["p"]:
        for group in GROUPS:
            D = data[f"{name_of(p)}/{group}/D"]
            if D.shape[1]:
                rows[f"p={p:g}, {NAMES[group]}"] = {
                    "runs": D.shape[1],
                    "norm grows": float(grows(data, p, group).mean()),
                    "converges": float(converges(data, p, group).mean()),
                    "median D at the end": float(np.median(D[-1])),
                }
    return rows


def _pooled(data: Arrays, function: Any, groups: tuple[str, ...]) -> np.ndarray[Any, Any]:
    return np.concatenate([function(data, p, group) for p in data["p"] for group in groups])


def shows(data: Arrays) -> str:
    good, other = (_pooled(data, converges, groups) for groups in (GROUPS[:2], GROUPS[2:]))
    growing = _pooled(data, grows, GROUPS[:2])
    return (
        f"Around the SVM of locally optimal tokens {percent(good.mean())} of {len(good)} plain runs come nearer to it, "
        f"around that of other tokens {percent(other.mean())} of {len(other)}. "
        "To come nearer is to keep the tokens and to have a smaller divergence after the last decade of steps; the "
        f"norm of {percent(growing.mean())} grows from record to record. The assumption is what decides."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows: list[Comparison] = []
    for p in data["p"].tolist():
        column, key = f"p = {p:g}", name_of(p)
        good = _joined(data, converges, p)
        other = converges(data, p, "neither")
        grown = _joined(data, grows, p)
        apart = len(other) > 0 and (
            share_interval(int(other.sum()), len(other))[1] < share_interval(int(good.sum()), len(good))[0]
        )
        rows.append(
            our_bar(
                "Theorem 2: runs whose norm grows at every record",
                "all",
                f"{grown.sum()} of {len(grown)}",
                bool(grown.all()),
                WIDER,
                column=column,
            )
        )
        rows.append(
            our_bar(
                "Theorem 3: runs that keep α and come nearer in the last decade of steps; control",
                "all, and of the control decidedly fewer",
                f"{good.sum()} of {len(good)}; {other.sum()} of {len(other)}",
                bool(good.all() and apart),
                f"{WIDER} A first bar, nearer than at the start and than at half of the records, was met by 81 of 85.",
                column=column,
                late=True,
            )
        )
        for group in GROUPS:
            D = data[f"{key}/{group}/D"]
            told = f"{number(np.median(D[-1]), 2)} ({D.shape[1]} runs)" if D.shape[1] else "no such α found"
            rows.append(ours_alone(f"median D at the end, α {NAMES[group]}", told, column=column))
        largest, lr = data[f"{key}/largest_lr"].min(), float(data[f"{key}/lr"])
        told = f"up to {number(largest, 2)}; ours is {number(lr)}"
        rows.append(
            ours_alone("step size for which Remark 1's condition holds on the way", told, REMARK, column=column)
        )
    return rows


WIDER = "From cones wider and norms smaller than the theorems', whose own no run can start in and move."
REMARK = (
    "ψ − ηL convex at the points looked at. For p > 2 ψ is flat at zero weights, and for any p the condition is "
    "sufficient, not necessary."
)


def _joined(data: Arrays, function: Any, p: float) -> np.ndarray[Any, Any]:
    return np.concatenate([function(data, p, group) for group in GROUPS[:2]])


def claims(data: Arrays) -> list[Claim]:
    rows = comparisons(data)
    good, other = (_pooled(data, converges, groups) for groups in (GROUPS[:2], GROUPS[2:]))
    grown = _pooled(data, grows, GROUPS[:2])
    return [
        Claim(
            "From a cone around the SVM of locally optimal tokens ‖W‖ grows for ever (Theorem 2)",
            f"grows at every record in {grown.sum()} of {len(grown)} runs",
            worst([row for row in rows if row.quantity.startswith("Theorem 2")]),
        ),
        Claim(
            "… and its direction turns to that SVM (Theorem 3)",
            f"in {good.sum()} of {len(good)} runs; in {other.sum()} of {len(other)} where α is not locally optimal",
            worst([row for row in rows if row.quantity.startswith("Theorem 3")]),
        ),
    ]


def draw(data: Arrays) -> Figure:
    """D of every run over the steps, by group, and the norm."""
    count = len(data["p"])
    fig, axes = row_of_axes(count + 1, width=3.2 * (count + 1), height=3.7)
    steps = np.maximum(data["steps"], 1)
    styles: dict[str, dict[str, Any]] = {
        "global": {"color": None, "linestyle": "-"},
        "local": {"color": None, "linestyle": "--"},
        "neither": {"color": "0.55", "linestyle": ":"},
    }
    for ax, p in zip(axes, data["p"], strict=False):
        for group in GROUPS:
            style: dict[str, Any] = {**styles[group], "color": styles[group]["color"] or look_of(p).colour}
            D = data[f"{name_of(p)}/{group}/D"]
            ax.plot(steps, D, linewidth=0.7, alpha=0.45, **style)
            if D.shape[1]:
                ax.plot(steps, np.median(D, 1), linewidth=2.2, label=NAMES[group], **style)
        ax.set(xscale="log", yscale="log", xlabel="step")
        mark_decade(ax.yaxis)
        ax.set_title(f"D to the SVM of α, p = {p:g}", fontsize=10)
        ax.legend(loc="lower left", fontsize=8, title="α", title_fontsize=8)
    for p in data["p"]:
        norm = np.median(np.concatenate([data[f"{name_of(p)}/{g}/norm"] for g in GROUPS[:2]], 1), 1)
        axes[-1].plot(steps, norm, label=f"p = {p:g}", **look_of(p).style(markersize=5, markevery=10))
    axes[-1].set(xscale="log", xlabel="step")
    axes[-1].set_title("norm of W, α locally optimal, median", fontsize=10)
    axes[-1].legend(fontsize=8)
    good, other = (_pooled(data, converges, groups).mean() for groups in (GROUPS[:2], GROUPS[2:]))
    told = f"{percent(good)} of runs around locally optimal tokens converge, {percent(other)} around others"
    headline(fig, f"Local optimality decides: {told}" if good > other else told)
    return fig
