"""Finished experiments on disk, found again by what went into them.

``OUT/<experiment>/<key>/`` holds ``data.npz``, ``config.json``, ``summary.json``, ``summary.csv`` and
``comparisons.json``, and ``complete.json`` with a checksum of each. The folder is written under another name and
renamed when whole. The key is a digest of the configuration, the version and the code that made the result, so
that nothing stale is ever taken for current.
"""

from __future__ import annotations

import csv
import hashlib
import json
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any

import mirrormax
from mirrormax._files import checksum, leftovers, locked, save_arrays, save_json
from mirrormax.experiments.contract import Arrays, Comparison, Experiment, Rows

MANIFEST = "complete.json"
FILES = {"data.npz", "config.json", "summary.json", "summary.csv", "comparisons.json"}
# These read results, or serve other libraries, and never make them.
READERS = ("report", "bench", "app", "contrib", "tuning", "commands", "__main__.py")


@dataclass(frozen=True)
class Result:
    """A finished experiment: where it is and what it says."""

    name: str
    folder: Path
    config: dict[str, Any]
    summary: Rows
    shows: str
    comparisons: list[Comparison]
    seconds: float


class Store:
    """The results in one folder."""

    def __init__(self, out: Path, experiments: tuple[str, ...]) -> None:
        self.out, self.experiments = out, experiments

    def folder(self, name: str, config: Any) -> Path:
        """Where the result of this configuration is or will be."""
        identity = {
            "experiment": name,
            "version": mirrormax.__version__,
            "code": code_digest(name, self.experiments),
            "config": asdict(config),
        }
        text = json.dumps(identity, sort_keys=True)
        return self.out / name / hashlib.sha256(text.encode()).hexdigest()[:12]

    def load(self, name: str, config: Any) -> Result | None:
        """A finished result, or None if there is none or a byte of it has changed."""
        folder = self.folder(name, config)
        manifest = _read_manifest(folder)
        if manifest is None:
            return None
        saved = {key: json.loads((folder / f"{key}.json").read_text("utf-8")) for key in ("config", "summary")}
        told = json.loads((folder / "comparisons.json").read_text("utf-8"))
        return Result(
            name=name,
            folder=folder,
            **saved,
            shows=told["shows"],
            comparisons=[Comparison(**row) for row in told["comparisons"]],
            seconds=float(manifest["seconds"]),
        )

    def save(self, experiment: Experiment, name: str, config: Any, data: Arrays, seconds: float) -> Result:
        """Write a result in place of any that is there, whole or not at all."""
        folder = self.folder(name, config)
        folder.parent.mkdir(parents=True, exist_ok=True)
        fresh = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-"))
        try:
            fresh.chmod(0o755)
            rows = experiment.summary(data)
            save_arrays(fresh / "data.npz", **data)
            save_json(fresh / "config.json", {"experiment": name, "version": mirrormax.__version__, **asdict(config)})
            save_json(fresh / "summary.json", rows)
            _save_csv(fresh / "summary.csv", rows)
            told = [asdict(row) for row in experiment.comparisons(data)]
            save_json(fresh / "comparisons.json", {"shows": experiment.shows(data), "comparisons": told})
            files = {path.name: checksum(path) for path in sorted(fresh.iterdir())}
            save_json(fresh / MANIFEST, {"files": files, "seconds": seconds})
            _put_in_place(fresh, folder)
        finally:
            shutil.rmtree(fresh, ignore_errors=True)
        result = self.load(name, config)
        if result is None:
            raise OSError(f"the result in {folder} does not read back as it was written; check the disk.")
        return result

    @contextmanager
    def locked(self) -> Iterator[None]:
        """One writer at a time, and nothing left of those that were killed."""
        with locked(self.out / ".lock"):
            for leftover in self._leftovers():
                shutil.rmtree(leftover, ignore_errors=True) if leftover.is_dir() else leftover.unlink(missing_ok=True)
            yield

    def _leftovers(self) -> list[Path]:
        """Half-written results, half-drawn pictures in whole ones, and half a report."""
        found = list(leftovers(self.out / "report.html"))
        for name in self.experiments:
            found += [*(self.out / name).glob(".*"), *(self.out / name).glob("*/.*")]
        return found


@cache
def code_digest(name: str, experiments: tuple[str, ...]) -> str:
    """A digest of the modules that a result depends on: all but other experiments and what only reads results."""
    root = Path(mirrormax.__file__).parent
    others = {f"experiments/{other}.py" for other in experiments if other != name}
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        place = path.relative_to(root).as_posix()
        if place.split("/")[0] not in READERS and place not in others:
            digest.update(place.encode() + b"\0" + path.read_bytes() + b"\0")
    return digest.hexdigest()


def _read_manifest(folder: Path) -> dict[str, Any] | None:
    """The manifest of a folder in which every file is as it was written, else None."""
    try:
        manifest: dict[str, Any] = json.loads((folder / MANIFEST).read_text("utf-8"))
        files = manifest["files"]
        whole = files.keys() >= FILES and all(checksum(folder / file) == known for file, known in files.items())
        return manifest if whole and isinstance(manifest["seconds"], float) else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return None


def _put_in_place(fresh: Path, folder: Path) -> None:
    """Rename a folder; what was there goes first, since a folder that is not empty cannot be replaced."""
    if folder.exists():
        old = Path(tempfile.mkdtemp(dir=folder.parent, prefix=f".{folder.name}-old-"))
        os.replace(folder, old)
        shutil.rmtree(old, ignore_errors=True)
    os.replace(fresh, folder)


def _save_csv(path: Path, rows: Rows) -> None:
    columns = list(dict.fromkeys(column for row in rows.values() for column in row))
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file)
        writer.writerow(["", *columns])
        writer.writerows([name, *(row.get(column, "") for column in columns)] for name, row in rows.items())
