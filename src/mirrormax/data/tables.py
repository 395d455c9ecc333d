"""A user's own table of labelled texts: CSV or parquet, two or more classes."""

from __future__ import annotations

import re
import reprlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax.data.csvfile import read_csv
from mirrormax.data.rows import check_texts
from mirrormax.data.text import TextData, Texts

INTEGER = re.compile(r"-?[0-9]{1,18}")


def load_table(path: Path, text_column: str = "text", label_column: str = "label") -> TextData:
    """Texts and classes from two columns of a file.

    The classes are the labels that occur, sorted: as numbers where all are integers, else as strings.
    """
    if text_column == label_column:
        raise ValueError(f"text_column and label_column are both {text_column!r}; name two columns.")
    where = f"the table {path}"
    texts, labels = _columns(path, [text_column, label_column])
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


def _columns(path: Path, columns: list[str]) -> Sequence[list[Any]]:
    if path.suffix.lower() == ".csv":
        return read_csv(path, columns, "table")
    from mirrormax.data.parquet import read_parquet  # pyarrow is needed for parquet alone

    return read_parquet(path, columns, "table")


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
