"""What the audit asks of a model, whoever made it."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from torch import Tensor, nn

from mirrormax.auditing.layers import AttentionLayer


class Adapter(ABC):
    """A model, its attention layers, and how to call it on a batch.

    To audit another make of model, write one of these and give it to :func:`~mirrormax.auditing.audit` instead.
    """

    def __init__(self, model: nn.Module) -> None:
        self.model = model

    @classmethod
    @abstractmethod
    def knows(cls, model: nn.Module) -> bool:
        """Whether this adapter can read the model."""

    @abstractmethod
    def layers(self) -> list[AttentionLayer]:
        """The attention layers in the order in which they run."""

    @abstractmethod
    def call(self, batch: Any) -> Any:
        """Run the model on a batch."""

    def mask(self, batch: Any) -> Tensor | None:
        """True at tokens that are there, (B, T); None where all are."""
        return None

    def labels(self, batch: Any) -> Tensor | None:
        """The labels (B,) that came with a batch, if any."""
        return None

    def ids(self, batch: Any) -> Tensor | None:
        """Token numbers (B, T), for people to read; None where tokens are not words."""
        return None

    def has_head(self) -> bool:
        """Whether :meth:`logits` finds any, so that gradients are worth their price."""
        return False

    def logits(self, output: Any) -> Tensor | None:
        """Class logits (B, classes) in what :meth:`call` returned; None where the model has no such head."""
        return None


def inputs_and_labels(batch: Any, names: tuple[str, ...]) -> tuple[Tensor, Tensor | None]:
    """A batch given as a tensor, a pair (inputs, labels), or a mapping with one of ``names`` and maybe ``labels``."""
    if isinstance(batch, Tensor):
        return batch, None
    if isinstance(batch, Mapping):
        for name in names:
            if name in batch:
                return batch[name], batch.get("labels")
        raise ValueError(f"a batch has the keys {sorted(batch)}; it needs one of {', '.join(names)}.")
    if isinstance(batch, tuple | list) and len(batch) == 2 and all(isinstance(part, Tensor) for part in batch):
        return batch[0], batch[1]
    raise TypeError(
        f"a batch must be a tensor, a pair of tensors (inputs, labels) or a mapping, got {type(batch).__name__}."
    )
