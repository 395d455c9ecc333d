"""Lightning tells optimizers with ``sparsity=`` how long the training is (extra ``train``)."""

from __future__ import annotations

from typing import Any

from mirrormax._extras import extra
from mirrormax.optim import set_total_steps

with extra("train"):
    from lightning import Callback


class SparsityCallback(Callback):
    """``Trainer(callbacks=[SparsityCallback()])``: total_steps is the trainer's number of optimizer steps."""

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Before the first step, also of a resumed training."""
        for optimizer in trainer.optimizers:
            set_total_steps(optimizer, trainer.estimated_stepping_batches)
