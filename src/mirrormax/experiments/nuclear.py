"""Training the factors K and Q instead of W = KQᵀ: does the direction converge to the nuclear-norm attention SVM?

The paper names it as the known bias of gradient descent (p = 2) in this parameterisation. Every problem is trained
twice by normalised gradient descent, through K and Q and through W itself, and both are measured against the attention
SVM in the nuclear norm (the sum of singular values) and in the Frobenius norm, of the tokens that the run selects.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, look_of, panel, row_of_axes
from mirrormax._statistics import estimate, finite, mean, median
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.experiments._measurements import About, Arrays, Measured, Rows, Told, above, alone
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import Problems, blocks, log_grid, max_margin
from mirrormax.geometry import directional_divergence

ABOUT = About("Factors K and Q: the nuclear norm", place=145, seconds=9, revision=1)
WAYS = {"factors": "K and Q trained", "whole": "W trained"}
NORMS = {"nuclear": "nuclear norm", "frobenius": "Frobenius norm"}
CLAIM = "Gradient descent on K and Q prefers a small nuclear norm of W = KQᵀ"
NEARER = "which SVM is nearer"
WHY = "The mean over problems of log(D to the Frobenius SVM / D to the nuclear SVM) at the end of a run."


@dataclass(frozen=True)
class Config(Problems):
    n: int = 4
    T: int = 5
    d: int = 6
    problems: int = 12
    steps: int = 6000
    lr: float = 0.1
    start: float = 0.5  # standard deviation of the entries of K and Q
    points: int = 30
    block: int = 6


PROFILES = {"quick": Config(), "paper": replace(Config(), n=6, T=8, d=10, problems=40, steps=30_000)}


def run(config: Config, work: Work) -> Arrays:
    """D₂ to both SVMs, (K, problems), and the effective rank of W, for both ways of training."""
    pieces = blocks(config.problems, config.block)
    parts = work.each(_block, [(config, piece) for piece in pieces])
    data: Arrays = {"steps": log_grid(config.steps, config.points)}
    return data | {name: np.concatenate([part[name] for part in parts], -1) for name in parts[0]}


def _block(config: Config, piece: tuple[int, ...]) -> Arrays:
    problem = config.drawn(piece)
    noise = np.random.default_rng((config.seed, piece[0])).standard_normal((2, len(piece), config.d, config.d))
    options = SimulationOptions(factors=(config.start * noise[0], config.start * noise[1]))
    starts: Any = {"factors": {"options": options}, "whole": {"W0": config.start**2 * noise[0] @ noise[1].mT}}
    grid, arrays = log_grid(config.steps, config.points), {}
    for way, start in starts.items():
        run = simulate(problem, p=2, lr=config.lr, steps=config.steps, record=grid, **start)
        svms = max_margin(problem, run.alpha, norm="nuclear"), max_margin(problem, run.alpha, 2)
        for norm, W in zip(NORMS, svms, strict=True):
            arrays[f"{way}/{norm}"] = np.asarray(directional_divergence(W, run.W, 2))
        singular = np.linalg.svd(run.W, compute_uv=False)
        arrays[f"{way}/rank"] = singular.sum(-1) ** 2 / (singular**2).sum(-1)
    return arrays


def nearer(data: Arrays, way: str) -> np.ndarray[Any, Any]:
    """log(D to the Frobenius SVM / D to the nuclear one) at the end, by problem: above 0 if nuclear is nearer."""
    return finite(np.log(data[f"{way}/frobenius"][-1] / data[f"{way}/nuclear"][-1]))


def measure(data: Arrays) -> Rows:
    criteria = {"factors": (1, "nuclear: above 0"), "whole": (-1, "Frobenius: below 0")}
    for way, (sign, criterion) in criteria.items():
        column, values = WAYS[way], nearer(data, way)
        gap = mean(values)
        ours = f"{estimate(gap, digits=2, sign=True)}, {len(values)} problems"
        more: dict[str, Any] = {"ours": ours, "value": gap.mean, "low": gap.low, "high": gap.high}
        yield above(NEARER, criterion, 0.0, mean(sign * values), WHY, column=column, **more)
        for norm, name in NORMS.items():
            yield alone(f"median D to the SVM in the {name}", median(data[f"{way}/{norm}"][-1]), column=column)
        yield alone("median effective rank of W", median(data[f"{way}/rank"][-1]), column=column)
        count = f"{(values > 0).sum()} of {len(values)}"
        yield alone("problems that end nearer to the nuclear SVM", count, column=column)
    halfway = median(data["factors/nuclear"][len(data["steps"]) // 2])
    yield alone("K and Q: median D to the nuclear SVM at half of the records", halfway)


def tell(data: Arrays, table: Measured) -> Told:
    nearer = [table.ours("problems that end nearer", said) for said in WAYS.values()]
    quantities = [f"median D to the SVM in the {name}" for name in NORMS.values()]
    factors, whole = ([table.ours(quantity, said) for quantity in quantities] for said in WAYS.values())
    return Told(
        f"K and Q end nearer to the nuclear-norm SVM in {nearer[0]} problems, W in {nearer[1]}",
        f"Through K and Q, the median D to that SVM is {factors[0]}, to that of least Frobenius norm {factors[1]}. The "
        f"first was {table.ours('K and Q: median D')} at half of the records, and still falls. Trained as it is, W "
        f"ends at {whole[0]} and {whole[1]}: the parameterisation chooses the norm, and factors converge slowly.",
        table.claim(CLAIM, f"Median divergence {factors[0]} to the nuclear SVM, {factors[1]} to the other.", NEARER),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """D to both SVMs over the steps for both ways of training, and the rank."""
    fig, axes = row_of_axes(3, width=11, height=3.5)
    steps = data["steps"][1:]
    styles: Any = {
        "nuclear": {"color": "#762A83", "linestyle": "-"},
        "frobenius": {"color": look_of(2).colour, "linestyle": "--"},
    }
    for ax, (way, title), dashes in zip(axes, WAYS.items(), ("-", "--"), strict=False):
        for norm, style in styles.items():
            D = data[f"{way}/{norm}"][1:]
            ax.plot(steps, D, linewidth=0.6, alpha=0.35, **style)
            ax.plot(steps, np.nanmedian(D, 1), linewidth=2.2, label=NORMS[norm], **style)
        panel(ax, title, "step", log="xy")
        rank = np.median(data[f"{way}/rank"], 1)
        axes[2].plot(data["steps"], rank, color="0.2", linestyle=dashes, label=title)
    axes[0].set_ylabel("divergence to the attention SVM")
    axes[0].legend(loc="lower left", fontsize=9, title="of least", title_fontsize=9)
    panel(axes[2], "effective rank of W, median", "step", legend="best", xscale="symlog")
    return fig
