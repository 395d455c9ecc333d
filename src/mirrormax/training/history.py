"""What is kept of a run while Lightning trains it."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from lightning.pytorch import Callback, LightningModule, Trainer
from safetensors import SafetensorError
from safetensors.torch import save_file

from mirrormax._files import checksum
from mirrormax._results import ResultFolder
from mirrormax.training.config import TrainConfig
from mirrormax.training.results import BEST, Row, is_sparse_enough, save_metrics, score, zeros


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
        best = max((score(old, self.chosen_by) for old in self.rows), default=-math.inf)
        self.rows.append(row)
        if trainer.is_global_zero:
            if score(row, self.chosen_by) > best or len(self.rows) == 1:
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
