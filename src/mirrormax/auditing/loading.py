"""Models from folders: our own checkpoints, runs of ``mirrormax train``, Hugging Face folders, and GGUF files.

What ``mirrormax prune`` has written is read as the model that it was made of, with its zeros.

A name that is no path is looked for among the installed packages, some of which carry a model. Weights are read from
safetensors or GGUF alone, and no code of a folder or a package is ever run. ``allow_pickle`` also takes a Hugging
Face folder whose weights are an older ``pytorch_model.bin``, which torch then reads with ``weights_only=True``.
"""

from __future__ import annotations

import importlib
import importlib.metadata
import io
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, redirect_stderr
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from mirrormax._extras import install
from mirrormax._files import load_object
from mirrormax.auditing.adapters import CAUSAL, HEADED
from mirrormax.auditing.models import IMAGES, WORDS, Loaded, OwnModel, longest_text
from mirrormax.data import END
from mirrormax.nets import SPARSE_WEIGHTS, load_model
from mirrormax.pruning import load_sparse

TOKENIZER_FILES = (
    "tokenizer.json",
    "vocab.txt",
    "vocab.json",
    "tokenizer.model",
    "spiece.model",
    "spm.model",
    "sentencepiece.bpe.model",
)
IMAGES_FILE = "preprocessor_config.json"
GGUF = ".gguf"
TRAINING = "mirrormax_training"
"""Where the config.json of a pruned model says how the run that it was made of was trained."""
NO_CODE: Mapping[str, Any] = {"local_files_only": True, "trust_remote_code": False}
WHOLE: Mapping[str, Any] = {"output_loading_info": True, "ignore_mismatched_sizes": True}
"""Weights that are missing or do not fit are refused by name."""


def load_for_audit(folder: str | Path, *, allow_pickle: bool = False) -> Loaded:
    """Read the model in a folder, a GGUF file or an installed package; ValueError or OSError if there is none."""
    if not isinstance(folder, str | os.PathLike):
        raise TypeError(f"the model must be named by its folder, file or package, got {type(folder).__name__}.")
    given, folder = str(folder), Path(folder)
    if not folder.exists():
        folder = packaged_model(given)
    files = [folder] if folder.suffix.lower() == GGUF and folder.is_file() else []
    if folder.is_dir() and not (folder / "config.json").is_file():
        files = sorted(folder.glob(f"*{GGUF}"))
    if len(files) == 1:
        return replace(_gguf(files[0]), folder=given)
    if (folder / "model" / "config.json").is_file() and not (folder / "model.safetensors").is_file():
        folder = folder / "model"  # a run keeps its checkpoint there
    path = folder / "config.json"
    if not path.is_file() and (folder / "adapter_config.json").is_file():
        raise ValueError(f"{folder} holds an adapter and no whole model; merge it into its base model and save that.")
    if not path.is_file():
        raise FileNotFoundError(
            f"{folder} holds no config.json, so no model; give a checkpoint or a Hugging Face folder."
        )
    config = load_object(path, "save the model again")
    loaded = _hugging_face(folder, config, allow_pickle) if "model_type" in config else _own(folder)
    return replace(loaded, folder=given)


def packaged_model(name: str) -> Path:
    """The GGUF file or the model's folder that an installed package carries."""
    missing = f"{name} does not exist; give the folder of a model, a GGUF file, or an installed package with one."
    if not name or any(mark in name for mark in "/\\ "):
        raise FileNotFoundError(missing)
    try:
        package = importlib.metadata.distribution(name)
    except (importlib.metadata.PackageNotFoundError, ValueError) as error:
        raise FileNotFoundError(missing) from error
    files = [Path(str(package.locate_file(file))) for file in package.files or ()]
    models = [file for file in files if file.suffix.lower() == GGUF]
    models += [file.parent for file in files if file.name == "config.json" and any(file.parent.glob("*.safetensors"))]
    if len(models) != 1:
        names = ", ".join(map(str, models)) or "none"
        raise FileNotFoundError(f"the package {name} must carry one model, found {names}; give its path.")
    return models[0]


