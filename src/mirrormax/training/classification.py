"""One training run as Lightning sees it: its loss, its optimizer and schedule by name, and its numbers per epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn
from torch.optim.lr_scheduler import LambdaLR

from mirrormax.geometry import ElasticNet, Hypentropy, Lp, Potential, SquaredLp
from mirrormax.optim import MirrorAdamW, MirrorDescent, equivalent_lr, param_groups
from mirrormax.training.batches import Batch
from mirrormax.training.config import TrainConfig
from mirrormax.training.pieces import loss_and_logits

SGD_LR = 0.3
USUAL_LR = {"sgd": SGD_LR, "adamw": 1e-3, "mirror": 3e-3, "adabreg": 1e-2}
"""Those of the last two are what mirrormax reproduce practice chose, and most often."""
EVALUATED = ("validation", "test")
SPLITS = ("train", *EVALUATED)


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


class Classification(LightningModule):
    """Training of a classifier by cross-entropy; a language model is one of the token that follows.

    ``tokens_per_byte`` of the splits of a language model turn its loss into bits per byte of text.

    Whatever is random in an epoch is drawn from generators seeded by (seed, epoch), so that a run that goes on
    from the end of an epoch is the run that was never interrupted.
    """

    def __init__(
        self, model: nn.Module, config: TrainConfig, steps_per_epoch: int, tokens_per_byte: Sequence[float] = ()
    ) -> None:
        super().__init__()
        self.tokens_per_byte = dict(zip(SPLITS, tokens_per_byte, strict=False))
        self.model, self.config, self.steps_per_epoch = model, config, steps_per_epoch
        self.sums: dict[str, Tensor] = {}
        # There may be fewer batches to evaluate than processes; they take part all the same (see on_train_epoch_start).
        self.allow_zero_length_dataloader_with_multiple_devices = True

    def configure_optimizers(self) -> Any:
        optimizer = make_optimizer(self.model, self.config, self.config.epochs * self.steps_per_epoch)
        schedule = make_schedule(optimizer, self.config, self.steps_per_epoch)
        return {"optimizer": optimizer, "lr_scheduler": {"scheduler": schedule, "interval": "step"}}

    def on_train_epoch_start(self) -> None:
        torch.manual_seed(epoch_seed(self.config.seed, self.current_epoch, self.global_rank))
        if self.current_epoch > 0:
            # A loader that Lightning starts here took one number, but not where a run went on; now loaders take none,
            # and it is taken always, so that a configuration still trains the model that it used to.
            torch.empty((), dtype=torch.int64).random_()
        # For every split, as a process that has no batch of one must still take part in its sum.
        self.sums = {split: torch.zeros(3, dtype=torch.float64, device=self.device) for split in SPLITS}

    def training_step(self, batch: Batch, index: int) -> Tensor:
        return self._step("train", batch)

    def validation_step(self, batch: Batch, index: int, dataloader_idx: int = 0) -> None:
        self._step(EVALUATED[dataloader_idx], batch)

    def _step(self, split: str, batch: Batch) -> Tensor:
        inputs, labels = batch
        loss, logits = loss_and_logits(self.model, inputs, labels, self.config.reduction)
        total = loss.detach().double() * (labels.numel() if self.config.reduction == "mean" else 1)
        correct = (logits.argmax(-1) == labels).sum()
        new = torch.stack([total, correct.double(), total.new_tensor(float(labels.numel()))])
        self.sums[split] = self.sums[split] + new
        return loss

    def epoch_numbers(self) -> dict[str, float]:
        """Mean loss and accuracy of each split in this epoch, over all processes."""
        numbers: dict[str, float] = {}
        for split, sums in self.sums.items():
            total, correct, count = cast(Tensor, self.trainer.strategy.reduce(sums, reduce_op="sum")).tolist()
            if count == 0:  # no validation split
                total, correct, count = math.nan, math.nan, 1.0
            numbers |= {f"{split}_loss": total / count, f"{split}_accuracy": correct / count}
            if split in self.tokens_per_byte:
                numbers[f"{split}_bits_per_byte"] = total / count / math.log(2) * self.tokens_per_byte[split]
        return numbers


def epoch_seed(seed: int, epoch: int, rank: int) -> int:
    """One number for the three, different for different ones."""
    return int(np.random.SeedSequence((seed, epoch, rank)).generate_state(1, np.uint64)[0] >> np.uint64(1))
