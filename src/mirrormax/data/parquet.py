"""Columns of a parquet file, read strictly."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from mirrormax.data.sources import check_column, check_file


def read_parquet(path: Path, columns: Sequence[str], what: str = "parquet file") -> list[list[Any]]:
    """The named columns, each a list of all rows' values as plain Python objects (None where a row is null)."""
    check_file(path, what)
    with path.open("rb") as handle:  # so that what goes wrong below is in the file's contents
        try:
            file = pq.ParquetFile(handle)
            names = file.schema_arrow.names
            for column in columns:
                check_column(names, column, f"the {what} {path}")
            table = file.read(columns=list(columns))
            return [_values(table.column(column), f"the {what} {path}") for column in columns]
        except (pa.ArrowException, UnicodeDecodeError, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError(
                f"the {what} {path} is damaged or not a parquet file ({reason}); get or write it again."
            ) from error


def _values(column: pa.ChunkedArray, where: str) -> list[Any]:
    try:
        return list(column.to_pylist())
    except UnicodeDecodeError:  # parquet does not check its strings; find the row that the library does not name
        for row, value in enumerate(column, start=1):
            try:
                value.as_py()
            except UnicodeDecodeError as error:
                raise ValueError(f"row {row} of {where} is not UTF-8; write it again from decoded text.") from error
        raise
