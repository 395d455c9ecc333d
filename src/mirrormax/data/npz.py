"""Reading and writing ``.npz`` files: no pickles, one-sentence refusals, nothing half-written."""

from __future__ import annotations

import contextlib
import os
import tempfile
import zipfile
import zlib
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt


def read_npz(path: str | Path, what: str = "problem file") -> dict[str, npt.NDArray[Any]]:
    """All arrays of an ``.npz`` file; OSError or ValueError with one sentence if it is not one."""
    path = Path(path)
    if not path.exists():
        raise FileNotFoundError(f"the {what} {path} does not exist; check the path.")
    if path.is_dir():
        raise IsADirectoryError(f"the {what} {path} is a directory; give a .npz file in it.")
    try:
        loaded = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, zipfile.BadZipFile) as error:
        raise ValueError(f"the {what} {path} is not an .npz file; write one with numpy.savez.") from error
    if not isinstance(loaded, np.lib.npyio.NpzFile):
        raise ValueError(f"the {what} {path} holds one array, not an .npz archive; write one with numpy.savez.")
    arrays = {}
    with loaded:
        for name in loaded.files:
            try:
                arrays[name] = loaded[name]
            except (ValueError, EOFError, zipfile.BadZipFile, zlib.error, NotImplementedError) as error:
                raise ValueError(
                    f"array {name!r} of the {what} {path} cannot be read ({_reason(error)}); "
                    "write it again as plain numbers."
                ) from error
            if not isinstance(arrays[name], np.ndarray):
                raise ValueError(f"entry {name!r} of the {what} {path} is not an array; write it with numpy.savez.")
    return arrays


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
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.", suffix=".tmp")
    try:
        with os.fdopen(handle, "wb") as file:
            np.savez(file, **plain)  # type: ignore[arg-type]
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o666 & ~_umask())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(FileNotFoundError):
            os.unlink(temporary)
        raise


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def _reason(error: Exception) -> str:
    return "it holds Python objects" if "allow_pickle" in str(error) else "it is damaged"
