"""One training run as Lightning sees it: its loss, its numbers per epoch, and what is kept of it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Sequence
from typing import Any, cast

import numpy as np
import torch
from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors import SafetensorError
from safetensors.torch import save_file
from torch import Tensor, nn

from mirrormax._files import checksum
from mirrormax._results import ResultFolder
from mirrormax.training.batches import Batch, loss_and_logits
from mirrormax.training.config import TrainConfig
from mirrormax.training.inputs import EVALUATED, SPLITS
from mirrormax.training.optimizers import make_optimizer, make_schedule
from mirrormax.training.results import BEST, Row, chosen_epoch, is_sparse_enough, save_metrics, zeros


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


class History(Callback):
    """Keeps a row per epoch and the weights with the best validation accuracy, or loss (the earliest of equals).

    Stops at a training accuracy, and when the loss is no longer a number. Where the training has a share of zeros as
    its target, epochs before it was reached are neither kept nor stopped at. The rows are part of Lightning's
    checkpoints, so that they go on where an interrupted run does. ``finish`` gets them at the end of a run that was
    not interrupted, in the process that writes files: Lightning may have started it for the training alone.
    """

    def __init__(self, folder: ResultFolder, config: TrainConfig, finish: Callable[[list[Row]], None]) -> None:
        self.folder, self.finish = folder, finish
        self.stop_accuracy, self.chosen_by = config.stop_accuracy, config.chosen_by
        self.rows: list[Row] = []
        self.best = ""  # checksum of the best weights
        self.started = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = self._enough()  # of a run that was killed between its last epoch and its end
        if trainer.is_global_zero and self.rows:
            save_metrics(self.folder, self.rows)  # it may be one epoch ahead of the checkpoint

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        numbers, seconds = pl_module.epoch_numbers(), time.perf_counter() - self.started
        lr = float(trainer.optimizers[0].param_groups[0]["lr"])
        row = {"epoch": float(trainer.current_epoch + 1), **numbers, **zeros(trainer.optimizers[0])}
        row |= {"lr": lr, "seconds": seconds}
        self.rows.append(row)
        if trainer.is_global_zero:
            if chosen_epoch(self.rows, self.chosen_by) is row:
                with self.folder.writing(BEST, SafetensorError) as temporary:
                    weights = pl_module.model.state_dict()
                    save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, temporary)
                self.best = checksum(self.folder.path / BEST)
            save_metrics(self.folder, self.rows)
        pl_module.log_dict({"epoch": row["epoch"], **numbers})  # in place of Lightning's own count from 0
        if self._enough():
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            # Not when a run goes on: if it was killed in the midst of an epoch's end, these weights are of a later one.
            if checksum(self.folder.path / BEST) != self.best:
                raise ValueError(f"the best weights {self.folder.path / BEST} are damaged; begin anew with --force.")
            self.finish(self.rows)

    def _enough(self) -> bool:
        if not self.rows:
            return False
        last = self.rows[-1]
        reached = last["train_accuracy"] >= self.stop_accuracy and is_sparse_enough(last)
        return reached or not math.isfinite(last["train_loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.best = list(state_dict["rows"]), state_dict["best"]
