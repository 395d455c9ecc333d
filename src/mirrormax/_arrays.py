"""Answers in kind: numpy in, numpy out; tensors in, tensors out."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any, TypeVar, get_args, get_type_hints

import numpy as np
import torch
from torch import Tensor

F = TypeVar("F", bound=Callable[..., Any])


def in_kind(function: F) -> F:
    """Let a function of tensors take numpy arrays (or nested lists or tuples) too, and answer in kind.

    Only the parameters annotated ``Tensor`` (or ``Tensor | None``, ``float | Tensor``) are converted,
    so a list of dimensions stays a list. Integers and booleans keep their type. One tensor among the
    arguments is enough to get tensors back; tuples and named tuples are answered entry by entry.
    """
    hints = get_type_hints(function)
    names = list(inspect.signature(function).parameters)
    takes_tensor = {name for name in names if Tensor in (hints.get(name), *get_args(hints.get(name)))}

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        if len(args) > len(names):
            return function(*args, **kwargs)  # which says so better than we could
        given = [*zip(names, args, strict=False), *kwargs.items()]
        values = [value for name, value in given if name in takes_tensor]
        if not any(isinstance(value, (np.ndarray, list, tuple)) for value in values):
            return function(*args, **kwargs)
        args = tuple(_tensor(names[i], a) if names[i] in takes_tensor else a for i, a in enumerate(args))
        kwargs = {name: _tensor(name, a) if name in takes_tensor else a for name, a in kwargs.items()}
        result = function(*args, **kwargs)
        return result if any(isinstance(value, Tensor) for value in values) else _array(result)

    return wrapper  # type: ignore[return-value]


def _tensor(name: str, value: Any) -> Any:
    if not isinstance(value, (np.ndarray, list, tuple)):
        return value
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


def _array(result: Any) -> Any:
    if isinstance(result, Tensor):
        return result.numpy()
    if isinstance(result, tuple):
        entries = [_array(entry) for entry in result]
        return type(result)(*entries) if hasattr(result, "_fields") else tuple(entries)
    return result
