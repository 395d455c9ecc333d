"""The text classifier and its training written the plain way, against which ours is measured.

It is the same function of the same weights: only what is worked out on the way differs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional

from mirrormax.nets import SelfAttention, TransformerBlock, TransformerClassifier, TransformerConfig


class PlainAttention(SelfAttention):
    """softmax(QKᵀ/√d_h) as a matrix, and then times V."""

    def forward(self, x: Tensor, mask: Tensor | None = None, *, first_only: bool = False) -> Tensor:
        mixed = self.dropout(self.weights(x, mask)) @ self._split(self.value(x))
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))


class PlainBlock(TransformerBlock):
    """Every row, with torch's own dropout and a new tensor for every step."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.attention = PlainAttention(config.dim, config.heads)
        self.dropout = self.attention.dropout = nn.Dropout(config.dropout)

    def forward(self, x: Tensor, mask: Tensor | None, *, first_only: bool = False) -> Tensor:
        x = self.attention_norm(x + self.dropout(self.attention(x, mask)))
        change = self.contract(self.activation(self.expand(x)))
        return cast(Tensor, self.hidden_norm(x + self.dropout(change)))


class PlainClassifier(TransformerClassifier):
    """Every text padded to ``max_length``, every row of every block worked out, dense gradients of embeddings."""

    def __init__(self, config: TransformerConfig) -> None:
        super().__init__(config)
        self.blocks = nn.ModuleList(PlainBlock(config) for _ in range(config.blocks))

    def forward(self, ids: Tensor, attention: bool = False) -> Tensor:
        """ids (B, T) to logits (B, classes)."""
        ids = functional.pad(ids, (0, self.config.max_length - ids.shape[1]), value=self.config.pad_id)
        x, mask = self.embed(ids), self.mask(ids)
        for block in self.blocks:
            x = block(x, mask)
        logits = self.head(x[:, 0])
        return functional.pad(logits, (1, 0)) if self.config.classes == 2 else logits


def plain_step(params: Iterable[nn.Parameter], p: float, lr: float) -> Callable[[], None]:
    """The paper's update written as it stands there: powers to the dual and back on the weights."""
    params = list(params)

    def power(x: Tensor, exponent: float) -> Tensor:
        return x.sign() * x.abs() ** exponent

    @torch.no_grad()
    def step() -> None:
        for param in params:
            if param.grad is not None:
                param.copy_(power(power(param, p - 1) - lr * param.grad, 1 / (p - 1)))

    return step
