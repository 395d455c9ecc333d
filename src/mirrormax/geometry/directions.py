"""How far apart two weights, or their directions, are."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.geometry.norms import Dim, lp_norm, vector_dims, widen
from mirrormax.geometry.potential import Potential, as_potential


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
