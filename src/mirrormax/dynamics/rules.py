"""Rules: from the gradient of a trained tensor to the direction of its step.

Gradients come as ``scaled`` (B, H, a, b) and ``log_scale`` (B, H), so that nothing underflows however far attention has
saturated; a rule returns the direction D (B, H, a, b) of the step u ← u − ηD in the dual variable, w = ∇ψ*(u). What it
remembers of a tensor is in ``state``, a dict of that tensor's own.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from mirrormax.attention import ScaledGradient
from mirrormax.dynamics.setup import Mirror

State = dict[str, Any]
Normalize = Literal["tensor", "global", "running"] | None
NORMALIZE = (None, "tensor", "global", "running")

EPOCHS = 3  # that the running scale is an average over
LONGEST = 3.0  # times η: the step that the running scale allows at most


class Rule(Protocol):
    """A rule for steps; its parameters are plain values. λ = ``weight_decay`` shrinks w by 1 − ηλ before the step."""

    @property
    def weight_decay(self) -> float: ...

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        """D of the step u ← u − ηD from w, zero where there is nothing to follow."""
        ...


@dataclass(frozen=True)
class MirrorDescent:
    """D = g/‖g‖_* (or g, plain), in the dual norm of the potential: ℓp-AttGD.

    With momentum m ← βm + g is in the place of g, normalised after that. ``normalize="global"`` takes one norm over
    all heads, and ``"running"`` divides by an average of ‖g‖_* with the weights ``decay``^age, kept as a logarithm.
    """

    normalize: Normalize = "tensor"
    momentum: float = 0.0
    decay: float = 1 - 1 / EPOCHS
    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        if self.normalize not in NORMALIZE:
            raise ValueError(f'normalize must be None, "tensor", "global" or "running", got {self.normalize!r}.')

    def direction(self, state: State, grad: ScaledGradient, w: Tensor, mirror: Mirror) -> Tensor:
        """η g/‖g‖_*, zero where g is; or g."""
        if self.momentum:
            grad = state["momentum"] = plus(grad, state.get("momentum"), math.log(self.momentum))
        g, log_scale = grad
        if self.normalize is None:
            factor = log_scale.exp()
        elif self.normalize == "tensor":
            factor = _inverse(mirror.dual_norm(g))
        elif self.normalize == "global":
            shares = torch.exp(log_scale - log_scale.amax(-1, keepdim=True))
            factor = shares * _inverse(mirror.dual_norm(over(shares, g), core=3)).unsqueeze(-1)
        else:
            norm = mirror.dual_norm(g)
            log_norm = norm.log() + log_scale
            length = torch.exp(log_norm - self._running_scale(state, log_norm))
            factor = torch.where(norm == 0, 0.0, length.clamp(max=LONGEST) / norm)
        return over(factor, g)

    def _running_scale(self, state: State, log_norm: Tensor) -> Tensor:
        """The logarithm of the average of ‖g‖_* so far, recent ones weighing more, (B, H)."""
        average = log_norm + math.log(1 - self.decay)
        if "average" in state:
            average = torch.logaddexp(state["average"] + math.log(self.decay), average)
        state["average"], state["count"] = average, state.get("count", 0) + 1
        return average - math.log1p(-(self.decay ** state["count"]))


def plus(grad: ScaledGradient, other: ScaledGradient | None, log_factor: float = 0.0) -> ScaledGradient:
    """grad + e^log_factor · other, with the larger scale of the two taken out."""
    if other is None:
        return grad
    before = other.log_scale + log_factor
    scale = torch.maximum(before, grad.log_scale)
    both = over((before - scale).exp(), other.scaled) + over((grad.log_scale - scale).exp(), grad.scaled)
    return ScaledGradient(both, scale)


def over(factor: Tensor, g: Tensor) -> Tensor:
    """A factor (B, H) times g (B, H, a, b)."""
    return factor[..., None, None] * g


def _inverse(norm: Tensor) -> Tensor:
    return torch.where(norm == 0, 0.0, 1 / norm)
