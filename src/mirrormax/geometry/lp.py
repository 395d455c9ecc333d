"""The ℓp potentials: the paper's (1/p)‖w‖_p^p, and ½‖w‖_p²."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from mirrormax._checks import check_exponent
from mirrormax.geometry.norms import Dim, dual_exponent, lp_norm, vector_dims
from mirrormax.geometry.potential import _OfItsHorizon
from mirrormax.geometry.powers import signed_power

# Beyond this p, float32 has too few exponents for w^{p-1}: weights below 4e-7 would vanish.
LARGEST_P_IN_FLOAT32 = 7.0

SERIES_TERMS = 16


@dataclass(frozen=True)
class _WithLpNorm(_OfItsHorizon):
    """What the two have in common: an exponent p > 1, the norm ‖·‖_p, and the identity at p = 2."""

    p: float = 2.0

    def __post_init__(self) -> None:
        object.__setattr__(self, "p", check_exponent(self.p))

    @property
    def horizon(self) -> float:
        return self.p

    @property
    def is_identity(self) -> bool:
        return self.p == 2

    def dual_dtype(self, dtype: torch.dtype) -> torch.dtype:
        wide = torch.float32 if self.p <= LARGEST_P_IN_FLOAT32 else torch.float64
        return torch.promote_types(dtype, wide)


@dataclass(frozen=True)
class Lp(_WithLpNorm):
    """ψ(w) = (1/p) ‖w‖_p^p, p > 1; ∇ψ(w) = sign(w)|w|^{p-1}; ∇ψ*(u) = sign(u)|u|^{1/(p-1)}.

    p = 2 is gradient descent; p towards 1 multiplies rather than adds, and gives sparse weights.
    """

    def value(self, w: Tensor, dim: Dim = None) -> Tensor:
        return lp_norm(w, self.p, dim).pow(self.p) / self.p

    def mirror_map(self, w: Tensor, dim: Dim = None) -> Tensor:
        return signed_power(w, self.p - 1)

    def inverse_map(self, u: Tensor, dim: Dim = None) -> Tensor:
        return signed_power(u, 1 / (self.p - 1))

    @property
    def degree(self) -> float:
        return self.p

    def curvature(self, size: float) -> float:
        """(p − 1) s^{p−2}, which at s = 0 is infinite below p = 2 and 0 above."""
        if size == 0 and self.p != 2:
            return math.inf if self.p < 2 else 0.0
        return float((self.p - 1) * size ** (self.p - 2))

    def _bregman(self, a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
        """Σ |a|^p/p + |b|^p/q − a sign(b)|b|^{p-1}, and its series in (a − b)/b where a is near b.

        With r = (a − b)/b the summand is |b|^p Σ_{k≥2} C(p,k) r^k / p, which has no cancellation:
        the divergence of two directions keeps its digits however close they are.
        """
        p = self.p
        direct = a.abs().pow(p) / p + b.abs().pow(p) * ((p - 1) / p) - a * signed_power(b, p - 1)
        ratio = (a - b) / b
        near = ratio.abs() * (p + 1) <= 0.2
        r = torch.where(near, ratio, 0.0)
        series = torch.ones_like(r)
        for k in range(SERIES_TERMS, 1, -1):
            series = 1 + series * r * ((p - k) / (k + 1))
        series = b.abs().pow(p) * r.square() * ((p - 1) / 2) * series
        return torch.where(near, series, direct.clamp_min(0)).sum(dims)


@dataclass(frozen=True)
class SquaredLp(_WithLpNorm):
    """ψ(w) = ½ ‖w‖_p², p > 1; ∇ψ(w) = ‖w‖_p^{2-p} sign(w)|w|^{p-1}; ∇ψ* is the same with q.

    The potential of p-norm algorithms: every p has the scale of gradient descent, so a step size
    carries over between them, but each step moves every entry of the tensor.
    """

    separable = False
    degree = 2.0

    def value(self, w: Tensor, dim: Dim = None) -> Tensor:
        return lp_norm(w, self.p, dim).square() / 2

    def mirror_map(self, w: Tensor, dim: Dim = None) -> Tensor:
        return _norm_times_direction(w, self.p, dim)

    def inverse_map(self, u: Tensor, dim: Dim = None) -> Tensor:
        return _norm_times_direction(u, dual_exponent(self.p), dim)


def _norm_times_direction(x: Tensor, r: float, dim: Dim) -> Tensor:
    """∇(½‖x‖_r²) = ‖x‖_r · sign(x) (|x|/‖x‖_r)^{r-1}, with the powers taken at scale 1."""
    norm = lp_norm(x, r, vector_dims(x, dim=dim), keepdim=True)
    unit = torch.where(norm > 0, norm, 1.0)
    return norm * signed_power(x / unit, r - 1)
