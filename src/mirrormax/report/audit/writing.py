"""A folder of results with one writer at a time, and nothing left of writers that were killed."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path

from mirrormax._files import leftovers, locked

LOCK = ".audit.lock"
AUDIT = ("audit.json", "heads.csv", "config.json", "scan.csv")
PICTURES = ("heads.svg", "heads.png", "scan.svg", "scan.png")
PAGE = ("audit.html",)
COMPARISON = (
    "compare.json",
    "compare.html",
    *(f"heads-{side}.{kind}" for side in "ab" for kind in ("svg", "png")),
    *(f"{side}/{name}" for side in "ab" for name in AUDIT),
)


@contextmanager
def writing(folder: Path, names: Iterable[str]) -> Iterator[None]:
    """Hold the folder while files of these names are written; take away what was half-written under them."""
    with locked(folder / LOCK, wait=True):
        for path in [path for name in names for path in leftovers(folder / name)]:
            path.unlink(missing_ok=True)
        yield
