"""Models from folders: our own checkpoints, runs of ``mirrormax train``, and Hugging Face encoders.

Weights are read from safetensors alone, and no code of a folder is ever run. ``allow_pickle`` also takes a Hugging
Face folder whose weights are an older ``pytorch_model.bin``, which torch then reads with ``weights_only=True``.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from torch import nn

from mirrormax.nets import load_model

WORDS, IMAGES = "words", "images"
TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
NO_LIMIT = 1 << 20
"""Tokens of a text for models that name no longest one, such as those with relative positions."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to be audited, and how texts or images become what it takes."""

    model: nn.Module
    reads: str  # WORDS or IMAGES
    make: str  # "mirrormax" or "hugging face"
    classes: tuple[str, ...]  # empty without a head
    tokenizer: Any  # a tokenizers.Tokenizer or a Hugging Face tokenizer; None for images
    longest: int  # tokens it can read; 0 for images
    image: dict[str, Any]  # size, channels, mean, std of images
    training: dict[str, Any]  # how it was made, as a checkpoint of ours says; empty where nobody says
    files: tuple[Path, ...]  # what was read, by whose contents the model is known
    folder: str  # as it was given

    @property
    def names(self) -> Callable[[list[int]], list[str]] | None:
        """Token numbers to words."""
        if self.tokenizer is None:
            return None
        if self.make == "mirrormax":
            return lambda ids: [self.tokenizer.id_to_token(t) or f"#{t}" for t in ids]
        return lambda ids: list(self.tokenizer.convert_ids_to_tokens(ids))

    @property
    def unknown(self) -> int | None:
        """The number of the token that stands for what the tokenizer does not know, where it has one."""
        if self.tokenizer is None:
            return None
        found = self.tokenizer.token_to_id("[UNK]") if self.make == "mirrormax" else self.tokenizer.unk_token_id
        return None if found is None else int(found)


def load_for_audit(folder: str | Path, *, allow_pickle: bool = False) -> Loaded:
    """Read the model in a folder; ValueError or OSError with one sentence if there is none."""
    given, folder = str(folder), Path(folder)
    if not folder.exists():
        raise FileNotFoundError(f"{folder} does not exist; give the folder of a model.")
    if (folder / "model" / "config.json").is_file() and not (folder / "model.safetensors").is_file():
        folder = folder / "model"  # a run keeps its checkpoint there
    path = folder / "config.json"
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no config.json, so no model; give a checkpoint or a Hugging Face folder."
        )
    config = _read_json(path)
    found = _hugging_face(folder, config, allow_pickle) if "model_type" in config else _own(folder)
    return replace(found, folder=given)


def _read_json(path: Path) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{path} is not JSON; save the model again.") from error
    if not isinstance(found, dict):
        raise ValueError(f"{path} holds no JSON object but a {type(found).__name__}; save the model again.")
    return found


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
    files = _files(folder, "model.safetensors", "config.json", "tokenizer.json")
    return Loaded(
        found.model, reads, "mirrormax", found.classes, found.tokenizer, longest, image, found.training, files, ""
    )


def _hugging_face(folder: Path, config: dict[str, Any], allow_pickle: bool) -> Loaded:
    safe = any(folder.glob("*.safetensors"))
    if not safe and not allow_pickle:
        raise ValueError(
            f"{folder} has no .safetensors weights; convert them, or give --allow-pickle if you trust what is there."
        )
    architecture = _architecture(folder, config)
    import transformers

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
    tokenizer = None if images else _tokenizer(folder, options)
    return Loaded(
        model,
        IMAGES if images else WORDS,
        "hugging face",
        tuple(str(classes[k]) for k in sorted(classes)),
        tokenizer,
        0 if images else _longest(model.config),
        _image(folder, model.config) if images else {},
        {},
        _files(folder, "*.safetensors" if safe else "*.bin", "*.json", *TOKENIZER_FILES),
        "",
    )


def _files(folder: Path, *patterns: str) -> tuple[Path, ...]:
    return tuple(sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}))


def _architecture(folder: Path, config: dict[str, Any]) -> str:
    """The class that a config.json names first, or nothing."""
    names = config.get("architectures")
    if names is None or names == []:
        return ""
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{folder / 'config.json'} has architectures {names!r}, which must be a list of names such as "
            "'BertModel'; save the model again."
        )
    return str(names[0])


def _tokenizer(folder: Path, options: dict[str, Any]) -> Any:
    # Without a file transformers makes an empty tokenizer, which takes every word for an unknown one.
    if not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"{folder} has no tokenizer file ({TOKENIZER_FILES[0]}, {TOKENIZER_FILES[1]}, …), so that texts cannot be "
            "read; save the model with its tokenizer."
        )
    from transformers import AutoTokenizer

    try:
        return AutoTokenizer.from_pretrained(folder, **options)
    except Exception as error:
        raise ValueError(f"{folder} has no tokenizer that can be read ({_first_line(error)}).") from error


def _longest(config: Any) -> int:
    """Positions a text may have; RoBERTa keeps its first pad_token_id + 1 for itself."""
    reserved = config.pad_token_id + 1 if config.model_type in ("roberta", "xlm-roberta", "camembert") else 0
    positions = getattr(config, "max_position_embeddings", None)
    return int(positions) - reserved if positions else NO_LIMIT


def _image(folder: Path, config: Any) -> dict[str, Any]:
    path = folder / "preprocessor_config.json"
    found = _read_json(path) if path.is_file() else {}
    size, channels = config.image_size, config.num_channels
    return {
        "size": size if isinstance(size, int) else size[0],
        "channels": channels,
        "mean": _per_channel(path, found, "image_mean", channels),
        "std": _per_channel(path, found, "image_std", channels),
    }


def _per_channel(path: Path, found: dict[str, Any], name: str, channels: int) -> float | list[float]:
    value: Any = found.get(name, 0.5)
    numbers = value if isinstance(value, list) else [value]
    fits = len(numbers) in (1, channels) and all(type(one) in (int, float) and one == one for one in numbers)
    if not fits or (name == "image_std" and not all(one > 0 for one in numbers)):
        raise ValueError(f"{path} has {name} {value!r}, which must be {channels} numbers; save the model again.")
    return [float(one) for one in numbers] if isinstance(value, list) else float(value)


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
