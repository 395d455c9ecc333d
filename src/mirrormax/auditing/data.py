"""From a data file to the batches of a loaded model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from mirrormax.auditing.models import IMAGES, WORDS, Loaded
from mirrormax.data import encode, load_images, load_text, read_npz, read_utf8

TEXT_SOURCES, IMAGE_SOURCES = ("reviews", "imdb"), ("digits", "cifar10", "cifar100")


@dataclass(frozen=True, eq=False)
class Data:
    """Texts, or pixels (n, C, H, W) of bytes; labels by name, or None; and what was left out, in a sentence."""

    texts: tuple[str, ...] | None
    pixels: npt.NDArray[np.uint8] | None
    labels: list[str] | None
    note: str

    def __len__(self) -> int:
        return len(self.texts) if self.texts is not None else len(self.pixels) if self.pixels is not None else 0


def read_data(
    source: str,
    data_dir: str | Path | None = None,
    *,
    text_column: str = "text",
    label_column: str | None = None,
    limit: int | None = None,
    seed: int = 0,
) -> Data:
    """A named source, a ``.csv`` or ``.parquet`` table, a ``.txt`` with a text a line, or an ``.npz`` of pixels.

    Where a source has a test half, that is read. ``limit`` keeps a uniform sample drawn with ``seed``, in order.
    """
    if limit is not None and limit < 1:
        raise ValueError(f"limit must be at least 1, got {limit}.")
    texts, pixels, labels = _read(source, data_dir, text_column, label_column)
    count = len(texts) if texts is not None else len(pixels if pixels is not None else ())
    what = "texts" if texts is not None else "images"
    if not count:
        raise ValueError(f"{source} holds no {what}; give at least one.")
    if limit is None or limit >= count:
        return Data(texts, pixels, labels, f"All {count} {what} of {source}.")
    kept = np.sort(np.random.default_rng(seed).choice(count, limit, replace=False))
    return Data(
        None if texts is None else tuple(texts[k] for k in kept),
        None if pixels is None else pixels[kept],
        None if labels is None else [labels[k] for k in kept],
        f"{limit} of the {count} {what} of {source}, a uniform sample with seed {seed}.",
    )


def _read(
    source: str, data_dir: str | Path | None, text_column: str, label_column: str | None
) -> tuple[tuple[str, ...] | None, npt.NDArray[np.uint8] | None, list[str] | None]:
    path = Path(source)
    kind = path.suffix.lower()
    if source in TEXT_SOURCES:
        found = load_text(source, data_dir)
        part = found.train if found.test is None else found.test
        return part.texts, None, [found.classes[k] for k in part.labels]
    if source in IMAGE_SOURCES:
        images = load_images(source, data_dir)
        held = images.train if images.test is None else images.test
        return None, held.pixels, [images.classes[k] for k in held.labels]
    if kind not in (".csv", ".parquet", ".txt", ".npz"):
        named = ", ".join((*TEXT_SOURCES, *IMAGE_SOURCES))
        raise ValueError(f"--data {source!r} is none of {named} and no .csv, .parquet, .txt or .npz file; give one.")
    if not path.is_file():
        raise FileNotFoundError(f"the data file {path} does not exist; check the path.")
    if kind == ".npz":
        arrays = read_npz(path, "data file")
        return None, _pixels(arrays, path), _npz_labels(arrays)
    if kind == ".txt":
        lines = read_utf8(path, "data file").splitlines()
        return tuple(line for line in lines if line.strip()), None, None
    columns = [text_column] + ([label_column] if label_column else [])
    if kind == ".csv":
        from mirrormax.data import read_csv

        values: Sequence[Sequence[Any]] = read_csv(path, columns, "data file")
    else:
        from mirrormax.data import read_parquet

        values = read_parquet(path, columns, "data file")
    if not all(isinstance(text, str) for text in values[0]):
        raise ValueError(f"column {text_column!r} of {path} holds something that is no text; name another column.")
    return tuple(values[0]), None, [str(label) for label in values[1]] if label_column else None


def _pixels(arrays: dict[str, Any], path: Path) -> npt.NDArray[np.uint8]:
    pixels = arrays.get("pixels")
    if pixels is None or pixels.dtype != np.uint8 or pixels.ndim != 4:
        raise ValueError(f"{path} must hold an array 'pixels' of uint8 (n, C, H, W).")
    return np.asarray(pixels)


def _npz_labels(arrays: dict[str, Any]) -> list[str] | None:
    return [str(label) for label in arrays["labels"].tolist()] if "labels" in arrays else None


def class_numbers(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Labels by name as numbers of the model's classes, itself numbered by name or else 0, 1, ….

    Refused if one is unknown: a guess would score the wrong class.
    """
    known = {name: k for k, name in enumerate(classes)}
    known.update({str(k): k for k in range(len(classes)) if str(k) not in known})
    unknown = sorted({label for label in labels if label not in known})
    if unknown:
        raise ValueError(f"label {unknown[0]!r} is not a class of the model; it knows {', '.join(map(repr, classes))}.")
    return torch.tensor([known[label] for label in labels])


