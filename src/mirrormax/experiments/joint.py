"""Erratum: W and v trained together on random problems, against the attention SVM and against its relaxed form."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt
from scipy import stats

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.dynamics import Trajectory, simulate
from mirrormax.experiments._contract import (
    ERRATUM,
    MET,
    UNDECIDED,
    Arrays,
    Comparison,
    Rows,
    number,
    our_bar,
    ours_alone,
    target,
)
from mirrormax.experiments._trials import Floats, sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.svm import Solution, att_svm, joint_limit, label_excess

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Erratum: where W turns when the head is trained with it"
SHORT = "Joint training"
PLACE = 200
SECONDS = 25
ON_MARGIN = 1e-6  # of the unit head: an excess below it is that of a label support vector
SETTLED = np.log(1e-6)  # the attention that unselected tokens may keep
BAR = 0.01


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    steps: int = 3000
    problems: int = 20
    n: int = 6
    T: int = 8
    d: int = 10
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=100, steps=10000)}


def run(config: Config, work: Work) -> Arrays:
    """For every p and problem, (p, problems): D of W to both limits, and what kind of run it was."""
    found = work.map(_runs, [(config, p, lr) for p, lr in zip(config.p, config.lr, strict=True)])
    return {"p": np.array(config.p), **{name: np.stack([part[name] for part in found]) for name in found[0]}}


def _runs(task: tuple[Config, float, float]) -> Arrays:
    config, p, lr = task
    problem = sphere_problems(range(config.seed, config.seed + config.problems), config.n, config.T, config.d)
    start = np.zeros_like(problem.pop("v"))
    run = simulate(**problem, v0=start, p=p, lr=lr, steps=config.steps, train_head=True, weights="last", record=2)
    X, y, z, alpha = problem["X"], problem["y"], problem["z"], run.alpha
    excess = np.asarray(label_excess(X, y, alpha, p=p))
    ratio = run.head_norm[-1] / run.norm[-1]
    limits = {
        "plain": att_svm(X, z, alpha, p=p, throw=False),
        "relaxed": joint_limit(X, y, z, alpha, p=p, ratio=ratio, excess=excess, throw=False),
    }
    return {
        **{name: _divergence(limit, run) for name, limit in limits.items()},
        "excess": excess.max(-1),
        "ratio": ratio,
        "settled": run.log_rest[-1].max(-1) < SETTLED,
    }


def _divergence(limit: Solution, run: Trajectory) -> Floats:
    """D to a limit, (problems,); NaN where there is none."""
    solved = np.atleast_1d(np.asarray(limit.optimal))
    return np.asarray(run.divergence_to(np.where(solved[:, None, None], limit.W, np.nan))[-1])


def off_margin(data: Arrays) -> npt.NDArray[np.bool_]:
    """Which runs have a sample that is no label support vector, and both limits, (p, problems)."""
    known = np.isfinite(data["plain"]) & np.isfinite(data["relaxed"])
    return np.asarray((data["excess"] > ON_MARGIN) & known)


def nearer(data: Arrays) -> tuple[int, int]:
    """In how many of the runs that can tell W is nearer to the relaxed problem, and how many these are."""
    tell = off_margin(data)
    return int((data["relaxed"] < data["plain"])[tell].sum()), int(tell.sum())


def summary(data: Arrays) -> Rows:
    rows: Rows = {}
    for k, p in enumerate(data["p"]):
        tell = off_margin(data)[k]
        rows[f"p={p:g}"] = {
            "runs": len(tell),
            "runs off the label margin": int(tell.sum()),
            "median D to the attention SVM, off": _median(data["plain"][k][tell]),
            "median D to the relaxed SVM, off": _median(data["relaxed"][k][tell]),
            "largest D to the relaxed SVM, off": float(np.max(data["relaxed"][k][tell], initial=0.0)),
            "median D to the attention SVM, all on": _median(data["plain"][k][~tell]),
            "median ‖v‖/‖W‖": _median(data["ratio"][k]),
            "settled": int(data["settled"][k].sum()),
        }
    return rows


def _median(values: Floats) -> float:
    return float(np.nanmedian(values)) if np.isfinite(values).any() else float("nan")


def shows(data: Arrays) -> str:
    won, tell = nearer(data)
    return (
        f"In {tell} of {data['plain'].size} joint runs some sample is no label support vector. There W turns not to "
        f"the attention SVM but to a relaxed one, in {won} of {tell} runs; what is relaxed is each sample's margin, by "
        "the label margin that it has to spare."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    won, tell = nearer(data)
    low, high = stats.binomtest(won, tell).proportion_ci(0.95) if tell else (0.0, 1.0)
    verdict = ERRATUM if low > 0.5 else MET if high < 0.5 else UNDECIDED
    rows = [
        Comparison(
            "limit of W where not every sample is a label support vector",
            "the attention SVM",
            f"nearer to the relaxed SVM in {won} of {tell} runs [{low:.2f}, {high:.2f}]",
            verdict,
            "Erratum if the 95 % interval of that share lies above a half, met if below.",
        )
    ]
    for k, p in enumerate(data["p"]):
        chosen = off_margin(data)[k] & data["settled"][k]
        if chosen.any():
            why = f"{int(chosen.sum())} settled runs off the label margin; the bar was set before the runs."
            rows.append(
                target(f"median D to the relaxed SVM, p = {p:g}", BAR, _median(data["relaxed"][k][chosen]), why)
            )
            rows.append(
                ours_alone(
                    f"median D to the attention SVM, p = {p:g}", f"{number(_median(data['plain'][k][chosen]), 2)}"
                )
            )
    on = ~off_margin(data) & data["settled"] & np.isfinite(data["plain"])
    if on.any():
        D = _median(data["plain"][on])
        rows.append(
            our_bar(
                "median D to the attention SVM where every sample is a label support vector",
                f"≤ {BAR:g}",
                f"{number(D, 2)} ({int(on.sum())} runs)",
                D <= BAR,
            )
        )
    return rows


def draw(data: Arrays) -> Figure:
    """D to the relaxed problem against D to the attention SVM, one point a run: below the diagonal it is nearer."""
    fig, axes = row_of_axes(len(data["p"]), width=3.5 * len(data["p"]), height=3.4)
    for k, (ax, p) in enumerate(zip(axes, data["p"], strict=True)):
        look = look_of(float(p))
        tell = off_margin(data)[k]
        for chosen, filled, label in ((tell, True, "some sample off the margin"), (~tell, False, "all on it")):
            ax.plot(
                data["plain"][k][chosen],
                data["relaxed"][k][chosen],
                linestyle="",
                marker=look.marker,
                color=look.colour,
                markerfacecolor=look.colour if filled else "white",
                markersize=5,
                label=label,
            )
        ends = [1e-6, 1.0]
        ax.plot(ends, ends, color="0.5", linewidth=1, linestyle="--")
        ax.set(xscale="log", yscale="log", xlim=ends, ylim=ends, title=f"p = {p:g}", xlabel="D to the attention SVM")
        ax.title.set_fontsize(10)
        ax.legend(loc="upper left", fontsize=8)
    axes[0].set_ylabel("D to the relaxed SVM")
    won, tell = nearer(data)
    headline(fig, f"Trained with its readout, W is nearer to the relaxed SVM in {won} of {tell} runs that can tell")
    return fig
