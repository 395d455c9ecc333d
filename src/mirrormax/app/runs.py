"""The Runs page's answer: what lies in a folder of results, and the files in it that may be looked at."""

from __future__ import annotations

import csv
import json
import math
import os
import stat
import time
from datetime import datetime, timezone
from functools import lru_cache
from pathlib import Path
from typing import Any

from mirrormax import auditing, nets
from mirrormax._files import checksum
from mirrormax.app.folders import DAMAGE, plain_text, read_object, read_regular, reason, run_label, walk

SUFFIXES = {
    ".svg": "image/svg+xml",
    ".png": "image/png",
    ".html": "text/html; charset=utf-8",
    ".json": "application/json",
    ".csv": "text/csv; charset=utf-8",
}
MANIFEST = "mirrormax.json"
"""What says that a folder holds a result."""
METRICS = "metrics.csv"
CURVES = ("train_loss", "validation_accuracy", "validation_loss")
SHOWN = ("config.json", "summary.json", "comparisons.json")
LARGEST_MODEL = 20_000_000
"""Bytes of a checkpoint whose weights are looked at for the list."""
DEEPEST, MOST_RESULTS, MOST_ROWS, MOST_EPOCHS = 5, 300, 200, 5000
Entries = dict[str, os.stat_result]


class Runs:
    """One folder of results, read anew on every request and never written to."""

    def __init__(self, root: Path) -> None:
        self.root = root

    def listing(self) -> dict[str, Any]:
        """Reports, and finished results with their summary and pictures, the newest first.

        A folder that is damaged is listed with the reason, ``damaged``, in place of what it holds.
        """
        reports: list[str] = []
        results: list[dict[str, Any]] = []
        for folder, entries in walk(self.root, DEEPEST):
            if entries is None:
                results.append(self._damaged(folder, 0.0, "it cannot be read"))
                continue
            reports += [self._place(folder / name) for name in _files(entries, (".html",))]
            if MANIFEST not in entries:
                continue
            try:
                result = self._result(folder, entries)
            except DAMAGE as error:
                result = self._damaged(folder, entries[MANIFEST].st_mtime, reason(error))
            if result is not None:
                results.append(result)
        results.sort(key=lambda result: (-result["time"], result["place"]))
        return {
            "folder": plain_text(str(self.root)),
            "exists": self.root.is_dir(),
            "reports": reports,
            "results": results[:MOST_RESULTS],
            "left_out": max(0, len(results) - MOST_RESULTS),
        }

    def file(self, place: str) -> tuple[Path, str]:
        """The file at a place below the folder and its media type; ValueError for anything else."""
        refusal = ValueError(f"{place!r} is not a file that this folder of results shows.")
        parts = place.split("/")
        if any(not part or part.startswith(".") or "\\" in part or "\0" in part for part in parts):
            raise refusal
        try:
            real = self.root.joinpath(*parts).resolve(strict=True)
        except (OSError, RuntimeError, ValueError):
            raise refusal from None
        # A link would lead out of the folder even though its name does not.
        if real != self.root.resolve().joinpath(*parts) or not real.is_file() or real.suffix not in SUFFIXES:
            raise refusal
        return real, SUFFIXES[real.suffix]

    def _result(self, folder: Path, entries: Entries) -> dict[str, Any] | None:
        """What a folder holds; None if it is not finished and no training that is under way, or has only reports."""
        stored = read_object(folder / MANIFEST)
        complete = stored.get("complete") is True
        if not complete and METRICS not in entries:
            return None
        sums = stored.get("files", {})
        if not isinstance(sums, dict):
            raise ValueError(f"{MANIFEST} has no list of files")
        sums = sums if complete else {}  # a run that is under way may be changing them now
        missing = [name for name in sums if not (folder / name).is_file()]
        if missing:
            raise ValueError(f"{missing[0]} is missing")
        parts = {name: read_object(folder / name) if name in entries else {} for name in SHOWN}
        for name in SHOWN:
            if isinstance(sums.get(name), str) and checksum(folder / name) != sums[name]:
                raise ValueError(f"{name} is not as it was written")
        config, summary, compared = parts.values()
        facts = stored.get("facts")
        seconds = facts.get("seconds") if isinstance(facts, dict) else None
        title = config.get("experiment") or (folder.name if folder == self.root else self._place(folder))
        # Each picture once, as SVG where there is one.
        names = {Path(name).stem: name for suffix in (".png", ".svg") for name in _files(entries, (suffix,))}
        pictures = [self._place(folder / name) for name in names.values()]
        if not (config or summary or compared or pictures):
            return None  # it holds reports, which are listed apart
        comparisons = compared.get("comparisons", [])
        if not isinstance(comparisons, list):
            raise ValueError("comparisons.json has no list of comparisons")
        return {
            "training": _training(folder, entries, config, summary) if config else None,
            "complete": complete,
            "place": self._place(folder),
            "name": str(title),
            "shows": str(compared.get("shows", "")),
            "rows": _rows(summary),
            "comparisons": [row for row in comparisons if isinstance(row, dict)][:MOST_ROWS],
            "config": config or stored.get("identity", {}),
            "pictures": pictures,
            "seconds": seconds if isinstance(seconds, (int, float)) and not isinstance(seconds, bool) else None,
            "time": entries[MANIFEST].st_mtime,
            "when": _when(entries[MANIFEST].st_mtime),
            "damaged": None,
        }

    def _damaged(self, folder: Path, time: float, why: str) -> dict[str, Any]:
        place = self._place(folder)
        return {"place": place, "name": place, "time": time, "when": _when(time), "damaged": why}

    def _place(self, path: Path) -> str:
        return plain_text(path.relative_to(self.root).as_posix())


