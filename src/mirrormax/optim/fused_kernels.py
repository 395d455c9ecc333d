"""What :mod:`~mirrormax.optim.fused` compiles: the step of :mod:`~mirrormax.optim.update`, block by block (numba).

A block stays in the first cache, so that what one loop over it leaves the next one finds. Loops touch four arrays at
most: the compiler checks that these do not overlap, and of more it would not. Numbers are computed in the type of the
dual variables; weights and gradients that are narrower are widened block by block, bfloat16 from its 16 bits.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, overload

carray: Any = vars(numba)["carray"]  # numba's own types do not know of it

# Directions: Adam's with a second moment per entry or per tensor, and the gradient's with or without momentum.
ENTRY, TENSOR, PLAIN, HEAVY, NESTEROV = range(5)
# 1/(p − 1) for which the power is multiplied out, in the order of mirrormax.geometry.signed_power; others are GENERAL.
WHOLE = (1, 2, 4, 10)
GENERAL = 0
ROOT = -2  # 1/(p − 1) = ½
OWN = -1  # weights that are their own dual variables
BEHIND = -3  # weights that are their dual variables behind a threshold, which is given in place of room

Decorator = Callable[[Any], Any]
# Without the interpreter's lock; NaN and Inf are numbers like others.
_options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
part: Decorator = njit(**_options)
inlined: Decorator = njit(**_options, forceinline=True)  # in a loop: a call would keep it from being vectorised
with_fma: Decorator = njit(**_options, forceinline=True, fastmath={"contract"})  # products and sums rounded once
in_any_order: Decorator = njit(**_options, fastmath={"reassoc"})  # sums in any order
in_llvm: Decorator = intrinsic


def kept(function: Any, *names: object) -> Any:
    """Compile the whole of a kernel, and keep it on disk where there is a folder to keep it in.

    ``names`` say which one it is. numba calls compiled code by its name, also code that it finds on disk, and numbers
    the versions within a file: of two kernels with one name, compiled by two processes, one would be called in place of
    the other.
    """
    function.__qualname__ = "_".join(map(str, (function.__name__, *names))).replace("-", "m")
    try:
        return njit(**_options, cache=True)(function)
    except RuntimeError:
        return part(function)


@in_llvm
def _pointer(typing_context: Any, address: Any) -> Any:
    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.inttoptr(args[0], cgutils.voidptr_t)

    return types.voidptr(types.int64), codegen


@in_llvm
def _recast(typing_context: Any, x: Any) -> Any:
    """A float's bits as a whole number of its width, and back."""
    other = {types.float32: types.int32, types.int32: types.float32, types.float64: types.int64}.get(x, types.float64)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        return builder.bitcast(args[0], context.get_value_type(signature.return_type))

    return other(x), codegen


def by_types(choose: Any, meaning: str, **options: Any) -> Any:
    """A function of which ``choose`` gives the code by the types of its arguments, and by the values of codes."""

    def chosen(*arguments: Any) -> Any:
        raise NotImplementedError  # what compiled code calls is an overload

    chosen.__doc__ = meaning
    combined: Any = _options | options
    overload(chosen, prefer_literal=True, strict=False, jit_options=combined)(choose)
    return chosen


def _load(x: Any, room: Any) -> Any:
    def same(x: Any, room: Any) -> Any:
        return x

    def from_bfloat16(x: Any, room: Any) -> Any:
        for i in range(len(x)):
            room[i] = _recast(np.int32(np.int32(x[i]) << np.int32(16)))
        return room[: len(x)]

    def wider(x: Any, room: Any) -> Any:
        for i in range(len(x)):
            room[i] = x[i]
        return room[: len(x)]

    if x.dtype == room.dtype:
        return same
    return from_bfloat16 if x.dtype == types.int16 else wider


