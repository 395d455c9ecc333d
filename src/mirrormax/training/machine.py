"""Lightning's Trainer as our runs need it: told where to run, quiet or readable, and interruptible."""

from __future__ import annotations

import functools
import itertools
import logging
import math
import os
import signal
import subprocess
import sys
import tempfile
import warnings
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, LightningModule, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import ModelCheckpoint
from lightning.pytorch.loggers import Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

from mirrormax._interrupts import terminable
from mirrormax._results import ResultFolder
from mirrormax.training.classification import History
from mirrormax.training.config import TrainConfig
from mirrormax.training.results import LOGS, RESUME

# What Lightning says about workers, folders, its other products and torch's inner classes is not about a run.
HINTS = (
    ".*does not have many workers.*",
    ".*exists and is not empty.*",
    ".*litlogger.*",
    ".*smaller than the logging interval.*",
    ".*across ranks is zero.*",  # no validation split, as in the paper
    ".*isinstance\\(treespec, LeafSpec\\).*",
    ".*AMP with fp16 is not supported on CPU.*",  # refused by make_trainer
    ".*sync_dist=True.*",  # epoch_numbers are sums over all processes already
)

BFLOAT16 = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); torch.nn.functional.linear(a, a)"


@dataclass(frozen=True)
class Machine:
    """Where and how visibly a run happens: Lightning's flags, on which the configuration does not depend."""

    accelerator: str = "cpu"
    devices: int = 1
    num_nodes: int = 1
    strategy: str = "auto"
    tensorboard: bool = False
    quiet: bool = True


class WholeFiles(TorchCheckpointIO):
    """Checkpoints that are whole or not there, also where Lightning's temporary files are on another disk."""

    def __init__(self, folder: ResultFolder) -> None:
        super().__init__()
        self.folder = folder

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with self.folder.writing(Path(path).name, RuntimeError) as temporary:
            torch.save(checkpoint, temporary)


