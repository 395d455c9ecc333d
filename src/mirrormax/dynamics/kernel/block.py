"""The memory of a block of trials in the compiled kernel: rows of WIDTH numbers, one per trial."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch

from mirrormax.dynamics.kernel.lanes import WIDTH
from mirrormax.problem import relative_to

Array = Any


class Layout(NamedTuple):
    """The sizes of a problem, and the first row of each of its arrays."""

    n: int
    T: int
    d: int
    X: int  # (n, T, d)
    y: int  # (n,)
    z: int  # (n, d)
    padding: int  # (n, T)     −inf where there is no token, 0 elsewhere
    chosen: int  # (n, d)      x_α
    offsets: int  # (n, T, d)  x_t − x_α
    absent: int  # (n, T)      −inf at α and at padding, 0 elsewhere
    gains: int  # (n, T)       D_t
    own: int  # (n,)           y vᵀx_α
    weightless: int  # (n,)    1 where some D_t is zero for a t ≠ α
    e: int  # (n, T)           e_t
    unmoved: int  # (n, T)     e^{r_t} where D_t = 0
    drive: int  # (n,)         Σ_t e_t D_t
    boost: int  # (n,)         s_t / e_t
    share: int  # (n,)         1 / (1 + rest)
    c: int  # (n,)
    slopes: int  # (n,)        log(−l')
    tokens: int  # (T,)        scratch
    query: int  # (d,)         Wz
    pulls: int  # (n, d)       Σ_t pulls_t (x_t − x_α)
    scale: int  # ()           of the gradient
    largest: int  # ()         |entry| of the gradient
    moved: int  # ()           0 where no weight moved
    breaks: int  # ()          not 0 where a weight is not finite
    lr: int  # ()
    lr_v: int  # ()
    W: int  # (2, d, d)        weights, and their dual variables
    new_W: int  # (2, d, d)
    G: int  # (d, d)           gradient
    v: int  # (2, d)           head, and its dual variables
    new_v: int  # (2, d)
    g: int  # (d,)
    rows: int


def layout_of(n: int, T: int, d: int) -> Layout:
    """One array after the other."""
    shapes = {
        **dict.fromkeys(("X", "offsets"), n * T * d),
        **dict.fromkeys(("z", "chosen", "pulls"), n * d),
        **dict.fromkeys(("padding", "absent", "gains", "e", "unmoved"), n * T),
        **dict.fromkeys(("y", "own", "weightless", "drive", "boost", "share", "c", "slopes"), n),
        **dict.fromkeys(("W", "new_W"), 2 * d * d),
        **dict.fromkeys(("v", "new_v"), 2 * d),
        **dict.fromkeys(("scale", "largest", "moved", "breaks", "lr", "lr_v"), 1),
        **dict.fromkeys(("query", "g"), d),
        "tokens": T,
        "G": d * d,
    }
    starts, rows = first_rows(Layout._fields[3:-1], shapes)
    return Layout(n, T, d, **starts, rows=rows)


def first_rows(names: Sequence[str], sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The first row of each array when they stand one after the other, and how many rows there are."""
    starts, rows = {}, 0
    for name in names:
        starts[name], rows = rows, rows + sizes[name]
    return starts, rows


class Memory:
    """Blocks for the trials X (B, n, T, d), z (B, n, d), mask (B, n, T): their rows, and how to find them.

    The last block is filled up with copies of its last trial. ``rows`` (blocks, layout.rows, WIDTH) are those to use.
    """

    def __init__(self, X: Array, z: Array, mask: Array, layout: Any, rows: Array | None = None) -> None:
        self.trials, self.layout = len(X), layout
        self.rows = np.zeros((-(-self.trials // WIDTH), layout.rows, WIDTH)) if rows is None else rows
        first = mask.argmax(-1)  # a start: the first step selects what leads it
        chosen, offsets, rivals = (
            t.numpy() for t in relative_to(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (X, first, mask)))
        )
        self.write("X", X)
        self.write("z", z)
        self.write("padding", np.where(mask, 0.0, -np.inf))
        self.write("chosen", chosen)
        self.write("offsets", offsets)
        self.write("absent", np.where(rivals, 0.0, -np.inf))

    def write(self, name: str, values: Array, part: int = 0) -> None:
        """Set an array, or the second of its two, from its values for each trial (B, ...)."""
        blocks = len(self.rows)
        filled = self.fill(values).reshape(blocks, WIDTH, -1).swapaxes(1, 2)
        start = getattr(self.layout, name) + part * filled.shape[1]
        self.rows[:, start : start + filled.shape[1]] = filled

    def read(self, name: str, like: Array, part: int = 0) -> Array:
        """The array again, in the shape (B, ...) of ``like``."""
        size = like[0].size
        start = getattr(self.layout, name) + part * size
        values = self.rows[:, start : start + size].swapaxes(1, 2)
        return values.reshape(-1, size)[: self.trials].reshape(like.shape)

    def fill(self, values: Array) -> Array:
        """The values for each trial, the last repeated until blocks are full."""
        return np.concatenate([values, np.repeat(values[-1:], len(self.rows) * WIDTH - len(values), 0)])