def _store(values: Any, w: Any) -> Any:
    def same(values: Any, w: Any) -> None:
        pass

    def to_bfloat16(values: Any, w: Any) -> None:
        for i in range(len(w)):
            x = np.float32(values[i])
            bits = _recast(x)
            up = np.int32(bits + np.int32(0x7FFF) + np.int32(np.int32(bits >> np.int32(16)) & np.int32(1)))
            w[i] = np.int16(np.int32(up >> np.int32(16))) if x == x else np.int16(0x7FC0)

    def narrower(values: Any, w: Any) -> None:
        for i in range(len(w)):
            w[i] = values[i]

    if values.dtype == w.dtype:
        return same
    return to_bfloat16 if w.dtype == types.int16 else narrower


load = by_types(_load, "``x`` in the type of ``room``, written there unless it has that type already.")
store = by_types(_store, "Round ``values``, which ``load`` gave, into ``w``.")


# log2(m) = 2/ln 2 · (s + s³/3 + …), s = (m − 1)/(m + 1), √½ ≤ m < √2; 2^f = 1 + f ln 2 + …, |f| ≤ ½: both to 1e-9.
LOG = tuple(np.float32(2 / math.log(2) / (2 * k + 1)) for k in range(5))
EXP = tuple(np.float32(math.log(2) ** k / math.factorial(k)) for k in range(8))
ONE, MANY, HUGE = np.float32(1), np.float32(2.0**24), np.float32(np.inf)
LARGE = 1e30  # of sums that have not left the range of float32
MAGIC = np.float32(12582912)  # 1.5 · 2^23: its last bits hold a whole number added to it
MAGIC_BITS = np.int32(0x4B400000)
ROOT_BITS, BIAS = np.int32(0x3F3504F3), np.int32(127)  # of √½; and what the exponent 0 is written as
EXPONENT, FIRST_BITS = np.int32(23), np.int32(-256)  # where it begins; 16 bits of a number, whose products are exact


@with_fma
def _general_power(x: Any, exponent: float) -> Any:
    """sign(x)|x|^e of a float32 as 2^(e log2|x|), with the error of moving x by one unit in its last place.

    log2|x| = k + l with k whole and |l| ≤ ½. e·k is taken in two parts, of which the first is exact.
    """
    size = abs(x)
    tiny = size < np.float32(1.2e-38)
    bits = _recast(size * MANY if tiny else size)
    k = np.int32(np.int32(bits - ROOT_BITS) >> EXPONENT)
    m = _recast(np.int32(bits - np.int32(k << EXPONENT)))
    s = (m - ONE) / (m + ONE)
    z = s * s
    log = s * ((LOG[0] + z * LOG[1]) + z * z * (LOG[2] + z * (LOG[3] + z * LOG[4])))
    whole = (_recast(np.int32(MAGIC_BITS + k)) - MAGIC) - (np.float32(24) if tiny else np.float32(0))
    e = np.float32(exponent)
    first = _recast(np.int32(_recast(e) & FIRST_BITS))
    y = e * (whole + log)
    shifted = y + MAGIC
    f = (first * whole - (shifted - MAGIC)) + (np.float32(exponent - first) * whole + e * log)
    # Pairs of terms, which need not wait for each other.
    f2 = f * f
    f4 = f2 * f2
    low = (EXP[0] + f * EXP[1]) + f2 * (EXP[2] + f * EXP[3])
    power = low + f4 * ((EXP[4] + f * EXP[5]) + f2 * (EXP[6] + f * EXP[7]))
    n = np.int32(_recast(shifted) - MAGIC_BITS)
    half = np.int32(n >> np.int32(1))
    power = power * _recast(np.int32(np.int32(half + BIAS) << EXPONENT))
    power = power * _recast(np.int32(np.int32(np.int32(n - half) + BIAS) << EXPONENT))
    power = np.float32(0) if y < np.float32(-160) else power
    power = HUGE if y > np.float32(130) else power
    power = power if size > 0 else size  # NaN too
    return np.copysign(power if size < HUGE else size, x)


