"""Hyperbolic entropy, which lies between the ℓ2 potential (large β) and entropy (small β)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.geometry.norms import Dim, vector_dims, widen
from mirrormax.geometry.potential import _OfItsHorizon


@dataclass(frozen=True)
class Hypentropy(_OfItsHorizon):
    """ψ(w) = Σ w asinh(w/β) − √(w² + β²) + β; ∇ψ(w) = asinh(w/β); ∇ψ*(u) = β sinh(u).

    Entries well above β move multiplicatively, entries well below it additively with rate β.
    ψ is strongly convex in ℓ1 on bounded sets, so its norms are ℓ1 and ℓ∞.
    (Ghai, Hazan, Singer: Exponentiated gradient meets gradient descent, ALT 2020.)
    """

    beta: float = 1.0
    horizon = 1.0  # ψ(tw)/(t log t) → ‖w‖₁, with an error of order 1/log(t/β)

    def __post_init__(self) -> None:
        object.__setattr__(self, "beta", number("beta", self.beta, above=0.0))

    def value(self, w: Tensor, dim: Dim = None) -> Tensor:
        x = widen(w) / self.beta
        root = torch.hypot(x, torch.ones_like(x))
        # √(x²+1) − 1 = x · x/(√(x²+1) + 1) keeps the digits of a small x and the range of a large one.
        return self.beta * (x * torch.asinh(x) - x * (x / (root + 1))).sum(vector_dims(w, dim=dim))

    def mirror_map(self, w: Tensor, dim: Dim = None) -> Tensor:
        return torch.asinh(w / self.beta)

    def inverse_map(self, u: Tensor, dim: Dim = None) -> Tensor:
        return self.beta * torch.sinh(u)
