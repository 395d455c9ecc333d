"""Tokens as the formulas take them, in tensors that were checked before: relative to a chosen one, scored, compared."""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor

from mirrormax.problem.checks import broadcast


def common_type(*tensors: Tensor) -> list[Tensor]:
    """The tensors in the one floating type that holds them all, at least float32.

    Integers take the type of the others; if there are only integers that is float64.
    """
    floating = [t.dtype for t in tensors if t.is_floating_point()]
    dtype = functools.reduce(torch.promote_types, floating, torch.float32) if floating else torch.float64
    return [t.to(dtype) for t in tensors]


def blank_padding(X: Tensor, mask: Tensor | None) -> Tensor:
    """X with zeros for the tokens that are not there, so that nothing they held can spread."""
    return X if mask is None else torch.where(mask.unsqueeze(-1), X, 0)


class Relative(NamedTuple):
    """The tokens of every sequence as seen from the chosen one, the form in which equal tokens differ by zero."""

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


def masked_logits(X: Tensor, z: Tensor, W: Tensor, mask: Tensor | None = None) -> Tensor:
    """X_i W z_i, (..., n, T), of tensors of one type that were checked before; −inf outside the mask."""
    h = (X @ (z @ W.mT).unsqueeze(-1)).squeeze(-1)
    return h if mask is None else h.masked_fill(~mask, -torch.inf)


def values(X: Tensor, v: Tensor) -> Tensor:
    """vᵀ x_it, of shape (..., n, T)."""
    return (X @ v[..., None, :, None]).squeeze(-1)


def token_scores(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """γ_it = y_i vᵀx_it, of shape (..., n, T), of tensors that were checked before; −inf outside the mask."""
    X, y, v = common_type(X, y, v)
    scores = y.unsqueeze(-1) * values(blank_padding(X, mask), v)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


def highest_scores(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """True at the tokens whose score rounding cannot tell from the highest of their sample, (..., n, T).

    Scores that differ by less than 4 d ε max_t Σ_j |v_j x_tj| are called equal.
    """
    scores = token_scores(X, y, v, mask)
    X, v = blank_padding(X, mask).to(scores.dtype).abs(), v.to(scores.dtype).abs()
    rounding = 4 * X.shape[-1] * torch.finfo(X.dtype).eps * values(X, v).amax(-1, keepdim=True)
    return scores >= scores.amax(-1, keepdim=True) - rounding


def first_true(flags: Tensor) -> Tensor:
    """The index of the first True along the last dimension (argmax may return any of several)."""
    T = flags.shape[-1]
    return torch.where(flags, torch.arange(T, device=flags.device), T).amin(-1)
