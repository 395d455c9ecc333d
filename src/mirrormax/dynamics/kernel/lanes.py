"""Vectors of WIDTH trials as numbers of compiled code: ``+ - * /``, comparisons that choose, and memory.

A loop over trials becomes a vector loop only where LLVM can prove that no array overlaps another, and even then
sums go through memory. Written in these, a sum stays in registers to its end, whatever the arrays are.

With them, exponential, logarithm and powers, good to an ulp or two: free of branches and calls, two to four times as
fast as those of the C library, one number at a time.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import njit, types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

WIDTH = 8  # one register of AVX-512, two of AVX, four of SSE2 and NEON

VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
BITS = ir.VectorType(ir.IntType(64), WIDTH)
EXACT = ("contract",)  # a product and a sum may be rounded once; nothing else may change
ROUND = 6755399441055744.0  # 1.5 · 2^52: adding it rounds to a whole number, which then fills the low bits
LOG2_E, LN2_HIGH, LN2_LOW = 1.4426950408889634, 6.93147180369123816490e-01, 1.90821492927058770002e-10
IDENTITY, ROOT, MULTIPLIED, GENERAL = range(4)


class Lanes(types.Type):
    """The type of a vector of WIDTH numbers."""

    def __init__(self) -> None:
        super().__init__(name=f"Lanes({WIDTH})")


lanes: Any = Lanes()

instruction: Callable[[Any], Callable[..., Any]] = intrinsic  # called without the typing context it is declared with


@register_model(Lanes)
class LanesModel(models.PrimitiveModel):
    """What LLVM holds for it."""

    def __init__(self, manager: Any, kind: Any) -> None:
        super().__init__(manager, kind, VECTOR)  # type: ignore[no-untyped-call]


def operation(build: Callable[..., Any], answer: Any = lanes) -> Callable[..., Any]:
    """An intrinsic on vectors from the instructions ``build(builder, *vectors)``."""
    arity = build.__code__.co_argcount - 1

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return build(builder, *values)

    def one(typing_context: Any, a: Any) -> Any:
        return answer(lanes), lower

    def two(typing_context: Any, a: Any, b: Any) -> Any:
        return answer(lanes, lanes), lower

    def four(typing_context: Any, a: Any, b: Any, yes: Any, no: Any) -> Any:
        return answer(lanes, lanes, lanes, lanes), lower

    return instruction({1: one, 2: two, 4: four}[arity])


def _call(builder: Any, name: str, *values: Any) -> Any:
    kind = ir.FunctionType(VECTOR, [VECTOR] * len(values))
    full = f"llvm.{name}.v{WIDTH}f64"
    return builder.call(cgutils.get_or_insert_function(builder.module, kind, full), values)


def _constant(value: int) -> Any:
    return ir.Constant(BITS, [value] * WIDTH)


def _any(builder: Any, flags: Any) -> Any:
    """Whether one of the flags <WIDTH x i1> is set."""
    return builder.icmp_unsigned("!=", builder.bitcast(flags, ir.IntType(WIDTH)), ir.Constant(ir.IntType(WIDTH), 0))


root = operation(lambda builder, a: _call(builder, "sqrt", a))
size = operation(lambda builder, a: _call(builder, "fabs", a))
signed = operation(lambda builder, a, b: _call(builder, "copysign", a, b))
"""|a| with the sign of b."""
larger = operation(lambda builder, a, b: builder.select(builder.fcmp_ordered(">", b, a), b, a))
"""The larger of two; a where one of them is NaN."""
if_less = operation(lambda builder, a, b, yes, no: builder.select(builder.fcmp_ordered("<", a, b), yes, no))
"""``yes`` where a < b, ``no`` elsewhere and for NaN."""
if_equal = operation(lambda builder, a, b, yes, no: builder.select(builder.fcmp_ordered("==", a, b), yes, no))
"""``yes`` where a == b, ``no`` elsewhere and for NaN."""
any_less = operation(lambda builder, a, b: _any(builder, builder.fcmp_ordered("<", a, b)), types.boolean)
"""Whether a < b somewhere."""
all_less = operation(
    lambda builder, a, b: builder.not_(_any(builder, builder.fcmp_unordered(">=", a, b))), types.boolean
)
"""Whether a < b everywhere: not so with a NaN."""


def _times_power(builder: Any, fraction: Any, shifted: Any) -> Any:
    exponent = builder.shl(builder.bitcast(shifted, BITS), _constant(52))
    return builder.bitcast(builder.add(builder.bitcast(fraction, BITS), exponent), VECTOR)


def _counted(builder: Any, x: Any) -> Any:
    """The exponent from √½ on, so that the fraction is between √½ and √2, plus 1024, so that it is positive."""
    start = builder.sub(builder.bitcast(x, BITS), _constant(0x3FE6A09E667F3BCD - (1024 << 52)))
    return builder.lshr(start, _constant(52))


def _exponent(builder: Any, x: Any) -> Any:
    # By way of the bits of 2^52: AVX2 has no conversion of whole numbers of 64 bits.
    number = builder.bitcast(builder.or_(_counted(builder, x), _constant(0x4330000000000000)), VECTOR)
    return builder.fsub(number, ir.Constant(VECTOR, [4503599627370496.0 + 1024.0] * WIDTH))


def _fraction(builder: Any, x: Any) -> Any:
    power = builder.shl(builder.sub(_counted(builder, x), _constant(1024)), _constant(52))
    return builder.bitcast(builder.sub(builder.bitcast(x, BITS), power), VECTOR)


times_power = operation(_times_power)
"""a 2^k, with k in the lowest bits of b."""
exponent_of = operation(_exponent)
fraction_of = operation(_fraction)
"""x = fraction_of(x) · 2^exponent_of(x) for normal x > 0, with the fraction between √½ and √2."""


@instruction
def lift(typing_context: Any, value: Any) -> Any:
    """The same number in every lane."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        first = builder.insert_element(ir.Constant(VECTOR, ir.Undefined), values[0], ir.Constant(ir.IntType(32), 0))
        spread = ir.Constant(ir.VectorType(ir.IntType(32), WIDTH), [0] * WIDTH)
        return builder.shuffle_vector(first, ir.Constant(VECTOR, ir.Undefined), spread)

    return lanes(types.float64), lower


