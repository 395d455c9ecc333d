"""Multi-head self-attention with separate query, key and value matrices."""

from __future__ import annotations

from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional


class SelfAttention(nn.Module):
    """softmax(Q Kᵀ/√d_h) V for each head, then one output matrix.

    ``query``, ``key`` and ``value`` have no biases, so that each head is the paper's bilinear form: the
    logit of token t for the query token z is x_tᵀ (W_Kᵀ W_Q/√d_h) z.
    """

    def __init__(self, dim: int, heads: int, head_dim: int | None = None, *, output_bias: bool = False) -> None:
        super().__init__()
        self.heads, self.head_dim = heads, head_dim or dim // heads
        inner = self.heads * self.head_dim
        self.query = nn.Linear(dim, inner, bias=False)
        self.key = nn.Linear(dim, inner, bias=False)
        self.value = nn.Linear(dim, inner, bias=False)
        self.output = nn.Linear(inner, dim, bias=output_bias)

    def forward(self, x: Tensor, mask: Tensor | None = None, rows: int | None = None) -> Tensor:
        """x (B, T, dim) to (B, rows, dim); ``mask`` (B, T) is True where a token may be attended to.

        ``rows`` asks for the first so many query tokens alone, by default all.
        """
        q, k, v = self._split(self.query(x[:, :rows])), self._split(self.key(x)), self._split(self.value(x))
        over_keys = None if mask is None else mask[:, None, None, :]  # the same for all heads and query tokens
        mixed = functional.scaled_dot_product_attention(q, k, v, attn_mask=over_keys)
        return cast(Tensor, self.output(mixed.transpose(1, 2).flatten(2)))

    def weights(self, x: Tensor, mask: Tensor | None = None) -> Tensor:
        """The attention maps (B, heads, T, T); row i says how token i attends."""
        q, k = self._split(self.query(x)), self._split(self.key(x))
        logits = q @ k.transpose(-1, -2) / self.head_dim**0.5
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, None, :], -torch.inf)
        return cast(Tensor, logits.softmax(-1))

    def _split(self, x: Tensor) -> Tensor:
        return cast(Tensor, x.unflatten(-1, (self.heads, self.head_dim))).transpose(1, 2)
