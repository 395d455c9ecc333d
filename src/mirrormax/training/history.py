"""The numbers of each epoch, the best model so far, and when to stop."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors import SafetensorError
from safetensors.torch import save_file

from mirrormax._files import checksum, replacing

BEST = "best.safetensors"


class History(Callback):
    """Keeps a row an epoch and the weights with the highest validation accuracy (the earliest of equals).

    Stops at a training accuracy, and when the loss is no longer a number. The rows are part of Lightning's
    checkpoints, so that they go on where an interrupted run does. ``finish`` gets them at the end of a run that was
    not interrupted, in the process that writes files: Lightning may have started it for the training alone.
    """

    def __init__(self, folder: Path, stop_accuracy: float, finish: Callable[[list[dict[str, float]]], None]) -> None:
        self.folder, self.stop_accuracy, self.finish = folder, stop_accuracy, finish
        self.rows: list[dict[str, float]] = []
        self.best: str | None = None  # checksum of the best weights; runs from before it have none
        self.started = 0.0

    def on_train_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        trainer.should_stop = self._enough()  # of a run that was killed between its last epoch and its end

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.started = time.perf_counter()

    def on_train_epoch_end(self, trainer: Trainer, pl_module: Any) -> None:
        numbers = pl_module.epoch_numbers()
        seconds = time.perf_counter() - self.started
        lr = float(trainer.optimizers[0].param_groups[0]["lr"])
        row = {"epoch": float(trainer.current_epoch + 1), **numbers, "lr": lr, "seconds": seconds}
        best = max((old["validation_accuracy"] for old in self.rows), default=-1.0)
        self.rows.append(row)
        if row["validation_accuracy"] > best and trainer.is_global_zero:
            with replacing(self.folder / BEST, SafetensorError) as temporary:
                weights = pl_module.model.state_dict()
                save_file({name: value.detach().cpu().contiguous() for name, value in weights.items()}, temporary)
            self.best = checksum(self.folder / BEST)
        pl_module.log_dict(numbers, prog_bar=True)
        if self._enough():
            trainer.should_stop = True

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            # Not when a run goes on: if it was killed in the midst of an epoch's end, these weights are of a later one.
            if self.best is not None and checksum(self.folder / BEST) != self.best:
                raise ValueError(f"the best weights {self.folder / BEST} are damaged; begin anew with --force.")
            self.finish(self.rows)

    def _enough(self) -> bool:
        if not self.rows:
            return False
        last = self.rows[-1]
        return last["train_accuracy"] >= self.stop_accuracy or not math.isfinite(last["train_loss"])

    def state_dict(self) -> dict[str, Any]:
        return {"rows": self.rows, "best": self.best}

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        self.rows, self.best = list(state_dict["rows"]), state_dict.get("best")


def chosen_epoch(rows: list[dict[str, float]]) -> dict[str, float]:
    """The row of the epoch that validation accuracy chooses."""
    return max(rows, key=lambda row: row["validation_accuracy"])
