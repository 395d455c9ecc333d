"""The optimizer, the step size and the schedule of a configuration; plain torch, without Lightning.

The step sizes that the paper's authors trained with are in files of github.com/addskj2002/AttentionMD at commit
30aff94, under ``real-data/``. The text of the paper (arXiv 2410.14581 v1) says of the text classifiers that they are
"similar to [60]" with a linear layer on [CLS], and has none of their sizes, rates or step sizes; the vision transformer
is of the journal version. docs/paper-size.md has what is done otherwise in the profile ``paper``.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import nn
from torch.optim.lr_scheduler import LambdaLR

from mirrormax.geometry import ElasticNet, Hypentropy, Lp, Potential, SquaredLp
from mirrormax.optim import MirrorAdamW, MirrorDescent, equivalent_lr, param_groups
from mirrormax.training.config import SentimentTraining, TrainConfig, VisionTraining

SGD_LR = 0.3
USUAL_LR = {"sgd": SGD_LR, "adamw": 1e-3, "mirror": 3e-3, "adabreg": 1e-2}
"""Those of the last two are what mirrormax reproduce practice chose, and most often."""
SENTIMENT_STEPS = {
    1.1: {3: 8e-4, 4: 6e-4, 6: 1e-3},
    2.0: {3: 4e-4, 4: 4e-4, 6: 1e-3},
    3.0: {3: 4e-6, 4: 6e-6, 6: 1e-5},
}
"""Step sizes for losses summed over 100 texts, by p and blocks: ``real-data/configs/P/model_size_N.json``."""
VISION_STEPS = {1.1: 0.1, 1.75: 0.1, 2.0: 0.1, 3.0: 0.01}
"""Step sizes for mean losses, by p: ``real-data/bash_scripts/vit_cifar10.sh`` and ``vit_cifar100.sh``."""
VISION_ADAM = 1e-4
"""That of Adam, from the same files."""


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


def with_published_step(config: TrainConfig) -> TrainConfig:
    """``config`` with the authors' step size for its p and size; ValueError where they have none."""
    lr = None
    if isinstance(config, SentimentTraining) and config.optimizer == "md":
        lr = SENTIMENT_STEPS.get(config.p, {}).get(config.blocks)
    elif isinstance(config, VisionTraining):
        lr = {"md": VISION_STEPS.get(config.p), "adamw": VISION_ADAM}.get(config.optimizer)
    if lr is None:
        of = f" and blocks={config.blocks}" if isinstance(config, SentimentTraining) else ""
        raise ValueError(
            f"lr must be given: the authors have no step size for optimizer={config.optimizer!r}, p={config.p:g}{of}."
        )
    return replace(config, lr=lr)


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
