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
FIRST_BLOCK = 128  # of a norm, whose largest entry is looked for: others need not be
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

    Weights that would grow too much are held in the loop, and their dual variables set right after it. What says
    that there were some is as wide as a float32: a wider one would halve the entries that are worked on at once.
    """
    hold = _holding(power)

    @part
    def move(w: Any, u: Any, g: Any, m: Any, c: Any, a: Any, keep: Any, new: Any, room: Any, slope: float) -> None:
        over = np.int32(0)
        for i in range(len(w)):
            first = m[i] + new * (c * g[i] - m[i])
            x = u[i] * keep - a * first
            m[i] = first
            u[i] = x
            y, limit = power(x), abs(w[i]) + room
            size = abs(y)
            over = np.int32(over | np.int32(size > limit))
            w[i] = np.copysign(limit if size > limit else size, y)
        if over:
            hold(w, u, slope)

    return move


def _mapping(power: Any) -> Any:
    """w ← ∇ψ*(u), held where it would grow by more than ``room``; the powers of dual variables that have moved."""
    hold = _holding(power)

    @part
    def write(w: Any, u: Any, room: Any, slope: float) -> None:
        over = np.int32(0)
        for i in range(len(w)):
            y, limit = power(u[i]), abs(w[i]) + room
            size = abs(y)
            over = np.int32(over | np.int32(size > limit))
            w[i] = np.copysign(limit if size > limit else size, y)
        if over:
            hold(w, u, slope)

    return write


def _holding(power: Any) -> Any:
    """u ← ∇ψ(w) where w was held below ∇ψ*(u), and w ← ∇ψ*(u) there, so that both agree to the last bit."""

    @part
    def hold(w: Any, u: Any, slope: float) -> None:
        for i in range(len(w)):
            if abs(power(u[i])) > abs(w[i]):
                u[i] = np.copysign(w.dtype.type(np.float64(abs(w[i])) ** slope), u[i])
                w[i] = power(u[i])

    return hold


POWERS = tuple(_whole_power(whole) for whole in (2, 4, 10))
_second, _fourth, _tenth = (_by_tensor(power) for power in POWERS)
_write_second, _write_fourth, _write_tenth = (_mapping(power) for power in POWERS)


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
def _write_at_once(whole: int, w: Any, u: Any, room: Any, slope: float) -> None:
    if whole == 2:
        _write_second(w, u, room, slope)
    elif whole == 4:
        _write_fourth(w, u, room, slope)
    else:
        _write_tenth(w, u, room, slope)


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
def _by_moments(
    u: Any, g: Any, m: Any, v: Any, seconds: bool, c: Any, a: Any, keep: Any, least: Any, common: Any
) -> None:
    """With moments per entry, a m/(√v/b + ε) is (ab) m/(√v + εb): one division for two; ``a`` is ab, ``least`` εb."""
    new, beta2, new2 = common
    if seconds:
        for i in range(len(u)):
            d = c * g[i]
            first = m[i] + new * (d - m[i])
            second = v[i] * beta2 + new2 * d * d
            m[i] = first
            v[i] = second
            u[i] = u[i] * keep - a * (first / (np.sqrt(second) + least))
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
    moments = number(1 - common[0]), number(common[1]), number(1 - common[1])
    kept_y = np.empty(BLOCK, like.dtype)
    by_tensor = adam and not seconds
    known = whole == 2 or whole == 4 or whole == 10
    at_once = by_tensor and not own and known
    for t in range(len(pointers) - 1, -1, -1):  # of gradients whose norms were just taken, the last are still near
        b = numbers[t, 3] if seconds else 1.0
        c, a, keep = number(numbers[t, 0]), number(numbers[t, 1] * b), number(numbers[t, 2])
        least = number(common[2] * b)
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
                    _by_moments(u, g, m, v, seconds, c, a, keep, least, moments)
                else:
                    _by_gradient(u, g, m, moves, nesterov, c, a, mu, decay)
                if own:
                    _clamp(w, y, room)
                elif known:
                    _write_at_once(whole, w, u, room, slope)
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
def _sum_of_four(x: Any, y: Any, z: Any, t: Any) -> Any:
    total = x.dtype.type(0)
    for i in range(len(x)):
        total += x[i] * x[i] + y[i] * y[i] + z[i] * z[i] + t[i] * t[i]
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


def _summing(power: Any) -> tuple[Any, Any]:
    """Σ|g/unit|^q of a block, and of four at once."""

    @in_any_order
    def one(x: Any, inverse: Any) -> Any:
        total = x.dtype.type(0)
        for i in range(len(x)):
            total += power(abs(x[i]) * inverse)
        return np.float64(total)

    @in_any_order
    def four(x: Any, y: Any, z: Any, r: Any, inverse: Any) -> Any:
        total = x.dtype.type(0)
        for i in range(len(x)):
            first = power(abs(x[i]) * inverse) + power(abs(y[i]) * inverse)
            total += first + (power(abs(z[i]) * inverse) + power(abs(r[i]) * inverse))
        return np.float64(total)

    return one, four


@in_any_order
def _eleventh_power(x: Any) -> Any:
    cube = x * x * x
    return cube * cube * cube * x * x


@in_any_order
def _third_power(x: Any) -> Any:
    return x * x * x


_elevenths, _elevenths_of_four = _summing(_eleventh_power)
_cubes, _cubes_of_four = _summing(_third_power)


@part
def _block(address: int, n: int, like: Any) -> Any:
    return carray(_pointer(address), (n,), like.dtype)


@kept
def squares(addresses: Any, like: Any) -> Any:
    """Σg² of each tensor, of whose address and size there is a row.

    Of large tensors four parts are read at once: a processor fetches several streams faster than one.
    """
    found, width = np.zeros(len(addresses)), like.itemsize
    for t in range(len(addresses)):
        first, size = addresses[t, 0], addresses[t, 1]
        blocks = size // (4 * BLOCK)
        part_of_it = blocks * BLOCK * width
        for k in range(blocks):
            at = first + k * BLOCK * width
            x, y = _block(at, BLOCK, like), _block(at + part_of_it, BLOCK, like)
            z, r = _block(at + 2 * part_of_it, BLOCK, like), _block(at + 3 * part_of_it, BLOCK, like)
            total = _sum_of_four(x, y, z, r)
            # Squares of very small or large float32 leave its range.
            if not 1e-30 < total < 1e30:
                total = _wide_sum_of_squares(x) + _wide_sum_of_squares(y)
                total += _wide_sum_of_squares(z) + _wide_sum_of_squares(r)
            found[t] += total
        for start in range(4 * BLOCK * blocks, size, BLOCK):
            x = _block(first + start * width, min(BLOCK, size - start), like)
            total = _sum_of_squares(x)
            found[t] += total if 1e-30 < total < 1e30 else _wide_sum_of_squares(x)
    return found


@part
def _add_block(address: int, n: int, known: Any, whole: int, steps: Any, like: Any, bits: Any, room: Any) -> Any:
    """Total and unit after a block whose largest entry is looked for; ``known`` are both before it."""
    total, unit = known
    q, top, but_sign = 1.0 + whole, np.zeros(1, bits.dtype), bits[0]
    as_bits, g = carray(_pointer(address), (n,), bits.dtype), _block(address, n, like)
    highest = bits.dtype.type(0)
    for i in range(n):
        highest = max(highest, bits.dtype.type(as_bits[i] & but_sign))
    top[0] = highest
    largest = top.view(like.dtype)[0]
    if largest == 0:
        return total, unit
    if not largest < np.inf:
        return 1.0, unit + largest
    x, y = room[0, :n], room[1, :n]
    for i in range(n):
        x[i] = abs(g[i]) / largest
    _raise(x, y, whole, steps)
    ours = np.float64(_sum_of_products(x, y))
    if largest > unit:
        return total * (unit / largest) ** q + ours, np.float64(largest)
    return total + ours * (largest / unit) ** q, unit


@kept
def power_norms(addresses: Any, whole: int, steps: Any, like: Any, bits: Any) -> Any:
    """(Σ|g|^q)^{1/q} of each tensor, q = 1 + whole: blocks with the largest entry known divided out.

    The bits of |g|, which are those of g and ``bits[0]``, are ordered as its values, NaN above all. Once an entry is
    known, others are divided by it as long as their sum stays in range; the total is 1 at least, so that nothing is
    lost where they are smaller. Large tensors are read in four parts at once.
    """
    found, width, q = np.zeros(len(addresses)), like.itemsize, 1.0 + whole
    room = np.empty((2, BLOCK), like.dtype)
    for t in range(len(addresses)):
        first, size = addresses[t, 0], addresses[t, 1]
        known = 0.0, 0.0
        blocks = size // (4 * BLOCK)
        part_of_it = blocks * BLOCK * width
        for k in range(blocks):
            at = first + k * BLOCK * width
            unit = known[1]
            inverse = like.dtype.type(1 / unit if unit > 0 else np.inf)
            quick = np.inf
            if inverse < np.inf and (q == 3 or q == 11):
                x, y = _block(at, BLOCK, like), _block(at + part_of_it, BLOCK, like)
                z, r = _block(at + 2 * part_of_it, BLOCK, like), _block(at + 3 * part_of_it, BLOCK, like)
                quick = _cubes_of_four(x, y, z, r, inverse) if q == 3 else _elevenths_of_four(x, y, z, r, inverse)
            if quick < 1e30:
                known = known[0] + quick, unit
                continue
            for part_number in range(4):
                known = _add_block(at + part_number * part_of_it, BLOCK, known, whole, steps, like, bits, room)
        start = 4 * BLOCK * blocks
        while start < size:
            unit = known[1]
            at, n = first + start * width, min(BLOCK if unit > 0 else FIRST_BLOCK, size - start)
            start += n
            inverse = like.dtype.type(1 / unit if unit > 0 else np.inf)
            quick = np.inf
            if inverse < np.inf and (q == 3 or q == 11):
                x = _block(at, n, like)
                quick = _cubes(x, inverse) if q == 3 else _elevenths(x, inverse)
            if quick < 1e30:
                known = known[0] + quick, unit
            else:
                known = _add_block(at, n, known, whole, steps, like, bits, room)
        found[t] = known[1] * known[0] ** (1 / q)
    return found
