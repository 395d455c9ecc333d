"""Fig 7: how fast attention and prediction become certain, in the joint runs of Fig 6."""

from __future__ import annotations

from mirrormax._drawing import Figure, curve, panel, row_of_axes
from mirrormax._statistics import number, percent
from mirrormax.experiments._measurements import RERUN, About, Arrays, Measured, Rows, Told, alone, claim, threshold
from mirrormax.experiments._running import Work
from mirrormax.experiments.fig6 import PROFILES as PROFILES
from mirrormax.experiments.fig6 import Config, at_step
from mirrormax.experiments.fig6 import run as run_joint

ABOUT = About("Fig 7: softmax and logistic probabilities on Example 2", place=70, seconds=1, revision=1)
ALMOST_ONE = 0.999
# From a rerun of the authors' protocol: at least so much attention on the selected token from step 20 on. That it is
# 1/3 at steps 0 and 1 is an identity (W = 0 there, since W has no gradient at v = 0), and no comparison.
RERUN_STEP_20 = 0.998
ENDS = "softmax; logistic probability after the published steps"
CLAIM = "Attention and prediction become certain when W and v are trained together"
LIMIT = "The paper says that both go to 1."


def run(config: Config, work: Work) -> Arrays:
    kept = ("p", "steps", "published", "softmax", "logistic")
    return {name: array for name, array in run_joint(config, work).items() if name.split("/")[0] in kept}


def measure(data: Arrays) -> Rows:
    for p in data["p"].tolist():
        at_20 = at_step(data, "softmax", p, 20)
        criterion, holds = f"≥ {RERUN_STEP_20:g}", at_20 >= RERUN_STEP_20
        yield claim("softmax probability at step 20", criterion, at_20, holds, column=p, source=RERUN)
        yield alone("logistic probability at step 20", at_step(data, "logistic", p, 20), column=p)
        ends = [at_step(data, curve, p) for curve in ("softmax", "logistic")]
        ours, holds = "; ".join(map(_probability, ends)), min(ends) > ALMOST_ONE
        yield threshold(ENDS, f"above {ALMOST_ONE:g}", ours, holds, LIMIT, column=p, late=True)


def _probability(value: float) -> str:
    """A probability, rounded down: 1 is what it does not reach."""
    if value == 1:
        return "1 to rounding"
    return f"1 − {number(1 - value, 1)}" if value > ALMOST_ONE else f"{value:.4f}"


def tell(data: Arrays, table: Measured) -> Told:
    least = percent(min(table.values("softmax probability")), 1)
    finding = f"At step 20 at least {least} of the attention is on the selected token, for every p"
    return Told(
        finding,
        "The first step moves v alone, because W has no gradient at v = 0. The logistic probability follows as v "
        "grows, and both go to 1 for every p.",
        table.claim(CLAIM, f"{finding}.", "softmax"),
    )


def draw(data: Arrays, table: Measured) -> Figure:
    """How far the softmax probability of the selected token and the logistic probability are from 1, over all steps."""
    fig, axes = row_of_axes(2, width=9, height=3.7)
    titles = {"softmax": "attention off the selected token", "logistic": "1 − logistic probability"}
    for ax, (name, title) in zip(axes, titles.items(), strict=True):
        for p in data["p"]:
            steps, left = data[f"steps/{p:g}"], 1 - data[f"{name}/{p:g}"]
            shown = (steps > 0) & (left > 1e-16)
            curve(ax, steps[shown], left[shown], p)
        ax.axvline(20, color="grey", linewidth=0.9, linestyle="--")
        panel(ax, f"{title}\n(mean over the two sequences)", "step", log="xy")
    axes[0].annotate("step 20", (20, 1), (3, -2), textcoords="offset points", color="grey", va="top")
    axes[1].legend(loc="lower left")
    return fig
