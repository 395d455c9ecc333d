"""What a study searches: the optimizer, p, and the step size as a multiple of the one that the rule gives."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

from optuna.trial import BaseTrial
from torch import nn

from mirrormax.training import TrainConfig
from mirrormax.training.optimizers import default_lr

LEAST_P, MOST_P = 1.05, 4.0
FARTHEST = 30.0  # multiples of the rule's step size go from 1/30 to 30
STARTS = (1.1, 1.5, 2.0, 3.0)  # the values of p that every study begins with


@dataclass(frozen=True)
class Proposal:
    """One point of the space; p is None for optimizers that have none."""

    optimizer: str
    p: float | None
    multiple: float


def first_points(optimizers: Sequence[str]) -> list[dict[str, Any]]:
    """Where a study begins: each optimizer, and four values of p, with the rule's own step size."""
    points: list[dict[str, Any]] = []
    for name in optimizers:
        point: dict[str, Any] = {"optimizer": name, f"{name} multiple": 1.0}
        points += [{**point, "p - 1": p - 1} for p in STARTS] if name == "md" else [point]
    return points


def suggest(trial: BaseTrial, optimizers: Sequence[str]) -> Proposal:
    """A point as Optuna proposes it: p − 1 and the multiple on logarithmic scales, p to two decimals."""
    optimizer = trial.suggest_categorical("optimizer", optimizers)
    p = None
    if optimizer == "md":
        p = round(1 + trial.suggest_float("p - 1", LEAST_P - 1, MOST_P - 1, log=True), 2)
    multiple = trial.suggest_float(f"{optimizer} multiple", 1 / FARTHEST, FARTHEST, log=True)
    return Proposal(str(optimizer), p, multiple)


def configured(base: TrainConfig, proposal: Proposal, model: nn.Module) -> TrainConfig:
    """The run that a proposal asks for; ``model`` holds the first weights, by which the rule goes."""
    p = base.p if proposal.p is None else proposal.p
    config = replace(base, optimizer=proposal.optimizer, p=p, lr=None)
    return replace(config, lr=float(f"{proposal.multiple * default_lr(model, config):.3g}"))
