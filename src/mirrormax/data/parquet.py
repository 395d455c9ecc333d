"""Columns of a parquet file, read strictly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirrormax.data.sources import check_file


def read_parquet(path: Path, columns: Sequence[str], what: str = "parquet file") -> list[list[Any]]:
    """The named columns, each a list of all rows' values as plain Python objects (None where a row is null)."""
    check_file(path, what)
    try:
        # The file's own columns alone: a file in a folder "label=1" gets no column "label" from that name.
        with pq.ParquetFile(path) as file:
            names = file.schema_arrow.names
            for column in columns:
                _check_column(names, column, f"the {what} {path}")
            table = file.read(columns=list(columns))
        return [table.column(column).to_pylist() for column in columns]
    except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
        reason = str(error).splitlines()[0].rstrip(".") if str(error) else type(error).__name__
        raise ValueError(f"the {what} {path} is damaged or not a parquet file ({reason}); write it again.") from error


def _check_column(names: list[str], column: str, where: str) -> None:
    if names.count(column) != 1:
        many = "has no column" if column not in names else "has more than one column"
        raise ValueError(f"{where} {many} {column!r}, but {names}; name the column that you mean.")
