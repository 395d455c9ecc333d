"""The second derivative of the risk in closed form, with the scale of saturated attention carried apart.

With h_t = (x_t − x_α)ᵀ W z, D_t = y vᵀ(x_t − x_α) and c_t = s_t (D_t − Σ_u s_u D_u), the margin m of one sample has

    ∂m/∂h_t = c_t,        ∂²m/∂h_t∂h_u = [t = u] c_t − c_t s_u − s_t c_u,

and the risk (1/n) Σ_i (l''(m) ∂m ∂mᵀ + l'(m) ∂²m) in h, from where W ↦ h is linear. α drops out of every sum.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from mirrormax.attention import Loss
from mirrormax.attention.saturation import saturated
from mirrormax.problem import Problem


def scaled_hessian(data: Problem, W: Tensor, loss: Loss) -> tuple[Tensor, Tensor]:
    """∇²L(W)/e^log_scale, (..., d², d²) over the entries of W in rows, and log_scale (...).

    log_scale is that of :func:`~mirrormax.attention.scaled_gradient`, so a ratio of the two has no scale.
    """
    state = saturated(data.X, data.y, data.z, data.v, W, data.mask)
    log_slope = loss.log_derivative(state.margins)
    logs = torch.where(state.gains != 0, log_slope.unsqueeze(-1) + state.log_s, -torch.inf)
    log_scale = logs.amax((-2, -1))
    log_scale = torch.where(log_scale == -torch.inf, 0.0, log_scale)
    pulls = torch.exp(logs - log_scale[..., None, None]) * state.gains  # −l' s D / e^scale
    s = state.log_s.exp()
    scaled = pulls - s * pulls.sum(-1, keepdim=True)  # −l' c / e^scale
    plain = s * (state.gains - (s * state.gains).sum(-1, keepdim=True))  # c
    bend = _second(loss.derivative, state.margins) / -loss.derivative(state.margins)
    curved = (bend.unsqueeze(-1) * scaled).unsqueeze(-1) * plain.unsqueeze(-2)
    cross = scaled.unsqueeze(-1) * s.unsqueeze(-2)
    in_logits = curved - torch.diag_embed(scaled) + cross + cross.mT
    in_tokens = state.offsets.mT @ in_logits @ state.offsets / W.new_tensor(data.X.shape[-3])
    d = data.X.shape[-1]
    blocks = torch.einsum("...nab,nj,nk->...ajbk", in_tokens, data.z, data.z)
    return blocks.reshape(*blocks.shape[:-4], d * d, d * d), log_scale


def _second(derivative: Callable[[Tensor], Tensor], x: Tensor) -> Tensor:
    """l''(x), elementwise; a loss gives only l'."""
    with torch.enable_grad():
        x = x.detach().clone().requires_grad_(True)
        slope = derivative(x)
        if not slope.requires_grad:  # a constant slope
            return torch.zeros_like(x)
        (result,) = torch.autograd.grad(slope.sum(), x)
    return result
