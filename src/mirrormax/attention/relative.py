"""Tokens relative to a chosen one, the form in which equal tokens differ by exactly zero."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mirrormax.attention.problem import broadcast


class Relative(NamedTuple):
    """The tokens of every sequence as seen from the chosen one."""

    chosen: Tensor  # (..., n, d)     x_α
    offsets: Tensor  # (..., n, T, d)  x_t − x_α, zero at α, finite at padding
    others: Tensor  # (..., n, T)     True where t ≠ α and the token is present


def relative_to(X: Tensor, alpha: Tensor, mask: Tensor | None = None) -> Relative:
    """Tokens X (..., n, T, d) relative to alpha (..., n), for tensors checked before, with blank padding."""
    n, T, d = X.shape[-3:]
    batch = broadcast(X.shape[:-3], alpha.shape[:-1])
    X, alpha = X.expand(*batch, n, T, d), alpha.expand(*batch, n).long()
    chosen = X.take_along_dim(alpha[..., None, None], -2)
    others = torch.arange(T, device=X.device) != alpha.unsqueeze(-1)
    if mask is not None:
        others = others & mask
    return Relative(chosen.squeeze(-2), X - chosen, others)
