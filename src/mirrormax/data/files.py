"""Where data files lie, and how their bytes, text, columns and arrays are read: strictly, and within bounds.

A file may unpack to 1 GiB or to ten times its own size, whichever is more: what a few hundred kilobytes claim to hold
must not fill the memory. Sizes are checked as they are declared, before anything is unpacked. Nothing is unpickled.
"""

from __future__ import annotations

import csv
import io
import lzma
import os
import reprlib
import struct
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._checks import as_path
from mirrormax._extras import extra

VARIABLE = "MIRRORMAX_DATA"
UNPACKED, RATIO = 2**30, 10
LONGEST_TEXT = 1_000_000  # characters; a longer "text" is a whole library, or a damaged file
LONGEST_FIELD = 2**24  # of columns that are not asked for
# What numpy and zipfile raise at damaged bytes; the file is open by then, so an OSError is of its contents too.
DAMAGE = (
    *(ValueError, EOFError, OSError, RuntimeError, KeyError, IndexError, TypeError, SyntaxError),
    *(MemoryError, OverflowError, struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)


def resolve_data_dir(data_dir: str | Path | None = None) -> Path | None:
    """The directory of the data sets: as given, else of the environment's MIRRORMAX_DATA, else None."""
    given = data_dir if data_dir is not None else os.environ.get(VARIABLE)
    if given is None or str(given) == "":
        return None
    path = Path(given).expanduser()
    name = "data_dir" if data_dir is not None else f"the environment's {VARIABLE}"
    if not path.exists():
        raise FileNotFoundError(f"{name} is {path}, which does not exist; give the directory of the data sets.")
    if not path.is_dir():
        raise NotADirectoryError(f"{name} is {path}, which is a file; give the directory that holds the data sets.")
    return path


def check_file(path: Path, what: str) -> None:
    """Refuse a path that is missing, a directory or empty, before any library words it differently."""
    if not path.exists():
        raise FileNotFoundError(f"the {what} {path} does not exist; check the path.")
    if not path.is_file():
        raise IsADirectoryError(f"the {what} {path} is not a file; give a file.")
    if path.stat().st_size == 0:
        raise ValueError(f"the {what} {path} is empty; get it again.")


def check_unpacked(size: int, path: Path, what: str) -> None:
    """Refuse a file that unpacks to more bytes than are read of one of its size."""
    if size > max(UNPACKED, RATIO * path.stat().st_size):
        raise ValueError(
            f"the {what} {path} cannot be read: its {path.stat().st_size:,} bytes unpack to {size:,}, and more than "
            f"{UNPACKED:,} must not be packed so tightly; write it again without compression."
        )


def read_bytes(path: Path, what: str) -> bytes:
    """All bytes of a file that is there, is a file and is not empty."""
    check_file(path, what)
    return path.read_bytes()


def read_utf8(path: Path, what: str) -> str:
    """The text of a UTF-8 file without its byte-order mark; undecodable or NUL bytes are refused by line."""
    content = read_bytes(path, what)
    try:
        text = content.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = content.count(b"\n", 0, error.start) + 1
        raise ValueError(
            f"line {line} of the {what} {path} is not UTF-8 (byte {content[error.start]:#04x}); convert it to UTF-8."
        ) from error
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise ValueError(f"line {line} of the {what} {path} holds a NUL byte; it is no text file.")
    return text


def read_columns(path: Path, columns: Sequence[str], what: str) -> list[list[Any]]:
    """The named columns of a ``.parquet`` file, or of any other as CSV, each a list of all rows' values.

    The first line of CSV holds the names of the columns. Blank lines are skipped. A row with more or fewer fields than
    there are names, a quote that is never closed, or a field of more than 16,777,216 characters is refused by row:
    pyarrow's reader takes an open quote for a text.
    """
    if path.suffix.lower() == ".parquet":
        return _read_parquet(path, columns, what)
    where, rows = f"the {what} {path}", list[dict[str, str]]()
    limit = csv.field_size_limit(LONGEST_FIELD)  # global, so it is put back
    try:
        reader = csv.DictReader(io.StringIO(read_utf8(path, what), newline=""), strict=True)
        for column in columns:
            check_column(reader.fieldnames or [], column, where)
        for row in reader:
            if None in row or None in row.values():
                raise ValueError(
                    f"row {len(rows) + 1} of {where} has more or fewer fields than names; check its quotes."
                )
            rows.append({column: row[column] for column in columns})
    except csv.Error as error:
        raise ValueError(f"row {len(rows) + 1} of {where} cannot be read ({error}); check its quotes.") from error
    finally:
        csv.field_size_limit(limit)
    return [[row[column] for row in rows] for column in columns]


def _read_parquet(path: Path, columns: Sequence[str], what: str) -> list[list[Any]]:
    """The values are plain Python objects, None where a row is null."""
    with extra("train"):
        import pyarrow as pa
        import pyarrow.parquet as pq
    check_file(path, what)
    where = f"the {what} {path}"
    with path.open("rb") as handle:  # so that what goes wrong below is in the file's contents
        try:
            file = pq.ParquetFile(handle)
            for column in columns:
                check_column(file.schema_arrow.names, column, where)
            check_unpacked(_declared(file.metadata, columns), path, what)
            # Equal strings are declared once and stay one, until it is known how much all rows have.
            flat = {file.schema.column(k).path for k in range(len(file.schema))}
            packed = pq.ParquetFile(handle, read_dictionary=[column for column in columns if column in flat])
            table = packed.read(columns=list(columns))
            table.validate(full=True)  # strings are UTF-8, and places are within their dictionaries
            parts = (part for column in columns for part in table.column(column).chunks)
            check_unpacked(sum(map(_unpacked, parts)), path, what)
            return [table.column(column).to_pylist() for column in columns]
        except (pa.ArrowException, OSError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError(f"{where} is damaged or not a parquet file ({reason}); get or write it again.") from error


def _declared(metadata: Any, columns: Sequence[str]) -> int:
    """Bytes that the file's own tables declare for these columns, with 8 for every value at least."""
    total = 0
    for group in (metadata.row_group(k) for k in range(metadata.num_row_groups)):
        for chunk in (group.column(k) for k in range(group.num_columns)):
            if chunk.path_in_schema.split(".")[0] in columns:
                total += max(chunk.total_uncompressed_size, 8 * chunk.num_values, 8 * group.num_rows)
    return total


def _unpacked(part: Any) -> int:
    """Bytes of the values of all rows, also where equal ones are kept once."""
    import pyarrow.compute as pc

    if not hasattr(part, "dictionary"):
        return int(part.nbytes)
    return int(pc.sum(pc.binary_length(part.dictionary).take(part.indices)).as_py() or 0)


def check_column(names: Sequence[str], column: str, where: str) -> None:
    """Refuse a column that a table does not have, or has twice."""
    if list(names).count(column) != 1:
        many = "more than one" if column in names else "no"
        raise ValueError(f"{where} has {many} column {column!r} among {reprlib.repr(names)}; name one of these.")


def read_npz(path: str | Path, what: str = "problem file") -> dict[str, npt.NDArray[Any]]:
    """All arrays of an ``.npz`` file.

    OSError or ValueError with one sentence if it is not one, or if it unpacks to more than a file of its size may.
    """
    path = as_path("path", path)
    check_file(path, what)
    with path.open("rb") as file:
        try:
            unpacked = sum(entry.file_size for entry in zipfile.ZipFile(file).infolist())
        except DAMAGE as error:
            raise ValueError(f"the {what} {path} is not an .npz file; write one with numpy.savez.") from error
        check_unpacked(unpacked, path, what)
        file.seek(0)
        name, arrays = "", dict[str, npt.NDArray[Any]]()
        try:
            archive: Any = np.load(file, allow_pickle=False)
            for name in archive.files:
                arrays[name] = np.asarray(archive[name])
        except DAMAGE as error:
            reason = (
                "it holds Python objects" if "allow_pickle" in str(error) else "it is damaged, or larger than memory"
            )
            raise ValueError(
                f"array {name!r} of the {what} {path} cannot be read ({reason}); write it again as plain numbers."
            ) from error
    return arrays
