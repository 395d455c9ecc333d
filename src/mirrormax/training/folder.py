"""The folder of a run: ``config.json`` from the start, ``resume.ckpt`` and ``best.safetensors`` while training.

At the end there are ``metrics.csv`` (a row an epoch), ``timing.csv`` (what each epoch took, apart because it alone
differs when a run is repeated), ``summary.json``, ``model/`` (the epoch that validation accuracy chose), ``last/``
(the last epoch) and ``complete.json``, which is written last.
"""

from __future__ import annotations

import csv
import json
import math
import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import load_file

import mirrormax
from mirrormax._files import checksum, leftovers, replacing, save_json
from mirrormax.nets import save_model
from mirrormax.training.config import TrainConfig
from mirrormax.training.history import BEST, chosen_epoch
from mirrormax.training.module import SPLITS
from mirrormax.training.prepare import Prepared

COMPLETE, CONFIG, RESUME, METRICS, TIMING = "complete.json", "config.json", "resume.ckpt", "metrics.csv", "timing.csv"
SUMMARY, LOGS = "summary.json", "logs"
MODEL_FILES = ("model.safetensors", "config.json", "tokenizer.json")
RESULTS = (*(f"{part}/{name}" for part in ("model", "last") for name in MODEL_FILES), METRICS, SUMMARY)
# What --force takes away; complete.json first, lest half a folder should pass for a finished run.
OURS = (COMPLETE, SUMMARY, METRICS, TIMING, "model", "last", LOGS, BEST, RESUME, CONFIG)

Row = dict[str, float]


def is_complete(folder: Path, config: TrainConfig) -> bool:
    """Whether the folder holds a finished run of just this configuration; refused if its results have changed."""
    if not (folder / COMPLETE).is_file() or _read(folder / CONFIG) != identity(config):
        return False
    changed = _changed_result(folder)
    if changed is not None:
        raise ValueError(
            f"the finished run in {folder} is damaged, for {changed} is not as it was written; delete the folder, or "
            "begin anew with --force."
        )
    return True


def _changed_result(folder: Path) -> str | None:
    """The first file of a finished run that is not as it was written; runs from before checksums have none."""
    told = _read(folder / COMPLETE)
    if told is None or not isinstance(told.get("epochs"), int) or not isinstance(told.get("files", {}), dict):
        return COMPLETE
    for name, known in told.get("files", {}).items():
        path = folder / name
        if not path.is_file() or checksum(path) != known:
            return str(name)
    return None


def identity(config: TrainConfig) -> dict[str, Any]:
    """What ``config.json`` holds: the choices, and the version that trained by them."""
    return {**config.to_dict(), "version": mirrormax.__version__}


def refuse_other_contents(folder: Path, config: TrainConfig, *, force: bool = False) -> None:
    """Refuse a folder with anything but a run of this configuration; with ``force``, with anything but a run."""
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; give a folder for the run.")
    found = _read(folder / CONFIG)
    of_a_run = found is not None and "task" in found and "format" in found
    if not of_a_run and folder.is_dir() and set(folder.iterdir()) - _leftovers(folder):
        raise ValueError(f"{folder} holds files that are not of a training run; give an empty or new folder.")
    if found is not None and not force and found != (asked := identity(config)):
        differs = sorted(key for key in {*found, *asked} if found.get(key) != asked.get(key))
        raise ValueError(
            f"{folder} holds a run with other choices ({', '.join(differs)}); give another folder, or begin anew with "
            "--force."
        )


def tidy(folder: Path) -> None:
    """Take away what a finished run needs no more: it may have been killed before it could."""
    remove_leftovers(folder)
    for name in (RESUME, BEST):
        (folder / name).unlink(missing_ok=True)


def remove_leftovers(folder: Path) -> None:
    """Take away what was half-written when a run was killed."""
    for path in _leftovers(folder):
        path.unlink(missing_ok=True)


def _leftovers(folder: Path) -> set[Path]:
    return {path for name in (*RESULTS, TIMING, COMPLETE, BEST, RESUME, CONFIG) for path in leftovers(folder / name)}


def clear(folder: Path) -> None:
    """Take away what a run has written, and nothing else."""
    for name in OURS:
        path = folder / name
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
        else:
            path.unlink(missing_ok=True)


def read_metrics(folder: Path) -> list[Row]:
    """The rows of a finished run."""
    with (folder / METRICS).open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def finish(config: TrainConfig, folder: Path, prepared: Prepared, rows: Sequence[Row]) -> None:
    """Write the results of a run that has ended; only then is there nothing left to resume."""
    model, training = prepared.model, identity(config)
    save_model(folder / "last", model, prepared.classes, prepared.tokenizer, training)
    model.load_state_dict(load_file(folder / BEST))
    save_model(folder / "model", model, prepared.classes, prepared.tokenizer, training)
    _save_rows(folder / METRICS, [name for name in rows[0] if name != "seconds"], rows)
    _save_rows(folder / TIMING, ["epoch", "seconds"], rows)
    save_json(folder / SUMMARY, summary(rows, prepared))
    files = {name: checksum(folder / name) for name in RESULTS if (folder / name).is_file()}
    save_json(folder / COMPLETE, {"epochs": len(rows), "files": files})
    tidy(folder)


def summary(rows: Sequence[Row], prepared: Prepared) -> dict[str, Any]:
    """What came out: at the epoch that validation chose, at the best test epoch as the paper counts, and at the end."""
    chosen, last = chosen_epoch(list(rows)), rows[-1]
    return {
        "epochs": len(rows),
        "chosen_epoch": int(chosen["epoch"]),
        "validation_accuracy": chosen["validation_accuracy"],
        "test_accuracy": chosen["test_accuracy"],
        "best_test_accuracy": max(row["test_accuracy"] for row in rows),
        "last_test_accuracy": last["test_accuracy"],
        "last_train_accuracy": last["train_accuracy"],
        "diverged": not math.isfinite(last["train_loss"]),
        "examples": dict(zip(SPLITS, map(len, prepared.splits), strict=True)),
        "weights": sum(param.numel() for param in prepared.model.parameters()),
    }


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError, RecursionError):
        return None
    return found if isinstance(found, dict) else None


def _save_rows(path: Path, names: Sequence[str], rows: Sequence[Row]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=names, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(rows)
