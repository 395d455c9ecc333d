"""Attention written relative to the token it selects, which keeps every digit when it saturates.

With α the token of the largest logit, r_t = (x_t − x_α)ᵀ W z ≤ 0, and sums over t ≠ α only,

    log s_t = r_t − log(1 + Σ_t e^{r_t}),        D_t = y vᵀ(x_t − x_α),

    y f = y vᵀx_α + Σ_t s_t D_t,                 Xᵀ(diag(s) − ssᵀ)γ = Σ_t s_t (D_t − Σ_u s_u D_u)(x_t − x_α).

Softmax followed by s_t(γ_t − Σ_u s_u γ_u) subtracts nearly equal numbers once 1 − s_α nears the
machine precision, and is exactly zero soon after. Here every term is a product: α drops out of all
sums, and the weights of the other tokens are logarithms until their common scale is divided out.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mirrormax.attention.losses import Loss
from mirrormax.problem import masked_logits, relative_to, values


class Saturated(NamedTuple):
    """One evaluation of the model, relative to the selected tokens; sums over t leave α out."""

    selected: Tensor  # (..., n, d)     x_α
    offsets: Tensor  # (..., n, T, d)   x_t − x_α, zero at α, finite at padding
    log_s: Tensor  # (..., n, T)        log s_t, −inf at α and at padding
    gains: Tensor  # (..., n, T)        D_t = y vᵀ(x_t − x_α), zero at α, finite at padding
    margins: Tensor  # (..., n)         y f(X, z)


def saturated(X: Tensor, y: Tensor, z: Tensor, v: Tensor, W: Tensor, mask: Tensor | None = None) -> Saturated:
    """Evaluate the model on tensors of one floating type, checked before, with blank padding."""
    alpha = masked_logits(X, z, W, mask).argmax(-1)
    selected, offsets, others = relative_to(X, alpha, mask)
    # The logits of the offsets and not h_t − h_α: tokens far from the origin share what would cancel.
    r = masked_logits(offsets, z, W, others)
    if (r > 0).any():  # what was taken for the largest logit was so by rounding only
        alpha = torch.where(r.amax(-1) > 0, r.argmax(-1), alpha)
        selected, offsets, others = relative_to(X, alpha, mask)
        r = masked_logits(offsets, z, W, others)
    log_s = r + functional.logsigmoid(-r.logsumexp(-1, keepdim=True))
    gains = y.unsqueeze(-1) * values(offsets, v)
    margins = y * (selected @ v.unsqueeze(-1)).squeeze(-1) + (log_s.exp() * gains).sum(-1)
    return Saturated(selected, offsets, log_s, gains, margins)


def scaled_pull(state: Saturated, loss: Loss, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """−l'_i X_iᵀ(diag(s_i) − s_i s_iᵀ)γ_i / e^scale, of shape (..., n, d), and the scale (...).

    The scale is the largest log(−l'_i) + log s_it over the tokens with D_it ≠ 0; the terms with D = 0
    enter through s_t Σ_u s_u D_u only, which is no larger. So the largest weight is 1 at any ‖W‖ and
    any margin, and where a number underflows it was negligible beside another. Samples outside ``batch``,
    booleans (..., n), have no part in it: they are left out before the scale is taken.
    """
    log_slope = log_slopes(state, loss, batch).unsqueeze(-1)
    log_weights = torch.where(state.gains != 0, log_slope + state.log_s, -torch.inf)
    scale = log_weights.amax((-2, -1))
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    pulls = torch.exp(log_weights - scale[..., None, None]) * state.gains
    # s_t ≤ 1/2 for t ≠ α, so a token never cancels against its own share of the sum.
    weights = pulls - state.log_s.exp() * pulls.sum(-1, keepdim=True)
    return (weights.unsqueeze(-2) @ state.offsets).squeeze(-2), scale


def log_slopes(state: Saturated, loss: Loss, batch: Tensor | None = None) -> Tensor:
    """log(−l'_i), (..., n); −inf outside the batch."""
    slopes = loss.log_derivative(state.margins)
    return slopes if batch is None else torch.where(batch, slopes, -torch.inf)


def scaled_attended(state: Saturated, loss: Loss, batch: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """−l'_i X_iᵀ s_i / e^scale, of shape (..., n, d), and the scale (...) = max_i log(−l'_i)."""
    log_slope = log_slopes(state, loss, batch)
    scale = log_slope.amax(-1)
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    attended = state.selected + (state.log_s.exp().unsqueeze(-2) @ state.offsets).squeeze(-2)
    return torch.exp(log_slope - scale.unsqueeze(-1)).unsqueeze(-1) * attended, scale
