"""Fig 7: how fast attention and prediction become certain, in the joint runs of Fig 6."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from mirrormax._drawing import COLOURS, MARKERS, row_of_axes
from mirrormax.experiments._contract import Arrays, Comparison, Rows, claim, rerun, same_within
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
ROUNDING = 1e-6
ALMOST_ONE = 0.999
# From a rerun of the authors' protocol: the attention on the selected token at steps 0 and 1, and at least so much from
# step 20 on.
RERUN_START = 1 / 3
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
        "The first step moves v alone, because W has no gradient at v = 0; then attention goes to one token of each "
        f"sequence within some twenty steps (mean probability at least {low:.4f} at step 20). "
        "The logistic probability follows as v grows, and both go to 1 for every p."
    )


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"].tolist():
        for step in (0, 1):
            ours = at_step(data, "softmax", p, step)
            rows.append(rerun(same_within(f"softmax probability, p = {p:g}, step {step}", RERUN_START, ROUNDING, ours)))
        ours = at_step(data, "softmax", p, 20)
        least = RERUN_STEP_20
        rows.append(
            rerun(claim(f"softmax probability, p = {p:g}, step 20", f"≥ {least:g}", f"{ours:.5f}", ours >= least))
        )
        ends = [float(data[f"{curve}/{name_of(p)}"][-1]) for curve in ("softmax", "logistic")]
        text = ", ".join(f"{end:.6f}" for end in ends)
        why = f"Met means above {ALMOST_ONE:g}, a bar of ours."
        rows.append(
            claim(f"softmax and logistic probability, p = {p:g}, end", "→ 1", text, min(ends) > ALMOST_ONE, why)
        )
    return rows


def draw(data: Arrays) -> Figure:
    """Softmax probability of the selected token and logistic probability, over the first steps and all."""
    fig, axes = row_of_axes(2, width=9, height=3.3)
    titles = {"softmax": "softmax probability of the selected token", "logistic": "logistic probability"}
    for ax, (curve, title) in zip(axes, titles.items(), strict=True):
        for p, colour, marker in zip(data["p"], COLOURS, MARKERS, strict=False):
            steps, values = data[f"steps/{name_of(p)}"], data[f"{curve}/{name_of(p)}"]
            first = steps <= 100
            ax.plot(
                steps[first], values[first], color=colour, marker=marker, markevery=8, markersize=5, label=f"p = {p:g}"
            )
        ax.set(xlabel="step", ylim=(0.3, 1.02), title=f"{title}\n(mean over the two sequences)")
        ax.title.set_fontsize(10)
    axes[1].legend(loc="lower right")
    return fig
