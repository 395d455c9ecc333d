"""Signed powers, the one nonlinear operation of ℓp mirror descent.

    signed_power(x, e) = sign(x) |x|^e,   e > 0

The generic ``torch.pow`` costs about ten times a multiplication, and exponents 1/(p-1) are often
simple: 10, 4, 2 for p = 1.1, 1.25, 1.5, and 1/2 for p = 3. Whole powers are therefore multiplied
out, halves and quarters go through square roots, and what is left is exp2(e log2|x|), which is
still twice as fast as ``pow``.
"""

from __future__ import annotations

import torch
from torch import Tensor

LARGEST_WHOLE_POWER = 128


def signed_power(x: Tensor, exponent: float | Tensor) -> Tensor:
    """sign(x) |x|^exponent elementwise.

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
