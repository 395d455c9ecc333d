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
from mirrormax.problem import blank_padding, check, common_type, masked_logits, relative_to, takes_problem, values


class ScaledGradient(NamedTuple):
    """A gradient as ``scaled`` · e^``log_scale``."""

    scaled: Tensor
    log_scale: Tensor


class FactoredGradient(NamedTuple):
    """The gradients in K and Q, each of shape (..., d, m)."""

    K: Tensor
    Q: Tensor


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
    check(X, y=y, z=z, v=v, W=W, mask=mask)
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
    check(X, y=y, z=z, v=v, W=W, mask=mask)
    attended, log_scale = scaled_attended(_state(X, y, z, v, W, mask), as_loss(loss))
    return ScaledGradient(-(y.to(attended.dtype).unsqueeze(-1) * attended).mean(-2), log_scale)


@takes_problem
@in_kind
def readout_gradient(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    W: Tensor,
    *,
    loss: str | Loss = "logistic",
    mask: Tensor | None = None,
) -> Tensor:
    """∇_v L, of shape (..., d)."""
    scaled, log_scale = scaled_readout_gradient(X, y, z, v, W=W, loss=loss, mask=mask)
    return scaled * log_scale.exp().unsqueeze(-1)


@takes_problem
@in_kind
def factored_gradient(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    *,
    K: Tensor,
    Q: Tensor,
    loss: str | Loss = "logistic",
    mask: Tensor | None = None,
) -> FactoredGradient:
    """∇_K L and ∇_Q L for W = K Qᵀ, each of shape (..., d, m).

    Their scaled forms are G Q and Gᵀ K with the scaled G of ``scaled_gradient(..., W=K @ Q.mT)``.
    """
    check(X, y=y, z=z, v=v, K=K, Q=Q, mask=mask)
    K, Q, *_ = common_type(K, Q, X, z, v)
    G = gradient(X, y, z, v, W=K @ Q.mT, loss=loss, mask=mask)
    return FactoredGradient(G @ Q.to(G.dtype), G.mT @ K.to(G.dtype))


def weight_gradient(state: Saturated, z: Tensor, loss: Loss) -> ScaledGradient:
    """∇_W L in scaled form from an evaluation of the model, for those who need more of it than one gradient."""
    pull, log_scale = scaled_pull(state, loss)
    return ScaledGradient(-(pull.mT @ z.to(pull.dtype)) / z.shape[-2], log_scale)


def _state(X: Tensor, y: Tensor, z: Tensor, v: Tensor, W: Tensor, mask: Tensor | None) -> Saturated:
    X, y, z, v, W = common_type(X, y, z, v, W)
    return saturated(blank_padding(X, mask), y, z, v, W, mask)


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


def scaled_pull(state: Saturated, loss: Loss) -> tuple[Tensor, Tensor]:
    """−l'_i X_iᵀ(diag(s_i) − s_i s_iᵀ)γ_i / e^scale, of shape (..., n, d), and the scale (...).

    The scale is the largest log(−l'_i) + log s_it over the tokens with D_it ≠ 0; the terms with D = 0
    enter through s_t Σ_u s_u D_u only, which is no larger. So the largest weight is 1 at any ‖W‖ and
    any margin, and where a number underflows it was negligible beside another.
    """
    return pulled(state.offsets, state.log_s, state.gains, loss.log_derivative(state.margins))


def pulled(offsets: Tensor, log_s: Tensor, gains: Tensor, log_slope: Tensor) -> tuple[Tensor, Tensor]:
    """The same from its parts: log s and D (..., n, T), log(−l') (..., n)."""
    log_weights = torch.where(gains != 0, log_slope.unsqueeze(-1) + log_s, -torch.inf)
    scale = log_weights.amax((-2, -1))
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    pulls = torch.exp(log_weights - scale[..., None, None]) * gains
    # s_t ≤ 1/2 for t ≠ α, so a token never cancels against its own share of the sum.
    weights = pulls - log_s.exp() * pulls.sum(-1, keepdim=True)
    return (weights.unsqueeze(-2) @ offsets).squeeze(-2), scale


def scaled_attended(state: Saturated, loss: Loss) -> tuple[Tensor, Tensor]:
    """−l'_i X_iᵀ s_i / e^scale, of shape (..., n, d), and the scale (...) = max_i log(−l'_i)."""
    log_slope = loss.log_derivative(state.margins)
    scale = log_slope.amax(-1)
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    attended = state.selected + (state.log_s.exp().unsqueeze(-2) @ state.offsets).squeeze(-2)
    return torch.exp(log_slope - scale.unsqueeze(-1)).unsqueeze(-1) * attended, scale
