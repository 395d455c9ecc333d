"""The Hugging Face Trainer tells an optimizer with ``sparsity=`` how long the training is (extra ``audit``)."""

from __future__ import annotations

from typing import Any

from mirrormax._extras import extra
from mirrormax.optim import set_total_steps

with extra("audit"):
    from transformers import TrainerCallback


class SparsityCallback(TrainerCallback):  # type: ignore[misc]
    """``Trainer(..., callbacks=[SparsityCallback()])``: total_steps is the Trainer's number of optimizer steps."""

    def on_train_begin(self, args: Any, state: Any, control: Any, optimizer: Any = None, **others: Any) -> None:
        """Before the first step, also of a resumed training."""
        set_total_steps(optimizer, state.max_steps)
