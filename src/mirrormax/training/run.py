"""One training run in one folder (see ``folder``): it goes on where it was interrupted, and is not done twice."""

from __future__ import annotations

import pickle
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_only
from safetensors import SafetensorError
from safetensors.torch import load_file

from mirrormax._files import save_json
from mirrormax.training.batches import loader
from mirrormax.training.config import TrainConfig
from mirrormax.training.folder import (
    CONFIG,
    RESUME,
    clear,
    finish,
    identity,
    is_complete,
    read_metrics,
    refuse_other_contents,
    remove_leftovers,
    tidy,
)
from mirrormax.training.history import BEST, History
from mirrormax.training.lightning import Machine, interruptible, make_trainer, without_chatter
from mirrormax.training.module import Classification
from mirrormax.training.prepare import prepare

__all__ = ["Machine", "is_complete", "read_metrics", "train", "writes_files"]


def train(
    config: TrainConfig,
    folder: str | Path,
    data_dir: str | Path | None = None,
    *,
    machine: Machine | None = None,
    force: bool = False,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train a model into ``folder`` and return it; a finished run of the same configuration is left as it is.

    Args:
        config: all that the result depends on.
        folder: of this run alone.
        data_dir: where data files are looked for.
        machine: Lightning's accelerator, devices, nodes, strategy and loggers. With several devices, each takes
            batches of ``batch_size`` and gradients are averaged over them, whatever the ``reduction``.
        force: begin anew, in place of whichever run is there.
        callbacks: of Lightning, called each epoch when its numbers are in the run's History and before its checkpoint.
    """
    folder, machine = Path(folder), machine or Machine()
    writes = writes_files()
    if not force and is_complete(folder, config):
        if writes:
            tidy(folder)
        return folder
    if writes:
        refuse_other_contents(folder, config, force=force)
    with without_chatter(), interruptible():
        prepared = prepare(config, None if data_dir is None else Path(data_dir))
        history = History(folder, config.stop_accuracy, partial(finish, config, folder, prepared))
        trainer = make_trainer(config, folder, machine, [history, *callbacks])
        resume = None if force else _checkpoint(folder)
        if writes:
            remove_leftovers(folder)
            if force:
                clear(folder)
            save_json(folder / CONFIG, identity(config))
        place = {"rank": trainer.global_rank, "world": trainer.world_size}
        training = loader(prepared.splits[0], config.batch_size, config.seed, **place)
        held_out = [loader(part, 4 * config.batch_size, None, **place) for part in prepared.splits[1:]]
        module = Classification(prepared.model, config, len(training))
        trainer.fit(module, training, held_out, ckpt_path=resume, weights_only=True)
    return folder


def writes_files() -> bool:
    """Whether this process is the one of several that writes files and tells."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def _checkpoint(folder: Path) -> Path | None:
    """The checkpoint to go on from; one that cannot be read is refused rather than quietly begun anew."""
    path = folder / RESUME
    if not path.exists():
        return None
    try:
        _refuse_changed_bytes(path)
        found = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(f"the checkpoint {path} is damaged; delete it, or begin anew with --force.") from error
    if not isinstance(found, dict) or not {"state_dict", "optimizer_states", "callbacks", "loops"} <= found.keys():
        raise ValueError(f"{path} is no checkpoint of a training run; delete it, or begin anew with --force.")
    try:
        load_file(folder / BEST)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the best weights {folder / BEST} are damaged; begin anew with --force.") from error
    return path


def _refuse_changed_bytes(path: Path) -> None:
    """BadZipFile where a checksum of the archive does not hold: torch does not look at them."""
    with zipfile.ZipFile(path) as archive:
        changed = archive.testzip()
        if changed is not None:
            raise zipfile.BadZipFile(changed)