def _own(folder: Path) -> Loaded:
    checkpoint = load_model(folder)
    config: Any = checkpoint.model.config
    files = _files(folder, "*.safetensors", "config.json", "tokenizer.json")
    made: dict[str, Any] = {"classes": checkpoint.classes, "training": checkpoint.training, "files": files}
    if checkpoint.kind not in ("lm", "sentiment"):
        image = {"size": config.image_size, "channels": config.channels, "mean": config.mean, "std": config.std}
        return OwnModel(checkpoint.model, IMAGES, tokenizer=None, longest=0, image=image, **made)
    if checkpoint.tokenizer is None:
        raise ValueError(
            f"{folder} has no tokenizer.json, so that texts cannot be read; save the model with its tokenizer."
        )
    if checkpoint.kind == "sentiment":
        return OwnModel(checkpoint.model, WORDS, tokenizer=checkpoint.tokenizer, longest=config.max_length, **made)
    import transformers

    # a Decoder is a Llama, which the adapter of transformers reads
    with torch.device("meta"):
        model = transformers.LlamaForCausalLM(transformers.LlamaConfig(**config.llama()))
    model = model.to_empty(device="cpu")
    model.model.rotary_emb = type(model.model.rotary_emb)(model.config)  # not among the weights
    model.load_state_dict(checkpoint.model.state_dict())
    tokenizer = transformers.PreTrainedTokenizerFast(
        tokenizer_object=checkpoint.tokenizer, eos_token=END, pad_token=END, split_special_tokens=True
    )
    return Loaded(model.eval(), WORDS, (), tokenizer, config.context, checkpoint.training, files)


def _gguf(path: Path) -> Loaded:
    with path.open("rb") as file:
        if file.read(4) != b"GGUF":
            raise ValueError(f"{path} is no GGUF file, whatever its name says; give one.")
    try:
        import gguf  # noqa: F401
    except ModuleNotFoundError as error:
        raise ValueError(f"{path} needs the package gguf to be read; {install('audit')}.") from error
    import transformers

    options, maker = {**NO_CODE, "gguf_file": path.name}, transformers.AutoModelForCausalLM
    with _reading_once():
        model = _whole(path, "model", partial(maker.from_pretrained, path.parent, **WHOLE, **options))
        tokenizer = _tokenizer(path.parent, options)
    return Loaded(model, WORDS, (), tokenizer, longest_text(model.config), {}, (path,))


def _hugging_face(folder: Path, config: dict[str, Any], allow_pickle: bool) -> Loaded:
    safe = sorted(path.name for path in folder.glob("*.safetensors"))
    if not safe and not any(folder.glob("*.bin")):
        raise ValueError(f"{folder} has no weights (a .safetensors file); save the whole model.")
    if not safe and not allow_pickle:
        raise ValueError(
            f"{folder} has no .safetensors weights; convert them, or give --allow-pickle if you trust those there."
        )
    names = config.get("architectures") or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise ValueError(
            f"{folder / 'config.json'} has architectures {names!r}, which must be a list of names such as "
            "'BertModel'; save the model again."
        )
    architecture = names[0] if names else ""
    import transformers

    end = next((end for end in (*HEADED, *CAUSAL) if architecture.endswith(end)), "")
    maker = getattr(transformers, f"AutoModel{'ForCausalLM' if end in CAUSAL else end}")
    if safe == [SPARSE_WEIGHTS]:  # a whole model that was saved here since is the newer one
        read: Callable[[], tuple[Any, Any]] = partial(_pruned_model, folder, maker)
    else:
        read = partial(maker.from_pretrained, folder, use_safetensors=bool(safe), **WHOLE, **NO_CODE)
    model = _whole(folder, architecture or "model", read)
    images = hasattr(model.config, "patch_size")
    classes = model.config.id2label if architecture.endswith(HEADED) else {}
    training = config.get(TRAINING)
    return Loaded(
        model,
        reads=IMAGES if images else WORDS,
        classes=tuple(str(classes[k]) for k in sorted(classes)),
        tokenizer=None if images else _tokenizer(folder, NO_CODE),
        longest=0 if images else longest_text(model.config),
        image=_image(folder, model.config) if images else {},
        training=training if isinstance(training, dict) else {},
        files=_files(folder, "*.safetensors" if safe else "*.bin", "*.json", *TOKENIZER_FILES),
    )


def _pruned_model(folder: Path, maker: Any) -> tuple[Any, dict[str, Any]]:
    """A model that ``mirrormax prune`` has written, and what its file lacks."""
    import transformers

    model = maker.from_config(transformers.AutoConfig.from_pretrained(folder, **NO_CODE))
    keys = model.load_state_dict(load_sparse(folder / SPARSE_WEIGHTS), strict=False)
    return model.eval(), {"missing_keys": keys.missing_keys}


@contextmanager
def _reading_once() -> Iterator[None]:
    """Within it, transformers parses a GGUF file once, and not for configuration, weights and tokenizer anew.

    Its names of tensors are one table for a model, which would be made again for every module; and slices of a plain
    array take half as long as those of a memory map.
    """
    gguf: Any = importlib.import_module("gguf")
    reader: Any = gguf.GGUFReader
    name_map: Any = gguf.get_tensor_name_map

    class Reader(reader):  # type: ignore[misc]
        def _build_fields(self, *args: Any) -> Any:
            self.data: Any = np.asarray(self.data)
            return super()._build_fields(*args)

    try:
        gguf.GGUFReader, gguf.get_tensor_name_map = cache(Reader), cache(name_map)
        yield
    finally:
        gguf.GGUFReader, gguf.get_tensor_name_map = reader, name_map


