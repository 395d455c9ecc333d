"""Columns of a CSV file, read strictly."""

from __future__ import annotations

import csv
import io
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

from mirrormax.data.sources import check_column, read_utf8

LONGEST_FIELD = 2**31 - 1  # the largest limit that every platform's csv module takes


def read_csv(path: Path, columns: Sequence[str], what: str = "CSV file") -> list[list[str]]:
    """The named columns, each a list of all rows' fields; the first line holds the names of the columns.

    Blank lines are skipped. A row with more or fewer fields than there are names, or a quote that is never closed,
    is refused by row.
    """
    with _long_fields(), io.StringIO(read_utf8(path, what), newline="") as file:
        rows = _rows(csv.reader(file, strict=True), f"the {what} {path}")
        header = next(rows, [])
        for column in columns:
            check_column(header, column, f"the {what} {path}")
        places = [header.index(column) for column in columns]
        found: list[list[str]] = [[] for _ in columns]
        for row in rows:
            for values, place in zip(found, places, strict=True):
                values.append(row[place])
    return found


def _rows(reader: Iterator[list[str]], where: str) -> Iterator[list[str]]:
    """The header and then every row, of the header's length."""
    count, width = 0, 0
    while True:
        try:
            row = next(reader)
        except StopIteration:
            return
        except csv.Error as error:
            raise ValueError(f"row {count} of {where} cannot be read ({error}); check its quotes.") from error
        if not row:
            continue
        width = width or len(row)
        if len(row) != width:
            raise ValueError(f"row {count} of {where} has {len(row)} fields, not {width}; check its quotes and commas.")
        yield row
        count += 1


@contextmanager
def _long_fields() -> Iterator[None]:
    """Let fields be longer than the csv module's 131,072 characters; its limit is global, so it is put back."""
    before = csv.field_size_limit(LONGEST_FIELD)
    try:
        yield
    finally:
        csv.field_size_limit(before)