# The same for float64, with as many terms as its 53 bits ask for.
WIDE_LOG = tuple(2 / math.log(2) / (2 * k + 1) for k in range(11))
WIDE_EXP = tuple(math.log(2) ** k / math.factorial(k) for k in range(14))
WIDE_MAGIC, WIDE_MAGIC_BITS = 6755399441055744.0, 0x4338000000000000
WIDE_SHIFT = (1023 << 52) - 0x3FE6A09E667F3BCD  # AVX2 cannot shift a sign, so what is shifted has none


@with_fma
def _wide_power(x: Any, exponent: float) -> Any:
    size = abs(x)
    tiny = size < 2.3e-308
    bits = _recast(size * 2.0**54 if tiny else size)
    k = np.int64(np.uint64(bits + WIDE_SHIFT) >> np.uint64(52)) - 1023
    m = _recast(bits - (k << 52))
    s = (m - 1.0) / (m + 1.0)
    z = s * s
    a, b = WIDE_LOG, WIDE_EXP
    log = a[5] + z * (a[6] + z * (a[7] + z * (a[8] + z * (a[9] + z * a[10]))))
    log = s * (a[0] + z * (a[1] + z * (a[2] + z * (a[3] + z * (a[4] + z * log)))))
    whole = (_recast(WIDE_MAGIC_BITS + k) - WIDE_MAGIC) - (54.0 if tiny else 0.0)
    first = _recast(_recast(exponent) & -8192)
    y = exponent * (whole + log)
    shifted = y + WIDE_MAGIC
    f = (first * whole - (shifted - WIDE_MAGIC)) + ((exponent - first) * whole + exponent * log)
    high = b[7] + f * (b[8] + f * (b[9] + f * (b[10] + f * (b[11] + f * (b[12] + f * b[13])))))
    power = b[0] + f * (b[1] + f * (b[2] + f * (b[3] + f * (b[4] + f * (b[5] + f * (b[6] + f * high))))))
    n = _recast(shifted) - WIDE_MAGIC_BITS
    half = np.int64(np.uint64(n + 4096) >> np.uint64(1)) - 2048
    power = power * _recast((half + 1023) << 52) * _recast((n - half + 1023) << 52)
    power = 0.0 if y < -1100.0 else power
    power = np.inf if y > 1030.0 else power
    power = power if size > 0 else size
    return np.copysign(power if size < np.inf else size, x)


@inlined
def _first_power(x: Any, exponent: float) -> Any:
    return x


@inlined
def _second_power(x: Any, exponent: float) -> Any:
    return x * abs(x)


@inlined
def _fourth_power(x: Any, exponent: float) -> Any:
    return x * x * x * abs(x)


@inlined
def _tenth_power(x: Any, exponent: float) -> Any:
    cube = x * x * x
    return cube * cube * cube * abs(x)


@inlined
def _root(x: Any, exponent: float) -> Any:
    return np.copysign(np.sqrt(abs(x)), x)


POWERS = {1: _first_power, 2: _second_power, 4: _fourth_power, 10: _tenth_power, ROOT: _root}


def _power(code: Any, x: Any) -> Any:
    return POWERS.get(code.literal_value, _wide_power if x.dtype == types.float64 else _general_power)


def _direct(
    x: Any, g: Any, u: Any, m: Any, v: Any, c: Any, of_m: Any, of_v: Any, least: Any, decay: Any, kind: Any
) -> Any:
    def by_moments(x, g, u, m, v, c, of_m, of_v, least, decay, kind):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            d = c * g[i]
            first = m[i] + of_m[1] * (d - m[i])
            if kind == ENTRY:
                second = v[i] * of_v[0] + of_v[1] * d * d
                v[i] = second
                x[i] = first / (np.sqrt(second) + least)
            else:
                x[i] = first
            m[i] = first

    def by_gradient(x, g, u, m, v, c, of_m, of_v, least, decay, kind):  # type: ignore[no-untyped-def]
        for i in range(len(x)):
            x[i] = c * g[i] + decay * u[i]
        if kind != PLAIN:
            for i in range(len(x)):
                first = of_m[0] * m[i] + x[i]
                x[i] = x[i] + of_m[0] * first if kind == NESTEROV else first
                m[i] = first

    return by_moments if kind.literal_value in (ENTRY, TENSOR) else by_gradient


