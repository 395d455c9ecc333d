"""Holding out a part of labelled data, class by class."""

from __future__ import annotations

from typing import Any, Protocol, TypeVar

import numpy as np
import numpy.typing as npt

from mirrormax._checks import integer, number

Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]


class Labelled(Protocol):
    """Rows with labels of which some can be taken."""

    @property
    def labels(self) -> Labels: ...

    def subset(self, indices: Any) -> Any: ...


Rows = TypeVar("Rows", bound=Labelled)


def split(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Part ``rows`` in (rest, held_out): a ``fraction`` of every class is held out.

    The share of a class is rounded to whole rows, but every class keeps a row in the rest. The parts are disjoint and
    keep the order of the rows; the same labels, fraction and seed give the same parts.
    """
    rest, held = split_indices(rows.labels, fraction, seed)
    return rows.subset(rest), rows.subset(held)


def split_indices(labels: Labels, fraction: float, seed: int) -> tuple[Indices, Indices]:
    """The sorted indices of the rest and of the held-out rows; see :func:`split`."""
    fraction = number("fraction", fraction, above=0.0, below=1.0)
    generator = np.random.default_rng(integer("seed", seed, at_least=0))
    held = np.zeros(len(labels), dtype=bool)
    for label in np.unique(labels):
        members = generator.permutation(np.flatnonzero(labels == label))
        held[members[: min(round(fraction * len(members)), len(members) - 1)]] = True
    if not held.any():
        raise ValueError(f"fraction {fraction!r} holds out none of the {len(labels)} rows; give a larger one.")
    return np.flatnonzero(~held), np.flatnonzero(held)
