"""ℓp norms that neither overflow nor underflow, which dimensions make one vector, and signed powers.

The generic ``torch.pow`` costs about ten times a multiplication, and exponents 1/(p-1) are often
simple: 10, 4, 2 for p = 1.1, 1.25, 1.5, and 1/2 for p = 3. Whole powers are therefore multiplied
out, halves and quarters go through square roots, and what is left is exp2(e log2|x|), which is
still twice as fast as ``pow``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax._checks import number

Dim = int | Sequence[int] | None
LARGEST_WHOLE_POWER = 128


def dual_exponent(p: float) -> float:
    """q with 1/p + 1/q = 1; the pairs (1, inf) and (inf, 1) included."""
    if p == 1:
        return math.inf
    return 1.0 if math.isinf(p) else p / (p - 1)


@in_kind
def lp_norm(w: Tensor, p: float, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """‖w‖_p = (Σ|w_i|^p)^{1/p} for 1 ≤ p ≤ inf, over ``dim``.

    ``dim=None`` takes a 1-D tensor as one vector and anything larger as a batch ``(..., d, d)`` of
    matrices (entrywise norm); give ``dim=-1`` for a batch of vectors. The largest entry is divided
    out first, so that entries of 1e±300 are as good as any.
    """
    p = _norm_exponent(p)
    w, dims = widen(w).abs(), vector_dims(w, dim=dim)
    if w.numel() == 0:
        return w.sum(dims, keepdim=keepdim)
    largest = w.amax(dims, keepdim=True)
    if math.isinf(p):
        norm = largest
    else:
        # A zero or infinite maximum is the norm already; dividing by it would make NaN of it.
        unit = torch.where((largest > 0) & (largest < math.inf), largest, 1.0)
        norm = unit * (w / unit).pow(p).sum(dims, keepdim=True).pow(1 / p)
    return norm if keepdim else norm.sum(dims)  # every dim has size 1: sum only drops them


@in_kind
def dual_norm(g: Tensor, p: float, dim: Dim = None, keepdim: bool = False) -> Tensor:
    """‖g‖_q with q = p/(p-1): the largest ⟨g, w⟩ over ‖w‖_p ≤ 1."""
    return lp_norm(g, dual_exponent(_norm_exponent(p)), dim, keepdim)


def _norm_exponent(p: float) -> float:
    return math.inf if p == math.inf else number("p", p, at_least=1.0)


def vector_dims(*tensors: Tensor, dim: Dim = None) -> tuple[int, ...]:
    """The dimensions that make one vector: ``dim``, or the last one if any tensor is 1-D, or the last two."""
    if dim is None:
        return tuple(range(-min(2, *(t.ndim for t in tensors), 2), 0))
    return (dim,) if isinstance(dim, int) else tuple(dim)


def widen(w: Tensor) -> Tensor:
    """At least float32: half precision has too few digits for a sum of powers, integers none."""
    if not w.is_floating_point():
        return w.to(torch.float64)
    return w.to(torch.promote_types(w.dtype, torch.float32))


def signed_power(x: Tensor, exponent: float | Tensor) -> Tensor:
    """sign(x) |x|^exponent elementwise, exponent > 0: the one nonlinear operation of ℓp mirror descent.

    A tensor ``exponent`` broadcasts against ``x``. Zero maps to zero, NaN to NaN, ±inf to ±inf.
    """
    if isinstance(exponent, Tensor):
        return torch.copysign(x.abs().pow(exponent), x)
    if exponent == 1.0:
        return x.clone()
    quarters = round(4 * min(exponent, LARGEST_WHOLE_POWER + 1))  # of 1e308 there would be infinitely many
    whole, rest = divmod(quarters, 4)
    if abs(4 * exponent - quarters) > 4e-15 * quarters or whole > LARGEST_WHOLE_POWER:
        return _with_sign_of(x, torch.exp2(torch.log2(torch.abs(x)) * exponent))
    if rest == 0:
        return _whole_power(x, whole)
    fraction = torch.sqrt(torch.abs(x))
    if rest != 2:
        fourth = torch.sqrt(fraction)
        fraction = fourth if rest == 1 else fraction * fourth
    return _with_sign_of(x, fraction) if whole == 0 else fraction * _whole_power(x, whole)


def _with_sign_of(x: Tensor, magnitude: Tensor) -> Tensor:
    """``copysign``, which is fast by itself; fused into a kernel, a product with the sign is faster."""
    return magnitude * x.sign() if torch.compiler.is_compiling() else torch.copysign(magnitude, x)


def _whole_power(x: Tensor, k: int) -> Tensor:
    """sign(x) |x|^k: an odd power keeps the sign by itself, an even one is an odd one times |x|."""
    return _odd_power(x, k) if k % 2 else _odd_power(x, k - 1) * torch.abs(x)


def _odd_power(x: Tensor, k: int) -> Tensor:
    """x^k by squaring, cubing and multiplying by x."""
    if k == 1:
        return x
    if k % 2 == 0:
        return torch.square(_odd_power(x, k // 2))
    if k % 3 == 0:
        return torch.pow(_odd_power(x, k // 3), 3)
    return _odd_power(x, k - 1) * x
