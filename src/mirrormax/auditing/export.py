"""A model as a plain Hugging Face folder, which ``from_pretrained`` takes."""

from __future__ import annotations

import json
import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from mirrormax.auditing.loading import quiet
from mirrormax.auditing.models import Loaded, OwnModel


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
    import transformers

    check_export(folder, loaded)
    model: Any = loaded.model
    with TemporaryDirectory(dir=folder.absolute().parent, prefix=f".{folder.name}.") as scratch:
        target = Path(scratch) / "model"
        with quiet(transformers):
            model.save_pretrained(target)
        if loaded.tokenizer is not None:
            loaded.tokenizer.save_pretrained(target)
        else:
            pixels = {"image_mean": loaded.image["mean"], "image_std": loaded.image["std"]}
            (target / "preprocessor_config.json").write_text(json.dumps(pixels), encoding="utf-8")
        os.replace(target, folder)
