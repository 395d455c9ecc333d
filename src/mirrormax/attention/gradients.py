"""Closed-form gradients of the risk, without cancellation at any ‖W‖ (the paper's Lemma 7).

    ∇_W L = (1/n) Σ_i l'_i X_iᵀ(diag(s_i) − s_i s_iᵀ) γ_i z_iᵀ        γ_it = y_i vᵀx_it
    ∇_v L = (1/n) Σ_i l'_i y_i X_iᵀ s_i
    ∇_K L = ∇_W L · Q,   ∇_Q L = (∇_W L)ᵀ K                         for W = K Qᵀ

Attention that selects has 1 − s below anything floating point holds, and so has its gradient. The
``scaled_`` functions return the gradient divided by e^log_scale, with log_scale beside it, one per
problem of the batch: a normalised step needs no more, and never sees a zero that is none. Shapes are
those of :mod:`mirrormax.attention.model`.

All of it is written relative to α, the token of the largest logit: with r_t = (x_t − x_α)ᵀ W z ≤ 0 and sums over t ≠ α,

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

from mirrormax._arrays import in_kind
from mirrormax.attention.losses import Loss, as_loss
from mirrormax.problem import (
    Relative,
    blank_padding,
    check,
    common_type,
    masked_logits,
    relative_to,
    takes_problem,
    values,
)


class ScaledGradient(NamedTuple):
    """A gradient as ``scaled`` · e^``log_scale``."""

    scaled: Tensor
    log_scale: Tensor


@takes_problem
@in_kind
def scaled_gradient(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    W: Tensor,
    *,
    loss: str | Loss = "logistic",
    mask: Tensor | None = None,
) -> ScaledGradient:
    """∇_W L / e^log_scale, of shape (..., d, d), and log_scale (...): nothing underflows at any ‖W‖.

    log_scale is the largest log(−l'_i s_it) over the tokens that attention does not select and that
    score differently from the selected one. Where there is none the gradient is zero, log_scale too.
    """
    return weight_gradient(_state(X, y, z, v, W, mask), z, as_loss(loss))


@takes_problem
@in_kind
def gradient(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    W: Tensor,
    *,
    loss: str | Loss = "logistic",
    mask: Tensor | None = None,
) -> Tensor:
    """∇_W L, of shape (..., d, d), each entry as exact as the inputs allow however small it is."""
    scaled, log_scale = scaled_gradient(X, y, z, v, W=W, loss=loss, mask=mask)
    return scaled * log_scale.exp()[..., None, None]


@takes_problem
@in_kind
def scaled_readout_gradient(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    W: Tensor,
    *,
    loss: str | Loss = "logistic",
    mask: Tensor | None = None,
) -> ScaledGradient:
    """∇_v L / e^log_scale, of shape (..., d), and log_scale (...), the largest log(−l'_i)."""
    state = _state(X, y, z, v, W, mask)
    log_slope = as_loss(loss).log_derivative(state.margins)
    scale = log_slope.amax(-1)
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    weights = torch.exp(log_slope - scale.unsqueeze(-1)) * y.to(log_slope.dtype)
    return ScaledGradient(-(weights.unsqueeze(-1) * state.attended).mean(-2), scale)


def weight_gradient(state: Saturated, z: Tensor, loss: Loss) -> ScaledGradient:
    """∇_W L in scaled form from an evaluation of the model, for those who need more of it than one gradient."""
    pull, log_scale = pulled(state.offsets, state.log_s, state.gains, loss.log_derivative(state.margins))
    return ScaledGradient(-(pull.mT @ z.to(pull.dtype)) / z.shape[-2], log_scale)


def _state(X: Tensor, y: Tensor, z: Tensor, v: Tensor, W: Tensor, mask: Tensor | None) -> Saturated:
    check(X, y=y, z=z, v=v, W=W, mask=mask)
    X, y, z, v, W = common_type(X, y, z, v, W)
    return saturated(blank_padding(X, mask), y, z, v, W, mask)


class Saturated(NamedTuple):
    """One evaluation of the model, relative to the selected tokens; sums over t leave α out."""

    attended: Tensor  # (..., n, d)     Xᵀs
    offsets: Tensor  # (..., n, T, d)   x_t − x_α, zero at α, finite at padding
    log_s: Tensor  # (..., n, T)        log s_t, −inf at α and at padding
    gains: Tensor  # (..., n, T)        D_t = y vᵀ(x_t − x_α), zero at α, finite at padding
    margins: Tensor  # (..., n)         y f(X, z)


def saturated(X: Tensor, y: Tensor, z: Tensor, v: Tensor, W: Tensor, mask: Tensor | None = None) -> Saturated:
    """Evaluate the model on tensors of one floating type, checked before, with blank padding."""
    _, (selected, offsets, _), log_s, attended = class_state(X, z, W.unsqueeze(-3), mask)
    selected, offsets, log_s = selected.squeeze(-3), offsets.squeeze(-4), log_s.squeeze(-3)
    gains = y.unsqueeze(-1) * values(offsets, v)
    margins = y * (selected @ v.unsqueeze(-1)).squeeze(-1) + (log_s.exp() * gains).sum(-1)
    return Saturated(attended.squeeze(-3), offsets, log_s, gains, margins)


class ClassState(NamedTuple):
    """Attention of every head, relative to the token it selects; sums over t leave α out."""

    alpha: Tensor  # (..., H, n)
    tokens: Relative  # of every head, (..., H, n, …)
    log_s: Tensor  # (..., H, n, T)    log s_t, −inf at α and at padding
    attended: Tensor  # (..., H, n, d)  Xᵀs


def class_state(
    X: Tensor, z: Tensor, W: Tensor, mask: Tensor | None = None, before: ClassState | None = None
) -> ClassState:
    """Attention at these weights, of tensors checked before, with blank padding. What tokens are relative to the
    selected one is taken from an evaluation ``before`` at other weights, for as long as the selection stays."""
    X, z, mask = X.unsqueeze(-4), z.unsqueeze(-3), None if mask is None else mask.unsqueeze(-3)  # of every head
    query = z @ W.mT
    if before is None:
        alpha = masked_logits(X, z, W, mask).argmax(-1)
        tokens = relative_to(X, alpha, mask)
    else:
        alpha, tokens = before.alpha, before.tokens
    # The logits of the offsets and not h_t − h_α: tokens far from the origin share what would cancel.
    r = _rival_logits(tokens, query)
    if (r > 0).any():  # another token leads
        alpha = torch.where(r.amax(-1) > 0, r.argmax(-1), alpha)
        tokens = relative_to(X, alpha, mask)
        r = _rival_logits(tokens, query)
    log_s = r + functional.logsigmoid(-r.logsumexp(-1, keepdim=True))
    attended = tokens.chosen + (log_s.exp().unsqueeze(-2) @ tokens.offsets).squeeze(-2)
    return ClassState(alpha, tokens, log_s, attended)


def _rival_logits(tokens: Relative, query: Tensor) -> Tensor:
    """(x_t − x_α)ᵀWz, (..., H, n, T); −inf at α and at padding."""
    return (tokens.offsets @ query.unsqueeze(-1)).squeeze(-1).masked_fill(~tokens.others, -torch.inf)


def pulled(offsets: Tensor, log_s: Tensor, gains: Tensor, log_slope: Tensor) -> tuple[Tensor, Tensor]:
    """−l'_i X_iᵀ(diag(s_i) − s_i s_iᵀ)γ_i / e^scale, of shape (..., n, d), and the scale (...).

    Of log s and D (..., n, T) and log(−l') (..., n). The scale is the largest log(−l'_i) + log s_it over the tokens
    with D_it ≠ 0; the terms with D = 0 enter through s_t Σ_u s_u D_u only, which is no larger. So the largest weight is
    1 at any ‖W‖ and any margin, and where a number underflows it was negligible beside another.
    """
    log_weights = torch.where(gains != 0, log_slope.unsqueeze(-1) + log_s, -torch.inf)
    scale = log_weights.amax((-2, -1))
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    pulls = torch.exp(log_weights - scale[..., None, None]) * gains
    # s_t ≤ 1/2 for t ≠ α, so a token never cancels against its own share of the sum.
    weights = pulls - log_s.exp() * pulls.sum(-1, keepdim=True)
    return (weights.unsqueeze(-2) @ offsets).squeeze(-2), scale
