"""One training run in one folder: it goes on where it was interrupted, and is not done twice.

The folder holds ``config.json`` from the start, ``resume.ckpt`` and ``best.safetensors`` while training, and at the
end ``metrics.csv`` (a row an epoch), ``summary.json``, ``model/`` (the epoch that validation accuracy chose),
``last/`` (the last epoch) and ``complete.json``, which is written last.
"""

from __future__ import annotations

import csv
import json
import logging
import math
import pickle
import shutil
import warnings
import zipfile
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.pytorch import Trainer
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from safetensors.torch import load_file

import mirrormax
from mirrormax._files import replacing, save_json
from mirrormax.nets import save_model
from mirrormax.training.batches import loader
from mirrormax.training.config import TrainConfig
from mirrormax.training.history import BEST, History, chosen_epoch
from mirrormax.training.module import Classification
from mirrormax.training.prepare import Prepared, prepare

SPLITS = ("train", "validation", "test")
COMPLETE, CONFIG, RESUME = "complete.json", "config.json", "resume.ckpt"


@dataclass(frozen=True)
class Machine:
    """Where and how visibly a run happens: Lightning's flags, on which the configuration does not depend."""

    accelerator: str = "cpu"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    loggers: tuple[str, ...] = ()
    quiet: bool = True
    options: dict[str, Any] = field(default_factory=dict)


def train(
    config: TrainConfig,
    folder: str | Path,
    data_dir: str | Path | None = None,
    *,
    machine: Machine | None = None,
    force: bool = False,
) -> Path:
    """Train a model into ``folder`` and return it; a finished run of the same configuration is left as it is.

    Args:
        config: all that the result depends on.
        folder: of this run alone.
        data_dir: where data files are looked for.
        machine: Lightning's accelerator, devices, nodes, strategy and loggers.
        force: begin anew, whatever is there.
    """
    folder, machine = Path(folder), machine or Machine()
    if force:
        shutil.rmtree(folder, ignore_errors=True)
    if is_complete(folder, config):
        return folder
    _refuse_another_run(folder, config)
    prepared = prepare(config, None if data_dir is None else Path(data_dir))
    save_json(folder / CONFIG, _identity(config))
    history = _fit(config, folder, prepared, machine)
    _finish(config, folder, prepared, history)
    return folder


def is_complete(folder: Path, config: TrainConfig) -> bool:
    """Whether the folder holds a finished run of just this configuration."""
    return (folder / COMPLETE).is_file() and _read(folder / CONFIG) == _identity(config)


def read_metrics(folder: Path) -> list[dict[str, float]]:
    """The rows of a finished run."""
    with (folder / "metrics.csv").open(encoding="utf-8", newline="") as file:
        return [{name: float(value) for name, value in row.items()} for row in csv.DictReader(file)]


def _fit(config: TrainConfig, folder: Path, prepared: Prepared, machine: Machine) -> History:
    history = History(folder, config.stop_accuracy)
    saver = ModelCheckpoint(
        folder,
        filename=Path(RESUME).stem,
        save_on_train_epoch_end=True,
        enable_version_counter=False,
    )
    with _without_chatter():
        trainer = Trainer(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.num_nodes,
            strategy=machine.strategy,
            precision="32-true" if config.precision == "32" else config.precision,  # type: ignore[arg-type]
            max_epochs=config.epochs,
            callbacks=[history, saver, *([] if machine.quiet else [RichProgressBar(leave=True)])],
            logger=_loggers(folder, machine.loggers),
            log_every_n_steps=10,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_model_summary=False,
            enable_progress_bar=not machine.quiet,
            default_root_dir=folder,
            **machine.options,
        )
        place = {"rank": trainer.global_rank, "world": trainer.world_size}
        training = loader(prepared.splits[0], config.batch_size, config.seed, **place)
        held_out = [loader(part, 4 * config.batch_size, None, **place) for part in prepared.splits[1:]]
        module = Classification(prepared.model, config, len(training))
        trainer.fit(module, training, held_out, ckpt_path=_checkpoint(folder), weights_only=True)
    return history


def _checkpoint(folder: Path) -> Path | None:
    """The checkpoint to go on from; one that cannot be read is refused rather than quietly begun anew."""
    path = folder / RESUME
    if not path.exists():
        return None
    try:
        torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, EOFError, ValueError, KeyError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(f"the checkpoint {path} is damaged; delete it, or begin anew with --force.") from error
    return path


def _finish(config: TrainConfig, folder: Path, prepared: Prepared, history: History) -> None:
    rows = history.rows
    model, training = prepared.model, {**config.to_dict(), "version": mirrormax.__version__}
    save_model(folder / "last", model, prepared.classes, prepared.tokenizer, training)
    model.load_state_dict(load_file(folder / BEST))
    save_model(folder / "model", model, prepared.classes, prepared.tokenizer, training)
    _save_rows(folder / "metrics.csv", rows)
    save_json(folder / "summary.json", summary(rows, prepared))
    save_json(folder / COMPLETE, {"epochs": len(rows)})
    for name in (RESUME, BEST):
        (folder / name).unlink(missing_ok=True)


def summary(rows: Sequence[dict[str, float]], prepared: Prepared) -> dict[str, Any]:
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


def _identity(config: TrainConfig) -> dict[str, Any]:
    return {**config.to_dict(), "version": mirrormax.__version__}


def _refuse_another_run(folder: Path, config: TrainConfig) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; give a folder for the run.")
    found = _read(folder / CONFIG)
    if found is None and folder.is_dir() and any(folder.iterdir()):
        raise ValueError(f"{folder} holds files that are not of a training run; give an empty or new folder.")
    if found is not None and found != (asked := _identity(config)):
        differs = sorted(key for key in {*found, *asked} if found.get(key) != asked.get(key))
        raise ValueError(
            f"{folder} holds a run with other choices ({', '.join(differs)}); give another folder, or begin anew with "
            "--force."
        )


def _read(path: Path) -> dict[str, Any] | None:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    return found if isinstance(found, dict) else None


def _save_rows(path: Path, rows: Sequence[dict[str, float]]) -> None:
    with replacing(path) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, fieldnames=list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)


def _loggers(folder: Path, names: Sequence[str]) -> list[Logger] | bool:
    made: list[Logger] = []
    for name in names:
        if name not in ("csv", "tensorboard"):
            raise ValueError(f"a logger must be csv or tensorboard, got {name!r}.")
        made.append(
            CSVLogger(folder, name="logs", version="csv")
            if name == "csv"
            else TensorBoardLogger(folder, name="logs", version="tensorboard")
        )
    return made or False


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Lightning's hints about workers and devices are not about us."""
    logger = logging.getLogger("lightning.pytorch")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for hint in (
                ".*does not have many workers.*",
                ".*exists and is not empty.*",
                ".*litlogger.*",
                ".*LeafSpec.*",
            ):
                warnings.filterwarnings("ignore", message=hint)
            yield
    finally:
        logger.setLevel(level)
