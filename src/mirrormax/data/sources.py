"""Where data lies, and what every reader asks of a file before it opens it."""

from __future__ import annotations

import os
import reprlib
from collections.abc import Sequence
from pathlib import Path

VARIABLE = "MIRRORMAX_DATA"


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


def read_bytes(path: Path, what: str) -> bytes:
    """All bytes of a file that is there, is a file and is not empty."""
    check_file(path, what)
    return path.read_bytes()


def check_file(path: Path, what: str) -> None:
    """Refuse a path that is missing, a directory or empty, before any library words it differently."""
    if not path.exists():
        raise FileNotFoundError(f"the {what} {path} does not exist; check the path.")
    if not path.is_file():
        raise IsADirectoryError(f"the {what} {path} is not a file; give a file.")
    if path.stat().st_size == 0:
        raise ValueError(f"the {what} {path} is empty; get it again.")


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


def check_column(names: Sequence[str], column: str, where: str) -> None:
    """Refuse a column that a table does not have, or has twice."""
    if list(names).count(column) != 1:
        many = "more than one" if column in names else "no"
        raise ValueError(f"{where} has {many} column {column!r} among {reprlib.repr(names)}; name one of these.")