def _training(folder: Path, entries: Entries, config: dict[str, Any], summary: dict[str, Any]) -> dict[str, Any] | None:
    """What the table of trained models says of a run, with its curves; None for results of another kind."""
    if "task" not in config or METRICS not in entries:
        return None
    with read_regular(folder / METRICS) as file:
        rows = list(csv.DictReader(file))[:MOST_EPOCHS]
    curves = {name: [_number(row.get(name)) for row in rows] for name in CURVES if rows and name in rows[0]}
    lr = config.get("lr")
    return {
        "label": run_label(config),
        "group": run_label({**config, "seed": None}),
        **{name: _cell(config.get(name)) for name in ("task", "data", "optimizer", "p", "seed")},
        "lr": _cell(config.get("lr_taken") if lr is None else lr),
        **{name: _number(summary.get(name)) for name in ("test_accuracy", "test_bits_per_byte")},
        "sparsity": _sparsity(folder / "model"),
        "epochs": len(rows),
        "planned": _cell(config.get("epochs")),
        "age": max(0.0, time.time() - entries[METRICS].st_mtime),
        "curves": curves,
    }


def _sparsity(folder: Path) -> float | None:
    """Hoyer's index of a checkpoint's query, key and value weights together; None where it has none, or is large."""
    try:
        weights = (folder / "model.safetensors").lstat()
        if not stat.S_ISREG(weights.st_mode) or weights.st_size > LARGEST_MODEL:
            return None
        return _hoyer(folder, weights.st_mtime_ns)
    except DAMAGE:
        return None


@lru_cache(maxsize=1000)
def _hoyer(folder: Path, _changed: int) -> float:
    roles = auditing.attention_weights(nets.load_model(folder).model).values()
    return round(auditing.sparsity(*(matrix for role in roles for matrix in role)).hoyer, 4)


def _number(value: Any) -> float | None:
    try:
        number = float(value)
    except (TypeError, ValueError):
        return None
    return number if math.isfinite(number) else None


def _files(entries: Entries, suffixes: tuple[str, ...]) -> list[str]:
    """Regular files by name; no links, nothing hidden."""
    return [
        name
        for name in sorted(entries)
        if Path(name).suffix in suffixes and stat.S_ISREG(entries[name].st_mode) and not name.startswith(".")
    ]


def _rows(summary: dict[str, Any]) -> list[dict[str, Any]]:
    """A summary as rows of plain cells: rows by name, or one row of single values."""
    by_name = all(isinstance(row, dict) for row in summary.values())
    rows = [{"": name, **(row if by_name else {"value": row})} for name, row in summary.items()]
    return [{key: _cell(value) for key, value in row.items()} for row in rows[:MOST_ROWS]]


def _cell(value: Any) -> Any:
    return value if isinstance(value, (str, int, float, bool, type(None))) else json.dumps(value)


def _when(time: float) -> str:
    try:
        return datetime.fromtimestamp(time, timezone.utc).strftime("%Y-%m-%d %H:%M UTC") if time else ""
    except (OverflowError, ValueError, OSError):  # a file from beyond the year 9999
        return ""
