"""The potentials: the paper's (1/p)‖w‖_p^p and ½‖w‖_p², hyperbolic entropy, and elastic nets."""

from __future__ import annotations

import math
from abc import abstractmethod
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mirrormax._checks import check_exponent, integer, number
from mirrormax.geometry.norms import Dim, dual_exponent, lp_norm, signed_power, vector_dims, widen
from mirrormax.geometry.potential import Potential

# Beyond this p, float32 has too few exponents for w^{p-1}: weights below 4e-7 would vanish.
LARGEST_P_IN_FLOAT32 = 7.0

SERIES_TERMS = 16


class _OfItsHorizon(Potential):
    """A potential whose norm is the ℓr norm of its ``horizon``, r."""

    @property
    @abstractmethod
    def horizon(self) -> float: ...

    def norm(self, w: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
        return lp_norm(w, self.horizon, dim, keepdim)

    def dual_norm(self, g: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
        return lp_norm(g, dual_exponent(self.horizon), dim, keepdim)


@dataclass(frozen=True)
class _WithLpNorm(_OfItsHorizon):
    """What both ℓp potentials have in common: an exponent p > 1, the norm ‖·‖_p, and the identity at p = 2."""

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


@dataclass(frozen=True)
class Hypentropy(_OfItsHorizon):
    """ψ(w) = Σ w asinh(w/β) − √(w² + β²) + β; ∇ψ(w) = asinh(w/β); ∇ψ*(u) = β sinh(u).

    It lies between the ℓ2 potential (large β) and entropy (small β).
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


@dataclass(frozen=True)
class _Thresholding(_OfItsHorizon):
    """What elastic nets have in common: λ ≥ 0, δ > 0, and ψ's strong convexity in ℓ2, whose norms these are.

    The inverse map is a soft threshold: weights are exactly zero until they are needed. ψ has a kink at zero, where
    ∇ψ stands for the smallest subgradient: ∇ψ(0) = 0.
    """

    lam: float
    delta: float = 1.0
    horizon = 2.0  # ψ(tw)/t² → ‖w‖₂²/(2δ): the ℓ1 part grows like t and is lost

    def __post_init__(self) -> None:
        object.__setattr__(self, "lam", number("lam", self.lam, at_least=0.0))
        object.__setattr__(self, "delta", number("delta", self.delta, above=0.0))

    @property
    def smooth(self) -> bool:
        return self.lam == 0

    def curvature(self, size: float) -> float:
        return 1 / self.delta


@dataclass(frozen=True)
class ElasticNet(_Thresholding):
    """ψ(w) = λ‖w‖₁ + ‖w‖₂²/(2δ); ∇ψ(w) = w/δ + λ sign(w); ∇ψ*(u) = δ sign(u) max(|u| − λ, 0).

    An entry is exactly zero until its dual variable has grown beyond λ. Gradient steps on it are the
    linearised Bregman iterations, with Adam's moments AdaBreg (Bungert, Roith, Tenbrinck, Burger: A Bregman
    learning framework for sparse neural networks, JMLR 23, 2022). Begin with few weights that are not zero
    (:func:`mirrormax.sparse_start`), and let the others in.

    >>> ElasticNet(lam=0.5).inverse_map(torch.tensor([-2.0, 0.3, 1.0]))
    tensor([-1.5000,  0.0000,  0.5000])
    """

    def value(self, w: Tensor, dim: Dim = None) -> Tensor:
        w, dims = widen(w), vector_dims(w, dim=dim)
        return self.lam * w.abs().sum(dims) + w.square().sum(dims) / (2 * self.delta)

    def mirror_map(self, w: Tensor, dim: Dim = None) -> Tensor:
        return w / self.delta + self.lam * w.sign()

    def inverse_map(self, u: Tensor, dim: Dim = None) -> Tensor:
        if self.delta == 1:
            return torch.nn.functional.softshrink(u, self.lam)
        return torch.nn.functional.softshrink(u, self.lam) * self.delta


@dataclass(frozen=True)
class GroupElasticNet(_Thresholding):
    """ψ(w) = λ Σ_j √n_j ‖w_j‖₂ + ‖w‖₂²/(2δ) over groups w_j of n_j entries: rows, or the rows of one head.

    ∇ψ*(u)_j = δ u_j max(1 − λ√n_j/‖u_j‖₂, 0): a whole row (of a matrix, its output neuron), or with
    ``by="head"`` the block of rows that makes one of ``heads`` heads, is zero until it is needed. A vector is
    one row.
    """

    separable = False

    by: Literal["row", "head"] = "row"
    heads: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.by not in ("row", "head"):
            raise ValueError(f"by must be 'row' or 'head', got {self.by!r}.")
        object.__setattr__(self, "heads", integer("heads", self.heads, at_least=1))
        if self.by == "row" and self.heads != 1:
            raise ValueError(f"heads={self.heads} needs by='head', got by='row'.")

    def value(self, w: Tensor, dim: Dim = None) -> Tensor:
        w, dims = widen(w), vector_dims(w, dim=dim)
        norms, root = self._groups(w, dims)
        # A group's norm stands at each of its entries, so that every entry brings 1/n of it.
        return self.lam * (norms.sum(dims) / root) + w.square().sum(dims) / (2 * self.delta)

    def mirror_map(self, w: Tensor, dim: Dim = None) -> Tensor:
        norms, root = self._groups(w, vector_dims(w, dim=dim))
        return w / self.delta + torch.where(norms > 0, w * (self.lam * root / _nonzero(norms)), 0.0)

    def inverse_map(self, u: Tensor, dim: Dim = None) -> Tensor:
        norms, root = self._groups(u, vector_dims(u, dim=dim))
        return self.delta * u * (1 - self.lam * root / _nonzero(norms)).clamp_min(0)

    def _groups(self, x: Tensor, dims: tuple[int, ...]) -> tuple[Tensor, float]:
        """‖x_j‖₂ at every entry of group j, and √n_j."""
        dims = tuple(d % x.ndim for d in dims)
        rows = x.shape[dims[0]] if dims else 1
        count = self.heads if self.by == "head" else rows if len(dims) > 1 else 1
        if rows and rows % count:
            raise ValueError(f"heads={self.heads} does not divide the {rows} rows of a tensor {tuple(x.shape)}.")
        if not dims or not x.numel():
            return x.abs(), 1.0
        blocks = x.unflatten(dims[0], (count, -1))
        norms = torch.linalg.vector_norm(blocks, dim=tuple(d + 1 for d in dims), keepdim=True).expand_as(blocks)
        size = math.prod(x.shape[d] for d in dims) // count
        return norms.flatten(dims[0], dims[0] + 1), math.sqrt(size)


def _nonzero(norms: Tensor) -> Tensor:
    return torch.where(norms > 0, norms, 1.0)
