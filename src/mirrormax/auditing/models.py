"""Models from folders: our own checkpoints, runs of ``mirrormax train``, and Hugging Face encoders.

Weights are read from safetensors alone, and no code of a folder is ever run. ``allow_pickle`` also takes a Hugging
Face folder whose weights are an older ``pytorch_model.bin``, which torch then reads with ``weights_only=True``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mirrormax.nets import load_model

WORDS, IMAGES = "words", "images"


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to be audited, and how texts or images become what it takes."""

    model: nn.Module
    reads: str  # WORDS or IMAGES
    make: str  # "mirrormax" or "hugging face"
    classes: tuple[str, ...]  # empty without a head
    tokenizer: Any  # a tokenizers.Tokenizer or a Hugging Face tokenizer; None for images
    longest: int  # tokens it can read; 0 for images
    image: dict[str, Any]  # size, mean, std of images

    @property
    def names(self) -> Callable[[list[int]], list[str]] | None:
        """Token numbers to words."""
        if self.tokenizer is None:
            return None
        if self.make == "mirrormax":
            return lambda ids: [self.tokenizer.id_to_token(t) or f"#{t}" for t in ids]
        return lambda ids: list(self.tokenizer.convert_ids_to_tokens(ids))


def load_for_audit(folder: str | Path, *, allow_pickle: bool = False) -> Loaded:
    """Read the model in a folder; ValueError or OSError with one sentence if there is none."""
    folder = Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; give the folder of a model.")
    if (folder / "model" / "config.json").is_file() and not (folder / "model.safetensors").is_file():
        folder = folder / "model"  # a run keeps its checkpoint there
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no config.json, so no model; give a checkpoint or a Hugging Face folder."
        )
    try:
        told = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f"{path} is not JSON; save the model again.") from error
    if isinstance(told, dict) and "model_type" in told:
        return _hugging_face(folder, told, allow_pickle)
    return _own(folder)


def _own(folder: Path) -> Loaded:
    found = load_model(folder)
    config: Any = found.model.config
    reads = WORDS if found.kind == "sentiment" else IMAGES
    if reads == WORDS and found.tokenizer is None:
        raise ValueError(
            f"{folder} has no tokenizer.json, so that texts cannot be read; save the model with its tokenizer."
        )
    image = (
        {}
        if reads == WORDS
        else {"size": config.image_size, "channels": config.channels, "mean": config.mean, "std": config.std}
    )
    longest = config.max_length if reads == WORDS else 0
    return Loaded(found.model, reads, "mirrormax", found.classes, found.tokenizer, longest, image)


def _hugging_face(folder: Path, told: dict[str, Any], allow_pickle: bool) -> Loaded:
    safe = any(folder.glob("*.safetensors"))
    if not safe and not allow_pickle:
        raise ValueError(
            f"{folder} has no .safetensors weights; convert them, or give --allow-pickle if you trust what is there."
        )
    import transformers

    architecture = next(iter(told.get("architectures") or []), "")
    kinds = {
        "ForSequenceClassification": transformers.AutoModelForSequenceClassification,
        "ForImageClassification": transformers.AutoModelForImageClassification,
    }
    maker = next((kind for end, kind in kinds.items() if architecture.endswith(end)), transformers.AutoModel)
    options = {"local_files_only": True, "trust_remote_code": False}
    try:
        with _quiet(transformers):
            model = maker.from_pretrained(
                folder,
                use_safetensors=safe,
                **options,
            )
    except Exception as error:  # transformers raises what its parts raise
        raise ValueError(f"{folder} cannot be read as a {architecture or 'model'} ({_first_line(error)}).") from error
    images = hasattr(model.config, "patch_size")
    classes = model.config.id2label if maker is not transformers.AutoModel else {}
    return Loaded(
        model,
        IMAGES if images else WORDS,
        "hugging face",
        tuple(str(classes[k]) for k in sorted(classes)),
        None if images else _tokenizer(folder, options),
        0 if images else _longest(model.config),
        _image(folder, model.config) if images else {},
    )


def _tokenizer(folder: Path, options: dict[str, Any]) -> Any:
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:
        raise ValueError(f"{folder} has no tokenizer that can be read ({_first_line(error)}).") from error


def _longest(config: Any) -> int:
    """Positions a text may have; RoBERTa keeps its first pad_token_id + 1 for itself."""
    reserved = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    return int(config.max_position_embeddings) - reserved


def _image(folder: Path, config: Any) -> dict[str, Any]:
    path = folder / "preprocessor_config.json"
    told = json.loads(path.read_text("utf-8")) if path.is_file() else {}
    size = config.image_size
    return {
        "size": size if isinstance(size, int) else size[0],
        "channels": config.num_channels,
        "mean": told.get("image_mean", 0.5),
        "std": told.get("image_std", 0.5),
    }


def _quiet(transformers: Any) -> Any:
    """No loading bar and no advice while a model is read."""
    from contextlib import contextmanager

    @contextmanager
    def quiet() -> Any:
        logging = transformers.utils.logging
        level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        try:
            yield
        finally:
            logging.set_verbosity(level)
            if bars:
                logging.enable_progress_bar()

    return quiet()


def _first_line(error: Exception) -> str:
    return str(error).strip().split("\n")[0].rstrip(".") or type(error).__name__
