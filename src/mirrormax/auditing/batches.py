"""Rows of data as the batches of a loaded model: tokens or pixels, padded, with labels where they are asked for."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.data import Data
from mirrormax.auditing.models import IMAGES, WORDS, Loaded
from mirrormax.data import encode
from mirrormax.nets import pixel_inputs, resized

MANY_UNKNOWN = 0.05
"""The share of unknown tokens above which the audit warns: the model then reads other texts than people do."""


def class_numbers(labels: Sequence[str], classes: Sequence[str]) -> Tensor:
    """Labels by name as numbers of the model's classes, itself numbered by name or else 0, 1, ….

    An unknown one raises: a guess would score the wrong class.
    """
    known = {name: k for k, name in enumerate(classes)}
    known.update({str(k): k for k in range(len(classes)) if str(k) not in known})
    unknown = sorted({label for label in labels if label not in known})
    if unknown:
        raise ValueError(f"label {unknown[0]!r} is not a class of the model; it knows {', '.join(map(repr, classes))}.")
    return torch.tensor([known[label] for label in labels])


@dataclass(frozen=True, eq=False)
class Batches:
    """An iterable of batches, in the order of the data."""

    loaded: Loaded
    inputs: list[Any]  # token numbers of a text, or nothing for images
    pixels: npt.NDArray[np.uint8] | None
    labels: Tensor | None
    size: int
    cut: int = 0  # texts that lost their end
    limit: str = ""  # what they were too long for
    unknown: float = 0.0  # the share of the texts' tokens that the tokenizer does not know

    @property
    def warnings(self) -> list[str]:
        """What speaks against trusting numbers on these batches, in sentences."""
        if self.unknown <= MANY_UNKNOWN:
            return []
        return [
            f"{self.unknown:.0%} of the tokens are unknown to the tokenizer, more than {MANY_UNKNOWN:.0%}: the model "
            "reads little of these texts; check that model, tokenizer and texts belong together."
        ]

    @property
    def notes(self) -> list[str]:
        """What was done to the texts, in sentences."""
        return [*self.warnings, *self.shortened]

    @property
    def shortened(self) -> list[str]:
        """That texts lost their end, if some did."""
        return [f"{self.cut} of {len(self)} texts were longer than {self.limit} and lost their end."] * bool(self.cut)

    def __len__(self) -> int:
        return len(self.inputs) if self.pixels is None else len(self.pixels)

    def __iter__(self) -> Iterator[dict[str, Tensor]]:
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
        images = pixel_inputs(torch.from_numpy(np.ascontiguousarray(pixels)), told["mean"], told["std"])
        name = "pixels" if self.loaded.make == "mirrormax" else "pixel_values"
        return {name: resized(images, told["size"])}


def make_batches(loaded: Loaded, data: Data, max_length: int, size: int, *, with_labels: bool = False) -> Batches:
    """Encode the data for a model; texts for a model of images raise, and the other way round."""
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
        rows = [_cut(row, longest, loaded.special) for row in full]
        cut = sum(len(row) > longest for row in full)
        whose = "the model's context of" if longest < max_length else "--max-length,"
        return Batches(loaded, rows, None, labels, size, cut, f"{whose} {longest} tokens", _unknown_share(loaded, rows))
    assert data.pixels is not None
    if data.pixels.shape[1] != loaded.image["channels"]:
        raise ValueError(
            f"the images have {data.pixels.shape[1]} channels, the model needs {loaded.image['channels']}."
        )
    return Batches(loaded, [], data.pixels, labels, size)


def _encode(loaded: Loaded, texts: list[str]) -> list[list[int]]:
    if loaded.make == "mirrormax":
        return [row.tolist() for row in encode(loaded.tokenizer, texts, 10**9)]
    try:
        found: list[list[int]] = loaded.tokenizer(texts, verbose=False)["input_ids"]
    except Exception as error:  # tokenizers raises plain Exceptions
        reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
        raise ValueError(
            f"the model's tokenizer cannot read the texts ({reason}); save the model with its own."
        ) from error
    if loaded.start is not None:
        found = [[loaded.start, *row] for row in found]
    embeddings: Any = loaded.model.get_input_embeddings()  # type: ignore[operator]
    largest = max((token for row in found for token in row), default=0)
    if largest >= embeddings.weight.shape[0]:
        raise ValueError(
            f"the tokenizer gives token {largest}, but the model has only {embeddings.weight.shape[0]}; save the model "
            "with its own tokenizer."
        )
    return found


def _unknown_share(loaded: Loaded, rows: Sequence[Sequence[int]]) -> float:
    """Unknown tokens among those of the texts themselves."""
    special = loaded.special - {loaded.unknown}
    tokens = [token for row in rows for token in row if token not in special]
    return sum(token == loaded.unknown for token in tokens) / max(len(tokens), 1)


def _cut(row: list[int], longest: int, special: frozenset[int]) -> list[int]:
    """A longer text loses its end and keeps its closing token, where it has one."""
    if len(row) <= longest:
        return row
    return [*row[: longest - 1], row[-1]] if row[-1] in special else row[:longest]
