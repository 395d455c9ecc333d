"""Selections of tokens, one for each sample, as places from which to look for minimisers.

The risk is not convex. At a large radius attention is all but decided, and each local minimum stands near the attention
SVM of its own selection α; which of them is lowest changes with the radius, since a selection of slightly worse tokens
with a much wider margin has the lower risk until the radius is large. So all selections are looked at where there are
at most ``ENUMERATED``; else the ``SWAPS`` best of those that differ from a centre in one token, and once more around
the selection of whatever was best, until that is a centre already. Of those looked at, the ``TRIED`` of lowest risk are
starts beside others; each start has ``LOOK`` iterations, and the ``FINISHED`` lowest are followed to their minimum.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from math import prod
from typing import Any

import numpy as np

from mirrormax.dynamics.paths.minimisation import Array
from mirrormax.svm import att_svm

ENUMERATED = 256
SWAPS = 64
TRIED = 4
LOOK = 40
FINISHED = 2

Selection = tuple[int, ...]


class Selections:
    """The selections of one problem X (n, T, d), z (n, d), mask (n, T), and their attention SVMs, solved when asked."""

    def __init__(self, X: Array, z: Array, mask: Any, p: float) -> None:
        self.X, self.z, self.mask, self.p = X, z, mask, p
        self.tokens = [np.flatnonzero(row).tolist() for row in mask]
        self.count = prod(len(row) for row in self.tokens)
        self.known: dict[Selection, Array | None] = {}
        self.centres: set[Selection] = set()

    @property
    def all(self) -> bool:
        """Whether there are so few that each one is looked at."""
        return self.count <= ENUMERATED

    def around(self, centre: Sequence[int], scores: Array) -> None:
        """Look at ``centre`` and its neighbours of the best ``scores`` (n, T); or at all, if they are few."""
        self.centres.add(tuple(centre))
        found = list(product(*self.tokens)) if self.all else [tuple(centre), *self._swaps(tuple(centre), scores)]
        new = [alpha for alpha in found if alpha not in self.known]
        if new:
            solution = att_svm(self.X, self.z, np.array(new), p=self.p, mask=self.mask, throw=False)
            solved = zip(new, np.asarray(solution.optimal), solution.W, strict=True)
            self.known |= {alpha: W if optimal else None for alpha, optimal, W in solved}

    def knows(self, centre: Sequence[int]) -> bool:
        """Whether all that is to be looked at around ``centre`` has been."""
        return self.all or tuple(centre) in self.centres

    def _swaps(self, centre: Selection, scores: Array) -> list[Selection]:
        lost = {(i, t): float(scores[i, centre[i]] - scores[i, t]) for i, row in enumerate(self.tokens) for t in row}
        others = sorted((pair for pair in lost if pair[1] != centre[pair[0]]), key=lambda pair: lost[pair])
        return [(*centre[:i], t, *centre[i + 1 :]) for i, t in others[:SWAPS]]

    def solved(self) -> Iterator[tuple[Selection, Array]]:
        """Selections that have an attention SVM, and its weights."""
        return ((alpha, W) for alpha, W in self.known.items() if W is not None)

    def searched(self) -> str:
        """What has been looked at, in words."""
        solved = sum(W is not None for W in self.known.values())
        if self.all:
            return f"all {self.count} selections of tokens ({solved} have an attention SVM)"
        return (
            f"{len(self.known)} of {self.count:.3g} selections of tokens: single swaps around {len(self.centres)} "
            f"({solved} have an attention SVM)"
        )


def lowest(values: dict[str, float], count: int) -> list[str]:
    """The names of the ``count`` smallest values."""
    return sorted(values, key=lambda name: values[name])[:count]


def name_of(alpha: Selection) -> str:
    """As it stands in ``RegularizationPath.start``."""
    return f"selection {' '.join(map(str, alpha))}"
