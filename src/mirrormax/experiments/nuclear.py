"""Training the factors K and Q instead of W = KQᵀ: does the direction turn to the nuclear-norm attention SVM?

The paper names it as the known bias of gradient descent (p = 2) in this parameterisation. Every problem is trained
twice by normalised gradient descent, through K and Q and through W itself, and both are measured against the attention
SVM in the nuclear norm (the sum of singular values) and in the Frobenius norm, of the tokens that the run selects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.dynamics import simulate
from mirrormax.experiments._contract import (
    Arrays,
    Claim,
    Comparison,
    Rows,
    at_least,
    interval,
    mean_interval,
    number,
    ours_alone,
    worst,
)
from mirrormax.experiments._trials import blocks, log_grid, sphere_problems
from mirrormax.experiments._work import Work
from mirrormax.geometry import directional_divergence
from mirrormax.svm import att_svm

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Factors K and Q: the nuclear norm"
SHORT = "K and Q"
PLACE = 145
SECONDS = 20
WAYS = {"factors": "K and Q trained", "whole": "W trained"}
COLOURS = {"nuclear": "#762A83", "frobenius": look_of(2).colour}
NORMS = {"nuclear": "nuclear norm", "frobenius": "Frobenius norm"}


@dataclass(frozen=True)
class Config:
    n: int = 4
    T: int = 5
    d: int = 6
    problems: int = 12
    steps: int = 6000
    lr: float = 0.1
    start: float = 0.5  # standard deviation of the entries of K and Q
    points: int = 30
    block: int = 6
    seed: int = 0


PROFILES = {"quick": Config(), "paper": replace(Config(), n=6, T=8, d=10, problems=40, steps=30_000)}


def run(config: Config, work: Work) -> Arrays:
    """D₂ to both SVMs, (K, problems), and the effective rank of W, for both ways of training."""
    pieces = blocks(config.problems, config.block)
    found = work.map(_block, [(config, piece) for piece in pieces])
    data: Arrays = {"steps": log_grid(config.steps, config.points)}
    return data | {name: np.concatenate([part[name] for part in found], -1) for name in found[0]}


def _block(task: tuple[Config, tuple[int, ...]]) -> Arrays:
    config, piece = task
    problem = sphere_problems([config.seed + k for k in piece], config.n, config.T, config.d)
    noise = np.random.default_rng((config.seed, piece[0])).standard_normal((2, len(piece), config.d, config.d))
    starts: dict[str, dict[str, Any]] = {
        "factors": {"factors": (config.start * noise[0], config.start * noise[1])},
        "whole": {"W0": config.start**2 * noise[0] @ noise[1].mT},
    }
    grid, found = log_grid(config.steps, config.points), {}
    for way, start in starts.items():
        run = simulate(**problem, p=2, lr=config.lr, steps=config.steps, record=grid, **start)
        for norm in NORMS:
            options: dict[str, Any] = {"norm": "nuclear"} if norm == "nuclear" else {"p": 2}
            solutions = [
                att_svm(problem["X"][k], problem["z"][k], run.alpha[k], throw=False, **options)
                for k in range(len(piece))
            ]
            W: Any = np.stack([np.where(solution.optimal, solution.W, np.nan) for solution in solutions])
            found[f"{way}/{norm}"] = np.asarray(directional_divergence(W, run.W, 2))
        singular = np.linalg.svd(run.W, compute_uv=False)
        found[f"{way}/rank"] = singular.sum(-1) ** 2 / (singular**2).sum(-1)
    return found


def nearer(data: Arrays, way: str) -> np.ndarray[Any, Any]:
    """log(D to the Frobenius SVM / D to the nuclear one) at the end, by problem: above 0 if nuclear is nearer."""
    ratio = np.log(data[f"{way}/frobenius"][-1] / data[f"{way}/nuclear"][-1])
    return np.asarray(ratio[np.isfinite(ratio)])


def summary(data: Arrays) -> Rows:
    return {
        WAYS[way]: {
            **{
                f"median D to the SVM in the {NORMS[norm]}": float(np.nanmedian(data[f"{way}/{norm}"][-1]))
                for norm in NORMS
            },
            "median effective rank": float(np.median(data[f"{way}/rank"][-1])),
        }
        for way in WAYS
    }


def shows(data: Arrays) -> str:
    ends = {(way, norm): np.nanmedian(data[f"{way}/{norm}"][-1]) for way in WAYS for norm in NORMS}
    halfway = np.nanmedian(data["factors/nuclear"][len(data["steps"]) // 2])
    return (
        f"Trained through K and Q, W ends {number(ends['factors', 'nuclear'], 2)} from the attention SVM of least "
        f"nuclear norm, {number(ends['factors', 'frobenius'], 2)} from that of least Frobenius norm (median D). "
        f"The first was {number(halfway, 2)} at half of the records, and still falls; trained as it is, W ends at "
        f"{number(ends['whole', 'nuclear'], 2)} and {number(ends['whole', 'frobenius'], 2)}. "
        "So the parameterisation chooses the norm, and the factors come to theirs slowly."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    why = "The mean over problems of log(D to the Frobenius SVM / D to the nuclear SVM) at the end of a run."
    expected = {"factors": (1, "nuclear: above 0"), "whole": (-1, "Frobenius: below 0")}
    for way, (sign, told) in expected.items():
        values = nearer(data, way)
        low, mean, high = mean_interval(values)
        row = at_least("which SVM is nearer", told, 0.0, sign * values, why=why, column=WAYS[way])
        ours = f"{number(mean, 2, sign=True)}{interval(low, high, sign=True)}, {len(values)} problems"
        rows.append(Comparison(row.quantity, row.published, ours, row.verdict, why, row.column))
    for norm, name in NORMS.items():
        for way in WAYS:
            told = number(np.nanmedian(data[f"{way}/{norm}"][-1]), 2)
            rows.append(ours_alone(f"median D to the SVM in the {name}", told, column=WAYS[way]))
    for way in WAYS:
        rank = number(np.median(data[f"{way}/rank"][-1]), 3)
        rows.append(ours_alone("median effective rank of W", rank, column=WAYS[way]))
    return rows


def claims(data: Arrays) -> list[Claim]:
    ends = [number(np.nanmedian(data[f"factors/{norm}"][-1]), 2) for norm in NORMS]
    statement = "Gradient descent on K and Q prefers a small nuclear norm of W = KQᵀ"
    return [
        Claim(statement, f"median D {ends[0]} to the nuclear SVM, {ends[1]} to the other", worst(comparisons(data)[:2]))
    ]


def draw(data: Arrays) -> Figure:
    """D to both SVMs over the steps for both ways of training, and the rank."""
    fig, axes = row_of_axes(3, width=11, height=3.5)
    moved = data["steps"] > 0
    for ax, (way, title) in zip(axes, WAYS.items(), strict=False):
        for k, (norm, name) in enumerate(NORMS.items()):
            D = data[f"{way}/{norm}"][moved]
            style: dict[str, Any] = {"color": COLOURS[norm], "linestyle": ("-", "--")[k]}
            ax.plot(data["steps"][moved], D, linewidth=0.6, alpha=0.35, **style)
            ax.plot(data["steps"][moved], np.nanmedian(D, 1), linewidth=2.2, label=name, **style)
        ax.set(xscale="log", yscale="log", xlabel="step")
        ax.set_title(title, fontsize=10)
        axes[2].plot(
            data["steps"],
            np.median(data[f"{way}/rank"], 1),
            color="0.2",
            linestyle=("-", "--")[way == "whole"],
            label=title,
        )
    axes[0].set_ylabel("divergence to the attention SVM")
    axes[0].legend(loc="lower left", fontsize=8, title="of least", title_fontsize=8)
    axes[2].set(xscale="symlog", xlabel="step")
    axes[2].set_title("effective rank of W, median", fontsize=10)
    axes[2].legend(fontsize=8)
    factors, whole = (nearer(data, way) for way in WAYS)
    told = f"K and Q end nearer to the nuclear-norm SVM in {(factors > 0).sum()} of {len(factors)} problems"
    headline(fig, f"{told}, W in {(whole > 0).sum()} of {len(whole)}")
    return fig
