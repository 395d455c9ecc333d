"""Fig 7: how fast attention and prediction become certain, in the joint runs of Fig 6."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import headline, look_of, row_of_axes
from mirrormax.experiments._contract import Arrays, Claim, Comparison, Rows, claim, number, our_bar, rerun, worst
from mirrormax.experiments._joint import PROFILES as PROFILES
from mirrormax.experiments._joint import Config, run_joint
from mirrormax.experiments._trials import name_of
from mirrormax.experiments._work import Work

if TYPE_CHECKING:
    from matplotlib.figure import Figure

TITLE = "Fig 7: softmax and logistic probabilities on Example 2"
SHORT = "Fig 7"
PLACE = 70
SECONDS = 2
ALMOST_ONE = 0.999
# From a rerun of the authors' protocol: at least so much attention on the selected token from step 20 on. That it is
# 1/3 at steps 0 and 1 is an identity (W = 0 there, since W has no gradient at v = 0), and no comparison.
RERUN_STEP_20 = 0.998


def run(config: Config, work: Work) -> Arrays:
    kept = ("steps", "softmax", "logistic", "alpha")
    found = run_joint(config, work)
    return {name: array for name, array in found.items() if name == "p" or name.split("/")[0] in kept}


def at_step(data: Arrays, curve: str, p: float, step: int) -> float:
    """A probability at the last recorded step up to ``step``."""
    k = int(np.searchsorted(data[f"steps/{name_of(p)}"], step, side="right")) - 1
    return float(data[f"{curve}/{name_of(p)}"][k])


def summary(data: Arrays) -> Rows:
    return {
        f"p={p:g}": {
            **{f"softmax at step {k}": at_step(data, "softmax", p, k) for k in (0, 1, 20)},
            "softmax at the end": float(data[f"softmax/{name_of(p)}"][-1]),
            "logistic at step 20": at_step(data, "logistic", p, 20),
            "logistic at the end": float(data[f"logistic/{name_of(p)}"][-1]),
        }
        for p in data["p"]
    }


def shows(data: Arrays) -> str:
    low = min(at_step(data, "softmax", p, 20) for p in data["p"])
    return (
        f"Attention goes to one token of each sequence within some twenty steps (mean probability at least "
        f"{low:.4f} at step 20). "
        "The first step moves v alone, because W has no gradient at v = 0. "
        "The logistic probability follows as v grows, and both go to 1 for every p."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows, ends = [], []
    for p in data["p"].tolist():
        column, at_20 = f"p = {p:g}", at_step(data, "softmax", p, 20)
        least = RERUN_STEP_20
        quantity = "softmax probability at step 20"
        rows.append(rerun(claim(quantity, f"≥ {least:g}", f"{at_20:.5f}", at_20 >= least, column=column)))
        last = [float(data[f"{curve}/{name_of(p)}"][-1]) for curve in ("softmax", "logistic")]
        ends.append(
            our_bar(
                "softmax; logistic probability at the end",
                f"above {ALMOST_ONE:g}",
                "; ".join(_probability(end) for end in last),
                min(last) > ALMOST_ONE,
                "The paper says that both go to 1.",
                column=column,
                late=True,
            )
        )
    return rows + ends


def _probability(value: float) -> str:
    """A probability, rounded down: 1 is what it does not reach."""
    if value == 1:
        return "1 to rounding"
    return f"1 − {number(1 - value, 1)}" if value > ALMOST_ONE else f"{value:.4f}"


def claims(data: Arrays) -> list[Claim]:
    low = min(at_step(data, "softmax", p, 20) for p in data["p"])
    statement = "Attention and prediction become certain when W and v are trained together"
    return [Claim(statement, f"softmax probability at least {low:.4f} at step 20", worst(comparisons(data)))]


def draw(data: Arrays) -> Figure:
    """How far the softmax probability of the selected token and the logistic probability are from 1, over all steps."""
    fig, axes = row_of_axes(2, width=9, height=3.7)
    titles = {"softmax": "attention off the selected token", "logistic": "1 − logistic probability"}
    for ax, (curve, title) in zip(axes, titles.items(), strict=True):
        for p in data["p"]:
            steps, left = data[f"steps/{name_of(p)}"], 1 - data[f"{curve}/{name_of(p)}"]
            shown = (steps > 0) & (left > 1e-16)
            style = look_of(p).style(markevery=max(int(shown.sum()) // 8, 1), markersize=5, label=f"p = {p:g}")
            ax.plot(steps[shown], left[shown], **style)
        ax.axvline(20, color="grey", linewidth=0.9, linestyle="--")
        ax.set(xscale="log", yscale="log", xlabel="step")
        ax.set_title(f"{title}\n(mean over the two sequences)", fontsize=10)
    axes[0].annotate("step 20", (20, 1), (3, -2), textcoords="offset points", fontsize=8, color="grey", va="top")
    axes[1].legend(loc="lower left")
    low = min(at_step(data, "softmax", p, 20) for p in data["p"])
    headline(
        fig, f"Attention settles first: at step 20 at least {100 * low:.1f} % is on the selected token for every p"
    )
    return fig
