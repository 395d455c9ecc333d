"""Reading and writing ``.npz`` files: no pickles, one-sentence refusals, bounded sizes, nothing half-written."""

from __future__ import annotations

import lzma
import math
import struct
import zipfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._files import replacing
from mirrormax.data.files import check_unpacked

# What numpy and zipfile raise at damaged bytes; the file is open by then, so an OSError is of its contents too.
DAMAGE = (
    *(ValueError, EOFError, OSError, RuntimeError, KeyError, IndexError, TypeError, SyntaxError),
    *(MemoryError, OverflowError, struct.error, zipfile.BadZipFile, zlib.error, lzma.LZMAError),
)

LONGEST_HEADER = 10_000  # bytes, as numpy has it


def npz_names(path: str | Path, what: str = "problem file") -> list[str]:
    """The names of the arrays of an ``.npz`` file; none of them is unpacked."""
    with _archive(path, what) as archive:
        return list(archive.files)


def read_npz(
    path: str | Path, what: str = "problem file", names: Sequence[str] | None = None
) -> dict[str, npt.NDArray[Any]]:
    """All arrays of an ``.npz`` file, or those of these ``names`` that it has; the others are not unpacked.

    OSError or ValueError with one sentence if it is not one, or if it unpacks to more than a file of its size may.
    """
    with _archive(path, what) as archive:
        wanted = [name for name in archive.files if names is None or name in names]
        for name in wanted:
            _check_header(archive, name, f"of the {what} {path}")
        check_unpacked(sum(_declared(archive, name) for name in wanted), Path(path), what)
        return {name: _entry(archive, name, f"of the {what} {path}") for name in wanted}


@contextmanager
def _archive(path: str | Path, what: str) -> Iterator[Any]:
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"the {what} {path} does not exist; check the path.")
    if path.is_dir():
        raise IsADirectoryError(f"the {what} {path} is a directory; give a .npz file in it.")
    if not path.is_file():  # nobody may ever write to a pipe
        raise ValueError(f"the {what} {path} is a device, pipe or socket; give an .npz file.")
    with path.open("rb") as file:
        try:
            loaded = np.load(file, allow_pickle=False)
        except DAMAGE as error:
            raise ValueError(f"the {what} {path} is not an .npz file; write one with numpy.savez.") from error
        if not isinstance(loaded, np.lib.npyio.NpzFile):
            raise ValueError(f"the {what} {path} holds one array, not an .npz archive; write one with numpy.savez.")
        yield loaded


def _check_header(archive: Any, name: str, where: str) -> None:
    """Raise if a header says that it is longer than any is: numpy would unpack all of it before it looks at it."""
    try:
        with archive.zip.open(name if name in archive.zip.NameToInfo else f"{name}.npy") as entry:
            start = entry.peek(12)
    except DAMAGE:
        return  # which is told when it is read
    if start[6:7] > b"\1" and int.from_bytes(start[8:12], "little") > LONGEST_HEADER:
        raise ValueError(f"array {name!r} {where} cannot be read (it is damaged); write it again as plain numbers.")


def _declared(archive: Any, name: str) -> int:
    """Bytes that an entry says it has: of the archive, and of the array by its own header, without unpacking either."""
    try:
        with archive.zip.open(name if name in archive.zip.NameToInfo else f"{name}.npy") as entry:
            size: int = archive.zip.getinfo(entry.name).file_size
            version = np.lib.format.read_magic(entry)
            read = np.lib.format.read_array_header_1_0 if version == (1, 0) else np.lib.format.read_array_header_2_0
            shape, _, dtype = read(entry)
            return max(size, math.prod(shape) * dtype.itemsize)
    except DAMAGE:
        return 0  # which is told when it is read


def _entry(archive: Any, name: str, where: str) -> npt.NDArray[Any]:
    try:
        array = archive[name]
    except DAMAGE as error:
        raise ValueError(
            f"array {name!r} {where} cannot be read ({_reason(error)}); write it again as plain numbers."
        ) from error
    if not isinstance(array, np.ndarray):
        raise ValueError(f"entry {name!r} {where} is not an array; write the file with numpy.savez.")
    return array


def write_npz(path: str | Path, arrays: Mapping[str, npt.ArrayLike]) -> None:
    """Write an ``.npz`` file under exactly this name: whole, or not at all."""
    path = Path(path)
    if path.is_dir():
        raise IsADirectoryError(f"cannot write to {path}, which is a directory; give a file name in it.")
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the directory {path.parent} does not exist; create it first.")
    plain = {name: np.asarray(value) for name, value in arrays.items()}
    for name, array in plain.items():
        if array.dtype.hasobject:
            raise ValueError(f"array {name!r} holds Python objects, which no file of ours does; convert it to numbers.")
    with replacing(path) as temporary, temporary.open("wb") as file:
        np.savez(file, **plain)  # type: ignore[arg-type]


def _reason(error: Exception) -> str:
    if isinstance(error, (MemoryError, OverflowError)):
        return "it claims to be larger than memory"
    return "it holds Python objects" if "allow_pickle" in str(error) else "it is damaged"
