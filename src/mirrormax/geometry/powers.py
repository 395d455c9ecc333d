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


def signed_power(x: Tensor, exponent: float | Tensor, out: Tensor | None = None) -> Tensor:
    """sign(x) |x|^exponent elementwise; ``out`` may not alias ``x``.

    A tensor ``exponent`` broadcasts against ``x``. Zero maps to zero, NaN to NaN, ±inf to ±inf.
    """
    if isinstance(exponent, Tensor):
        return torch.copysign(x.abs().pow(exponent), x)
    if exponent == 1.0:
        return x.clone() if out is None else out.copy_(x)
    quarters = round(4 * exponent)
    whole, rest = quarters // 4, quarters % 4
    if abs(4 * exponent - quarters) > 4e-15 * quarters or whole > LARGEST_WHOLE_POWER:
        return _through_logarithm(x, exponent, out)
    if rest == 0:
        return _whole_power(x, whole, out)
    fraction = torch.sqrt(torch.abs(x, out=out), out=out)
    if rest != 2:
        fourth = torch.sqrt(fraction)
        fraction = fourth if rest == 1 else torch.mul(fraction, fourth, out=out)
    if whole == 0:
        return _with_sign_of(x, fraction, out)
    return torch.mul(fraction, _whole_power(x, whole, None), out=out)


def _through_logarithm(x: Tensor, exponent: float, out: Tensor | None) -> Tensor:
    y = torch.log2(torch.abs(x, out=out), out=out)
    y = torch.exp2(torch.mul(y, exponent, out=out), out=out)
    return _with_sign_of(x, y, out)


def _with_sign_of(x: Tensor, magnitude: Tensor, out: Tensor | None) -> Tensor:
    """``copysign``, which is fast by itself; fused into a kernel, a product with the sign is faster."""
    return magnitude * x.sign() if torch.compiler.is_compiling() else torch.copysign(magnitude, x, out=out)


def _whole_power(x: Tensor, k: int, out: Tensor | None) -> Tensor:
    """sign(x) |x|^k: an odd power keeps the sign by itself, an even one is an odd one times |x|."""
    if k % 2:
        return _odd_power(x, k, out)
    return torch.mul(_odd_power(x, k - 1, out) if k > 2 else x, torch.abs(x), out=out)


def _odd_power(x: Tensor, k: int, out: Tensor | None) -> Tensor:
    """x^k by squaring and cubing; every step but the last reads only ``x`` and its predecessor."""
    if k == 1:
        return x
    if k % 2 == 0:
        return torch.pow(_odd_power(x, k // 2, out), 2, out=out)
    if k % 3 == 0:
        return torch.pow(_odd_power(x, k // 3, out), 3, out=out)
    return torch.mul(_odd_power(x, k - 1, out), x, out=out)
