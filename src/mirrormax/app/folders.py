"""Folders of a user: walked without following links, read with suspicion, and one that is damaged hides no other."""

from __future__ import annotations

import io
import json
import math
import os
import stat
from collections.abc import Iterator
from pathlib import Path
from typing import Any

LARGEST_JSON = 1_000_000
DEEPEST_JSON = 40
DAMAGE = (OSError, ValueError, TypeError, KeyError, AttributeError, OverflowError, RecursionError, MemoryError)
"""What files that nobody wrote on purpose lead to."""


def walk(root: Path, depth: int) -> Iterator[tuple[Path, dict[str, os.stat_result] | None]]:
    """A folder and those below it, in order, with what is in each by name; None where that cannot be read.

    Links to folders and hidden folders are passed by.
    """
    try:
        with os.scandir(root) as entries:
            inside = {entry.name: entry.stat(follow_symlinks=False) for entry in entries}
    except FileNotFoundError:
        return
    except OSError:
        yield root, None
        return
    yield root, inside
    if depth:
        for name in sorted(inside):
            if stat.S_ISDIR(inside[name].st_mode) and not name.startswith("."):
                yield from walk(root / name, depth - 1)


def read_regular(path: Path) -> io.StringIO:
    """The text of a regular file of a moderate size; OSError or ValueError says what is wrong."""
    handle = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)  # a pipe would be waited for
    if not stat.S_ISREG(os.fstat(handle).st_mode):
        os.close(handle)
        raise ValueError(f"{path.name} is no regular file")
    with open(handle, "rb") as file:
        content = file.read(LARGEST_JSON + 1)
    if len(content) > LARGEST_JSON:
        raise ValueError(f"{path.name} has more than {LARGEST_JSON:,} bytes")
    return io.StringIO(content.decode("utf-8", "replace"))


def read_object(path: Path) -> dict[str, Any]:
    """A JSON object of a regular file, as plain data that can be sent; OSError or ValueError says what is wrong."""
    content = read_regular(path).getvalue()
    try:
        value = json.loads(content)
    except (ValueError, RecursionError):
        raise ValueError(f"{path.name} is no JSON") from None
    if not isinstance(value, dict):
        raise ValueError(f"{path.name} holds no JSON object")
    return {plain_text(key): sendable(part, path.name) for key, part in value.items()}


def sendable(value: Any, where: str, depth: int = DEEPEST_JSON) -> Any:
    """The value with null for numbers that JSON has not, and no text that cannot be encoded."""
    if depth == 0:
        raise ValueError(f"{where} is nested more than {DEEPEST_JSON} deep")
    if isinstance(value, dict):
        return {plain_text(key): sendable(part, where, depth - 1) for key, part in value.items()}
    if isinstance(value, list):
        return [sendable(part, where, depth - 1) for part in value]
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return plain_text(value) if isinstance(value, str) else value


def plain_text(value: str) -> str:
    """Text that UTF-8 has: half a surrogate pair, or a byte of a file's name, becomes a question mark."""
    return value.encode("utf-8", "replace").decode()


def run_label(training: dict[str, Any]) -> str:
    """What a run is: its method, step size and seed, such as ``ℓ1.1, lr 0.18, seed 0``; empty if it does not say."""
    optimizer, potential = training.get("optimizer"), training.get("potential", "Lp")
    names = {"sgd": "SGD", "adamw": "AdamW", "mirror": "MirrorAdamW", "adabreg": "AdaBreg"}
    exponent = training.get("p")
    norm = f"ℓ{exponent:g}" if isinstance(exponent, (int, float)) else ""
    if optimizer in ("md", None):
        if exponent is None:
            return ""
        method = {"Lp": norm, "SquaredLp": f"{norm} squared"}.get(str(potential), f"{potential}")
        method += " on attention" if training.get("attention_only") is True else ""
    else:
        method = names.get(str(optimizer), str(optimizer or ""))
        method += f" {norm}" if optimizer == "mirror" and norm else ""
    parts = [method]
    lr = training.get("lr_taken") if training.get("lr") is None else training["lr"]
    for name, value in (("lr", lr), ("seed", training.get("seed"))):
        if isinstance(value, (int, float)):
            parts.append(f"{name} {value:g}")
    return plain_text(", ".join(part for part in parts if part))


def reason(error: BaseException) -> str:
    """Why a folder is damaged, in a few words."""
    if isinstance(error, OSError) and error.strerror:
        where = f": {Path(error.filename).name}" if isinstance(error.filename, str) else ""
        return plain_text(f"{error.strerror}{where}")
    return plain_text(str(error) or type(error).__name__).splitlines()[0].rstrip(".")
