"""Vectors of WIDTH trials as numbers of compiled code: ``+ - * /``, comparisons that choose, and memory.

A loop over trials becomes a vector loop only where LLVM can prove that no array overlaps another, and even then
sums go through memory. Written in these, a sum stays in registers to its end, whatever the arrays are.
"""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

from llvmlite import ir
from numba import types
from numba.core import cgutils
from numba.extending import intrinsic, models, overload, register_model

WIDTH = 8  # one register of AVX-512, two of AVX, four of SSE2 and NEON

VECTOR = ir.VectorType(ir.DoubleType(), WIDTH)
BITS = ir.VectorType(ir.IntType(64), WIDTH)
EXACT = ("contract",)  # a product and a sum may be rounded once; nothing else may change


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
