"""Single files that are either whole or not there, and the lock that keeps two writers apart.

Nothing here follows a link to a file or writes to anything but a regular file: what stands at a path that was given
may be somebody's only copy.
"""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import os
import platform
import shlex
import stat
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

PREFIX = ".mirrormax-"
"""Begins the name of every temporary file: ``.mirrormax-????????-NAME`` becomes ``NAME``."""
LOCK_MARK = '{"mirrormax lock"'


@contextmanager
def replacing(path: Path, *failures: type[Exception]) -> Iterator[Path]:
    """A temporary path beside ``path`` that takes its place when the block ends without an error.

    ``failures`` are what a library raises instead of an OSError when it cannot write.
    """
    refuse_irregular(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=PREFIX, suffix=f"-{path.name}")
    os.close(handle)
    temporary = Path(name)
    try:
        yield temporary
        with temporary.open("rb") as file:
            os.fsync(file.fileno())  # else a power cut may leave the name without the contents
        umask = os.umask(0)  # which is read by setting it
        os.umask(umask)
        temporary.chmod(0o666 & ~umask)
        refuse_irregular(path)  # it may have become a link in the meantime
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


def refuse_irregular(path: Path) -> None:
    """Raise ValueError if something stands at ``path`` that is no regular file: a link, a device, a folder."""
    try:
        mode = path.lstat().st_mode
    except (FileNotFoundError, NotADirectoryError):
        return
    if stat.S_ISLNK(mode):
        raise ValueError(f"{path} is a link, and links are not written through; give the path of a file itself.")
    if stat.S_ISDIR(mode):
        raise ValueError(f"{path} is a folder; give the path of a file.")
    if not stat.S_ISREG(mode):
        raise ValueError(f"{path} is a device, pipe or socket; give the path of a file.")


def refuse_unwritable(path: Path) -> None:
    """Raise OSError if no file can be made where ``path`` is to be written, whatever permissions say."""
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the directory {path.parent} does not exist; create it first.")
    try:
        with tempfile.TemporaryFile(dir=path.parent, prefix=PREFIX):
            pass
    except OSError as error:
        raise OSError(
            f"cannot write {path}: no file can be made in {path.parent} ({error.strerror}); give another folder."
        ) from error


def leftovers(path: Path) -> Iterator[Path]:
    """What writers of ``path`` that were killed have left beside it: regular files named as :func:`replacing` does."""
    with contextlib.suppress(FileNotFoundError, NotADirectoryError), os.scandir(path.parent) as entries:
        length = len(PREFIX) + 8
        for entry in entries:
            ours = entry.name.startswith(PREFIX) and entry.name[length:] == f"-{path.name}"
            if ours and entry.is_file(follow_symlinks=False):
                yield Path(entry.path)


def checksum(path: Path) -> str:
    """The SHA-256 of a file."""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


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


def load_object(path: Path, remedy: str, name: str = "") -> dict[str, Any]:
    """The JSON object in a file, which is called ``name`` if not by its path; ValueError with the remedy otherwise."""
    try:
        content = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{name or path} is not JSON; {remedy}.") from error
    if not isinstance(content, dict):
        raise ValueError(f"{name or path} holds no JSON object but a {type(content).__name__}; {remedy}.")
    return content


@contextmanager
def locked(path: Path, *, wait: bool = False) -> Iterator[None]:
    """Hold the lock file ``path``, which dies with the process; if another holds it, raise or ``wait``.

    The file says who holds it, and is gone when nobody does. It is opened without following a link and without
    truncating, and a file that is not a lock of ours is left alone.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        import fcntl
    except ModuleNotFoundError:  # not on this system: two writers at once are then the user's to avoid
        yield
        return
    while True:
        handle = _open_lock(path)
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | (0 if wait else fcntl.LOCK_NB))
        except BlockingIOError as error:
            holder = _holder(handle)
            os.close(handle)
            raise ValueError(
                f"{holder} is writing to {path.parent}; wait until it has finished, or give another folder."
            ) from error
        except OSError as error:
            if error.errno not in (errno.ENOTSUP, errno.ENOSYS, errno.ENOLCK):
                os.close(handle)
                raise
            break  # a file system without locks: as above
        if _still_at(path, handle):
            break
        os.close(handle)  # its holder has removed it between our opening and our locking
    try:
        command = shlex.join([Path(sys.argv[0] or "python").name, *sys.argv[1:]])
        about = {"pid": os.getpid(), "host": platform.node(), "command": command[:500]}
        about["since"] = time.strftime("%Y-%m-%d %H:%M:%S")
        os.ftruncate(handle, 0)
        os.pwrite(handle, f"{LOCK_MARK}: {json.dumps(about)}}}\n".encode(), 0)
        yield
    finally:
        if _still_at(path, handle):
            path.unlink(missing_ok=True)
        os.close(handle)


def _open_lock(path: Path) -> int:
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_NONBLOCK | getattr(os, "O_CLOEXEC", 0)
    try:
        handle = os.open(path, flags, 0o666)
    except OSError as error:
        if error.errno in (errno.ELOOP, errno.EISDIR, errno.ENXIO):
            raise ValueError(f"{path} is no lock of mirrormax but a link, folder or device; move it away.") from error
        raise
    about = os.fstat(handle)
    ours = stat.S_ISREG(about.st_mode) and about.st_nlink <= 1
    if not ours or (about.st_size and os.pread(handle, len(LOCK_MARK), 0) != LOCK_MARK.encode()):
        os.close(handle)
        raise ValueError(f"{path} is no lock of mirrormax, so it is left as it is; move it away.")
    return handle


def _holder(handle: int) -> str:
    try:
        holder = json.loads(os.pread(handle, 4096, 0))["mirrormax lock"]
        return f"another process ({holder['pid']} on {holder['host']}, since {holder['since']}: {holder['command']})"
    except (OSError, ValueError, KeyError, TypeError):  # it has the lock and has not said who it is yet
        return "another process"


def _still_at(path: Path, handle: int) -> bool:
    try:
        return os.path.samestat(os.stat(path, follow_symlinks=False), os.fstat(handle))
    except FileNotFoundError:
        return False
