"""Fig 6: W and v trained together on Example 2, against the attention SVM and the SVM of the tokens they select."""

from __future__ import annotations

import numpy as np

from mirrormax.experiments import published
from mirrormax.experiments.contract import Arrays, Comparison, Rows, claim, same_within, smaller_is_better
from mirrormax.experiments.joint import PROFILES, Config, run_joint
from mirrormax.experiments.trials import name_of
from mirrormax.experiments.work import Work

__all__ = ["PROFILES", "TITLE", "Config", "comparisons", "run", "shows", "summary"]

TITLE = "Fig 6: joint iterates of W and v on Example 2"
FLOOR = (
    "Gradients relative to the selected token keep their digits after the attention has saturated; "
    "the published runs stop moving in the right direction there."
)
MARGIN_DIGITS = 5e-4


def run(config: Config, work: Work) -> Arrays:
    return run_joint(config, work)


def summary(data: Arrays) -> Rows:
    rows = {}
    for p in data["p"]:
        key = name_of(p)
        alpha, steps = data[f"alpha/{key}"], int(data[f"steps/{key}"][-1])
        rows[f"p={p:g}"] = {
            "steps": steps,
            **{f"token of sample {i + 1}": int(token) for i, token in enumerate(alpha)},
            "divergence of W": float(data[f"D_W/{key}"][-1]),
            "divergence of v": float(data[f"D_v/{key}"][-1]),
            "label margin": margin(data, p, tuple(alpha)),
        }
    return rows


def margin(data: Arrays, p: float, selection: tuple[int, ...]) -> float:
    """The label margin of a selection of tokens."""
    at = (data[f"selections/{name_of(p)}"] == np.array(selection)).all(1)
    return float(data[f"label_margins/{name_of(p)}"][at][0])


def shows(data: Arrays) -> str:
    worst = {part: max(float(data[f"D_{part}/{name_of(p)}"][-1]) for p in data["p"]) for part in ("W", "v")}
    chosen = "; ".join(f"p = {p:g}: {data[f'alpha/{name_of(p)}'].tolist()}" for p in data["p"])
    short = max(1 - margin(data, p, tuple(data[f"alpha/{name_of(p)}"])) / _largest(data, p) for p in data["p"])
    return (
        "Trained together from zero, W turns to the attention SVM and v to the SVM of the tokens that W selects "
        f"(divergence at most {worst['W']:.1g} and {worst['v']:.1g}). "
        f"Which tokens these are depends on p ({chosen}); their label margin is within {short:.1%} of the largest that "
        "any selection has."
    )


def _largest(data: Arrays, p: float) -> float:
    return float(data[f"label_margins/{name_of(p)}"].max())


def comparisons(data: Arrays) -> list[Comparison]:
    rows = []
    for p in data["p"].tolist():
        key = name_of(p)
        expected, alpha = published.FIG6_ALPHA[p], tuple(data[f"alpha/{key}"].tolist())
        rows.append(claim(f"selected tokens, p = {p:g}", str(list(expected)), str(list(alpha)), alpha == expected))
        for part, value in zip(("W", "v"), published.FIG6_DIVERGENCE[p], strict=True):
            ours = float(data[f"D_{part}/{key}"][-1])
            rows.append(smaller_is_better(f"final divergence of {part}, p = {p:g}", value, None, ours, why=FLOOR))
        for selection, value in zip(((0, 0), (1, 0)), published.FIG6_MARGINS[p], strict=True):
            ours = margin(data, p, selection)
            rows.append(same_within(f"label margin of {selection}, p = {p:g}", value, MARGIN_DIGITS, ours))
    return rows
