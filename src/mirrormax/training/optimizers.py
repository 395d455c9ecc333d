"""The optimizer and the schedule that a configuration names; plain torch, without Lightning."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mirrormax.geometry import ElasticNet, Hypentropy, Lp, Potential, SquaredLp
from mirrormax.optim import MirrorAdamW, MirrorDescent, equivalent_lr, param_groups
from mirrormax.training.config import TrainConfig

SGD_LR = 0.3
USUAL_LR = {"sgd": SGD_LR, "adamw": 1e-3, "mirror": 3e-3, "adabreg": 1e-2}
"""Those of the last two are what mirrormax reproduce practice chose, and most often."""


def potential_of(config: TrainConfig) -> Potential:
    """The potential of a run by mirror descent."""
    if config.potential == "Hypentropy":
        return Hypentropy(config.beta)
    return Lp(config.p) if config.potential == "Lp" else SquaredLp(config.p)


def default_lr(model: nn.Module, config: TrainConfig) -> float:
    """A step size to start from: 0.3 for SGD, 1e-3 for AdamW, 3e-3 for MirrorAdamW, 1e-2 for AdaBreg, and for plain
    mirror descent the one that moves the model's matrices (not its embeddings and gains, which are larger) as SGD
    would."""
    if config.optimizer in USUAL_LR:
        return USUAL_LR[config.optimizer]
    matrices = [module.weight for module in model.modules() if isinstance(module, nn.Linear)]
    return equivalent_lr(matrices, SGD_LR, potential_of(config))


def makes_sparse_steps(config: TrainConfig) -> bool:
    """Whether the optimizer moves only the embedding rows that a batch has touched."""
    plain = config.momentum == 0 and config.weight_decay == 0
    if config.optimizer == "sgd":
        return plain
    return config.optimizer == "md" and plain and potential_of(config).separable and config.precision == "32"


def make_optimizer(model: nn.Module, config: TrainConfig, steps: int | None = None) -> torch.optim.Optimizer:
    """The optimizer of a run of so many steps, which only a target of sparsity asks for."""
    lr = default_lr(model, config) if config.lr is None else config.lr
    if config.optimizer == "adamw":
        # foreach: the same numbers to the last bit, with fewer calls for the many small tensors of these models.
        return torch.optim.AdamW(model.parameters(), lr=lr, weight_decay=config.weight_decay, foreach=True)
    if config.optimizer in ("mirror", "adabreg"):
        options: dict[str, Any] = {"p": potential_of(config), "moments": config.moments}
        if config.optimizer == "adabreg":
            options = {"p": ElasticNet(config.lam), "moments": "entry", "scale": None, "trust": None}
        elif config.sparsity > 0:
            options = {"sparsity": config.sparsity, "total_steps": steps, "moments": config.moments}
        return MirrorAdamW(model, lr=lr, weight_decay=config.weight_decay, **options)
    common: dict[str, Any] = {"momentum": config.momentum, "weight_decay": config.weight_decay}
    if config.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=lr, **common)
    common["normalize"] = None if config.normalize == "none" else config.normalize
    if not config.attention_only:
        return MirrorDescent(model.parameters(), lr=lr, p=potential_of(config), **common)
    rest = {"p": 2.0, "lr": SGD_LR if config.rest_lr is None else config.rest_lr}
    groups = param_groups(model, attention={"p": potential_of(config), "lr": lr}, rest=rest)
    return MirrorDescent(groups, lr=lr, **common)


def make_schedule(optimizer: torch.optim.Optimizer, config: TrainConfig, steps_per_epoch: int) -> LambdaLR:
    """A schedule per step: linear warm-up over ``warmup_epochs``, then constant or down a cosine to zero.

    The cosine falls with every step, or with every epoch: epoch k of K has (1 + cos(π(k − 1)/K))/2.
    """
    warmup, total = config.warmup_epochs * steps_per_epoch, config.epochs * steps_per_epoch

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / (warmup + 1)
        if config.schedule == "constant":
            return 1.0
        if config.schedule == "cosine-epochs":
            step = step // steps_per_epoch * steps_per_epoch
        done = min(1.0, max(0.0, step - warmup) / max(1.0, total - warmup))
        return 0.5 * (1 + math.cos(math.pi * done))

    return LambdaLR(optimizer, factor)
