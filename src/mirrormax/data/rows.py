"""What a row of labelled text must be."""

from __future__ import annotations

import reprlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from mirrormax.data.text import Texts

SENTIMENTS = ("negative", "positive")
BINARY: Mapping[Any, int] = {0: 0, 1: 1, "0": 0, "1": 1}


def check_texts(texts: Sequence[Any], where: str) -> None:
    """Refuse the first text that is no string or says nothing."""
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            found = "null" if text is None else type(text).__name__
            raise ValueError(f"row {row} of {where} has no text but {found}; give every row a text.")
        if not text.strip():
            raise ValueError(f"row {row} of {where} has an empty text; leave the row out.")


def sentiment_texts(texts: Sequence[Any], labels: Sequence[Any], where: str) -> Texts:
    """Texts whose labels are 0 (negative) or 1 (positive)."""
    check_texts(texts, where)
    for row, label in enumerate(labels, start=1):
        if isinstance(label, bool) or not isinstance(label, (int, str)) or label not in BINARY:
            raise ValueError(
                f"row {row} of {where} has the label {reprlib.repr(label)}; it must be 0 (negative) or 1 (positive)."
            )
    return Texts(tuple(texts), np.array([BINARY[label] for label in labels], dtype=np.int64))


def check_both_sentiments(texts: Texts, where: str) -> None:
    """Refuse texts of one class alone, of which nothing can be learnt."""
    if len(np.unique(texts.labels)) < len(SENTIMENTS):
        raise ValueError(f"{where} has reviews of fewer than two classes; get all of it.")
