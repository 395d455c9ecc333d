"""The rows that a model is audited on, from a named source or a file, and the batches that are made of them.

A model is never judged by rows that it was trained on where that can be known. A checkpoint of ours says what it was
trained on and how that was split; on its own data, only the rows of its test split are read.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax._checks import integer
from mirrormax._identity import content_digests
from mirrormax.auditing.models import IMAGES, WORDS, Loaded
from mirrormax.data import (
    IMAGE_SOURCES,
    TEXT_SOURCES,
    image_files,
    load_images,
    load_text,
    read_columns,
    read_npz,
    read_utf8,
    split_indices,
    text_files,
)

FILES = (".csv", ".parquet", ".txt", ".npz")
MANY_UNKNOWN = 0.05
"""The share of unknown tokens above which the audit warns: the model then reads other texts than people do."""


@dataclass(frozen=True, eq=False)
class Data:
    """Texts, or pixels (n, C, H, W) of bytes; labels by name, or None; which rows these are, in sentences."""

    rows: tuple[str, ...] | npt.NDArray[np.uint8]
    labels: list[str] | None = None
    note: str = ""
    caveats: tuple[str, ...] = ()
    files: tuple[Path, ...] = ()  # what was read

    @property
    def kind(self) -> str:
        """What it takes to read them."""
        return WORDS if isinstance(self.rows, tuple) else IMAGES

    def __len__(self) -> int:
        return len(self.rows)

    def take(self, kept: npt.NDArray[np.intp]) -> Data:
        """These rows alone."""
        return replace(self, rows=_taken(self.rows, kept), labels=_taken(self.labels, kept))


def _taken(rows: Any, kept: npt.NDArray[np.intp]) -> Any:
    """These of rows, which are an array, a list or a tuple, or nothing."""
    return type(rows)(rows[k] for k in kept) if isinstance(rows, list | tuple) else None if rows is None else rows[kept]


def read_data(
    source: str,
    data_dir: str | Path | None = None,
    *,
    text_column: str = "text",
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
    models: Sequence[Loaded] = (),
) -> Data:
    """A named source, a ``.csv`` or ``.parquet`` table, a ``.txt`` with a text per line, or an ``.npz`` of pixels.

    Where a source has a test half, that is read. Of data that one of ``models`` was trained on, the rows that it held
    out for its test are read, of several models those that all of them held out; ValueError where the data have
    changed since. ``limit`` keeps a uniform sample drawn with ``seed``, in order.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}.")
    data, is_test_half = _read(source, data_dir, text_column, label_column)
    what = "texts" if data.kind == WORDS else "images"
    if not len(data):
        raise ValueError(f"{source} holds no {what}; give at least one.")
    total, kind = len(data), "test " if is_test_half else ""
    histories = [_history(model, data, source, what) for model in models]
    training = [choices for choices, _ in histories if choices is not None]
    if training and not is_test_half:
        kept = _held_out(training, source, data_dir, total)
        data, kind = data.take(kept), "held-out test "
    rest = f" (the other {total - len(data)} were used in training)" if len(data) < total else ""
    count = len(data)
    note = f"All {count} {kind}{what} of {source}{rest}."
    if limit is not None and limit < count:
        data = data.take(np.sort(np.random.default_rng(seed).choice(count, limit, replace=False)))
        note = f"{limit} of the {count} {kind}{what} of {source}{rest}, a uniform sample with seed {seed}."
    return replace(data, note=note, caveats=tuple(dict.fromkeys(caveat for _, caveat in histories if caveat)))


