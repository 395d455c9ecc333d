"""The one rule for what makes a result current: its choices, the contents of its data, and its producer's revision.

A result whose :func:`identity` is not the one asked for belongs to other choices, other data or to numbers that have
since been corrected, and is never shown or gone on with in place of what was asked. Training, tuning, experiments,
audits and pruning all use this rule.

Each of these producers has an integer ``REVISION``, raised when the same choices on the same data give other numbers;
``tests/golden`` holds small results of each and fails when they move. Which version of the package and which code wrote
a result is recorded (:func:`this_code`) and shown, and never refuses anything: a reworded message leaves results as
they are.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mirrormax
from mirrormax._files import checksum

MANY = 100  # files that are named one by one


def identity(config: Mapping[str, Any], *, revision: int, data: Mapping[str, str] | None = None) -> dict[str, Any]:
    """What a result depends on, as plain JSON.

    Args:
        config: every choice; see :func:`choices`.
        revision: of the producer's numbers.
        data: a digest per data file or source, as of :func:`content_digests`.
    """
    return as_json({"config": dict(config), "data": dict(data or {}), "revision": revision})


def as_json(value: Mapping[str, Any]) -> dict[str, Any]:
    """As JSON gives it back, so that what is asked for compares with what was read."""
    return dict(json.loads(json.dumps(dict(value), sort_keys=True)))


def key(identity: Mapping[str, Any]) -> str:
    """Twelve characters that stand for an identity, for the name of a folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def choices(config: Any) -> dict[str, Any]:
    """The fields of a dataclass and of those within it, without what was added ``later`` and nobody chose.

    A field with ``later`` in its metadata was added when results without it existed; it does nothing to the numbers at
    its default, so it is left out there and those results stay current.
    """
    return {
        each.name: _plain(getattr(config, each.name))
        for each in fields(config)
        if not (each.metadata.get("later") and getattr(config, each.name) == each.default)
    }


def _plain(value: Any) -> Any:
    if is_dataclass(value):
        return choices(value)
    if isinstance(value, Mapping):
        return {str(name): _plain(part) for name, part in value.items()}
    return [_plain(part) for part in value] if isinstance(value, (list, tuple)) else value


def differences(stored: Mapping[str, Any], wanted: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two identities: choices by their own names, then data files, then the rest."""
    names: list[str] = []
    for part, prefix in (("config", ""), ("data", "the contents of ")):
        before, after = (side[part] if isinstance(side.get(part), dict) else {} for side in (stored, wanted))
        names += [prefix + name for name in sorted({*before, *after}) if before.get(name) != after.get(name)]
    rest = sorted({*stored, *wanted} - {"config", "data"})
    changed = [name for name in rest if stored.get(name) != wanted.get(name)]
    return names + ["the revision of its numbers" if name == "revision" else name for name in changed]


def content_digest(path: Path) -> str:
    """The SHA-256 of a data file; hashed once per process for each size and time of change."""
    about = os.stat(path)
    return _checksum(os.path.realpath(path), about.st_size, about.st_mtime_ns, about.st_ino)


@cache
def _checksum(path: str, *version: int) -> str:
    return checksum(Path(path))


def content_digests(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of every file by its name, or by its path where names repeat; of many, one for each folder."""
    if len(paths) <= MANY:
        repeated = Counter(path.name for path in paths)
        return {path.name if repeated[path.name] == 1 else str(path): content_digest(path) for path in paths}
    folders: dict[str, Any] = {}
    for path in paths:
        place = folders.setdefault("/".join(path.parts[-3:-1]), hashlib.sha256())
        place.update(f"{path.name}\0{content_digest(path)}\0".encode())
    return {name: digest.hexdigest() for name, digest in folders.items()}


@cache
def this_code() -> str:
    """The version of this package and a digest of its sources, to be recorded with a result."""
    digest = hashlib.sha256()
    for root in map(Path, mirrormax.__path__):
        for path in sorted(root.rglob("*.py")):
            digest.update(f"{path.relative_to(root).as_posix()}\0".encode() + path.read_bytes())
    return f"{mirrormax.__version__}, code {digest.hexdigest()[:12]}"
