"""Checks of model sizes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeVar

import torch
from torch import nn

LARGEST = 2**31 - 1
MOST_LAYERS = 1024  # of blocks and heads: beyond it, building the model would be the denial of service
FEWEST = {"classes": 2, "pad_id": 0}

Model = TypeVar("Model", bound=nn.Module)


def check_sizes(config: Any, names: Sequence[str]) -> None:
    """Refuse any of the named fields that is not a whole number, is too small (mostly below 1) or absurdly large."""
    for name in names:
        value, least = getattr(config, name), FEWEST.get(name, 1)
        most = MOST_LAYERS if name in ("blocks", "heads") else LARGEST
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}.")
        if not least <= value <= most:
            raise ValueError(f"{name} must be between {least} and {most}, got {value}.")


def without_memory(make: Callable[[Any], Model], config: Any) -> Model:
    """The model on torch's meta device, where weights have shapes but no numbers, so that any size is safe to look at.

    ValueError where a weight has more numbers than torch can count.
    """
    try:
        with torch.device("meta"):
            return make(config)
    except (RuntimeError, TypeError, OverflowError) as error:
        raise ValueError(f"{config} is larger than any machine's memory; choose smaller sizes.") from error
