"""Answers in kind: numpy in, numpy out; tensors in, tensors out."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, TypeVar

import numpy as np
import torch

F = TypeVar("F", bound=Callable[..., Any])


def in_kind(function: F) -> F:
    """Let a function of tensors take numpy arrays (or nested lists) too, and answer in kind."""

    @functools.wraps(function)
    def wrapper(*args: Any, **kwargs: Any) -> Any:
        arrays = [a for a in (*args, *kwargs.values()) if isinstance(a, (np.ndarray, list))]
        if not arrays:
            return function(*args, **kwargs)
        tensors = any(isinstance(a, torch.Tensor) for a in (*args, *kwargs.values()))
        result = function(*map(_tensor, args), **{k: _tensor(v) for k, v in kwargs.items()})
        return result if tensors else result.numpy()

    return wrapper  # type: ignore[return-value]


def _tensor(value: Any) -> Any:
    if not isinstance(value, (np.ndarray, list)):
        return value
    array = np.asarray(value)
    return torch.from_numpy(array if array.dtype.kind == "f" else array.astype(np.float64))
