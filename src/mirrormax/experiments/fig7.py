"""Fig 7: how fast attention and prediction become certain, in the joint runs of Fig 6."""

from __future__ import annotations

import numpy as np

from mirrormax.experiments import published
from mirrormax.experiments.contract import Arrays, Comparison, Rows, claim, same_within
from mirrormax.experiments.joint import PROFILES, Config, run_joint
from mirrormax.experiments.trials import name_of
from mirrormax.experiments.work import Work

__all__ = ["PROFILES", "TITLE", "Config", "comparisons", "run", "shows", "summary"]

TITLE = "Fig 7: softmax and logistic probabilities on Example 2"
ROUNDING = 1e-6
ALMOST_ONE = 0.999


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
            rows.append(
                same_within(f"softmax probability, p = {p:g}, step {step}", published.FIG7_START, ROUNDING, ours)
            )
        ours = at_step(data, "softmax", p, 20)
        least = published.FIG7_STEP_20
        rows.append(claim(f"softmax probability, p = {p:g}, step 20", f"≥ {least:g}", f"{ours:.5f}", ours >= least))
        ends = [float(data[f"{curve}/{name_of(p)}"][-1]) for curve in ("softmax", "logistic")]
        text = ", ".join(f"{end:.6f}" for end in ends)
        why = f"Met means above {ALMOST_ONE:g}, a bar of ours."
        rows.append(
            claim(f"softmax and logistic probability, p = {p:g}, end", "→ 1", text, min(ends) > ALMOST_ONE, why)
        )
    return rows
