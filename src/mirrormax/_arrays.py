"""Arrays among arguments: numpy in, numpy out; tensors in, tensors out; one sentence for what is neither."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from types import NoneType
from typing import TYPE_CHECKING, Any, ParamSpec, Protocol, cast, get_args, get_type_hints, overload

import numpy as np
import torch
from torch import Tensor

if TYPE_CHECKING:
    from typing_extensions import TypeVar  # that of typing has no default before Python 3.13

    A = TypeVar("A", bound="np.ndarray[Any, Any] | Tensor", default=Any)
else:
    from typing import TypeVar

    A = TypeVar("A")
"""What a problem or a result is made of: numpy.ndarray or torch.Tensor."""
P = ParamSpec("P")
R = TypeVar("R")
R_co = TypeVar("R_co", covariant=True)


class InKind(Protocol[P, R_co]):
    """A function of tensors, checked as it is written; of arrays it returns arrays in place of tensors."""

    @overload
    def __call__(self, *args: P.args, **kwargs: P.kwargs) -> R_co: ...
    @overload
    def __call__(self, *args: object, **kwargs: object) -> Any: ...


def in_kind(function: Callable[P, R]) -> InKind[P, R]:
    """Let a function of tensors take numpy arrays (or nested lists or tuples) too, and answer in kind.

    Only the parameters annotated ``Tensor`` (or ``Tensor | None``, ``float | Tensor``) are converted, so a list of
    dimensions stays a list, and ``ArrayLike | Tensor`` is left to the function. Integers and booleans keep their
    type. One tensor among the arguments is enough to get tensors back; tuples and named tuples are answered entry by
    entry.
    """
    hints = get_type_hints(function)
    names = list(inspect.signature(function).parameters)
    takes_tensor = {name for name in names if _is_tensor(hints.get(name))}

    def converted(name: str, value: Any) -> Any:
        return as_tensor(name, value) if name in takes_tensor and is_array(value) else value

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            return function(*args, **kwargs)  # which says so better than we could
        given = [*zip(names, args, strict=False), *kwargs.items()]
        values = [value for name, value in given if name in takes_tensor]
        if not any(is_array(value) for value in values):
            for name, value in given:
                if hints.get(name) is Tensor and not isinstance(value, Tensor):
                    as_tensor(name, value)  # which says what it is
            return function(*args, **kwargs)
        args = tuple(converted(name, value) for name, value in zip(names, args, strict=False))
        kwargs = {name: converted(name, value) for name, value in kwargs.items()}
        result = function(*args, **kwargs)
        return result if any(isinstance(value, Tensor) for value in values) else _array(result)

    return cast("InKind[P, R]", wrapper)


def is_array(value: object) -> bool:
    """Whether this is an array of numpy, or something that becomes one: lists, tuples, frames."""
    if isinstance(value, (np.ndarray, list, tuple)):
        return True
    return hasattr(value, "__array__") and not isinstance(value, (Tensor, np.generic))


def as_tensor(name: str, value: object) -> Tensor:
    """An array as a tensor of its own type, sharing memory where it can; a tensor as it is.

    TypeError, naming the argument ``name``, for what holds no real numbers; ValueError for ragged lists.
    """
    if isinstance(value, Tensor):
        if value.layout != torch.strided:
            raise TypeError(f"{name} must be a dense tensor, got {value.layout}; call {name}.to_dense().")
        if value.is_complex():
            raise TypeError(f"{name} must hold real numbers, got {dtype_name(value)}; convert it first.")
        return value
    if not is_array(value):
        kind = type(value).__name__
        shown = f"{value!r} ({kind})" if isinstance(value, (str, int, float)) else kind
        raise TypeError(f"{name} must be an array or a tensor of numbers, got {shown}.")
    try:
        array = np.asarray(value)
    except ValueError:
        raise ValueError(
            f"{name} is made of lists of unequal length; give an array, and a mask for short rows."
        ) from None
    if array.dtype.kind not in "fiub":
        raise TypeError(f"{name} must hold real numbers, got {array.dtype}; convert it first.")
    if array.dtype.kind == "u" and array.size and array.max() > np.iinfo(np.int64).max:
        raise ValueError(f"{name} holds {array.max()}, which is beyond 64-bit integers; use smaller numbers.")
    # torch shares memory only with writable arrays of native byte order and forward strides, and computes
    # neither with wide unsigned integers nor with long doubles.
    dtype = array.dtype.newbyteorder("=")
    if dtype.kind == "u" and dtype.itemsize > 1:
        dtype = np.dtype(np.int64)
    elif dtype.kind == "f" and dtype.itemsize > 8:
        dtype = np.dtype(np.float64)
    return torch.from_numpy(np.require(array, dtype, ["C", "W"]))


def as_array(tensor: Tensor) -> Any:
    """A tensor as a numpy array, wherever it lives; floating types become float64."""
    tensor = tensor.detach().cpu().resolve_conj().resolve_neg()
    return (tensor.double() if tensor.is_floating_point() else tensor).numpy()


def dtype_name(tensor: Tensor) -> str:
    """``float64``, whether the numbers came from numpy or from torch."""
    return str(tensor.dtype).removeprefix("torch.")


def _is_tensor(hint: Any) -> bool:
    return hint is Tensor or (Tensor in get_args(hint) and set(get_args(hint)) <= {Tensor, NoneType, float, int})


def _array(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.numpy()
    if isinstance(result, tuple):
        entries = [_array(entry) for entry in result]
        return type(result)(*entries) if hasattr(result, "_fields") else tuple(entries)
    return result
