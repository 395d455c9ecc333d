"""Trained models as folders of plain files, of which nothing is executed when they are read.

``model.safetensors`` holds the weights, ``config.json`` the sizes (for images with the mean and spread of their
pixels), the classes, how it was trained and the SHA-256 of the weights, and ``tokenizer.json``, where there is one, the
Hugging Face tokenizer. A pruned model has ``model.sparse.safetensors`` instead, with a bit for every zero.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, cast

import torch
from torch import nn

from mirrormax._files import checksum, load_object, replacing, save_json
from mirrormax.nets.layers import without_memory
from mirrormax.nets.models import Decoder, TransformerClassifier, VisionTransformer
from mirrormax.nets.sizes import DecoderConfig, TransformerConfig, VisionConfig
from mirrormax.pruning import load_sparse, save_sparse

FORMAT = 2
# What the text classifiers of the first format had, which the paper's have not.
FIRST_SENTIMENT = {"activation": "relu", "norm_bias": True}
KINDS: dict[str, tuple[type[Any], type[Any]]] = {
    "sentiment": (TransformerClassifier, TransformerConfig),
    "vision": (VisionTransformer, VisionConfig),
    "lm": (Decoder, DecoderConfig),
}
FLOATS = (torch.float16, torch.float32, torch.float64)
WEIGHTS, CONFIG, TOKENIZER = "model.safetensors", "config.json", "tokenizer.json"
SPARSE_WEIGHTS = "model.sparse.safetensors"


@dataclass(frozen=True, eq=False)
class Checkpoint:
    """A model read from a folder: in evaluation mode, with what is needed to use it."""

    model: TransformerClassifier | VisionTransformer | Decoder
    kind: str
    classes: tuple[str, ...]
    tokenizer: Any
    training: dict[str, Any]


def save_model(
    folder: str | Path,
    model: nn.Module,
    classes: Sequence[str],
    tokenizer: Any = None,
    training: Mapping[str, Any] | None = None,
) -> Path:
    """Write a model into a folder.

    Args:
        folder: made if it is not there; what it holds of an earlier model of ours is replaced. ValueError if it holds
            files of these names that are not ours, such as a Hugging Face model.
        model: a :class:`TransformerClassifier`, :class:`VisionTransformer` or :class:`Decoder`.
        classes: the names of its classes; none for a language model, whose tokens are the tokenizer's.
        tokenizer: the ``tokenizers.Tokenizer`` of a text model.
        training: how it was made, as plain data.
    """
    folder = Path(folder)
    description = _describe(model, classes, training)
    try:
        _read_config(folder)
    except (OSError, ValueError):
        present = next((name for name in (CONFIG, WEIGHTS, TOKENIZER) if os.path.lexists(folder / name)), None)
        if present is not None:
            raise ValueError(
                f"{folder / present} is not of a model that mirrormax has saved; give an empty or new folder."
            ) from None
    # Claimed first, with a checksum that no weights have: if killed from here on, it is no model and still ours.
    save_json(folder / CONFIG, {**description, "sha256": ""})
    if tokenizer is None:
        (folder / TOKENIZER).unlink(missing_ok=True)
    write_model(lambda name, *failures: replacing(folder / name, *failures), model, classes, tokenizer, training)
    return folder


def write_model(
    writing: Callable[..., AbstractContextManager[Path]],
    model: nn.Module,
    classes: Sequence[str],
    tokenizer: Any = None,
    training: Mapping[str, Any] | None = None,
    *,
    under: str = "",
    sparse: bool = False,
) -> None:
    """The files of :func:`save_model`, each through ``writing(name, *failures)``, which gives a path to write it to.

    All names begin with ``under``. With ``sparse`` the weights are kept by :func:`mirrormax.pruning.save_sparse`.
    """
    from safetensors import SafetensorError
    from safetensors.torch import save_file

    description = _describe(model, classes, training)
    state = {name: value.detach().contiguous().cpu() for name, value in model.state_dict().items()}
    with writing(under + (SPARSE_WEIGHTS if sparse else WEIGHTS), SafetensorError) as temporary:
        if sparse:
            save_sparse(temporary, state)
        else:
            save_file(state, temporary)
        sha256 = checksum(temporary)
    if tokenizer is not None:
        with writing(under + TOKENIZER) as temporary:
            temporary.write_text(tokenizer.to_str(), encoding="utf-8")
    with writing(under + CONFIG) as temporary:
        text = json.dumps({**description, "sha256": sha256}, indent=2, sort_keys=True)
        temporary.write_text(text + "\n", encoding="utf-8")


def _describe(model: nn.Module, classes: Sequence[str], training: Mapping[str, Any] | None) -> dict[str, Any]:
    kind = next((kind for kind, (model_type, _) in KINDS.items() if isinstance(model, model_type)), None)
    if kind is None:
        known = ", ".join(model_type.__name__ for model_type, _ in KINDS.values())
        raise TypeError(f"model must be one of {known}, got {type(model).__name__}.")
    config = cast(Any, model.config)
    expected = 0 if kind == "lm" else config.classes
    if len(classes) != expected:
        raise ValueError(f"classes must be {expected} names, one for each class, got {len(classes)}.")
    sizes, names = asdict(config), list(classes)
    return {"format": FORMAT, "kind": kind, "model": sizes, "classes": names, "training": dict(training or {})}


def load_model(folder: str | Path) -> Checkpoint:
    """Read a model; ValueError or OSError with one sentence if the folder does not hold a whole one."""
    folder = Path(folder)
    description = _read_config(folder)
    kind = description["kind"]
    make, config_type = KINDS[kind]
    try:
        config = config_type(**description["model"])
        model = without_memory(make, config)  # none is taken before the weights are seen to fit
        _describe(model, description["classes"], None)
    except (TypeError, ValueError) as error:
        raise ValueError(f"{folder / CONFIG} describes no {kind} model ({error}); save the model again.") from error
    is_sparse = not (folder / WEIGHTS).is_file() and (folder / SPARSE_WEIGHTS).is_file()
    _load_weights(folder / (SPARSE_WEIGHTS if is_sparse else WEIGHTS), model, description.get("sha256"))
    tokenizer = _read_tokenizer(folder / TOKENIZER, config.vocab_size) if kind != "vision" else None
    return Checkpoint(model.eval(), kind, tuple(description["classes"]), tokenizer, description["training"])


def _read_config(folder: Path) -> dict[str, Any]:
    path = folder / CONFIG
    if not path.is_file():
        raise FileNotFoundError(f"{folder} holds no {CONFIG}, so no model; give a folder written by 'mirrormax train'.")
    description = load_object(path, "save the model again")
    expected = {"format": int, "kind": str, "model": dict, "classes": list, "training": dict}
    if any(not isinstance(description.get(key), kind) for key, kind in expected.items()):
        raise ValueError(f"{path} lacks one of {', '.join(expected)}; give a folder written by 'mirrormax train'.")
    if not all(isinstance(name, str) for name in description["classes"]):
        raise ValueError(f"{path} has classes that are not strings; save the model again.")
    if description["format"] not in (1, FORMAT) or description["kind"] not in KINDS:
        raise ValueError(
            f"{path} has format {description['format']} and kind {description['kind']!r}, but this version reads "
            f"formats up to {FORMAT} and {' or '.join(KINDS)}; update mirrormax."
        )
    if description["format"] == 1 and description["kind"] == "sentiment":
        description["model"] = {**description["model"], **FIRST_SENTIMENT}
    return description


def _load_weights(path: Path, model: nn.Module, sha256: str | None) -> None:
    """Weights that are not as they were written raise; folders from before checksums have none."""
    from safetensors import SafetensorError
    from safetensors.torch import load_file

    if not path.is_file():
        raise FileNotFoundError(f"{path} does not exist; the model was not saved whole, so save it again.")
    if sha256 is not None and checksum(path) != sha256:
        raise ValueError(f"{path} is not as it was written, by the SHA-256 in {CONFIG}; save the model again.")
    try:
        weights = load_sparse(path) if path.name == SPARSE_WEIGHTS else load_file(path)
        model.load_state_dict(weights, assign=True)
    except (SafetensorError, RuntimeError) as error:
        raise ValueError(f"{path} does not hold the weights that {CONFIG} describes; save the model again.") from error
    kinds = {value.dtype for value in weights.values()}
    if len(kinds) != 1 or kinds.isdisjoint(FLOATS):
        kinds_named = ", ".join(sorted(map(str, kinds)))
        raise ValueError(f"{path} holds {kinds_named}, not floating-point weights of one kind; save the model again.")
    if kinds == {torch.float16}:
        model.float()  # half precision is for keeping weights, not for computing with them on a CPU


def _read_tokenizer(path: Path, vocab_size: int) -> Any:
    if not path.is_file():
        return None
    from tokenizers import Tokenizer

    try:
        tokenizer = Tokenizer.from_str(path.read_text("utf-8"))
    except Exception as error:  # tokenizers raises plain Exceptions
        raise ValueError(f"{path} is not a tokenizer; save the model again.") from error
    if max(tokenizer.get_vocab().values(), default=0) >= vocab_size:
        raise ValueError(f"{path} has tokens beyond the model's {vocab_size}; save it with its own tokenizer.")
    return tokenizer
