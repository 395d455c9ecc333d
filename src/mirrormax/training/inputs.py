"""From a configuration to what a run reads: data and their digests, three splits, batches, and the first weights."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import nn

from mirrormax import data
from mirrormax._checks import instance
from mirrormax._identity import choices, content_digests, identity, key
from mirrormax.nets import Decoder, TransformerClassifier, VisionTransformer, without_memory
from mirrormax.optim import param_groups, sparse_start
from mirrormax.training.batches import ImageBatches, Rows, TextBatches, TokenBatches
from mirrormax.training.config import (
    REVISION,
    LanguageTraining,
    SentimentTraining,
    TrainConfig,
    VisionTraining,
    config_of,
)
from mirrormax.training.optimizers import makes_sparse_steps

EVALUATED = ("validation", "test")
SPLITS = ("train", *EVALUATED)
STATES = 4  # weights, gradients, dual variables, and the copy that is the checkpoint


class Splits(NamedTuple):
    """The rows of a run, and the names of their classes (none of a language model)."""

    train: Any  # texts, or images
    validation: Any
    test: Any
    classes: tuple[str, ...]


@dataclass(frozen=True, eq=False)
class Prepared:
    """Training, validation and test split, the names of the classes, a tokenizer for texts, and the untrained model."""

    splits: Sequence[Rows]
    classes: tuple[str, ...]
    tokenizer: Any
    model: nn.Module


def data_digests(config: TrainConfig, data_dir: str | Path | None = None) -> dict[str, str]:
    """The SHA-256 of every file that the run reads, by its name; of many files, one for all those of a folder."""
    instance("config", config, TrainConfig, "a configuration, such as SentimentTraining()")
    files = {"sentiment": data.text_files, "vision": data.image_files, "lm": data.corpus_files}[config.task]
    paths = files(config.data, data_dir)
    if isinstance(config, SentimentTraining) and config.vocab is not None:
        paths = [*paths, _find_vocab(config.vocab, data_dir)]
    return content_digests(paths)


def run_identity(config: TrainConfig, data_dir: str | Path | None = None) -> dict[str, Any]:
    """All that the result of a run depends on: the configuration, the content of its data, and training's revision."""
    digests = data_digests(config, data_dir)
    return identity({"task": config.task, **choices(config)}, revision=REVISION, data=digests)


def run_key(config: TrainConfig, data_dir: str | Path | None = None) -> str:
    """A short name for a run: other choices and other data have another."""
    return key(run_identity(config, data_dir))


def read_splits(config: TrainConfig, data_dir: str | Path | None = None) -> Splits:
    """Read the data of a run, and hold out its validation and test rows."""
    instance("config", config, TrainConfig, "a configuration, such as SentimentTraining()")
    if isinstance(config, LanguageTraining):
        shares = {"validation": config.validation, "test": config.test}
        train, validation, test = data.load_corpus(
            config.data, data_dir, text_column=config.text_column, seed=config.split_seed, **shares
        )
        classes: tuple[str, ...] = ()
    else:
        if isinstance(config, SentimentTraining):
            columns = {"text_column": config.text_column, "label_column": config.label_column}
            rows: Any = data.load_text(config.data, data_dir, **columns)
        else:
            rows = data.load_images(config.data, data_dir)
        train, validation, test, classes = rows.train, rows.train.subset(np.arange(0)), rows.test, rows.classes
        if test is None:
            train, test = _parted(train, config.test, config, f"test={config.test}")
        if config.validation > 0:
            train, validation = _parted(train, config.validation, config, f"validation={config.validation}")
    if config.train_limit is not None and config.train_limit < len(train):
        train = _parted(train, config.train_limit / len(train), config, f"train_limit={config.train_limit}")[1]
    return Splits(train, validation, test, classes)


def _parted(train: Any, share: float, config: TrainConfig, argument: str) -> tuple[Any, Any]:
    """The rest and the share, of every class; ValueError says which choice leaves nothing of it."""
    try:
        return data.split(train, share, config.split_seed)
    except ValueError as error:
        raise ValueError(f"{argument} takes none of the {len(train):,} rows of any class; give more.") from error