class EpochLines(Callback):
    """A line of at most 80 columns per epoch on stderr; at a terminal also a bar over the batches of this one."""

    def __init__(self, epochs: int) -> None:
        self.epochs, self.console = epochs, Console(stderr=True)
        columns = (TextColumn("epoch {task.description}"), BarColumn(24), MofNCompleteColumn(), TimeRemainingColumn())
        self.bar = Progress(*columns, console=self.console, transient=True, disable=not self.console.is_terminal)
        self.task = self.bar.add_task("")

    def on_train_epoch_start(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            number = f"{trainer.current_epoch + 1}/{self.epochs}"
            self.bar.reset(self.task, description=number, total=trainer.num_training_batches)
            self.bar.start()

    def on_train_batch_end(self, trainer: Trainer, *_: Any) -> None:
        if trainer.is_global_zero:
            self.bar.advance(self.task)

    def on_train_epoch_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        if trainer.is_global_zero:
            history = next(each for each in trainer.callbacks if isinstance(each, History))  # type: ignore[attr-defined]
            self.console.print(epoch_line(history.rows[-1], self.epochs), markup=False, highlight=False, soft_wrap=True)

    def on_fit_end(self, trainer: Trainer, pl_module: LightningModule) -> None:
        self.bar.stop()

    def on_exception(self, trainer: Trainer, pl_module: LightningModule, exception: BaseException) -> None:
        self.bar.stop()


def epoch_line(row: dict[str, float], epochs: int) -> str:
    """An epoch in one line that fits a terminal of 80 columns."""
    number = f"{row['epoch']:{len(str(epochs))}.0f}/{epochs}"
    if "validation_bits_per_byte" in row:
        quality = f", validation {row['validation_loss']:.4f} = {row['validation_bits_per_byte']:.3f} bits/byte"
    else:  # the paper holds out no validation
        held_out = "test" if math.isnan(row["validation_accuracy"]) else "validation"
        quality = f"  accuracy train {row['train_accuracy']:.4f}, {held_out} {row[f'{held_out}_accuracy']:.4f}"
    return f"epoch {number}  loss {row['train_loss']:.4f}{quality}  {row['seconds']:.1f} s"


@functools.cache
def has_bfloat16() -> bool:
    """Whether torch can multiply bfloat16 matrices here. Asked of another process: where it cannot, a signal kills it.

    Some virtual machines name the matrix instructions of their host (AMX) and trap at the first of them. Any other end
    says nothing of the processor.
    """
    with tempfile.TemporaryDirectory() as elsewhere:  # -c imports from the working directory first
        done = subprocess.run([sys.executable, "-c", BFLOAT16], capture_output=True, check=False, cwd=elsewhere)
    return done.returncode >= 0


def make_trainer(config: TrainConfig, folder: ResultFolder, machine: Machine, callbacks: Sequence[Callback]) -> Trainer:
    """A trainer that checkpoints every epoch; ValueError where Lightning cannot run on the machine as described."""
    saver = ModelCheckpoint(
        folder.path, filename=Path(RESUME).stem, save_on_train_epoch_end=True, enable_version_counter=False
    )
    lines = [] if machine.quiet else [EpochLines(config.epochs)]
    try:
        with without_chatter():
            trainer = Trainer(
                accelerator=machine.accelerator,
                devices=machine.devices,
                num_nodes=machine.num_nodes,
                strategy=machine.strategy,
                precision="32-true" if config.precision == "32" else config.precision,  # type: ignore[arg-type]
                max_epochs=config.epochs,
                callbacks=[*callbacks, *lines, saver],
                plugins=[WholeFiles(folder)],
                logger=_logger(folder.path) if machine.tensorboard else False,
                log_every_n_steps=10,
                num_sanity_val_steps=0,
                use_distributed_sampler=False,
                enable_model_summary=False,
                enable_progress_bar=False,
                default_root_dir=folder.path,
            )
    except (MisconfigurationException, ValueError) as error:
        where = ", ".join(f"{name}={getattr(machine, name)!r}" for name in ("accelerator", "devices", "strategy"))
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"Lightning cannot train with {where} ({reason}); choose others.") from error
    cores = max(os.cpu_count() or 1, 2)
    if machine.devices > cores and isinstance(trainer.accelerator, CPUAccelerator):  # each would be a process
        raise ValueError(f"devices must be at most {cores}, the cores of this machine, got {machine.devices}.")
    if config.precision == "16-mixed" and isinstance(trainer.accelerator, CPUAccelerator):
        raise ValueError("precision='16-mixed' needs a GPU; choose bf16-mixed on a CPU.")
    if config.precision == "bf16-mixed" and isinstance(trainer.accelerator, CPUAccelerator) and not has_bfloat16():
        raise ValueError(
            "precision='bf16-mixed' makes torch use instructions that this processor names and does not have; choose "
            "precision='32', or set ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16 in the environment."
        )
    return trainer


def _logger(folder: Path) -> Logger:
    """In ``logs/tensorboard-1``, or the first number that is free."""
    logs = folder / LOGS
    if logs.is_symlink():
        raise ValueError(f"{logs} is a link, and links are not written through; give another folder for the run.")
    names = (f"tensorboard-{k}" for k in itertools.count(1))
    free = next(name for name in names if not os.path.lexists(logs / name))
    return TensorBoardLogger(folder, name=LOGS, version=free)


@contextmanager
def without_chatter() -> Iterator[None]:
    """Lightning's loggers and hints silenced; its errors, and all other warnings, still come through."""
    with ExitStack() as undo, warnings.catch_warnings():
        for logger in map(logging.getLogger, ("lightning.pytorch", "lightning.fabric")):
            undo.callback(logger.setLevel, logger.level)
            logger.setLevel(logging.ERROR)
        for hint in HINTS:
            warnings.filterwarnings("ignore", message=hint)
        yield


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C and SIGTERM as exceptions: Lightning would exit instead, and not always as if it had been interrupted."""
    handler = signal.getsignal(signal.SIGINT)
    with terminable():
        try:
            yield
        except SystemExit as stop:
            if not isinstance(stop.__context__, KeyboardInterrupt):
                raise
            signal.signal(signal.SIGINT, handler)
            raise type(stop.__context__) from stop
