"""What :mod:`~mirrormax.optim.fused` compiles: loops over the addresses of tensors, block by block (needs numba).

A block stays in the first cache, so that what one loop over it leaves the next one finds. Loops are kept to four
arrays: the compiler checks that they do not overlap, and of more it would not.
"""

from __future__ import annotations

from typing import Any

import numba
import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic

BLOCK = 2048
LONG_BLOCK = 32_768  # where nothing is left in a cache for a second loop
carray: Any = vars(numba)["carray"]  # numba's own types do not know of it
SQUARE, CUBE = 0, 1  # of mirrormax.geometry.power_plan


def part(function: Any) -> Any:
    """Compile a part of a kernel, without the interpreter's lock; NaN and Inf are numbers like others."""
    return njit(nogil=True, error_model="numpy")(function)


def kept(function: Any) -> Any:
    """Compile the whole of a kernel, and keep it on disk where there is a folder to keep it in."""
    try:
        return njit(nogil=True, error_model="numpy", cache=True)(function)
    except RuntimeError:
        return part(function)


def _as_pointer(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


_pointer: Any = intrinsic(_as_pointer)


@part
def _raise(x: Any, y: Any, whole: int, steps: Any) -> None:
    """y ← sign(x)|x|^whole, multiplied in the order of ``signed_power``."""
    n = len(x)
    for i in range(n):
        y[i] = x[i]
    for step in steps:
        if step == SQUARE:
            for i in range(n):
                y[i] = y[i] * y[i]
        elif step == CUBE:
            for i in range(n):
                y[i] = y[i] * y[i] * y[i]
        else:
            for i in range(n):
                y[i] = y[i] * x[i]
    if whole % 2 == 0:
        for i in range(n):
            y[i] = y[i] * abs(x[i])


def _whole_power(whole: int) -> Any:
    """sign(x)|x|^whole of a number, for what is often asked for: 2, 4 and 10."""

    @part
    def power(x: Any) -> Any:
        if whole == 2:
            return x * abs(x)
        cube = x * x * x
        return cube * abs(x) if whole == 4 else cube * cube * cube * abs(x)

    return power


def _by_tensor(power: Any) -> Any:
    """A step with the moments of whole tensors, all in one loop, so that arithmetic and memory overlap.

    Weights that would grow too much are held in the loop, and their dual variables set right after it.
    """

    @part
    def move(w: Any, u: Any, g: Any, m: Any, c: Any, a: Any, keep: Any, new: Any, room: Any, slope: float) -> None:
        over = 0
        for i in range(len(w)):
            first = m[i] + new * (c * g[i] - m[i])
            x = u[i] * keep - a * first
            m[i] = first
            u[i] = x
            y, limit = power(x), abs(w[i]) + room
            over += abs(y) > limit
            y = limit if y > limit else y
            w[i] = -limit if y < -limit else y
        if over:
            for i in range(len(w)):
                if abs(power(u[i])) > abs(w[i]):
                    u[i] = np.copysign(w.dtype.type(np.float64(abs(w[i])) ** slope), u[i])
                    w[i] = power(u[i])

    return move


_second, _fourth, _tenth = (_by_tensor(_whole_power(whole)) for whole in (2, 4, 10))


@part
def _at_once(
    whole: int, w: Any, u: Any, g: Any, m: Any, c: Any, a: Any, keep: Any, new: Any, room: Any, slope: float
) -> None:
    if whole == 2:
        _second(w, u, g, m, c, a, keep, new, room, slope)
    elif whole == 4:
        _fourth(w, u, g, m, c, a, keep, new, room, slope)
    else:
        _tenth(w, u, g, m, c, a, keep, new, room, slope)


@part
def _own(w: Any, g: Any, m: Any, c: Any, a: Any, keep: Any, new: Any, room: Any) -> None:
    """The same where weights are their own dual variables."""
    for i in range(len(w)):
        first = m[i] + new * (c * g[i] - m[i])
        m[i] = first
        limit = abs(w[i]) + room
        x = w[i] * keep - a * first
        x = limit if x > limit else x
        w[i] = -limit if x < -limit else x


@part
def _by_moments(u: Any, g: Any, m: Any, v: Any, seconds: bool, c: Any, a: Any, keep: Any, b: Any, common: Any) -> None:
    new, beta2, new2, eps = common
    if seconds:
        for i in range(len(u)):
            d = c * g[i]
            first = m[i] + new * (d - m[i])
            second = v[i] * beta2 + new2 * d * d
            m[i] = first
            v[i] = second
            u[i] = u[i] * keep - a * (first / (np.sqrt(second) / b + eps))
    else:
        for i in range(len(u)):
            first = m[i] + new * (c * g[i] - m[i])
            m[i] = first
            u[i] = u[i] * keep - a * first


@part
def _by_gradient(u: Any, g: Any, m: Any, moves: bool, nesterov: bool, c: Any, a: Any, mu: Any, decay: Any) -> None:
    if not moves:
        for i in range(len(u)):
            u[i] = u[i] - a * (c * g[i] + decay * u[i])
    elif nesterov:
        for i in range(len(u)):
            d = c * g[i] + decay * u[i]
            m[i] = mu * m[i] + d
            u[i] = u[i] - a * (d + mu * m[i])
    else:
        for i in range(len(u)):
            m[i] = mu * m[i] + (c * g[i] + decay * u[i])
            u[i] = u[i] - a * m[i]


@part
def _sizes(w: Any, y: Any) -> None:
    for i in range(len(w)):
        y[i] = abs(w[i])


@part
def _clamp(w: Any, sizes: Any, room: Any) -> None:
    for i in range(len(w)):
        limit = sizes[i] + room
        x = limit if w[i] > limit else w[i]
        w[i] = -limit if x < -limit else x


@part
def _write(w: Any, u: Any, y: Any, room: Any, slope: float, whole: int, steps: Any) -> None:
    """w ← ∇ψ*(u); where it would grow too much, first u ← clamp(u, ±(|w| + room)^slope)."""
    _raise(u, y, whole, steps)
    over = 0
    for i in range(len(w)):
        over += abs(y[i]) - abs(w[i]) > room
    if over:
        for i in range(len(w)):
            limit = w.dtype.type(np.float64(abs(w[i]) + room) ** slope)
            if abs(u[i]) > limit:
                u[i] = np.copysign(limit, u[i])
        _raise(u, y, whole, steps)
    for i in range(len(w)):
        w[i] = y[i]


@kept
def step(pointers: Any, numbers: Any, common: Any, switches: Any, whole: int, steps: Any, like: Any) -> None:
    """One step: rows of ``pointers`` are the addresses of w, u, g, m, v and a size, rows of ``numbers`` c, a, k^(p−1),
    b and room; ``common`` is β₁ or μ, β₂, ε, λ and p − 1."""
    adam, moves, seconds, nesterov, own, trusts = switches
    number, width = like.dtype.type, like.itemsize
    mu, decay, slope = number(common[0]), number(common[3]), common[4]
    moments = number(1 - common[0]), number(common[1]), number(1 - common[1]), number(common[2])
    kept_y = np.empty(BLOCK, like.dtype)
    by_tensor = adam and not seconds
    at_once = by_tensor and not own and (whole == 2 or whole == 4 or whole == 10)
    for t in range(len(pointers)):
        c, a, keep, b = number(numbers[t, 0]), number(numbers[t, 1]), number(numbers[t, 2]), number(numbers[t, 3])
        room = number(numbers[t, 4]) if trusts else number(np.inf)
        size = pointers[t, 5]
        block = LONG_BLOCK if by_tensor and (own or at_once) else BLOCK
        for start in range(0, size, block):
            n, offset = min(block, size - start), start * width
            w = carray(_pointer(pointers[t, 0] + offset), (n,), like.dtype)
            u = carray(_pointer(pointers[t, 1] + offset), (n,), like.dtype)
            g = carray(_pointer(pointers[t, 2] + offset), (n,), like.dtype)
            m = carray(_pointer(pointers[t, 3] + offset), (n,), like.dtype)
            v = carray(_pointer(pointers[t, 4] + offset), (n,), like.dtype)
            if at_once:
                _at_once(whole, w, u, g, m, c, a, keep, moments[0], room, slope)
            elif own and by_tensor:
                _own(w, g, m, c, a, keep, moments[0], room)
            else:
                y = kept_y[:n]
                if own:
                    _sizes(w, y)
                if adam:
                    _by_moments(u, g, m, v, seconds, c, a, keep, b, moments)
                else:
                    _by_gradient(u, g, m, moves, nesterov, c, a, mu, decay)
                if own:
                    _clamp(w, y, room)
                else:
                    _write(w, u, y, room, slope, whole, steps)


def in_any_order(function: Any) -> Any:
    """Compile a part whose sums may be taken in any order."""
    return njit(nogil=True, error_model="numpy", fastmath={"reassoc"})(function)


@in_any_order
def _sum_of_squares(x: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(len(x)):
        total += x[i] * x[i]
    return np.float64(total)


@in_any_order
def _wide_sum_of_squares(x: Any) -> Any:
    total = 0.0
    for i in range(len(x)):
        total += np.float64(x[i]) * np.float64(x[i])
    return total


@in_any_order
def _sum_of_products(x: Any, y: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(len(x)):
        total += x[i] * y[i]
    return total


@in_any_order
def _sum_of_eleventh(g: Any, inverse: Any) -> Any:
    total = g.dtype.type(0)
    for i in range(len(g)):
        x = abs(g[i]) * inverse
        cube = x * x * x
        total += cube * cube * cube * x * x
    return total


@in_any_order
def _sum_of_cubes(g: Any, inverse: Any) -> Any:
    total = g.dtype.type(0)
    for i in range(len(g)):
        x = abs(g[i]) * inverse
        total += x * x * x
    return total


@kept
def squares(addresses: Any, like: Any) -> Any:
    """Σg² of each tensor, of whose address and size there is a row."""
    found = np.zeros(len(addresses))
    for t in range(len(addresses)):
        size = addresses[t, 1]
        for start in range(0, size, BLOCK):
            n = min(BLOCK, size - start)
            x = carray(_pointer(addresses[t, 0] + start * like.itemsize), (n,), like.dtype)
            total = _sum_of_squares(x)
            # Squares of very small or large float32 leave its range.
            found[t] += total if 1e-30 < total < 1e30 else _wide_sum_of_squares(x)
    return found


@kept
def power_norms(addresses: Any, whole: int, steps: Any, like: Any, bits: Any) -> Any:
    """(Σ|g|^q)^{1/q} of each tensor, q = 1 + whole: blocks with the largest entry known divided out.

    The bits of |g|, which are those of g and ``bits[0]``, are ordered as its values, NaN above all.
    """
    found = np.zeros(len(addresses))
    kept_x, kept_y = np.empty(BLOCK, like.dtype), np.empty(BLOCK, like.dtype)
    q, top, but_sign = 1.0 + whole, np.zeros(1, bits.dtype), bits[0]
    for t in range(len(addresses)):
        size, total, unit = addresses[t, 1], 0.0, 0.0
        for start in range(0, size, BLOCK):
            n, address = min(BLOCK, size - start), addresses[t, 0] + start * like.itemsize
            g = carray(_pointer(address), (n,), like.dtype)
            inverse = like.dtype.type(1 / unit if unit > 0 else np.inf)
            if inverse < np.inf and (q == 3 or q == 11):
                # The total is 1 at least, so that nothing is lost where this block is smaller.
                quick = np.float64(_sum_of_cubes(g, inverse) if q == 3 else _sum_of_eleventh(g, inverse))
                if quick < 1e30:
                    total += quick
                    continue
            as_bits = carray(_pointer(address), (n,), bits.dtype)
            highest = bits.dtype.type(0)
            for i in range(n):
                highest = max(highest, bits.dtype.type(as_bits[i] & but_sign))
            top[0] = highest
            largest = top.view(like.dtype)[0]
            if largest == 0:
                continue
            if not largest < np.inf:
                unit, total = unit + largest, 1.0
                continue
            x, y = kept_x[:n], kept_y[:n]
            for i in range(n):
                x[i] = abs(g[i]) / largest
            _raise(x, y, whole, steps)
            ours = np.float64(_sum_of_products(x, y))
            if largest > unit:
                total = total * (unit / largest) ** q + ours
                unit = np.float64(largest)
            else:
                total += ours * (largest / unit) ** q
        found[t] = unit * total ** (1 / q)
    return found