def _read(source: str, data_dir: str | Path | None, text_column: str, label_column: str | None) -> tuple[Data, bool]:
    """All rows, and whether they are a test half that the source has of its own."""
    if source in (*TEXT_SOURCES, *IMAGE_SOURCES):
        load, files = (load_text, text_files) if source in TEXT_SOURCES else (load_images, image_files)
        known: Any = load(source, data_dir)
        part = known.train if known.test is None else known.test
        rows, labels = part.texts if source in TEXT_SOURCES else part.pixels, [known.classes[k] for k in part.labels]
        return Data(rows, labels, files=tuple(files(source, data_dir))), known.test is not None
    path = Path(source)
    kind = path.suffix.lower()
    if kind not in FILES:
        named = ", ".join((*TEXT_SOURCES, *IMAGE_SOURCES))
        raise ValueError(f"--data {source!r} is none of {named} and no .csv, .parquet, .txt or .npz file; give one.")
    if not path.is_file():
        raise FileNotFoundError(f"the data file {path} does not exist; check the path.")
    if kind == ".npz":
        arrays = read_npz(path, "data file")
        pixels = arrays.get("pixels")
        if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 4:
            held = "no such array" if pixels is None else f"{pixels.dtype} of the shape {pixels.shape}"
            raise ValueError(
                f"{path} must hold an array 'pixels' of uint8 (n, C, H, W), got {held}; write it with numpy.savez."
            )
        names = [str(label) for label in arrays["labels"].tolist()] if "labels" in arrays else None
        return Data(np.asarray(pixels), names, files=(path,)), False
    if kind == ".txt":
        lines = read_utf8(path, "data file").splitlines()
        return Data(tuple(line for line in lines if line.strip()), files=(path,)), False
    values = read_columns(path, [text_column, *([label_column] if label_column else [])], "data file")
    if not all(isinstance(text, str) for text in values[0]):
        raise ValueError(f"column {text_column!r} of {path} holds something that is no text; name another column.")
    named_labels = [str(label) for label in values[1]] if label_column else None
    return Data(tuple(values[0]), named_labels, files=(path,)), False


def _history(model: Loaded, data: Data, source: str, what: str) -> tuple[dict[str, Any] | None, str]:
    """How the model was trained, if it was on these data, and what is not known of that, in a sentence.

    ValueError if it was trained on what they were before they changed.
    """
    choices, known = model.training, model.training.get("data_sha256")
    if not isinstance(choices.get("data"), str) or not {"test", "split_seed"} <= choices.keys():
        return None, f"Whether {model.folder} was trained on some of these {what} is not known."
    if not known or not isinstance(known, dict):  # a checkpoint from before contents were recorded
        is_file = source not in (*TEXT_SOURCES, *IMAGE_SOURCES)
        if choices["data"] == source or (is_file and Path(choices["data"]).name == Path(source).name):
            return choices, (
                f"{model.folder} does not say what its data held when it was trained; if they have changed since, some "
                f"of these {what} may have been used in training."
            )
    elif set(content_digests(data.files).values()) <= set(map(str, known.values())):  # a run reads its vocabulary, too
        return choices, ""
    elif choices["data"] == source:
        raise ValueError(
            f"{source} is not what it was when {model.folder} was trained on it, so that the rows which the model has "
            "not seen are not known; give the data as they were, or other data under another name."
        )
    return None, f"{model.folder} was trained on other data ({choices['data']})."


def _held_out(
    runs: Sequence[Mapping[str, Any]], source: str, data_dir: str | Path | None, total: int
) -> npt.NDArray[np.intp]:
    """The rows that every one of these runs kept for its test, as :mod:`mirrormax.training` splits them."""
    kept = np.ones(total, dtype=bool)
    for choices in runs:
        if source in IMAGE_SOURCES:
            labels = load_images(source, data_dir).train.labels
        elif "context" in choices and source not in TEXT_SOURCES:  # a language model, whose data have no labels
            if Path(source).suffix.lower() == ".txt":
                kept &= _behind(read_utf8(Path(source), "data file"), choices["test"])
                continue
            labels = np.zeros(total, dtype=np.int64)
        else:
            columns = {name: choices[name] for name in ("text_column", "label_column") if name in choices}
            labels = load_text(source, data_dir, **columns).train.labels
        mine = np.zeros(total, dtype=bool)
        mine[split_indices(labels, choices["test"], choices["split_seed"])[1]] = True
        kept &= mine
    if not kept.any():
        raise ValueError(
            f"no row of {source} was held out by both models, which were split differently; give other data."
        )
    return np.flatnonzero(kept)