def _write(w: Any, u: Any, x: Any, a: Any, drop: Any, room: Any, exponent: Any, code: Any) -> Any:
    power = _power(code, u)

    def own(w, u, x, a, drop, room, exponent, code):  # type: ignore[no-untyped-def]
        for i in range(len(w)):
            limit = abs(w[i]) + room
            new = w[i] - (drop * w[i] + a * x[i])
            new = limit if new > limit else new
            w[i] = -limit if new < -limit else new

    def mapped(w, u, x, a, drop, room, exponent, code):  # type: ignore[no-untyped-def]
        over = np.int32(0)
        for i in range(len(w)):
            old = u[i]
            new = old - (drop * old + a * x[i])
            y = power(new, exponent)
            size, limit = abs(y), abs(w[i]) + room
            held = (size > limit) & (new != old)
            over = np.int32(over | np.int32(held))
            u[i] = new
            w[i] = w[i] if new == old else y
            x[i] = limit if held else np.inf
        if over:
            for i in range(len(w)):
                if x[i] < np.inf:
                    u[i] = np.copysign(u.dtype.type(np.float64(x[i]) ** (1 / exponent)), u[i])
                    w[i] = power(u[i], exponent)

    def behind(w, u, x, a, drop, room, exponent, code):  # type: ignore[no-untyped-def]
        for i in range(len(w)):
            new = u[i] - (drop * u[i] + a * x[i])
            u[i] = new
            w[i] = firm(new, room)

    return {OWN: own, BEHIND: behind}.get(code.literal_value, mapped)


@inlined
def firm(u: Any, lam: Any) -> Any:
    """The firm threshold of a dual variable, in the operations and the order of the plain one."""
    size = abs(u)
    shrunk = np.copysign((size - lam) * type(lam)(1.5), u)
    return u if size > type(lam)(3) * lam else type(lam)(0) if size <= lam else shrunk  # NaN stays NaN


direct = by_types(_direct, "x, and the moments after this gradient; of_m and of_v are β and 1 − β, or μ and 1 − μ.")
write = by_types(
    _write, "u ← u − (drop·u + ax), w ← ∇ψ*(u): held where it would grow by more than room, still where u is."
)


@functools.cache
def step_kernel(kind: int, code: int, of_w: str, of_g: str, of_u: str) -> Any:
    """The kernel for a kind of direction, a power and three types; what it does not need is not compiled."""

    def step(rows: Any, numbers: Any, common: Any, like_w: Any, like_g: Any, like_u: Any, block: int) -> None:
        """Rows are the addresses of w, u, g, m, v and a size, and c, a, drop, least and room."""
        number, width, width_w = like_u.dtype.type, like_u.itemsize, like_w.itemsize
        of_m, of_v = (number(common[0]), number(1 - common[0])), (number(common[1]), number(1 - common[1]))
        decay, exponent = number(common[2]), common[3]
        spare = np.empty((3, block), like_u.dtype)
        for t in range(len(rows)):
            c, a, drop = number(numbers[t, 0]), number(numbers[t, 1]), number(numbers[t, 2])
            least, room, size = number(numbers[t, 3]), number(numbers[t, 4]), rows[t, 5]
            for start in range(0, size, block):
                n = min(block, size - start)
                # A step of the dual variables alone leaves weights that are others as they are.
                own = carray(_pointer(rows[t, 1 if code == OWN else 0] + start * width_w), (n,), like_w.dtype)
                w = load(own, spare[0])
                g = load(carray(_pointer(rows[t, 2] + start * like_g.itemsize), (n,), like_g.dtype), spare[1])
                u = w
                if code != OWN:
                    u = carray(_pointer(rows[t, 1] + start * width), (n,), like_u.dtype)
                m = carray(_pointer(rows[t, 3] + start * width), (n,), like_u.dtype)
                v = carray(_pointer(rows[t, 4] + start * width), (n,), like_u.dtype)
                x = spare[2, :n]
                direct(x, g, u, m, v, c, of_m, of_v, least, decay, kind)
                write(w, u, x, a, drop, room, exponent, code)
                store(w, own)

    return kept(step, kind, code, of_w, of_g, of_u)


