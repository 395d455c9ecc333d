"""A model that was read, and how texts or images become what it takes."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import nn

from mirrormax.auditing.hugging_face import CAUSAL

WORDS, IMAGES = "words", "images"
WANTS_START = ("gemma",)
"""Kinds of models that were trained with a first token which their GGUF tokenizers leave out."""
PARTING = (".", "!", "?", ",", ";", ":", "\n")
"""Marks that part texts, beside the tokenizer's special tokens."""


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
        return lambda ids: [_spelt(token) for token in self.tokenizer.convert_ids_to_tokens(ids)]

    @property
    def unknown(self) -> int | None:
        """The number of the token that stands for what the tokenizer does not know, where it has one."""
        if self.tokenizer is None:
            return None
        found = self.tokenizer.token_to_id("[UNK]") if self.make == "mirrormax" else self.tokenizer.unk_token_id
        return None if found is None else int(found)

    @property
    def causal(self) -> bool:
        """Whether it is a language model, whose tokens look back only."""
        return self.make == "hugging face" and type(self.model).__name__.endswith(CAUSAL)

    @property
    def special(self) -> frozenset[int]:
        """The numbers of tokens that are no text."""
        if self.tokenizer is None:
            return frozenset()
        if self.make == "mirrormax":
            names = ("[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]")
            found = [self.tokenizer.token_to_id(name) for name in names]
        else:
            found = list(self.tokenizer.all_special_ids)
        return frozenset(int(token) for token in found if token is not None)

    @property
    def start(self) -> int | None:
        """The token that the model wants before every text and its tokenizer does not add, if any."""
        if not self.causal or not str(self.model.config.model_type).startswith(WANTS_START):  # type: ignore[union-attr]
            return None
        first = self.tokenizer.bos_token_id
        return None if first is None or self.tokenizer("a")["input_ids"][:1] == [first] else int(first)

    @property
    def separators(self) -> list[int]:
        """The numbers of tokens that end or part texts: special ones, full stops, commas, line breaks."""
        if self.tokenizer is None:
            return []
        if self.make == "mirrormax":
            marks = [self.tokenizer.token_to_id(mark) for mark in PARTING]
        else:
            pieces = [self.tokenizer(mark, add_special_tokens=False)["input_ids"] for mark in PARTING]
            marks = [piece[0] for piece in pieces if len(piece) == 1]
        skipped = {self.unknown, None}
        return sorted({int(mark) for mark in marks if mark not in skipped} | (self.special - {self.unknown}))

    @property
    def ordinary(self) -> list[int]:
        """The numbers of tokens that are text, of language models."""
        if not self.causal:
            return []
        embeddings: Any = self.model.get_input_embeddings()  # type: ignore[operator]
        size = min(len(self.tokenizer), embeddings.weight.shape[0])
        return [token for token in range(size) if token not in self.special]


def _spelt(token: str) -> str:
    """A token as it is shown: one for a single printable byte is its character."""
    found = re.fullmatch("<0x([2-7][0-9A-F])>", token)
    return chr(int(found[1], 16)) if found and found[1] != "7F" else token
