"""Pruned models as folders: as :func:`~mirrormax.auditing.load_for_audit` reads them, or plain ones of Hugging Face."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import torch
from torch import nn

from mirrormax.auditing.loading import IMAGES_FILE, TRAINING, quiet
from mirrormax.auditing.models import Loaded, OwnModel
from mirrormax.nets import SPARSE_WEIGHTS, write_model
from mirrormax.pruning import save_sparse


def save_pruned(writing: Callable[..., AbstractContextManager[Path]], loaded: Loaded) -> None:
    """The files by which :func:`load_for_audit` reads a model again, its zeros kept as bits.

    Each goes through ``writing(name, *failures)``, which gives a path to write it to.
    """
    if isinstance(loaded, OwnModel):
        write_model(writing, loaded.model, loaded.classes, loaded.tokenizer, loaded.training, sparse=True)
        return
    model: Any = loaded.model
    with writing(SPARSE_WEIGHTS) as path:
        save_sparse(path, stored_once(model))
    with writing("config.json") as path:
        told = {**json.loads(model.config.to_json_string(use_diff=False)), "architectures": [type(model).__name__]}
        told |= {TRAINING: loaded.training} if loaded.training else {}
        path.write_text(json.dumps(told, indent=2, sort_keys=True) + "\n", encoding="utf-8")
    with TemporaryDirectory() as scratch:
        _write_reader(Path(scratch), loaded)
        for file in sorted(Path(scratch).iterdir()):
            with writing(file.name) as path:
                path.write_bytes(file.read_bytes())


def stored_once(model: nn.Module) -> dict[str, torch.Tensor]:
    """The state of a model in which a tensor of two names, such as a tied embedding, has its first one only."""
    found = model.state_dict()
    first: dict[tuple[int, torch.Size], str] = {}
    for name, tensor in found.items():
        first.setdefault((tensor.data_ptr(), tensor.shape), name)
    return {
        name: tensor
        for name, tensor in found.items()
        if not tensor.numel() or first[tensor.data_ptr(), tensor.shape] == name
    }


def _write_reader(folder: Path, loaded: Loaded) -> None:
    """The tokenizer, or how pixels are scaled."""
    if loaded.tokenizer is not None:
        loaded.tokenizer.save_pretrained(folder)
    else:
        pixels = {"image_mean": loaded.image["mean"], "image_std": loaded.image["std"]}
        (folder / IMAGES_FILE).write_text(json.dumps(pixels), encoding="utf-8")


def check_export(folder: Path, loaded: Loaded) -> None:
    """ValueError where the folder is taken, or the model is none that transformers has a class for."""
    if isinstance(loaded, OwnModel):
        raise ValueError(
            f"--export {folder} writes models that transformers knows, and {loaded.folder} is one of ours; leave "
            "it out and use the folder of --out."
        )
    if os.path.lexists(folder) and (folder.is_symlink() or not folder.is_dir() or any(folder.iterdir())):
        raise ValueError(f"--export {folder} exists already; give a new folder.")
    if not folder.absolute().parent.is_dir():
        raise FileNotFoundError(f"--export {folder}: the directory {folder.parent} does not exist; create it first.")


def export_pruned(folder: Path, loaded: Loaded) -> None:
    """Weights (zeros in place), configuration and tokenizer; the folder appears when all of it is written."""
    check_export(folder, loaded)
    model: Any = loaded.model
    with TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}.") as scratch:
        target = Path(scratch) / "model"
        with quiet():
            model.save_pretrained(target)
        _write_reader(target, loaded)
        os.replace(target, folder)
