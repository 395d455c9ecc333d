"""Exponential, logarithm and powers for compiled loops over many numbers.

Free of branches and calls, so that the loops they stand in are vector loops; good to an ulp or two, and two to
four times as fast there as those of the C library.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numba import njit

# Sums may be reordered; infinities and NaN keep their meaning.
SUMS = {"reassoc", "contract", "nsz"}
ROUND = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to a whole number, which then fills the low bits
LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10


def compiled(function: Any) -> Any:
    """Compile a part of a kernel, without the interpreter's lock; its sums may be reordered."""
    return njit(nogil=True, error_model="numpy", fastmath=SUMS)(function)


def exactly(function: Any) -> Any:
    """Compile without reordering: such functions live by how a sum is rounded."""
    return njit(nogil=True, error_model="numpy", fastmath={"contract", "nsz"})(function)


def kept(function: Any) -> Any:
    """Compile the whole of a kernel, and keep it on disk where there is a folder to keep it in."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy", fastmath=SUMS)(function)
    except RuntimeError:
        return compiled(function)


@exactly
def exp(x: float) -> float:
    """e^x for x ≤ 700 to an ulp, 0 below −708. No branch and no call, so that loops over it are vector loops."""
    bounded = x if not x < -708.0 else -708.0  # NaN stays
    shifted = bounded * LOG2_E + ROUND
    k = shifted - ROUND
    f = (bounded - k * LN2_HIGH) - k * LN2_LOW
    high = (1 / 479001600.0 * f + 1 / 39916800.0) * f + 1 / 3628800.0
    middle = (((high * f + 1 / 362880.0) * f + 1 / 40320.0) * f + 1 / 5040.0) * f + 1 / 720.0
    low = (((middle * f + 1 / 120.0) * f + 1 / 24.0) * f + 1 / 6.0) * f + 0.5
    fraction = low * f * f + f + 1.0
    bits = np.float64(fraction).view(np.int64) + (np.float64(shifted).view(np.int64) << 52)
    result = np.int64(bits).view(np.float64)
    return 0.0 if x < -708.0 else result + (x - x)  # NaN again: the bits of one are not to be added to


@exactly
def log(x: float) -> float:
    """log x for normal x > 0, to about an ulp; no branch and no call either."""
    bits = np.float64(x).view(np.uint64)
    # The exponent is counted from √½, so that the fraction lies between √½ and √2, and from −1024, so that it
    # is positive: AVX2 has no signed shift, nor a conversion other than this by way of the bits of 2^52.
    k = (bits - np.uint64(0x3FE6A09E667F3BCD) + np.uint64(1024 << 52)) >> np.uint64(52)
    fraction = np.uint64(bits - ((k - np.uint64(1024)) << np.uint64(52))).view(np.float64)
    exponent = np.uint64(k | np.uint64(0x4330000000000000)).view(np.float64) - (4503599627370496.0 + 1024.0)
    s = (fraction - 1.0) / (fraction + 1.0)
    q = s * s
    tail = ((((1 / 23.0 * q + 1 / 21.0) * q + 1 / 19.0) * q + 1 / 17.0) * q + 1 / 15.0) * q + 1 / 13.0
    series = ((((tail * q + 1 / 11.0) * q + 1 / 9.0) * q + 1 / 7.0) * q + 1 / 5.0) * q + 1 / 3.0
    result: float = exponent * LN2_HIGH + (2.0 * s + (2.0 * s * q * series + exponent * LN2_LOW))
    return result


@compiled
def signed_power(u: Any, w: Any, exponent: float) -> None:
    """w = sign(u) |u|^exponent on flat arrays; whole and half exponents up to 128 are multiplied out."""
    halves = round(2 * exponent)
    if exponent == 1.0:
        for k in range(u.size):
            w[k] = u[k]
    elif exponent == 0.5:
        for k in range(u.size):
            w[k] = math.copysign(math.sqrt(abs(u[k])), u[k])
    elif halves <= 256 and abs(2 * exponent - halves) <= 4e-15 * halves:
        multiplied_power(u, w, int(halves) // 2, int(halves) % 2)
    else:
        unusual = 0
        for k in range(u.size):
            a = abs(u[k])
            power = exp(min(exponent * log(a), 700.0))
            unusual += not (a < 1e300 and power < 1e300)
            w[k] = math.copysign(power if a >= 1e-300 else 0.0, u[k])
        if unusual:  # beyond the range of the fast functions, or NaN
            for k in range(u.size):
                w[k] = math.copysign(abs(u[k]) ** exponent, u[k])


@compiled
def multiplied_power(u: Any, w: Any, whole: int, half: int) -> None:
    """w = sign(u) |u|^(whole + half/2): the bits of ``whole`` from the second highest down, then the root."""
    bit = 1
    while 2 * bit <= whole:
        bit *= 2
    for k in range(u.size):
        w[k] = abs(u[k]) if whole else 1.0
    while bit > 1:
        bit //= 2
        if whole & bit:
            for k in range(u.size):
                w[k] = w[k] * w[k] * abs(u[k])
        else:
            for k in range(u.size):
                w[k] = w[k] * w[k]
    if half:
        for k in range(u.size):
            w[k] = w[k] * math.sqrt(abs(u[k]))
    for k in range(u.size):
        w[k] = math.copysign(w[k], u[k])