@in_any_order
def _sum_of_squares(x: Any) -> Any:
    total = 0.0
    for i in range(len(x)):
        wide = np.float64(x[i])
        total += wide * wide
    return total


@functools.cache
def square_kernel(of_g: str) -> Any:
    """Σg² of each tensor, of whose address and size there is a row, in float64, where no float32 leaves the range."""

    def squares(rows: Any, like_g: Any, like_u: Any, block: int) -> Any:
        sums, spare = np.zeros(len(rows)), np.empty(block, like_u.dtype)
        for t in range(len(rows)):
            for start in range(0, rows[t, 1], block):
                n = min(block, rows[t, 1] - start)
                g = load(carray(_pointer(rows[t, 0] + start * like_g.itemsize), (n,), like_g.dtype), spare)
                sums[t] += _sum_of_squares(g)
        return sums

    return kept(squares, of_g)


def _sum(x: Any, largest: Any, exponent: Any, code: Any) -> Any:
    power = _power(code, x)

    def summed(x, largest, exponent, code):  # type: ignore[no-untyped-def]
        total = x.dtype.type(0)
        for i in range(len(x)):
            ratio = abs(x[i]) / largest
            total += ratio * power(ratio, exponent)
        return np.float64(total)

    return summed


sum_of_powers = by_types(_sum, "Σ(|x|/largest)^(1 + exponent).", fastmath={"reassoc"})


@part
def _largest(x: Any) -> Any:
    """The largest |x|, NaN above all: a float's bits without its sign are ordered as its values."""
    top = _recast(x.dtype.type(0))
    for i in range(len(x)):
        top = max(top, _recast(abs(x[i])))
    return _recast(top)


@functools.cache
def norm_kernel(code: int, of_g: str, of_u: str) -> Any:
    """(Σ|g|^q)^{1/q} of each tensor, q = 1 + exponent, of g in units of an entry that is among the largest so far.

    A block is summed in the unit of those before it; only where that leaves the range is its own largest entry found.
    """

    def norms(rows: Any, exponent: float, like_g: Any, like_u: Any, block: int) -> Any:
        lengths, spare = np.zeros(len(rows)), np.empty(block, like_u.dtype)
        q, number = 1.0 + exponent, like_u.dtype.type
        for t in range(len(rows)):
            total, unit = 0.0, 0.0
            for start in range(0, rows[t, 1], block):
                n = min(block, rows[t, 1] - start)
                g = load(carray(_pointer(rows[t, 0] + start * like_g.itemsize), (n,), like_g.dtype), spare)
                ours = sum_of_powers(g, number(unit), exponent, code) if unit > 0 else np.inf
                if ours < LARGE:
                    total += ours
                    continue
                largest = np.float64(_largest(g))
                if not largest < np.inf:
                    total, unit = 1.0, unit + largest
                if largest == 0 or not unit < np.inf:
                    continue
                total = total * (unit / largest) ** q + sum_of_powers(g, number(largest), exponent, code)
                unit = largest
            lengths[t] = unit * total ** (1 / q)
        return lengths

    return kept(norms, code, of_g, of_u)


@kept
def counts(bits: Any, shift: int, prefix: int) -> Any:
    """How many numbers, by their bits without the sign, begin with ``prefix`` and go on with each digit of 16 bits."""
    numbers = np.zeros(65_536, np.int64)
    most = np.int64(2) ** (8 * bits.itemsize - 1) - 1
    for i in range(len(bits)):
        digits = (np.int64(bits[i]) & most) >> shift
        if digits >> 16 == prefix:
            numbers[digits & 65_535] += 1
    return numbers


@kept
def threshold(u: Any, w: Any, lam: Any) -> None:
    """w ← the firm threshold of u."""
    for i in range(len(u)):
        w[i] = firm(u[i], lam)
