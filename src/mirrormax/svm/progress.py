"""Which members of a batch are still being worked on, and the best of each so far."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from mirrormax.svm.rows import Array, Index

Bools = npt.NDArray[np.bool_]


class Progress:
    """Keeps, for every member, the arrays with the smallest relative gap, that gap, and the iterations it took.

    A member is done when its gap is at most ``tol``, or has not become clearly better for ``patience``
    iterations. An infeasible point (gap above 1) cannot be said to stall.
    """

    def __init__(self, tol: float, patience: int, *arrays: Array) -> None:
        size = len(arrays[0])
        self.tol, self.patience = tol, patience
        self.arrays = tuple(array.copy() for array in arrays)
        self.gap, self.iterations = np.full(size, np.inf), np.zeros(size, dtype=np.intp)
        self._alive = np.arange(size)
        self._best, self._gap = arrays, np.full(size, np.inf)
        self._since, self._last = np.zeros(size, dtype=np.intp), np.zeros(size, dtype=np.intp)

    def record(self, step: int, gap: Array, *arrays: Array) -> Bools:
        """Take note of a new iterate of the members at work; which of them are done."""
        better = gap < self._gap
        if better.all():
            self._best = arrays
        elif better.any():
            chosen = better[:, None]
            self._best = tuple(np.where(chosen, new, old) for new, old in zip(arrays, self._best, strict=True))
        self._since = np.where((gap < 0.9 * self._gap) | (gap > 1), 0, self._since + 1)
        self._last = np.where(self._gap <= self.tol, self._last, step)
        self._gap = np.minimum(gap, self._gap)
        return (self._gap <= self.tol) | (self._since > self.patience)

    def retire(self, done: Bools) -> Index:
        """Put the members that are done away; the positions of the others."""
        for array, best in zip(self.arrays, self._best, strict=True):
            array[self._alive] = best
        self.gap[self._alive], self.iterations[self._alive] = self._gap, self._last
        keep = np.flatnonzero(~done)
        self._alive, self._best = self._alive[keep], tuple(best[keep] for best in self._best)
        self._gap, self._since, self._last = self._gap[keep], self._since[keep], self._last[keep]
        return keep

    def finish(self) -> None:
        """Put everything away."""
        self.retire(np.ones(len(self._alive), dtype=bool))