def _behind(text: str, share: float) -> npt.NDArray[np.bool_]:
    """Which lines of a text, of those with something in them, begin in its last share of characters."""
    lines = text.splitlines(keepends=True)
    begins = np.cumsum([0, *map(len, lines)])[:-1]
    return np.asarray(begins[[bool(line.strip()) for line in lines]] >= round(len(text) * (1 - share)))


def class_numbers(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Labels by name as numbers of the model's classes, itself numbered by name or else 0, 1, ….

    An unknown one raises: a guess would score the wrong class.
    """
    known = {**{str(k): k for k in range(len(classes))}, **{name: k for k, name in enumerate(classes)}}
    unknown = sorted({label for label in labels if label not in known})
    if unknown:
        raise ValueError(f"label {unknown[0]!r} is not a class of the model; it knows {', '.join(map(repr, classes))}.")
    return torch.tensor([known[label] for label in labels])


@dataclass(frozen=True, eq=False)
class Batches:
    """An iterable of batches, in the order of the data."""

    loaded: Loaded
    inputs: list[list[int]] | npt.NDArray[np.uint8]  # token numbers of texts, or pixels
    labels: Tensor | None
    size: int
    warnings: tuple[str, ...] = ()  # what speaks against trusting numbers on these batches, in sentences
    shortened: tuple[str, ...] = ()  # that texts lost their end, if some did

    def __len__(self) -> int:
        return len(self.inputs)

    def take(self, kept: npt.NDArray[np.intp]) -> Batches:
        """These rows alone."""
        return replace(self, inputs=_taken(self.inputs, kept), labels=_taken(self.labels, kept))

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
        for start in range(0, len(self), self.size):
            part = slice(start, start + self.size)
            batch = self.loaded.batch(self.inputs[part])
            if self.labels is not None:
                batch["labels"] = self.labels[part]
            yield batch


def make_batches(loaded: Loaded, data: Data, max_length: int, size: int, *, with_labels: bool = False) -> Batches:
    """Encode the data for a model; texts for a model of images raise, and the other way round."""
    if data.kind != loaded.reads:
        raise ValueError(f"the model reads {loaded.reads} and the data are {data.kind}; give data of its kind.")
    integer("max_length", max_length, at_least=3)
    integer("batch_size", size, at_least=1)
    labels = None
    if with_labels:
        if data.labels is None or not loaded.classes:
            raise ValueError(
                "labels were asked for, but the data have none or the model has no classes; see --label-column."
            )
        labels = class_numbers(data.labels, loaded.classes)
    if not isinstance(data.rows, tuple):
        channels, needed = data.rows.shape[1], loaded.image["channels"]
        if channels != needed:
            raise ValueError(f"the images have {channels} channels, the model needs {needed}.")
        return Batches(loaded, data.rows, labels, size)
    longest = min(max_length, loaded.longest)
    full = loaded.encode(data.rows)
    rows = [_cut(row, longest, loaded.special) for row in full]
    cut = sum(len(row) > longest for row in full)
    marks = loaded.special - {loaded.unknown}
    tokens = [token for row in rows for token in row if token not in marks]
    unknown = sum(token == loaded.unknown for token in tokens) / max(len(tokens), 1)
    whose = "the model's context of" if longest < max_length else "--max-length of"
    shortened = f"{cut} of {len(rows)} texts were longer than {whose} {longest} tokens and lost their end."
    warning = (
        f"{unknown:.0%} of the tokens are unknown to the tokenizer, more than {MANY_UNKNOWN:.0%}: the model reads "
        "little of these texts; check that model, tokenizer and texts belong together."
    )
    return Batches(loaded, rows, labels, size, (warning,) * (unknown > MANY_UNKNOWN), (shortened,) * bool(cut))


def _cut(row: list[int], longest: int, special: frozenset[int]) -> list[int]:
    """A longer text loses its end and keeps its closing token, where it has one."""
    if len(row) <= longest:
        return row
    return [*row[: longest - 1], row[-1]] if row[-1] in special else row[:longest]
