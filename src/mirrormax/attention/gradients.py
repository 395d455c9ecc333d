"""Closed-form gradients of the risk, without cancellation at any ‖W‖ (the paper's Lemma 7).

    ∇_W L = (1/n) Σ_i l'_i X_iᵀ(diag(s_i) − s_i s_iᵀ) γ_i z_iᵀ        γ_it = y_i vᵀx_it
    ∇_v L = (1/n) Σ_i l'_i y_i X_iᵀ s_i
    ∇_K L = ∇_W L · Q,   ∇_Q L = (∇_W L)ᵀ K                         for W = K Qᵀ

Attention that selects has 1 − s below anything floating point holds, and so has its gradient. The
``scaled_`` functions return the gradient divided by e^log_scale, with log_scale beside it, one per
problem of the batch: a normalised step needs no more, and never sees a zero that is none. Shapes are
those of :mod:`mirrormax.attention.model`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.attention.losses import Loss, as_loss
from mirrormax.attention.saturation import Saturated, saturated, scaled_attended, scaled_pull
from mirrormax.problem import blank_padding, check, common_type, takes_problem


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
def scaled_head_gradient(
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
    return head_gradient_of(_state(X, y, z, v, W, mask), y, as_loss(loss))


@takes_problem
@in_kind
def head_gradient(
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
    scaled, log_scale = scaled_head_gradient(X, y, z, v, W=W, loss=loss, mask=mask)
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


def weight_gradient(state: Saturated, z: Tensor, loss: Loss, batch: Tensor | None = None) -> ScaledGradient:
    """∇_W L in scaled form from an evaluation of the model, for loops that need more of it than one gradient.

    With ``batch``, booleans (..., n), L is the mean over these samples.
    """
    pull, log_scale = scaled_pull(state, loss, batch)
    return ScaledGradient(-(pull.mT @ z.to(pull.dtype)) / _count(pull, batch)[..., None], log_scale)


def head_gradient_of(state: Saturated, y: Tensor, loss: Loss, batch: Tensor | None = None) -> ScaledGradient:
    """∇_v L in scaled form from an evaluation of the model."""
    attended, log_scale = scaled_attended(state, loss, batch)
    return ScaledGradient(-(y.to(attended.dtype).unsqueeze(-1) * attended).sum(-2) / _count(attended, batch), log_scale)


def _count(of: Tensor, batch: Tensor | None) -> Tensor:
    """How many samples there are, (..., 1)."""
    if batch is None:
        return torch.tensor([of.shape[-2]], dtype=of.dtype, device=of.device)
    return batch.sum(-1, keepdim=True).to(of.dtype)


def _state(X: Tensor, y: Tensor, z: Tensor, v: Tensor, W: Tensor, mask: Tensor | None) -> Saturated:
    X, y, z, v, W = common_type(X, y, z, v, W)
    return saturated(blank_padding(X, mask), y, z, v, W, mask)
