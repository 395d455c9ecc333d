"""The layout of a block of trials in the compiled kernel: the trial is the last dimension of every array."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np


class Block(NamedTuple):
    """A block of L trials: its problem, and what a step carries from one part to the next."""

    X: Any  # (n, T, d, L)
    y: Any  # (n, L)
    z: Any  # (n, d, L)
    present: Any  # (n, T, L)     the mask
    alpha: Any  # (n, L)          selected tokens
    chosen: Any  # (n, d, L)      x_α
    offsets: Any  # (n, T, d, L)  x_t − x_α
    absent: Any  # (n, T, L)      −inf at α and at padding, 0 elsewhere
    gains: Any  # (n, T, L)       D_t
    own: Any  # (n, L)            y vᵀx_α
    weightless: Any  # (n,)       whether some D_t is zero where t ≠ α
    e: Any  # (n, T, L)
    s: Any  # (n, T, L)
    c: Any  # (n, L)
    slopes: Any  # (n, L)         log(−l')
    tokens: Any  # (T, L)         scratch
    features: Any  # (d, L)       scratch
    lanes: Any  # (4, L)          scratch
    entries: Any  # (d · d, L)    scratch
    powers: Any  # (d · d, L)     scratch


def make_block(X: Any, y: Any, z: Any, mask: Any) -> Block:
    """A block of the trials X (L, n, T, d), y (L, n), z (L, n, d), mask (L, n, T)."""
    L, n, T, d = X.shape

    def last(array: Any) -> Any:
        return np.ascontiguousarray(np.moveaxis(array, 0, -1))

    def room(*shape: int) -> Any:
        return np.zeros((*shape, L))

    first = mask.argmax(-1)  # a start: the first step selects what leads it
    chosen = np.take_along_axis(X, first[..., None, None], 2)
    return Block(
        X=last(X),
        y=last(y),
        z=last(z),
        present=last(mask),
        alpha=last(first),
        chosen=last(chosen[:, :, 0]),
        offsets=last(X - chosen),
        absent=last(np.where(mask & (np.arange(T) != first[..., None]), 0.0, -np.inf)),
        gains=room(n, T),
        own=room(n),
        weightless=np.zeros(n, dtype=np.bool_),
        e=room(n, T),
        s=room(n, T),
        c=room(n),
        slopes=room(n),
        tokens=room(T),
        features=room(d),
        lanes=room(4),
        entries=room(d * d),
        powers=room(d * d),
    )
