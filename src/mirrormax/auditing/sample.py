"""A uniform sample of query rows from a stream of batches of unknown length."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
from torch import Tensor


@dataclass(frozen=True, eq=False)
class Row:
    """One query of one sequence as a layer sees it."""

    x: Tensor  # (T, d)   the tokens
    z: Tensor  # (d,)     the query
    mask: Tensor  # (T,)  where it may look
    gradient: Tensor | None  # (d,) of the model's log-odds at the layer's output; None without a head


@dataclass(eq=False)
class Kept:
    """One sampled row: where it stands in the data, its token numbers, and what each layer sees."""

    key: float
    sequence: int
    query: int
    ids: list[int] | None
    layers: list[Row]


class Sample:
    """Every row of the data draws a number from one seeded stream; the ``size`` smallest stay.

    That is a uniform sample without replacement, and the same for any way of cutting the data into batches.
    """

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.kept = size, list[Kept]()
        self._random = np.random.default_rng(seed)

    def draw(self, count: int) -> tuple[npt.NDArray[np.float64], list[int]]:
        """The numbers of the next ``count`` rows, and the indices of those that stay for now."""
        keys = self._random.random(count)
        if len(self.kept) + count <= self.size:
            return keys, list(range(count))
        pool = np.concatenate([[row.key for row in self.kept], keys])
        worst = np.partition(pool, self.size - 1)[self.size - 1]
        self.kept = [row for row in self.kept if row.key <= worst]
        return keys, [int(k) for k in np.flatnonzero(keys <= worst)]

    def rows(self) -> list[Kept]:
        """The sample in the order of the data."""
        return sorted(self.kept, key=lambda row: (row.sequence, row.query))
