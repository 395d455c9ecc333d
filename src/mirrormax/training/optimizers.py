"""Optimizers and schedules by name."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mirrormax.geometry import Hypentropy, Lp, Potential, SquaredLp
from mirrormax.optim import MirrorDescent, equivalent_lr, param_groups
from mirrormax.training.config import TrainConfig

SGD_LR = 0.3
ADAMW_LR = 1e-3


def potential_of(config: TrainConfig) -> Potential:
    """The potential of a run by mirror descent."""
    if config.potential == "Hypentropy":
        return Hypentropy(config.beta)
    return Lp(config.p) if config.potential == "Lp" else SquaredLp(config.p)


def default_lr(model: nn.Module, config: TrainConfig) -> float:
    """A step size to start from: 0.3 for SGD, 1e-3 for AdamW, and for mirror descent the one that moves the
    model's matrices (not its embeddings and gains, which are larger) as SGD would."""
    if config.optimizer == "adamw":
        return ADAMW_LR
    if config.optimizer == "sgd":
        return SGD_LR
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    return equivalent_lr(matrices, SGD_LR, potential_of(config))


def makes_sparse_steps(config: TrainConfig) -> bool:
    """Whether the optimizer moves only the embedding rows that a batch has touched."""
    plain = config.momentum == 0 and config.weight_decay == 0
    if config.optimizer == "sgd":
        return plain
    return config.optimizer == "md" and plain and potential_of(config).separable and config.precision == "32"


def make_optimizer(model: nn.Module, config: TrainConfig) -> torch.optim.Optimizer:
    """The optimizer of a run."""
    lr = default_lr(model, config) if config.lr is None else config.lr
    if config.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=config.weight_decay)
    common: dict[str, Any] = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, **common)
    common["normalize"] = None if config.normalize == "none" else config.normalize
    if not config.attention_only:
        return MirrorDescent(model.parameters(), lr=lr, potential=potential_of(config), **common)
    rest = {"p": 2.0, "lr": SGD_LR if config.rest_lr is None else config.rest_lr}
    groups = param_groups(model, attention={"potential": potential_of(config).spec(), "lr": lr}, rest=rest)
    return MirrorDescent(groups, lr=lr, **common)


def make_schedule(optimizer: torch.optim.Optimizer, config: TrainConfig, steps_per_epoch: int) -> LambdaLR:
    """A schedule a step: linear warm-up over ``warmup`` epochs, then constant or down a cosine to zero."""
    warmup, total = config.warmup * steps_per_epoch, config.epochs * steps_per_epoch

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if config.schedule == "constant":
            return 1.0
        done = min(1.0, (step - warmup) / max(1.0, total - warmup))
        return 0.5 * (1 + math.cos(math.pi * done))

    return LambdaLR(optimizer, factor)
