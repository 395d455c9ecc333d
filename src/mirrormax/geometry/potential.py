"""The extension point: a potential ψ, its mirror map ∇ψ, the inverse ∇ψ*, and its norms.

With it, how far apart two weights, or their directions, are.
"""

from __future__ import annotations

import dataclasses
import inspect
import math
from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any, ClassVar

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.geometry.norms import Dim, lp_norm, vector_dims, widen


class Potential(ABC):
    """A strictly convex ψ on all of R^N whose gradient is onto (at a kink, the smallest subgradient is ∇ψ).

    Write a frozen dataclass with plain fields (they are what checkpoints store), implement the five methods below, and
    the optimizer and the divergences take it from there. All methods treat ``dim`` as one vector and what leads as a
    batch; see :func:`~mirrormax.geometry.lp_norm` for the default.

    ``norm`` must be an ℓr norm for some r (the optimizer combines the norms of tensors and shards by
    taking ``dual_norm`` of the list of them).
    """

    registry: ClassVar[dict[str, type[Potential]]] = {}

    separable: ClassVar[bool] = True
    """∇ψ acts on each entry alone. Then tensors may be updated in pieces and rows left out."""

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        if not cls.__name__.startswith("_"):
            Potential.registry[cls.__name__] = cls

    @abstractmethod
    def value(self, w: Tensor, dim: Dim = None) -> Tensor:
        """ψ(w)."""

    @abstractmethod
    def mirror_map(self, w: Tensor, dim: Dim = None) -> Tensor:
        """u = ∇ψ(w), from weights to dual variables."""

    @abstractmethod
    def inverse_map(self, u: Tensor, dim: Dim = None) -> Tensor:
        """w = ∇ψ*(u), from dual variables back to weights."""

    @abstractmethod
    def norm(self, w: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The norm that goes with ψ; directions are weights divided by it."""

    @abstractmethod
    def dual_norm(self, g: Tensor, dim: Dim = None, keepdim: bool = False) -> Tensor:
        """The dual norm; a normalised step divides the gradient by it."""

    # What follows has a default that a potential may better.

    @property
    def degree(self) -> float | None:
        """k if ψ(cw) = c^k ψ(w) for c > 0, else None."""
        return None

    @property
    def horizon(self) -> float | None:
        """r if ψ is a power of the ℓr norm when seen from afar, ψ(tw)/h(t) → c‖w‖_r^k as t → ∞; None if not known.

        Weights that grow without bound turn to the max-margin solution of that norm:
        :func:`mirrormax.theory.horizon_svm`.
        """
        return None

    @property
    def is_identity(self) -> bool:
        """Whether the mirror map is the identity, so that weights are their own dual variables."""
        return False

    @property
    def smooth(self) -> bool:
        """Whether ψ is differentiable everywhere, so that ∇ψ undoes ∇ψ* and not only the other way about."""
        return True

    def curvature(self, size: float) -> float:
        """ψ''(size) of one entry; infinite or 0 where a weight of that size moves by no finite step."""
        with torch.enable_grad():
            w = torch.tensor([size], dtype=torch.float64, requires_grad=True)
            (slope,) = torch.autograd.grad(self.mirror_map(w).sum(), w)
        return float(slope)

    def dual_dtype(self, dtype: torch.dtype) -> torch.dtype:
        """The type in which dual variables of weights of type ``dtype`` keep their digits."""
        return torch.promote_types(dtype, torch.float32)

    def bregman(self, a: Tensor, b: Tensor, dim: Dim = None) -> Tensor:
        """D_ψ(a, b) = ψ(a) − ψ(b) − ⟨∇ψ(b), a − b⟩ (the paper's Definition 1), never negative."""
        a, b, dims = widen(a), widen(b), vector_dims(a, b, dim=dim)
        if self.degree is None or a.numel() == 0 or b.numel() == 0:
            return self._bregman(a, b, dims)
        # D(ca, cb) = c^degree D(a, b): at scale 1 nothing overflows on the way. A power of two divides
        # without rounding, which a - b would magnify.
        scale = torch.maximum(a.abs().amax(dims, keepdim=True), b.abs().amax(dims, keepdim=True))
        unit = torch.ldexp(torch.ones_like(scale), torch.frexp(scale).exponent - 1)
        unit = torch.where((scale > 0) & (scale < math.inf), unit, 1.0)
        divergence, root = self._bregman(a / unit, b / unit, dims), unit.pow(self.degree / 2).sum(dims)
        return torch.where(divergence == 0, 0.0, divergence * root * root)

    def _bregman(self, a: Tensor, b: Tensor, dims: tuple[int, ...]) -> Tensor:
        linear = (self.mirror_map(b, dims) * (a - b)).sum(dims)
        return (self.value(a, dims) - self.value(b, dims) - linear).clamp_min(0)

    def spec(self) -> dict[str, Any]:
        """Plain data from which :func:`as_potential` makes this potential again."""
        return {"name": type(self).__name__, **dataclasses.asdict(self)}  # type: ignore[call-overload]


def as_potential(p: float | Potential | Mapping[str, Any]) -> Potential:
    """``Lp(p)`` for a number, a potential as it is, and a potential's ``spec()`` turned back."""
    if isinstance(p, Potential):
        return p
    fields = dict(p) if isinstance(p, Mapping) else {"name": "Lp", "p": p}
    name = fields.pop("name", None)
    family = Potential.registry.get(str(name))
    if family is None or inspect.isabstract(family):
        known = ", ".join(sorted(Potential.registry))
        raise ValueError(f"no potential is named {name!r}; import it first, or use one of {known}.")
    return family(**fields)


@in_kind
def bregman(a: Tensor, b: Tensor, p: float | Potential, dim: Dim = None) -> Tensor:
    """D_ψ(a, b) = ψ(a) − ψ(b) − ⟨∇ψ(b), a − b⟩ for ψ = Lp(p) or any potential.

    ``a`` and ``b`` broadcast: ``(..., d, d)`` matrices, or ``(..., d)`` vectors if one of them is
    1-D or ``dim=-1``. Never negative. For ℓp all digits are right however near a is to b; other
    potentials subtract, and lose what lies 16 digits below ψ.
    """
    return as_potential(p).bregman(a, b, vector_dims(a, b, dim=dim))


@in_kind
def directional_divergence(reference: Tensor, w: Tensor, p: float | Potential, dim: Dim = None) -> Tensor:
    """D_ψ(reference/‖reference‖, w/‖w‖): the paper's distance between directions (Theorem 3).

    Shapes as in :func:`bregman`. A zero has no direction: the divergence to it is NaN.

    >>> import torch
    >>> directional_divergence(torch.tensor([3.0, 4.0]), torch.tensor([6.0, 8.0]), p=2)
    tensor(0.)
    """
    potential, dims = as_potential(p), vector_dims(reference, w, dim=dim)
    return potential.bregman(direction(reference, potential, dims), direction(w, potential, dims), dims)


@in_kind
def cosine(a: Tensor, b: Tensor, dim: Dim = None) -> Tensor:
    """⟨a, b⟩ / (‖a‖₂ ‖b‖₂), NaN where either is zero. Shapes as in :func:`bregman`."""
    dims = vector_dims(a, b, dim=dim)
    a, b = direction(a, 2.0, dims), direction(b, 2.0, dims)
    return (a * b).sum(dims).clamp(-1, 1)


@in_kind
def direction(w: Tensor, p: float | Potential, dim: Dim = None) -> Tensor:
    """w/‖w‖ in the norm of the potential, at any scale that floating point holds."""
    potential, w = as_potential(p), widen(w)
    dims = vector_dims(w, dim=dim)
    # Two divisions: the norm of large but finite entries may overflow, their direction does not.
    largest = lp_norm(w, math.inf, dims, keepdim=True)
    w = w / torch.where(largest > 0, largest, math.nan)
    return w / potential.norm(w, dims, keepdim=True)