@instruction
def pointer(typing_context: Any, array: Any) -> Any:
    """To the first of a C-contiguous array's numbers. Passing it on counts no references, as passing an array does."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return context.make_array(signature.args[0])(context, builder, values[0]).data

    return types.CPointer(types.float64)(array), lower


def _address(builder: Any, memory: Any, row: Any) -> Any:
    return builder.bitcast(builder.gep(memory, [builder.mul(row, row.type(WIDTH))]), VECTOR.as_pointer())


@instruction
def load(typing_context: Any, memory: Any, row: Any) -> Any:
    """The numbers memory[WIDTH row : WIDTH (row + 1)]."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        return builder.load(_address(builder, *values), align=8)

    return lanes(memory, types.intp), lower


@instruction
def store(typing_context: Any, memory: Any, row: Any, value: Any) -> Any:
    """Write them."""

    def lower(context: Any, builder: Any, signature: Any, values: Any) -> Any:
        builder.store(values[2], _address(builder, *values[:2]), align=8)
        return context.get_dummy_value()

    return types.none(memory, types.intp, lanes), lower


def _arithmetic(symbol: Callable[..., Any], name: str) -> None:
    """Let an operator mean an instruction of LLVM, between vectors and between a vector and a number."""
    vectors = operation(lambda builder, a, b: getattr(builder, name)(a, b, flags=EXACT))

    @overload(symbol, strict=False)  # a lambda has no annotations to compare
    def implementation(a: Any, b: Any) -> Any:
        if a is lanes and b is lanes:
            return lambda a, b: vectors(a, b)  # noqa: PLW0108  (numba wants a function, not an intrinsic)
        if a is lanes and isinstance(b, types.Float):
            return lambda a, b: vectors(a, lift(b))
        if isinstance(a, types.Float) and b is lanes:
            return lambda a, b: vectors(lift(a), b)
        return None


