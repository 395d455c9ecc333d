"""Example 2 under ℓp-JointGD: the run that Fig 6 and Fig 7 show from two sides."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import product
from typing import TYPE_CHECKING

import numpy as np

from mirrormax.attention import attention_weights
from mirrormax.data import example2
from mirrormax.dynamics import simulate
from mirrormax.experiments._trials import log_grid, name_of
from mirrormax.svm import joint_limit, label_margin, lp_svm

if TYPE_CHECKING:
    from mirrormax.experiments._measurements import Arrays
    from mirrormax.experiments._work import Work


@dataclass(frozen=True)
class Config:
    p: tuple[float, ...] = (1.75, 2.0, 3.0)
    steps: tuple[int, ...] = (1500, 2000, 20000)
    scale: float = 0.5  # the authors ran half of what the paper prints
    lr: float = 0.1
    longer: int = 1  # so many times the published steps in all, which are what is compared
    points: int = 150
    first_steps: int = 100  # recorded one by one


PROFILES = {"quick": Config(), "paper": replace(Config(), longer=10, points=300)}


def run_joint(config: Config, work: Work) -> Arrays:
    """Iterates, SVM directions, probabilities and label margins for every p."""
    data: Arrays = {"p": np.array(config.p)}
    tasks = [(config, p, steps) for p, steps in zip(config.p, config.steps, strict=True)]
    for p, found in zip(config.p, work.map(_path, tasks), strict=True):
        data |= {f"{name}/{name_of(p)}": array for name, array in found.items()}
    return data


def _path(task: tuple[Config, float, int]) -> Arrays:
    config, p, steps = task
    problem = example2()
    X, y = config.scale * problem.X, problem.y
    z = X[:, 0]
    length = config.longer * steps
    grid = np.union1d(log_grid(length, config.points, steps), np.arange(min(config.first_steps, steps) + 1))
    run = simulate(X[None], y, z, problem.v, p=p, lr=config.lr, steps=length, train_readout=True, record=grid)[0]
    alpha = run.alpha
    chosen = X[np.arange(len(y)), alpha]
    # The limit of joint training; both samples are label support vectors, so that it is the attention SVM too.
    W_mm, v_mm = joint_limit(X, y, z, alpha, p=p).W, lp_svm(chosen, y, p=p).v
    attention = attention_weights(X, z, W=run.W)[:, np.arange(len(y)), alpha]
    selections = np.array(list(product(range(X.shape[1]), repeat=len(y))))
    return {
        "steps": run.steps,
        "published": np.array(steps),
        "alpha": alpha,
        "W": run.W,
        "v": run.v,
        "W_mm": W_mm,
        "v_mm": v_mm,
        "D_W": run.divergence_to(W_mm),
        "D_v": run.readout_divergence_to(v_mm),
        "softmax": np.asarray(attention).mean(-1),
        "logistic": (1 / (1 + np.exp(-y * (run.v @ chosen.T)))).mean(-1),
        "selections": selections,
        "label_margins": np.asarray(label_margin(X, y, selections, p=p)),
    }


def at_step(data: Arrays, curve: str, p: float, step: int | None = None) -> float:
    """A curve at the last recorded step up to ``step``, by default the last of the published ones."""
    steps = data[f"steps/{name_of(p)}"]
    step = int(data[f"published/{name_of(p)}"]) if step is None else step
    return float(data[f"{curve}/{name_of(p)}"][int(np.searchsorted(steps, step, side="right")) - 1])
