"""Lightning's Trainer as our runs need it: told where to run, quiet where asked, and interruptible."""

from __future__ import annotations

import logging
import signal
import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from lightning.fabric.utilities.exceptions import MisconfigurationException
from lightning.pytorch import Callback, Trainer
from lightning.pytorch.accelerators import CPUAccelerator
from lightning.pytorch.callbacks import ModelCheckpoint, RichProgressBar
from lightning.pytorch.loggers import CSVLogger, Logger, TensorBoardLogger
from lightning.pytorch.plugins.io import TorchCheckpointIO

from mirrormax._files import replacing
from mirrormax.training.config import TrainConfig
from mirrormax.training.folder import LOGS, RESUME

# What Lightning says about workers, folders, its other products and torch's inner classes is not about a run.
HINTS = (
    ".*does not have many workers.*",
    ".*exists and is not empty.*",
    ".*litlogger.*",
    ".*smaller than the logging interval.*",
    ".*isinstance\\(treespec, LeafSpec\\).*",
    ".*AMP with fp16 is not supported on CPU.*",  # refused by make_trainer
    ".*sync_dist=True.*",  # epoch_numbers are sums over all processes already
)


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


class WholeFiles(TorchCheckpointIO):
    """Checkpoints that are whole or not there, also where Lightning's temporary files are on another disk."""

    def save_checkpoint(self, checkpoint: dict[str, Any], path: Any, storage_options: Any = None) -> None:
        with replacing(Path(path), RuntimeError) as temporary:
            torch.save(checkpoint, temporary)


def make_trainer(config: TrainConfig, folder: Path, machine: Machine, callbacks: Sequence[Callback]) -> Trainer:
    """A trainer that checkpoints every epoch; ValueError where Lightning cannot run on the machine as described."""
    saver = ModelCheckpoint(
        folder, filename=Path(RESUME).stem, save_on_train_epoch_end=True, enable_version_counter=False
    )
    try:
        trainer = Trainer(
            accelerator=machine.accelerator,
            devices=machine.devices,
            num_nodes=machine.num_nodes,
            strategy=machine.strategy,
            precision="32-true" if config.precision == "32" else config.precision,  # type: ignore[arg-type]
            max_epochs=config.epochs,
            callbacks=[*callbacks, saver, *([] if machine.quiet else [RichProgressBar(leave=True)])],
            plugins=[WholeFiles()],
            logger=_loggers(folder, machine.loggers),
            log_every_n_steps=10,
            num_sanity_val_steps=0,
            use_distributed_sampler=False,
            enable_model_summary=False,
            enable_progress_bar=not machine.quiet,
            default_root_dir=folder,
            **machine.options,
        )
    except (MisconfigurationException, ValueError) as error:
        where = ", ".join(f"{name}={getattr(machine, name)!r}" for name in ("accelerator", "devices", "strategy"))
        reason = " ".join(str(error).split()).rstrip(".")
        raise ValueError(f"Lightning cannot train with {where} ({reason}); choose others.") from error
    if config.precision == "16-mixed" and isinstance(trainer.accelerator, CPUAccelerator):
        raise ValueError("precision='16-mixed' needs a GPU; choose bf16-mixed on a CPU.")
    return trainer


def _loggers(folder: Path, names: Sequence[str]) -> list[Logger] | bool:
    known: dict[str, Any] = {"csv": CSVLogger, "tensorboard": TensorBoardLogger}
    for name in names:
        if name not in known:
            raise ValueError(f"a logger must be csv or tensorboard, got {name!r}")
    return [known[name](folder, name=LOGS, version=name) for name in names] or False


@contextmanager
def without_chatter() -> Iterator[None]:
    """Lightning's loggers and hints silenced; its errors, and all other warnings, still come through."""
    loggers = [logging.getLogger(name) for name in ("lightning.pytorch", "lightning.fabric")]
    levels = [logger.level for logger in loggers]
    for logger in loggers:
        logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            for hint in HINTS:
                warnings.filterwarnings("ignore", message=hint)
            yield
    finally:
        for logger, level in zip(loggers, levels, strict=True):
            logger.setLevel(level)


@contextmanager
def interruptible() -> Iterator[None]:
    """Ctrl-C as the usual KeyboardInterrupt: Lightning would exit instead, deaf to any further one."""
    handler = signal.getsignal(signal.SIGINT)
    try:
        yield
    except SystemExit as stop:
        if not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        signal.signal(signal.SIGINT, handler)
        raise KeyboardInterrupt from stop
