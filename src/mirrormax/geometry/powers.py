"""Signed powers, the one nonlinear operation of ℓp mirror descent.

    signed_power(x, e) = sign(x) |x|^e,   e > 0

The generic ``torch.pow`` costs about ten times a multiplication, and exponents 1/(p-1) are often
simple: 10, 4, 2 for p = 1.1, 1.25, 1.5, and 1/2 for p = 3. Whole powers are therefore multiplied
out, halves and quarters go through square roots, and what is left is exp2(e log2|x|), which is
still twice as fast as ``pow``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

LARGEST_WHOLE_POWER = 128
SQUARE, CUBE, TIMES_X = range(3)


class PowerPlan(NamedTuple):
    """How sign(x)|x|^e is made for e = whole + quarters/4: the steps from x to its largest odd power ≤ whole, one
    more factor |x| where whole is even (and not 0), and square roots of |x| for the quarters."""

    whole: int
    quarters: int
    steps: tuple[int, ...]


def power_plan(exponent: float) -> PowerPlan | None:
    """The multiplications and roots that make the power, as :func:`signed_power` takes them; None if there are none.

    >>> power_plan(10)
    PowerPlan(whole=10, quarters=0, steps=(1, 1))
    """
    whole, rest = _quarters(exponent)
    if rest is None or whole > LARGEST_WHOLE_POWER:
        return None
    return PowerPlan(whole, rest, _odd_steps(max(1, whole if whole % 2 else whole - 1)))


def signed_power(x: Tensor, exponent: float | Tensor, out: Tensor | None = None) -> Tensor:
    """sign(x) |x|^exponent elementwise; ``out`` may not alias ``x``.

    A tensor ``exponent`` broadcasts against ``x``. Zero maps to zero, NaN to NaN, ±inf to ±inf.
    """
    if isinstance(exponent, Tensor):
        return torch.copysign(x.abs().pow(exponent), x)
    if exponent == 1.0:
        return x.clone() if out is None else out.copy_(x)
    whole, rest = _quarters(exponent)
    if rest is None or whole > LARGEST_WHOLE_POWER:
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


def signed_power_foreach(xs: Sequence[Tensor], exponent: float, out: Sequence[Tensor]) -> None:
    """The same for each pair of ``xs`` and ``out``, in multi-tensor kernels, with temporaries for one list at most."""
    xs, out = list(xs), list(out)
    whole, rest = _quarters(exponent)
    torch._foreach_copy_(out, xs)
    if rest == 0 and whole <= LARGEST_WHOLE_POWER:
        _multiply_up(out, xs, whole if whole % 2 else whole - 1)
        if whole % 2 == 0:
            torch._foreach_mul_(out, list(torch._foreach_abs(xs)))
        return
    torch._foreach_abs_(out)
    if rest is None or whole > 8:
        torch._foreach_pow_(out, exponent)
    else:
        torch._foreach_sqrt_(out)
        if rest == 1:
            torch._foreach_sqrt_(out)
        elif rest == 3:
            torch._foreach_mul_(out, list(torch._foreach_sqrt(out)))
        sizes = list(torch._foreach_abs(xs)) if whole else []
        for _ in range(whole):
            torch._foreach_mul_(out, sizes)
        del sizes
    torch._foreach_mul_(out, list(torch._foreach_sign(xs)))


def _multiply_up(out: list[Tensor], xs: list[Tensor], k: int) -> None:
    """out ← out^k in place, where ``out`` begins as ``xs``."""
    for bit in bin(k)[3:]:
        torch._foreach_mul_(out, out)
        if bit == "1":
            torch._foreach_mul_(out, xs)


def _quarters(exponent: float) -> tuple[int, int | None]:
    """The exponent as whole + rest/4; rest is None where it is no such number."""
    quarters = round(4 * min(exponent, LARGEST_WHOLE_POWER + 1))  # of 1e308 there would be infinitely many
    if abs(4 * exponent - quarters) > 4e-15 * quarters:
        return 0, None
    return quarters // 4, quarters % 4


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
    """x^k; every step but the last reads only ``x`` and its predecessor."""
    y = x
    for step in _odd_steps(k):
        y = torch.mul(y, x, out=out) if step == TIMES_X else torch.pow(y, 2 if step == SQUARE else 3, out=out)
    return y


def _odd_steps(k: int) -> tuple[int, ...]:
    """From x to x^k by squaring, cubing and multiplying by x."""
    if k == 1:
        return ()
    if k % 2 == 0:
        return *_odd_steps(k // 2), SQUARE
    if k % 3 == 0:
        return *_odd_steps(k // 3), CUBE
    return *_odd_steps(k - 1), TIMES_X
