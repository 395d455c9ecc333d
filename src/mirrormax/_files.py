"""Results as plain files that are either whole or not there."""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np


@contextmanager
def replacing(path: Path, *failures: type[Exception]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    ``failures`` are what a library raises instead of an OSError when it cannot write.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.stem}-", suffix=path.suffix)
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # else a power cut may leave the name without the contents
        temporary.chmod(0o666 & ~_umask())
        temporary.replace(path)
    except OSError as error:
        if error.filename is None and error.errno is not None:
            error.filename = str(path)  # a full disk does not say for which file it had no room
        raise
    except failures as error:
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise OSError(f"{path} could not be written ({reason}); make room on the disk, and start again.") from error
    finally:
        temporary.unlink(missing_ok=True)


def leftovers(path: Path) -> Iterator[Path]:
    """What writers of ``path`` that were killed have left beside it."""
    return path.parent.glob(f".{path.stem}-????????{path.suffix}")


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def save_arrays(path: Path, **arrays: Any) -> None:
    """Write an ``.npz``, all of it or nothing."""
    with replacing(path) as temporary:
        np.savez_compressed(temporary, **arrays)


def load_arrays(path: Path) -> dict[str, np.ndarray[Any, Any]]:
    """Read an ``.npz`` that holds numbers only; nothing in it is ever executed."""
    with np.load(path, allow_pickle=False) as file:
        return dict(file)


def save_json(path: Path, value: Any) -> None:
    """Write JSON, all of it or nothing."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(value, indent=2, sort_keys=True) + "\n", encoding="utf-8")


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``, which dies with the process; if another holds it, refuse or ``wait``."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        try:
            import fcntl
        except ModuleNotFoundError:  # not on this system: two writers at once are then the user's to avoid
            yield
            return
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            raise ValueError(f"another run is writing to {path.parent}; wait for it, or give another --out.") from error
        yield


def _umask() -> int:
    current = os.umask(0)
    os.umask(current)
    return current