@dataclass(frozen=True, eq=False)
class Batches:
    """An iterable of batches, in the order of the data; ``cut`` counts texts that lost their end."""

    loaded: Loaded
    inputs: list[Any]  # token numbers of a text, or nothing for images
    pixels: npt.NDArray[np.uint8] | None
    labels: Tensor | None
    size: int
    cut: int

    def __len__(self) -> int:
        return len(self.inputs) if self.pixels is None else len(self.pixels)

    def __iter__(self) -> Any:
        for start in range(0, len(self), self.size):
            part = slice(start, start + self.size)
            batch = self._words(part) if self.pixels is None else self._images(self.pixels[part])
            if self.labels is not None:
                batch["labels"] = self.labels[part]
            yield batch

    def _words(self, part: slice) -> dict[str, Tensor]:
        rows = [torch.as_tensor(row) for row in self.inputs[part]]
        own = self.loaded.make == "mirrormax"
        config: Any = self.loaded.model.config
        pad: int = config.pad_id if own else self.loaded.tokenizer.pad_token_id or 0
        ids = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True, padding_value=pad)
        if own:
            return {"ids": ids}
        lengths = torch.tensor([len(row) for row in rows])
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}

    def _images(self, pixels: npt.NDArray[np.uint8]) -> dict[str, Tensor]:
        told = self.loaded.image
        images = torch.from_numpy(np.ascontiguousarray(pixels)).float().div(255)
        mean, std = (torch.as_tensor(told[name], dtype=torch.float32).reshape(-1, 1, 1) for name in ("mean", "std"))
        images = (images - mean) / std
        if images.shape[-2:] != (told["size"],) * 2:
            images = functional.interpolate(images, size=(told["size"],) * 2, mode="bilinear", antialias=True)
        return {"pixels" if self.loaded.make == "mirrormax" else "pixel_values": images}


def make_batches(loaded: Loaded, data: Data, max_length: int, size: int, *, with_labels: bool = False) -> Batches:
    """Encode the data for a model; refuses texts for a model of images and the other way round."""
    kind = IMAGES if data.texts is None else WORDS
    if kind != loaded.reads:
        raise ValueError(f"the model reads {loaded.reads} and the data are {kind}; give data of its kind.")
    if max_length < 3 or size < 1:
        raise ValueError(f"max_length must be at least 3 and the batch size at least 1, got {max_length} and {size}.")
    labels = None
    if with_labels:
        if data.labels is None or not loaded.classes:
            raise ValueError(
                "labels were asked for, but the data have none or the model has no classes; see --label-column."
            )
        labels = class_numbers(data.labels, loaded.classes)
    if loaded.reads == WORDS:
        assert data.texts is not None
        longest = min(max_length, loaded.longest)
        full = _encode(loaded, list(data.texts))
        return Batches(
            loaded, [_cut(row, longest) for row in full], None, labels, size, sum(len(row) > longest for row in full)
        )
    assert data.pixels is not None
    if data.pixels.shape[1] != loaded.image["channels"]:
        raise ValueError(
            f"the images have {data.pixels.shape[1]} channels, the model needs {loaded.image['channels']}."
        )
    return Batches(loaded, [], data.pixels, labels, size, 0)


def _encode(loaded: Loaded, texts: list[str]) -> list[list[int]]:
    if loaded.make == "mirrormax":
        return [row.tolist() for row in encode(loaded.tokenizer, texts, 10**9)]
    found: list[list[int]] = loaded.tokenizer(texts, verbose=False)["input_ids"]
    return found


def _cut(row: list[int], longest: int) -> list[int]:
    """A longer text loses its end and keeps its closing token."""
    return row if len(row) <= longest else [*row[: longest - 1], row[-1]]
