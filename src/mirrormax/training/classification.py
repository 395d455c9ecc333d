"""One training run as Lightning sees it: its loss, and its numbers per epoch."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import LightningModule
from torch import Tensor, nn

from mirrormax.training.batches import Batch
from mirrormax.training.config import TrainConfig
from mirrormax.training.inputs import EVALUATED, SPLITS
from mirrormax.training.optimizers import make_optimizer, make_schedule
from mirrormax.training.pieces import loss_and_logits


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
