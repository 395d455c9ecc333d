"""Rows with class labels: texts or images, where they came from, and how a part of them is held out.

>>> texts = Texts(("a good film", "a bad one", "fine", "dull"), [1, 0, 1, 0])
>>> rest, held_out = split(texts, 0.5, seed=0)
>>> len(rest), len(held_out)
(2, 2)
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Generic, TypeVar

import numpy as np
import numpy.typing as npt

from mirrormax._checks import instance, integer, number

Labels = npt.NDArray[np.int64]
Indices = npt.NDArray[np.intp]


@dataclass(frozen=True, eq=False)
class Texts:
    """n texts and their labels (n,), numbers of classes."""

    texts: tuple[str, ...]
    labels: Labels

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "labels", _labels(self.labels, len(self.texts)))

    def __len__(self) -> int:
        return len(self.texts)

    def __str__(self) -> str:
        return f"{len(self):,} texts"

    def subset(self, indices: Sequence[int] | npt.NDArray[Any]) -> Texts:
        """The texts with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.intp)
        return Texts(tuple(self.texts[i] for i in chosen), self.labels[chosen])


@dataclass(frozen=True, eq=False)
class Images:
    """n images: pixels (n, C, H, W), bytes of 0 to 255, and labels (n,), numbers of classes."""

    pixels: npt.NDArray[np.uint8]
    labels: Labels

    def __post_init__(self) -> None:
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"pixels must be uint8 of shape (n, C, H, W), got {self.pixels.dtype} of shape {self.pixels.shape}."
            )
        object.__setattr__(self, "labels", _labels(self.labels, len(self.pixels)))

    def __len__(self) -> int:
        return len(self.pixels)

    def __str__(self) -> str:
        return f"{len(self):,} images of {' x '.join(map(str, self.pixels.shape[1:]))}"

    def subset(self, indices: Sequence[int] | npt.NDArray[Any]) -> Images:
        """The images with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.intp)
        return Images(self.pixels[chosen], self.labels[chosen])


def _labels(labels: Any, count: int) -> Labels:
    numbers: Labels = np.asarray(labels, dtype=np.int64)
    if numbers.shape != (count,):
        raise ValueError(f"labels must have shape ({count},), one for each row, got {numbers.shape}.")
    return numbers


Rows = TypeVar("Rows", Texts, Images)


@dataclass(frozen=True, eq=False)
class LabelledData(Generic[Rows]):
    """Rows to train on, the names of their classes, and the test rows of the source where there are any."""

    name: str
    classes: tuple[str, ...]
    train: Rows
    test: Rows | None

    def describe(self) -> str:
        """What was found, in one line."""
        test = "none" if self.test is None else str(self.test)
        return f"{self.name}: {self.train} to train on, {test} to test on, {len(self.classes)} classes"


TextData = LabelledData[Texts]
"""Texts to train on, the names of their classes, and test texts where there are any."""
ImageData = LabelledData[Images]
"""The same of images."""


def split(rows: Rows, fraction: float, seed: int) -> tuple[Rows, Rows]:
    """Part ``rows`` in (rest, held_out): a ``fraction`` of every class is held out.

    The share of a class is rounded to whole rows, but every class keeps a row in the rest. The parts are disjoint and
    keep the order of the rows; the same labels, fraction and seed give the same parts.
    """
    rest, held = split_indices(instance("rows", rows, (Texts, Images), "Texts or Images").labels, fraction, seed)
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
