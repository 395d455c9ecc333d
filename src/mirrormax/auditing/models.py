"""A model that was read, and how texts or images become what it takes: those of transformers, and ours."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from mirrormax.auditing.adapters import CAUSAL
from mirrormax.auditing.options import Vocabulary
from mirrormax.data import encode, encode_with_offsets
from mirrormax.nets import pixel_inputs, resized

WORDS, IMAGES = "words", "images"
WANTS_START = ("gemma",)
"""Kinds of models that were trained with a first token which their GGUF tokenizers leave out."""
NO_LIMIT = 1 << 20
"""Tokens of a text for models that name no longest one, such as those with relative positions."""
PARTING = (".", "!", "?", ",", ";", ":", "\n")
"""Marks that part texts, beside the tokenizer's special tokens."""


@dataclass(frozen=True, eq=False)
class Loaded:
    """A model ready to be audited, and how texts or images become what it takes: one of transformers.

    :class:`OwnModel` is one of ours, which does some of it otherwise.
    """

    model: nn.Module
    reads: str  # WORDS or IMAGES
    classes: tuple[str, ...]  # empty without a head
    tokenizer: Any  # a Hugging Face tokenizer, or of ours a tokenizers.Tokenizer; None for images
    longest: int  # tokens it can read; 0 for images
    training: dict[str, Any]  # how it was made, as a checkpoint of ours says; empty where nobody says
    files: tuple[Path, ...]  # what was read, by whose contents the model is known
    image: dict[str, Any] = field(default_factory=dict)  # size, channels, mean, std of images
    folder: str = ""  # as it was given

    pixels = "pixel_values"  # what it calls images

    @property
    def causal(self) -> bool:
        """Whether it is a language model, whose tokens look back only."""
        return type(self.model).__name__.endswith(CAUSAL)

    @property
    def start(self) -> int | None:
        """The token that it wants before every text and its tokenizer does not add, if any."""
        config: Any = self.model.config
        if not self.causal or not str(config.model_type).startswith(WANTS_START):
            return None
        first = self.tokenizer.bos_token_id
        return None if first is None or self.tokenizer("a")["input_ids"][:1] == [first] else int(first)

    @property
    def unknown(self) -> int | None:
        """The number of the token that stands for what the tokenizer does not know, where it has one."""
        number: int | None = self.tokenizer.unk_token_id
        return number

    @property
    def special(self) -> frozenset[int]:
        """The numbers of tokens that are no text."""
        return frozenset(self.tokenizer.all_special_ids)

    @property
    def vocabulary(self) -> Vocabulary:
        """What is known of its tokens; those that part texts are special ones and the marks of ``PARTING``."""
        if self.tokenizer is None:
            return Vocabulary()
        marks = {mark for mark in map(self._mark, PARTING) if mark is not None}
        tokens = range(min(len(self.tokenizer), self._embedded())) if self.causal else ()
        separators, ordinary = (marks | self.special) - {self.unknown}, set(tokens) - self.special
        return Vocabulary(self.names, sorted(separators), sorted(ordinary), self.start)

    def names(self, ids: list[int]) -> list[str]:
        """Token numbers to words."""
        # A token for a single printable byte is shown as its character.
        tokens = self.tokenizer.convert_ids_to_tokens(ids)
        bytes_ = [re.fullmatch("<0x([2-6][0-9A-F]|7[0-9A-E])>", token) for token in tokens]
        return [chr(int(byte[1], 16)) if byte else token for byte, token in zip(bytes_, tokens, strict=True)]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        """Texts as token numbers, of any length; ValueError where its tokenizer cannot."""
        try:
            rows: list[list[int]] = self.tokenizer(list(texts), verbose=False)["input_ids"]
        except Exception as error:  # tokenizers raises plain Exceptions
            reason = (str(error).splitlines() or [type(error).__name__])[0].rstrip(".")
            raise ValueError(
                f"the model's tokenizer cannot read the texts ({reason}); save the model with its own."
            ) from error
        if self.start is not None:
            rows = [[self.start, *row] for row in rows]
        largest = max((token for row in rows for token in row), default=0)
        if largest >= self._embedded():
            raise ValueError(
                f"the tokenizer gives token {largest}, but the model has only {self._embedded()}; save the model with "
                "its own tokenizer."
            )
        return rows

    def offsets(self, text: str) -> list[tuple[int, int]] | None:
        """The characters ``text[begin:end]`` of each token; None where the tokenizer does not say."""
        if not getattr(self.tokenizer, "is_fast", False):
            return None
        spans = self.tokenizer(text, return_offsets_mapping=True, verbose=False)["offset_mapping"]
        return [(int(begin), int(end)) for begin, end in spans]

    def batch(self, rows: Any) -> dict[str, Tensor]:
        """Rows of token numbers, padded, or pixels (n, C, H, W), scaled, as what the model takes."""
        if self.reads == WORDS:
            return self._padded(rows)
        images = pixel_inputs(torch.from_numpy(np.ascontiguousarray(rows)), self.image["mean"], self.image["std"])
        return {self.pixels: resized(images, self.image["size"])}

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        ids = padded(rows, self.tokenizer.pad_token_id or 0)
        lengths = torch.tensor([len(row) for row in rows])
        return {"input_ids": ids, "attention_mask": (torch.arange(ids.shape[1]) < lengths[:, None]).long()}

    def _embedded(self) -> int:
        """Tokens that the model has vectors for."""
        embeddings: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        return int(embeddings.weight.shape[0])

    def _mark(self, text: str) -> int | None:
        """The token of a mark, where it is one token."""
        pieces = self.tokenizer(text, add_special_tokens=False)["input_ids"]
        return int(pieces[0]) if len(pieces) == 1 else None


class OwnModel(Loaded):
    """A model of :mod:`mirrormax.nets` that is no language model."""

    pixels = "pixels"

    @property
    def unknown(self) -> int | None:
        return self._mark("[UNK]")

    @property
    def special(self) -> frozenset[int]:
        marks = map(self._mark, ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]"))
        return frozenset(mark for mark in marks if mark is not None)

    def names(self, ids: list[int]) -> list[str]:
        return [self.tokenizer.id_to_token(token) or f"#{token}" for token in ids]

    def encode(self, texts: Sequence[str]) -> list[list[int]]:
        return [row.tolist() for row in encode(self.tokenizer, list(texts), 10**9)]

    def offsets(self, text: str) -> list[tuple[int, int]]:
        return [(int(begin), int(end)) for begin, end in encode_with_offsets(self.tokenizer, text, len(text) + 2)[1]]

    def _padded(self, rows: Sequence[Sequence[int]]) -> dict[str, Tensor]:
        config: Any = self.model.config
        return {"ids": padded(rows, config.pad_id)}

    def _mark(self, text: str) -> int | None:
        number: int | None = self.tokenizer.token_to_id(text)
        return number


def longest_text(config: Any) -> int:
    """Positions a text may have; RoBERTa keeps its first pad_token_id + 1 for itself, and MPT has a name of its own."""
    kind = getattr(config, "model_type", "")
    reserved = config.pad_token_id + 1 if kind in ("roberta", "xlm-roberta", "camembert") else 0
    positions = getattr(config, "max_position_embeddings", None) or getattr(config, "max_seq_len", None)
    return int(positions) - reserved if positions else NO_LIMIT


def padded(rows: Sequence[Sequence[int]], pad: int) -> Tensor:
    """Rows of numbers of any length as one tensor."""
    return nn.utils.rnn.pad_sequence([torch.as_tensor(row) for row in rows], batch_first=True, padding_value=pad)
