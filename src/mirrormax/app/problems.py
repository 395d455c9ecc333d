"""The problems that the Geometry page can show: the paper's, random ones, and files that were uploaded."""

from __future__ import annotations

import hashlib
import io
import tempfile
import zipfile
from collections import OrderedDict
from collections.abc import Mapping
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

from mirrormax.data import Problem, example1, example2, load_problem, sphere_problem

MOST_TOKENS, MOST_DIMENSIONS = 400, 32
"""n·T and d of the largest problem that is answered while a slider moves."""
LARGEST_CONTENT = 8_000_000
KEPT_UPLOADS = 8

# Nobody writes into these: one who drags p asks for the same problem with every move.
EXAMPLES = {"example1": cache(example1), "example2": cache(example2)}
_sphere = lru_cache(maxsize=16)(sphere_problem)
SPHERE_BOUNDS = {"seed": (0, 999_999), "n": (1, 40), "T": (2, 40), "d": (2, MOST_DIMENSIONS)}


class Problems:
    """Makes the problem that a request names; uploads are kept in memory, the last few of them."""

    def __init__(self) -> None:
        self._uploads: OrderedDict[str, Problem] = OrderedDict()

    def named(self, request: Mapping[str, Any]) -> Problem:
        """The problem of ``{"problem": "example1" | "example2" | "sphere" | "file", ...}``."""
        kind = request.get("problem")
        if isinstance(kind, str) and kind in EXAMPLES:
            return EXAMPLES[kind]()
        if kind == "sphere":
            return check_size(_sphere(**{name: _whole(request, name) for name in SPHERE_BOUNDS}))
        if kind == "file":
            try:
                return self._uploads[str(request.get("file"))]
            except KeyError:
                raise ValueError("this file is not here any more; upload it again.") from None
        raise ValueError(f"problem must be one of {', '.join(EXAMPLES)}, sphere or file, got {kind!r}.")

    def add(self, content: bytes, name: str) -> tuple[str, Problem]:
        """Read an uploaded ``.npz`` with :func:`mirrormax.data.load_problem`; its key, and what is in it."""
        _check_unpacked_size(content, name)
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "upload.npz"
            path.write_bytes(content)
            try:
                problem = check_size(load_problem(path))
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), name)) from None
        key = hashlib.sha256(content).hexdigest()[:16]
        self._uploads[key] = problem
        self._uploads.move_to_end(key)
        while len(self._uploads) > KEPT_UPLOADS:
            self._uploads.popitem(last=False)
        return key, problem


def check_size(problem: Problem) -> Problem:
    """The problem, or a refusal if a page cannot show it or would have to wait for it."""
    n, T, d = problem.X.shape
    if T < 2 or d < 2:
        raise ValueError(f"X has T = {T} tokens in d = {d} dimensions; there is something to see from 2 of each on.")
    if n * T > MOST_TOKENS or d > MOST_DIMENSIONS:
        raise ValueError(
            f"X has n·T = {n * T} tokens in d = {d} dimensions; this page takes {MOST_TOKENS} in {MOST_DIMENSIONS}, "
            "'mirrormax simulate' takes any number."
        )
    return problem


def _check_unpacked_size(content: bytes, name: str) -> None:
    """Refuse a small file that unpacks to a large one before it is unpacked."""
    try:
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
    except (zipfile.BadZipFile, ValueError, OSError):
        return  # not an archive at all, which load_problem says better
    if unpacked > LARGEST_CONTENT:
        raise ValueError(f"{name} unpacks to {unpacked:,} bytes; this page takes {LARGEST_CONTENT:,}.")


def _whole(request: Mapping[str, Any], name: str) -> int:
    value, (least, most) = request.get(name), SPHERE_BOUNDS[name]
    if isinstance(value, bool) or not isinstance(value, int) or not least <= value <= most:
        raise ValueError(f"{name} must be a whole number from {least} to {most}, got {value!r}.")
    return value