def splits_of(training: Mapping[str, Any], data_dir: str | Path | None = None) -> Splits:
    """The rows that a checkpoint was trained, chosen and tested on.

    Args:
        training: the checkpoint's record of its training, ``load_model(folder).training``.
        data_dir: where data files are looked for.

    Raises ValueError, naming the file, if the data are no longer what the checkpoint was trained on, or if it does not
    say what they were, as those of version 0.1 do not.
    """
    config, known = config_of(training), training.get("data_sha256")
    if not isinstance(known, dict):
        raise ValueError(
            f"the checkpoint does not say what was in its data {config.data!r}, so its held-out rows are not known; "
            "train it again with this version."
        )
    digests = data_digests(config, data_dir)
    changed = sorted(name for name in {*known, *digests} if known.get(name) != digests.get(name))
    if changed:
        raise ValueError(
            f"{changed[0]} is not what the checkpoint was trained on; give its own data, or train it again."
        )
    return read_splits(config, data_dir)


def prepare(config: TrainConfig, data_dir: str | Path | None = None) -> Prepared:
    """Read the data, split it, and make the model; nothing is written."""
    read = read_splits(config, data_dir)
    parts: list[Any] = [read.train, read.validation, read.test]
    network: Any = TransformerClassifier
    tokenizer, options, splits = None, dict[str, Any](), list[Rows]()
    if isinstance(config, SentimentTraining):
        texts = tuple(part.texts for part in parts)
        if config.vocab is None:
            tokenizer, encoded = _learnt(texts, config.vocab_size, config.max_length)
        else:
            tokenizer = data.load_tokenizer(_find_vocab(config.vocab, data_dir))
            encoded = [data.encode(tokenizer, part, config.max_length) for part in texts]
        sizes = config.network(tokenizer.get_vocab_size(), classes=len(read.classes))
        options["sparse_embedding"] = makes_sparse_steps(config)
        splits += [TextBatches(ids, part.labels) for ids, part in zip(encoded, parts, strict=True)]
    elif isinstance(config, LanguageTraining):
        network, tokenizer = Decoder, data.language_tokenizer(config.tokens, read.train.texts, config.vocab_size)
        sizes = config.network(tokenizer.get_vocab_size())
        splits += [_windows(config, name, part, tokenizer) for name, part in zip(SPLITS, parts, strict=True)]
    else:
        assert isinstance(config, VisionTraining)
        network, channels = VisionTransformer, read.train.pixels.shape[1]
        sizes = config.network(channels=channels, classes=len(read.classes))
        for part in parts:
            augment = config.augment and part is read.train
            splits.append(ImageBatches(part.pixels, part.labels, sizes, augment=augment))
    model = _first_weights(config.seed, network, sizes, **options)
    if config.optimizer == "adabreg":
        matrices = param_groups(model, scope="matrices")[0]["params"]
        sparse_start(matrices, config.density, generator=torch.Generator().manual_seed(config.seed))
    return Prepared(splits, read.classes, tokenizer, model)


@lru_cache(maxsize=1)
def _learnt(splits: tuple[tuple[str, ...], ...], vocab_size: int, max_length: int) -> tuple[Any, list[Any]]:
    """A tokenizer learnt from the first split, and the numbers of all; a sweep asks for the same again and again."""
    tokenizer = data.train_tokenizer(splits[0], vocab_size)
    return tokenizer, [data.encode(tokenizer, texts, max_length) for texts in splits]


def _windows(config: LanguageTraining, name: str, part: data.Texts, tokenizer: Any) -> TokenBatches:
    stream = data.token_stream(tokenizer, part.texts)
    if len(stream) <= config.context:
        raise ValueError(
            f"the {name} split of {config.data!r} has {len(stream)} tokens, no more than context={config.context}; "
            "give more text, or a smaller context."
        )
    return TokenBatches(stream, config.context, sum(len(text.encode()) for text in part.texts))


def _find_vocab(vocab: str, data_dir: str | Path | None) -> Path:
    """A vocabulary by its path, or within the data folder."""
    folder = data.resolve_data_dir(data_dir)
    return folder / vocab if not Path(vocab).is_file() and folder is not None else Path(vocab)


def _first_weights(seed: int, make: Any, sizes: Any, **options: Any) -> nn.Module:
    """A model whose first weights depend on the seed alone; ValueError if it would not fit into memory."""
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
