"""Remark 1: is the step small enough that ψ − ηL is convex along the path of the iterates?

The second derivative of the risk is in closed form, with the scale of saturated attention carried apart.
With h_t = (x_t − x_α)ᵀ W z, D_t = y vᵀ(x_t − x_α) and c_t = s_t (D_t − Σ_u s_u D_u), the margin m of one sample has

    ∂m/∂h_t = c_t,        ∂²m/∂h_t∂h_u = [t = u] c_t − c_t s_u − s_t c_u,

and the risk (1/n) Σ_i (l''(m) ∂m ∂mᵀ + l'(m) ∂²m) in h, from where W ↦ h is linear. α drops out of every sum.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import Loss, saturated
from mirrormax.dynamics import Trajectory
from mirrormax.problem import Problem, gathers_problem
from mirrormax.theory.setting import Path, read_run


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
    # l'', of which a loss gives only l'.
    second = torch.func.jvp(loss.derivative, (state.margins,), (torch.ones_like(state.margins),))[1]
    bend = second / -loss.derivative(state.margins)
    curved = (bend.unsqueeze(-1) * scaled).unsqueeze(-1) * plain.unsqueeze(-2)
    cross = scaled.unsqueeze(-1) * s.unsqueeze(-2)
    in_logits = curved - torch.diag_embed(scaled) + cross + cross.mT
    in_tokens = state.offsets.mT @ in_logits @ state.offsets / W.new_tensor(data.X.shape[-3])
    d = data.X.shape[-1]
    blocks = torch.einsum("...nab,nj,nk->...ajbk", in_tokens, data.z, data.z)
    return blocks.reshape(*blocks.shape[:-4], d * d, d * d), log_scale


# Of the largest entry: an eigenvalue nearer to zero than this is zero to the eigensolver.
EIGENVALUE_ROUNDING = 1e-12
CHUNK = 64


@dataclass(frozen=True, eq=False)
class StepSizeCheck:
    """Whether Remark 1's condition holds on the points looked at, and up to which step size it would.

    ``ok``          ψ − ηL is convex at every point
    ``lr``          the step size of the run; for normalised steps η is lr/‖∇L(W(k))‖_q
    ``largest_lr``  the largest one for which it is convex at these points; infinite where L curves nowhere up
    ``step``        the update k whose segment has the tightest point, ``fraction`` of the way to W(k+1)
    ``points``      how many points were looked at
    """

    ok: bool
    lr: float
    largest_lr: float
    step: int
    fraction: float
    points: int

    def __str__(self) -> str:
        verdict = "convex" if self.ok else "NOT convex"
        return (
            f"ψ − ηL is {verdict} at the {self.points} points looked at, for lr = {self.lr:g}; it is up to "
            f"lr = {self.largest_lr:.3g} (tightest {self.fraction:g} of the way from W({self.step}) to the next)."
        )


@gathers_problem("X", "y", "z", "v")
def step_size_ok(
    problem: Problem, run: Trajectory, *, fractions: ArrayLike = (0.0, 0.5, 1.0), max_updates: int = 200
) -> StepSizeCheck:
    """Check Remark 1 on the segments between neighbouring iterates: ∇²ψ(W̃) − η∇²L(W̃) ⪰ 0.

    W̃ runs over ``fractions`` of the way from W(k) to W(k+1), for at most ``max_updates`` updates spread evenly
    over those recorded. ∇²ψ is diagonal, (p−1)|w|^{p−2}: for p > 2 it vanishes at zero weights, where no step
    size is small enough unless L does not curve up there; a run from W = 0 shows that at once.
    """
    path = read_run(problem, run)
    at = path.pairs
    if not len(at):
        raise ValueError("no two recorded steps follow one another; simulate with record='all', or record pairs.")
    if len(at) > max_updates:
        at = at[np.unique(np.linspace(0, len(at) - 1, max_updates).round().astype(int))]
    parts = torch.as_tensor(fractions, dtype=torch.float64)
    bounds = step_bounds(path, at, parts)
    k, r = divmod(int(bounds.argmin()), len(parts))
    largest = float(bounds.min()) * path.lr
    return StepSizeCheck(
        ok=largest >= path.lr * (1 - EIGENVALUE_ROUNDING),
        lr=path.lr,
        largest_lr=largest,
        step=int(path.steps[at[k]]),
        fraction=float(parts[r]),
        points=bounds.numel(),
    )


def largest_step(curvature: Tensor, hessian: Tensor) -> Tensor:
    """The largest η ≥ 0 with diag(curvature) − η·hessian ⪰ 0, for curvature (..., m) ≥ 0 and hessian (..., m, m).

    That is 1/λ_max(D^{−1/2} H D^{−1/2}), infinite if H has no positive eigenvalue. Infinite entries of the curvature
    (p < 2 at a zero weight) bind nothing; zero entries (p > 2) leave η = 0 unless H vanishes in their rows.
    """
    root = torch.where(curvature > 0, curvature, 1.0).rsqrt()
    scaled = hessian * root.unsqueeze(-1) * root.unsqueeze(-2)
    size = scaled.abs().amax((-2, -1))
    flat = (curvature == 0) & (hessian != 0).any(-1)
    top = torch.linalg.eigvalsh(scaled)[..., -1]
    curved = top > EIGENVALUE_ROUNDING * size
    bound = torch.where(curved, 1 / torch.where(curved, top, 1.0), math.inf)
    return torch.where(flat.any(-1), 0.0, bound)


def step_bounds(path: Path, pairs: Tensor, parts: Tensor) -> Tensor:
    """The factor by which lr may grow at each point, ``parts`` of the way from W(k) to W(k+1) for each of the pairs:
    (P, parts)."""
    bounds = []
    for at in pairs.split(CHUNK):
        W, W_next = path.W[at], path.W[at + 1]
        _, gradient, scale = path.gradient(W)
        factor = path.step_factor(gradient, scale)
        points = (W[:, None] + parts[:, None, None] * (W_next - W)[:, None]).flatten(0, 1)
        factor, scale = (t.repeat_interleave(len(parts)) for t in (factor, scale))
        hessian, here = scaled_hessian(path.data, points, path.loss)
        # η∇²L: the scale of the Hessian against that of the gradient which the step size was divided by.
        hessian = hessian * (factor * torch.exp(here - scale))[:, None, None]
        curvature = (path.p - 1) * points.flatten(1).abs().pow(path.p - 2)
        bounds.append(largest_step(curvature, hessian))
    return torch.cat(bounds).reshape(-1, len(parts))
