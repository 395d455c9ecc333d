"""W and v trained together on random problems, against the attention SVM and against its relaxed form.

The paper shows Example 2, where every sample is a label support vector (Fig 6), and claims nothing of other problems.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from mirrormax._drawing import Figure, look_of, panel, row_of_axes
from mirrormax._statistics import median, share
from mirrormax.dynamics import simulate
from mirrormax.experiments._measurements import OURS, About, Arrays, Measured, Rows, Told, above, alone, at_most
from mirrormax.experiments._running import Work
from mirrormax.experiments._trials import LAST, SETTLED, Problems, solved, stacked
from mirrormax.svm import att_svm, joint_limit, label_excess

ABOUT = About("Joint training: where W converges when the readout is trained with it", place=200, seconds=2, revision=1)
ON_MARGIN = 1e-6  # of the unit head: an excess below it is that of a label support vector
THRESHOLD = 0.01
RELAXED = "runs nearer to the relaxed SVM, where not every sample is a label support vector"
MORE_OFTEN = "Met if the 95 % interval of the share lies above a half."


@dataclass(frozen=True)
class Config(Problems):
    p: tuple[float, ...] = (1.5, 2.0, 3.0)
    lr: tuple[float, ...] = (0.1, 0.1, 1.0)
    steps: int = 3000


PROFILES = {"quick": Config(), "paper": replace(Config(), problems=100, steps=10000)}


def run(config: Config, work: Work) -> Arrays:
    """For every p and problem, (p, problems): D of W to both limits, and what kind of run it was."""
    parts = work.each(_runs, [(config, p, lr) for p, lr in zip(config.p, config.lr, strict=True)])
    return {"p": np.array(config.p), **stacked(parts)}


def _runs(config: Config, p: float, lr: float) -> Arrays:
    problem = config.batch()
    X, y, z = problem.X, problem.y, problem.z
    settings: Any = {"train_readout": True, "record": 2, "options": LAST}
    run = simulate(X, y, z, 0 * problem.v, p=p, lr=lr, steps=config.steps, **settings)
    excess, ratio = np.asarray(label_excess(X, y, run.alpha, p=p)), run.readout_norm[-1] / run.norm[-1]
    plain = att_svm(X, z, run.alpha, p=p, throw=False)
    relaxed = joint_limit(X, y, z, run.alpha, p=p, ratio=ratio, excess=excess, throw=False)
    return {
        "plain": np.asarray(run.divergence_to(solved(plain))[-1]),
        "relaxed": np.asarray(run.divergence_to(solved(relaxed))[-1]),
        "excess": excess.max(-1),
        "ratio": ratio,
        "settled": run.log_rest[-1].max(-1) < SETTLED,
    }


def off_margin(data: Arrays) -> np.ndarray[Any, Any]:
    """Which runs have a sample that is no label support vector, and both limits, (p, problems)."""
    known = np.isfinite(data["plain"]) & np.isfinite(data["relaxed"])
    return np.asarray((data["excess"] > ON_MARGIN) & known)


def measure(data: Arrays) -> Rows:
    off, settled = off_margin(data), data["settled"]
    won = (data["relaxed"] < data["plain"])[off]
    part = share(won)
    ours = f"{won.sum()} of {won.size} [{part.low:.2f}, {part.high:.2f}]"
    yield above(RELAXED, "above a half", 0.5, part, MORE_OFTEN, ours=ours, source=OURS)
    for k, p in enumerate(data["p"]):
        chosen = off[k] & settled[k]
        if chosen.any():
            why = f"{int(chosen.sum())} settled runs off the label margin; the threshold was set before the runs."
            relaxed, plain = (median(data[name][k][chosen]) for name in ("relaxed", "plain"))
            yield at_most("median D to the relaxed SVM", THRESHOLD, relaxed, why, column=p)
            yield alone("median D to the attention SVM", plain, column=p)
        yield alone("runs off the label margin; settled", f"{off[k].sum()}; {settled[k].sum()}", column=p)
        yield alone("median ‖v‖/‖W‖", median(data["ratio"][k]), column=p)
    on = ~off & settled & np.isfinite(data["plain"])
    if on.any():
        quantity = f"median D to the attention SVM where every sample is a label support vector, {on.sum()} runs"
        yield at_most(quantity, THRESHOLD, median(data["plain"][on]))


def tell(data: Arrays, table: Measured) -> Told:
    won = table.ours(RELAXED).split(" [")[0]
    return Told(
        f"Trained with its readout, W is nearer to the relaxed SVM in {won} runs that can tell",
        f"In these, of {data['plain'].size}, some sample is no label support vector: it has label margin to spare, and "
        "by that much the attention SVM is relaxed.",
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """D to the relaxed problem against D to the attention SVM, one point a run: below the diagonal it is nearer."""
    fig, axes = row_of_axes(len(data["p"]), width=3.5 * len(data["p"]), height=3.4)
    ends = (1e-6, 1.0)
    for k, (ax, p) in enumerate(zip(axes, data["p"], strict=True)):
        look, off = look_of(p), off_margin(data)[k]
        for chosen, face, label in ((off, look.colour, "some sample off the margin"), (~off, "white", "all on it")):
            style = look.style(linestyle="", markerfacecolor=face, markersize=5, label=label)
            ax.plot(data["plain"][k][chosen], data["relaxed"][k][chosen], **style)
        ax.plot(ends, ends, color="0.5", linewidth=1, linestyle="--")
        panel(ax, f"p = {p:g}", "D to the attention SVM", log="xy", legend="upper left", xlim=ends, ylim=ends)
    axes[0].set_ylabel("D to the relaxed SVM")
    return fig
