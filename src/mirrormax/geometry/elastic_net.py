"""Elastic nets, whose inverse map is a soft threshold: weights that are exactly zero until they are needed."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from mirrormax._checks import integer, number
from mirrormax.geometry.norms import Dim, vector_dims, widen
from mirrormax.geometry.potential import _OfItsHorizon


@dataclass(frozen=True)
class _Thresholding(_OfItsHorizon):
    """What both have in common: λ ≥ 0, δ > 0, and ψ's strong convexity in ℓ2, whose norms these are.

    ψ has a kink at zero, where ∇ψ stands for the smallest subgradient: ∇ψ(0) = 0.
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
