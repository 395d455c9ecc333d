"""Checks of model sizes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

LARGEST = 2**31 - 1
MOST_LAYERS = 1024  # of blocks and heads: beyond it, building the model would be the denial of service


def check_sizes(config: Any, names: Sequence[str]) -> None:
    """Refuse any of the named fields that is not a whole number of at least 1, or absurdly large."""
    for name in names:
        value, most = getattr(config, name), MOST_LAYERS if name in ("blocks", "heads") else LARGEST
        if isinstance(value, bool) or not isinstance(value, int):
            raise TypeError(f"{name} must be a whole number, got {value!r}.")
        if not 1 <= value <= most:
            raise ValueError(f"{name} must be between 1 and {most}, got {value}.")