_arithmetic(operator.add, "fadd")
_arithmetic(operator.sub, "fsub")
_arithmetic(operator.mul, "fmul")
_arithmetic(operator.truediv, "fdiv")


def compiled(function: Any) -> Any:
    """Compile a part of a kernel, without the interpreter's lock."""
    return njit(nogil=True, error_model="numpy")(function)


def kept(function: Any) -> Any:
    """Compile the whole of a kernel, and keep it on disk where there is a folder to keep it in."""
    try:
        return njit(cache=True, nogil=True, error_model="numpy")(function)
    except RuntimeError:
        return compiled(function)


@compiled
def exp(x: Any) -> Any:
    """e^x for x ≤ 700 to an ulp, 0 below −708."""
    bottom = lift(-708.0)
    bounded = if_less(x, bottom, bottom, x)  # NaN stays
    shifted = bounded * LOG2_E + ROUND
    k = shifted - ROUND
    f = (bounded - k * LN2_HIGH) - k * LN2_LOW
    high = (f * (1 / 479001600.0) + 1 / 39916800.0) * f + 1 / 3628800.0
    middle = (((high * f + 1 / 362880.0) * f + 1 / 40320.0) * f + 1 / 5040.0) * f + 1 / 720.0
    low = (((middle * f + 1 / 120.0) * f + 1 / 24.0) * f + 1 / 6.0) * f + 0.5
    result = times_power(low * f * f + f + 1.0, shifted)
    return if_less(x, bottom, lift(0.0), result + (x - x))  # NaN again: the bits of one are not to be added to


@compiled
def log(x: Any) -> Any:
    """log x for normal x > 0, to about an ulp."""
    exponent, fraction = exponent_of(x), fraction_of(x)
    s = (fraction - 1.0) / (fraction + 1.0)
    q = s * s
    tail = ((((q * (1 / 23.0) + 1 / 21.0) * q + 1 / 19.0) * q + 1 / 17.0) * q + 1 / 15.0) * q + 1 / 13.0
    series = ((((tail * q + 1 / 11.0) * q + 1 / 9.0) * q + 1 / 7.0) * q + 1 / 5.0) * q + 1 / 3.0
    return exponent * LN2_HIGH + (2.0 * s + (2.0 * s * q * series + exponent * LN2_LOW))


@compiled
def power_plan(exponent: float) -> Any:
    """How :func:`power` is to be taken, (kind, whole, half): half-integers up to 128 are multiplied out."""
    halves = round(2 * exponent)
    whole, half = int(halves) // 2, int(halves) % 2
    if exponent == 1.0:
        return IDENTITY, whole, half
    if exponent == 0.5:
        return ROOT, whole, half
    if halves <= 256 and abs(2 * exponent - halves) <= 4e-15 * halves:
        return MULTIPLIED, whole, half
    return GENERAL, whole, half


@compiled
def power(a: Any, exponent: float, plan: Any) -> Any:
    """a^exponent for a ≥ 0; a general one is good for a < 1e300 with a power below 1e300, and 0 for a < 1e-300."""
    kind, whole, half = plan
    if kind == IDENTITY:
        return a
    if kind == ROOT:
        return root(a)
    if kind == MULTIPLIED:
        return multiplied_power(a, whole, half)
    logarithm = log(a) * exponent
    top = lift(700.0)
    return if_less(a, lift(1e-300), lift(0.0), exp(if_less(top, logarithm, top, logarithm)))


@compiled
def multiplied_power(a: Any, whole: int, half: int) -> Any:
    """a^(whole + half/2): the bits of ``whole`` from the highest down, then the root."""
    bit = 1
    while 2 * bit <= whole:
        bit *= 2
    result = lift(1.0)
    while bit > 0:
        result = result * result
        if whole & bit:
            result = result * a
        bit //= 2
    return result * root(a) if half else result
