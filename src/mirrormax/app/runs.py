"""The Runs page's answer: what lies in a folder of results, and the files in it that may be looked at."""

from __future__ import annotations

import json
from collections.abc import Iterator
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

SUFFIXES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
}
PICTURES = (".svg", ".png")
DEEPEST, MOST_RESULTS, LARGEST_JSON = 5, 300, 1_000_000
MOST_ROWS = 200


class Runs:
    """One folder of results, read anew on every request and never written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def listing(self) -> dict[str, Any]:
        """Reports, and finished results with their summary and pictures, the newest first."""
        folders = list(_folders(self.root, DEEPEST)) if self.root.is_dir() else []
        results = [folder for folder in folders if (folder / "complete.json").is_file()]
        results.sort(key=lambda folder: (folder / "complete.json").stat().st_mtime, reverse=True)
        return {
            "folder": str(self.root),
            "exists": self.root.is_dir(),
            "reports": [self._place(path) for folder in folders for path in _files(folder, (".html",))],
            "results": [self._result(folder) for folder in results[:MOST_RESULTS]],
            "left_out": max(0, len(results) - MOST_RESULTS),
        }

    def file(self, place: str) -> tuple[Path, str]:
        """The file at a place below the folder and its media type; ValueError for anything else."""
        refusal = ValueError(f"{place!r} is not a file that this folder of results shows.")
        parts = place.split("/")
        if any(part in ("", ".", "..") or part.startswith(".") or "\\" in part or "\0" in part for part in parts):
            raise refusal
        path = self.root.joinpath(*parts)
        try:
            real = path.resolve(strict=True)
        except (OSError, RuntimeError):
            raise refusal from None
        # A link would lead out of the folder even though its name does not.
        if real != self.root.resolve().joinpath(*parts) or not real.is_file() or real.suffix not in SUFFIXES:
            raise refusal
        return real, SUFFIXES[real.suffix]

    def _result(self, folder: Path) -> dict[str, Any]:
        config, summary = _json(folder / "config.json"), _json(folder / "summary.json")
        told, manifest = _json(folder / "comparisons.json"), _json(folder / "complete.json")
        seconds = manifest.get("seconds")
        pictures = {path.stem: self._place(path) for suffix in reversed(PICTURES) for path in _files(folder, (suffix,))}
        return {
            "place": self._place(folder),
            "name": str(config.get("experiment") or folder.relative_to(self.root).as_posix()),
            "shows": str(told.get("shows", "")),
            "rows": _rows(summary),
            "comparisons": [row for row in told.get("comparisons", []) if isinstance(row, dict)][:MOST_ROWS],
            "config": config,
            "pictures": list(pictures.values()),
            "seconds": seconds if isinstance(seconds, (int, float)) else None,
            "when": _when(folder / "complete.json"),
        }

    def _place(self, path: Path) -> str:
        return path.relative_to(self.root).as_posix()


def _folders(root: Path, depth: int) -> Iterator[Path]:
    yield root
    if depth:
        for child in sorted(root.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _folders(child, depth - 1)


def _files(folder: Path, suffixes: tuple[str, ...]) -> list[Path]:
    return [
        path
        for path in sorted(folder.iterdir())
        if path.suffix in suffixes and path.is_file() and not path.is_symlink() and not path.name.startswith(".")
    ]


def _json(path: Path) -> dict[str, Any]:
    """A JSON object, or an empty one: a broken file of one result must not hide all others."""
    try:
        if path.is_symlink() or path.stat().st_size > LARGEST_JSON:
            return {}
        value = json.loads(path.read_text("utf-8"), parse_constant=lambda _: None)
    except (OSError, ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}


def _rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """A summary as rows of plain cells: rows by name, or one row of single values."""
    if all(isinstance(row, dict) for row in summary.values()):
        rows = [{"": name, **row} for name, row in summary.items()]
    else:
        rows = [{"": name, "value": value} for name, value in summary.items()]
    return [{key: _cell(value) for key, value in row.items()} for row in rows[:MOST_ROWS]]


def _cell(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else json.dumps(value)


def _when(path: Path) -> str:
    return datetime.fromtimestamp(path.stat().st_mtime, timezone.utc).strftime("%Y-%m-%d %H:%M UTC")
