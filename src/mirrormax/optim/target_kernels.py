"""What :mod:`~mirrormax.optim.target` does to every number, compiled (numba)."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirrormax.optim.fused_kernels import kept


def _counts(bits: Any, shift: int, prefix: int) -> Any:
    """How many numbers, by their bits without the sign, begin with ``prefix`` and go on with each digit of 16 bits."""
    found = np.zeros(65_536, np.int64)
    most = np.int64(2) ** (8 * bits.itemsize - 1) - 1
    for i in range(len(bits)):
        digits = (np.int64(bits[i]) & most) >> shift
        if digits >> 16 == prefix:
            found[digits & 65_535] += 1
    return found


def _threshold(u: Any, w: Any, lam: Any) -> None:
    """w ← the firm threshold of u, in the operations and the order of the plain one."""
    number = u.dtype.type
    beyond, factor = number(3) * lam, number(1.5)
    for i in range(len(u)):
        size = abs(u[i])
        shrunk = np.copysign((size - lam) * factor, u[i])
        w[i] = u[i] if size > beyond else number(0) if size <= lam else shrunk  # NaN stays NaN


counts, threshold = kept(_counts), kept(_threshold)
