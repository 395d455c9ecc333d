"""From a configuration to batches and a model of the right size."""

from __future__ import annotations

import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from mirrormax.data import (
    encode_once,
    load_images,
    load_text,
    load_tokenizer,
    resolve_data_dir,
    split,
    train_tokenizer,
)
from mirrormax.nets import TransformerClassifier, VisionTransformer, without_memory
from mirrormax.training.batches import ImageBatches, TextBatches
from mirrormax.training.config import SentimentTraining, TrainConfig, VisionTraining
from mirrormax.training.optimizers import makes_sparse_steps

STATES = 4  # weights, gradients, dual variables, and the copy that is the checkpoint


@dataclass(frozen=True, eq=False)
class Prepared:
    """Training, validation and test split, the names of the classes, a tokenizer for texts, and the untrained model."""

    splits: Sequence[TextBatches] | Sequence[ImageBatches]
    classes: tuple[str, ...]
    tokenizer: Any
    model: nn.Module


def prepare(config: TrainConfig, data_dir: Path | None = None) -> Prepared:
    """Read the data, split it, and make the model; nothing is written but a tokenizer's cache."""
    if isinstance(config, SentimentTraining):
        return _prepare_text(config, data_dir)
    assert isinstance(config, VisionTraining)
    return _prepare_images(config, data_dir)


def _prepare_text(config: SentimentTraining, data_dir: Path | None) -> Prepared:
    data = load_text(config.data, data_dir, text_column=config.text_column, label_column=config.label_column)
    parts = _three_splits(config, data)
    if config.vocab is None:
        tokenizer = train_tokenizer(parts[0].texts, config.vocab_size, cache_dir())
    else:
        tokenizer = load_tokenizer(_find_vocab(config.vocab, data_dir))
    sizes = config.network(tokenizer.get_vocab_size(), len(data.classes))
    splits = tuple(
        TextBatches(encode_once(tokenizer, part.texts, config.max_length, cache_dir()), part.labels) for part in parts
    )
    model = _first_weights(config.seed, TransformerClassifier, sizes, sparse_embedding=makes_sparse_steps(config))
    return Prepared(splits, data.classes, tokenizer, model)


def _prepare_images(config: VisionTraining, data_dir: Path | None) -> Prepared:
    data = load_images(config.data, data_dir)
    parts = _three_splits(config, data)
    sizes = config.network(parts[0].pixels.shape[1], len(data.classes))
    splits = tuple(
        ImageBatches(part.pixels, part.labels, config.image_size, augment=config.augment and part is parts[0])
        for part in parts
    )
    model = _first_weights(config.seed, VisionTransformer, sizes)
    return Prepared(splits, data.classes, None, model)


def _three_splits(config: TrainConfig, data: Any) -> tuple[Any, Any, Any]:
    train, test = (
        (data.train, data.test) if data.test is not None else split(data.train, config.test, config.split_seed)
    )
    train, validation = split(train, config.validation, config.split_seed)
    if config.train_limit is not None and config.train_limit < len(train):
        _, train = split(train, config.train_limit / len(train), config.split_seed)
    return train, validation, test


def _find_vocab(vocab: str, data_dir: Path | None) -> Path:
    """A vocabulary by its path, or within the data folder."""
    folder = resolve_data_dir(data_dir)
    if not Path(vocab).is_file() and folder is not None:
        return folder / vocab
    return Path(vocab)


def _first_weights(seed: int, make: Any, sizes: Any, **options: Any) -> nn.Module:
    """A model whose first weights depend on the seed alone; refused if it would not fit into memory."""
    numbers = sum(param.numel() for param in without_memory(make, sizes).parameters())
    memory = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES") if hasattr(os, "sysconf") else None
    if memory is not None and 4 * STATES * numbers > memory:
        raise ValueError(
            f"a model with {numbers:.3g} weights needs {4 * STATES * numbers / 1e9:.3g} GB to train, but this machine "
            f"has {memory / 1e9:.3g}; choose smaller sizes."
        )
    torch.manual_seed(seed)
    model: nn.Module = make(sizes, **options)
    return model


def cache_dir() -> Path:
    """Where tokenizers that were trained are kept."""
    home = os.environ.get("XDG_CACHE_HOME")
    return (Path(home) if home else Path.home() / ".cache") / "mirrormax"
