"""One training run in one folder: it goes on where it was interrupted, and is not done twice.

What makes it the same run is its identity (see ``_identity``); a folder that holds another one is never gone on with.
"""

from __future__ import annotations

import pickle
import sys
import zipfile
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any, cast

import torch
from lightning.pytorch import Callback
from lightning.pytorch.utilities import rank_zero_only
from safetensors import SafetensorError
from safetensors.torch import load_file

import mirrormax
from mirrormax._results import ResultFolder
from mirrormax.training.batches import TokenBatches, loader
from mirrormax.training.classification import Classification, History
from mirrormax.training.config import SentimentTraining, TrainConfig
from mirrormax.training.inputs import Prepared, prepare, run_identity
from mirrormax.training.machine import Machine, interruptible, make_trainer, without_chatter
from mirrormax.training.optimizers import default_lr
from mirrormax.training.results import BEST, CONFIG, RESUME, SCRATCH, majority_shares, rows_of_splits, write_results

KIND = "training run"


def is_complete(folder: str | Path, config: TrainConfig, data_dir: str | Path | None = None) -> bool:
    """Whether the folder holds a finished, undamaged run of just this configuration, on these data."""
    return ResultFolder(Path(folder), KIND).is_current(run_identity(config, data_dir))


def train(
    config: TrainConfig,
    folder: str | Path,
    data_dir: str | Path | None = None,
    *,
    machine: Machine | None = None,
    force: bool = False,
    wait: bool = False,
    within: Path | None = None,
    callbacks: Sequence[Callback] = (),
) -> Path:
    """Train a model into ``folder`` and return it; a finished run of the same identity is left as it is.

    Args:
        config: all choices that the result depends on.
        folder: of this run alone.
        data_dir: where data files are looked for.
        machine: Lightning's accelerator, devices, nodes, strategy and logger. With several devices, each takes
            batches of ``batch_size`` and gradients are averaged over them, whatever the ``reduction``.
        force: begin anew, in place of whichever run is there.
        wait: if another process writes to the folder, wait for it instead of raising ValueError.
        within: a folder above ``folder``; no link between the two is followed.
        callbacks: of Lightning, called each epoch when its numbers are in the run's History and before its checkpoint.
    """
    where, machine = ResultFolder(Path(folder), KIND, within=within), machine or Machine()
    about = run_identity(config, data_dir)
    if not force and where.is_current(about):
        if writes_files():
            _remove_scratch(where, about)
            if not machine.quiet:
                sys.stderr.write(f"finished before, by mirrormax {_maker(where)}, in {where.path}\n")
        return where.path
    with without_chatter(), interruptible():
        prepared = prepare(config, data_dir)
        if run_identity(config, data_dir) != about:
            raise ValueError(f"the data {config.data!r} changed while they were read; start again.")
        taken = default_lr(prepared.model, config) if config.lr is None else config.lr
        record = {**config.to_dict(), "lr_taken": taken, "version": mirrormax.__version__}
        training = {**record, "data_sha256": about["data"], "rows": rows_of_splits(prepared)}
        history = History(where, config, partial(write_results, where, prepared, training))
        trainer = make_trainer(config, where, machine, [history, *callbacks])
        if not writes_files():
            _fit(config, prepared, trainer, _checkpoint(where.path) if not force else None)
            return where.path
        with where.open(about, force=force, wait=wait):
            if not where.is_current(about):
                resume, maker = _checkpoint(where.path), _maker(where)
                where.save_json(CONFIG, record)
                if not machine.quiet:
                    sys.stderr.write(opening(config, prepared, taken, where.path, maker if resume else None) + "\n")
                _fit(config, prepared, trainer, resume)
    return where.path


def _fit(config: TrainConfig, prepared: Prepared, trainer: Any, resume: Path | None) -> None:
    place = {"rank": trainer.global_rank, "world": trainer.world_size}
    by_length = not isinstance(config, SentimentTraining) or config.by_length
    training = loader(prepared.splits[0], config.batch_size, config.seed, by_length=by_length, **place)
    held_out = [loader(part, 4 * config.batch_size, None, **place) for part in prepared.splits[1:]]
    tokens_per_byte = [part.tokens_per_byte for part in prepared.splits if isinstance(part, TokenBatches)]
    module = Classification(prepared.model, config, len(training), tokens_per_byte)
    trainer.fit(module, training, held_out, ckpt_path=resume, weights_only=True)


def opening(config: TrainConfig, prepared: Prepared, lr: float, folder: Path, maker: str | None) -> str:
    """What is said before the first epoch: rows, classes, the share of the most frequent one, the step size, where;
    ``maker`` is the version that began the run."""
    rows, share = rows_of_splits(prepared), majority_shares(prepared)["test"]
    of = " (the default)" if config.lr is None else ""
    p = f", p = {config.p:g}" if "p" not in config.ignored() else ""
    chosen_from = f"{len(prepared.classes)} classes"
    if not prepared.classes:
        chosen_from = (
            f"{prepared.tokenizer.get_vocab_size()} tokens, windows of {cast(Any, prepared.model).config.context}"
        )
    rise = f"rising over {config.warmup_epochs:.3g} of {config.epochs} epoch{'s' * (config.epochs != 1)}"
    return (
        f"{config.data}: {', '.join(f'{count:,} {name}' for name, count in rows.items())} rows\n"
        f"{chosen_from}, the most frequent is {share:.4f} of the test {'rows' if prepared.classes else 'text'}\n"
        f"{config.optimizer}{p}, step size {lr:.4g}{of}, {rise}\n"
        f"{'new run' if maker is None else f'going on with the run of mirrormax {maker}'} in {folder}"
    )


def writes_files() -> bool:
    """Whether this process is the one of several that writes files and tells."""
    return bool(getattr(rank_zero_only, "rank", 0) == 0)


def _maker(where: ResultFolder) -> str:
    """The version of the package, with a digest of its code, that began the run in a folder."""
    manifest = where.manifest()
    return manifest.made_by[0] if manifest is not None and manifest.made_by else "of an unknown version"


def _remove_scratch(where: ResultFolder, about: dict[str, Any]) -> None:
    """Take away what a finished run needs no more, if it was killed before it could."""
    manifest = where.manifest()
    if manifest is not None and any(name in manifest.files for name in SCRATCH):
        with where.open(about):
            where.remove(*SCRATCH)


def _checkpoint(folder: Path) -> Path | None:
    """The checkpoint to go on from; one that cannot be read is refused rather than quietly begun anew."""
    path = folder / RESUME
    if not path.exists():
        return None
    try:
        with zipfile.ZipFile(path) as archive:
            if archive.testzip() is not None:  # torch does not look at the checksums
                raise zipfile.BadZipFile
        state = torch.load(path, map_location="cpu", weights_only=True, mmap=True)
    except (RuntimeError, OSError, EOFError, ValueError, KeyError, zipfile.BadZipFile, pickle.UnpicklingError) as error:
        raise ValueError(
            f"the checkpoint {path} is damaged, and its epochs are lost; begin anew with --force."
        ) from error
    if not isinstance(state, dict) or not {"state_dict", "optimizer_states", "callbacks", "loops"} <= state.keys():
        raise ValueError(f"{path} is no checkpoint of a training run, so its epochs are lost; begin anew with --force.")
    try:
        load_file(folder / BEST)
    except (SafetensorError, OSError) as error:
        raise ValueError(f"the best weights {folder / BEST} are damaged; begin anew with --force.") from error
    return path