def _tried(what: Path, failure: str, remedy: str, read: Callable[[], Any]) -> Any:
    """What ``read()`` gives; ValueError where it cannot, which says so where it would have run code of a folder."""
    try:
        with quiet():
            return read()
    except Exception as error:  # transformers raises what its parts raise
        if any(mark in str(error) for mark in ("trust_remote_code", "custom code")):
            failure, remedy = "wants to run code of its own, which is never done", "give another model"
        elif "weights only load failed" in str(error).lower():
            failure, remedy = "pickles more than tensors, which is never loaded", "convert it to .safetensors"
        else:
            lines = [line.strip() for line in str(error).strip().split("\n")]
            sentence = " ".join(lines[:2]) if lines[0].endswith(":") else lines[0]
            failure += f" ({sentence.rstrip('.') or type(error).__name__})"
        raise ValueError(f"{what} {failure}; {remedy}.") from error


def _whole(what: Path, kind: str, read: Callable[[], tuple[Any, Any]]) -> Any:
    """The model that ``read()`` gives beside what its weights lack.

    One that was completed with random numbers is refused: what it selects would be chance.
    """
    model, loading = _tried(what, f"cannot be read as a {kind}", "save or get it again", read)
    keys = loading if isinstance(loading, dict) else vars(loading)
    names = {name for name, _ in model.named_parameters()}
    missing = sorted(set(keys.get("missing_keys", ())) & names)
    # A pooler that was never trained stands behind every layer that is looked at.
    missing = [name for name in missing if "pooler" not in name]
    if missing:
        others = f" and {len(missing) - 1} others" if len(missing) > 1 else ""
        raise ValueError(f"{what} has no weights for {missing[0]}{others}; save the whole model.")
    unfit = sorted(keys.get("mismatched_keys", ()))
    if unfit:
        name, shape, wanted = unfit[0]
        others = f" and {len(unfit) - 1} others" if len(unfit) > 1 else ""
        raise ValueError(
            f"{what} has weights that do not fit its config.json: {name} is {tuple(shape)} and should be "
            f"{tuple(wanted)}{others}; save the model again."
        )
    return model


def _files(folder: Path, *patterns: str) -> tuple[Path, ...]:
    return tuple(sorted({path for pattern in patterns for path in folder.glob(pattern) if path.is_file()}))


def _tokenizer(folder: Path, options: Mapping[str, Any]) -> Any:
    # Without a file transformers makes an empty tokenizer, which takes every word for an unknown one.
    if "gguf_file" not in options and not any((folder / name).is_file() for name in TOKENIZER_FILES):
        raise ValueError(
            f"{folder} has no tokenizer file ({TOKENIZER_FILES[0]}, {TOKENIZER_FILES[1]}, …), so that texts cannot be "
            "read; save the model with its tokenizer."
        )
    from transformers import AutoTokenizer

    return _tried(
        folder,
        "has no tokenizer that can be read",
        "save the model with its tokenizer",
        partial(AutoTokenizer.from_pretrained, folder, **options),
    )


def _image(folder: Path, config: Any) -> dict[str, Any]:
    path = folder / IMAGES_FILE
    settings = load_object(path, "save the model again") if path.is_file() else {}
    size, channels = config.image_size, config.num_channels
    image = {"size": size if isinstance(size, int) else size[0], "channels": channels}
    for name in ("mean", "std"):
        value: Any = settings.get(f"image_{name}", 0.5)
        numbers = value if isinstance(value, list) else [value]
        fit = all(type(number) in (int, float) and number == number for number in numbers)
        if not fit or len(numbers) not in (1, channels) or (name == "std" and not min(numbers) > 0):
            raise ValueError(
                f"{path} has image_{name} {value!r}, which must be {channels} numbers; save the model again."
            )
        image[name] = [float(number) for number in numbers] if isinstance(value, list) else float(value)
    return image


@contextmanager
def quiet() -> Iterator[None]:
    """No loading bar of transformers and no advice while a model is read or written."""
    from transformers.utils import logging

    with ExitStack() as undo, redirect_stderr(io.StringIO()):  # the bar of GGUF asks nobody
        undo.callback(logging.set_verbosity, logging.get_verbosity())
        if logging.is_progress_bar_enabled():
            undo.callback(logging.enable_progress_bar)
        logging.set_verbosity_error()
        logging.disable_progress_bar()
        yield
