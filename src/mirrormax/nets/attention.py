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

    def forward(self, x: Tensor, mask: Tensor | None = None, *, first_only: bool = False) -> Tensor:
        """x (B, T, dim) to (B, T, dim); ``mask`` (B, T) is True where a token may be attended to.

        ``first_only`` asks for the first query token alone, (B, 1, dim).
        """
        if first_only:
            return cast(Tensor, self.output(self._of_first(x, mask)))
        q, k, v = (self._split(part(x)) for part in (self.query, self.key, self.value))
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

    def _of_first(self, x: Tensor, mask: Tensor | None) -> Tensor:
        """What the heads give the first token, (B, 1, heads · d_h), without the keys and values of all the others.

        For one query z the products can be taken from the other side: the logits are x (W_Kᵀ W_Q z), and
        Σ_t s_t W_V x_t = W_V (Σ_t s_t x_t), a few vectors a text instead of two matrices over all tokens.
        """
        keys, values = (part.weight.unflatten(0, (self.heads, -1)) for part in (self.key, self.value))
        q = self.query(x[:, 0]).unflatten(-1, (self.heads, -1))
        logits = torch.einsum("bhe,hed->bhd", q, keys) @ x.transpose(1, 2) / self.head_dim**0.5
        if mask is not None:
            logits = logits.masked_fill(~mask[:, None, :], -torch.inf)
        return torch.einsum("bhd,hed->bhe", logits.softmax(-1) @ x, values).flatten(1).unsqueeze(1)

    def _split(self, x: Tensor) -> Tensor:
        return cast(Tensor, x.unflatten(-1, (self.heads, self.head_dim))).transpose(1, 2)
