"""Texts as numbers: BERT's uncased WordPiece, with its published vocabulary or one learnt from the training texts.

A token in the text that is spelt like "[PAD]" or "[SEP]" is read as the brackets and the word: nothing in a text can
end it, or hide from attention. What was learnt or encoded is kept under a digest of the texts themselves.
"""

from __future__ import annotations

import os
import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from mirrormax._checks import as_path, integer
from mirrormax._extras import extra
from mirrormax.data.files import read_utf8

if TYPE_CHECKING:
    from tokenizers import Tokenizer

SPECIAL = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]")
SMALLEST_VOCABULARY = 100
SHORTEST = 3  # [CLS], a token, [SEP]
PREFIX = "##"
MOST_A_CHARACTER = 8  # tokens that a text can give rise to: letters, their inner forms and merges, after decomposition
LONG_WORD = re.compile(r"\S{1000,}")  # is [UNK] when it is encoded, and would take the learning its length squared
BATCH = 512  # texts encoded at once: the encodings of 25,000 reviews together would fill gigabytes


def load_tokenizer(vocab_txt: str | Path) -> Tokenizer:
    """A tokenizer with the vocabulary of a BERT ``vocab.txt``: one token per line, the first being [PAD]."""
    path = as_path("vocab_txt", vocab_txt)
    # Not splitlines: some tokens are characters that it takes for line ends.
    lines = [line.rstrip("\r") for line in read_utf8(path, "vocabulary").rstrip("\r\n").split("\n")]
    seen: dict[str, int] = {}
    for line, token in enumerate(lines, start=1):
        if not token:
            raise ValueError(f"line {line} of the vocabulary {path} is empty; write one token per line.")
        if token in seen:
            raise ValueError(
                f"line {line} of the vocabulary {path} repeats {token!r} of line {seen[token]}; remove one."
            )
        seen[token] = line
    missing = [token for token in SPECIAL if token not in seen]
    if missing or lines[0] != "[PAD]":
        wrong = f"lacks {', '.join(missing)}" if missing else "does not begin with [PAD]"
        raise ValueError(f"the vocabulary {path} {wrong}; give the vocab.txt of an uncased BERT.")
    return bert_tokenizer(lines)


def train_tokenizer(texts: Sequence[str], vocab_size: int) -> Tokenizer:
    """A tokenizer with a WordPiece vocabulary learnt from ``texts``: the same texts give the same vocabulary.

    Args:
        texts: the training texts, and no others.
        vocab_size: the number of tokens to learn, with the special ones; few texts may have fewer.

    The special tokens come first, then letters, then merges in the order of their learning.
    The library's trainer numbers the letters inside words ("##a") as it meets them in a hash table, and breaks ties
    between merges by these numbers: two runs would differ. So the letters are given to it, already in order.
    """
    with extra("train"):
        from tokenizers import Tokenizer, models, normalizers, pre_tokenizers, trainers
    _check_texts(texts)
    if not texts:
        raise ValueError("texts is empty, and a tokenizer learns from texts; give the training texts.")
    vocab_size = integer("vocab_size", vocab_size, at_least=SMALLEST_VOCABULARY)
    be_quiet_when_forked()
    normalizer, splitter = normalizers.BertNormalizer(lowercase=True), pre_tokenizers.BertPreTokenizer()
    texts = [LONG_WORD.sub(" ", text) for text in texts]
    letters = _frequent_letters(texts, normalizer, (vocab_size - len(SPECIAL)) // 4)
    inner = [PREFIX + letter for letter in letters if len(splitter.pre_tokenize_str("a" + letter)) == 1]
    trainer = trainers.WordPieceTrainer(
        # The library reserves memory for as many as it is asked for, and ends the process where there is too little.
        vocab_size=min(vocab_size, len(SPECIAL) + MOST_A_CHARACTER * sum(map(len, texts))),
        min_frequency=2,
        special_tokens=[*SPECIAL, *inner],
        initial_alphabet=letters,
        limit_alphabet=len(letters),
        continuing_subword_prefix=PREFIX,
        show_progress=False,
    )
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]"))
    tokenizer.normalizer, tokenizer.pre_tokenizer = normalizer, splitter
    tokenizer.train_from_iterator(texts, trainer)
    vocabulary = tokenizer.get_vocab()
    return bert_tokenizer(sorted(vocabulary, key=lambda token: vocabulary[token]))


def _frequent_letters(texts: Sequence[str], normalizer: Any, most: int) -> list[str]:
    """The most frequent normalised characters, ties by code point, sorted: rare signs must not crowd the words out."""
    raw: Counter[str] = Counter()
    for text in texts:
        raw.update(text)
    counts: Counter[str] = Counter()
    for character, count in raw.items():  # normalisation goes character by character, so each is needed but once
        for letter in normalizer.normalize_str(character):
            counts[letter] += count
    ranked = sorted((letter for letter in counts if not letter.isspace()), key=lambda letter: (-counts[letter], letter))
    return sorted(ranked[:most])


def encode(tokenizer: Tokenizer, texts: Sequence[str], max_length: int) -> list[npt.NDArray[np.int64]]:
    """Each text as [CLS] … [SEP], at most ``max_length`` numbers; a longer text loses its end but keeps its [SEP]."""
    _check_texts(texts)
    integer("max_length", max_length, at_least=SHORTEST)
    return [np.array(_cut(ids, max_length), dtype=np.int64) for ids in token_ids(tokenizer, texts)]


def token_ids(tokenizer: Tokenizer, texts: Sequence[str], **options: Any) -> Iterator[list[int]]:
    """The numbers of each text's tokens, a batch of texts at a time."""
    be_quiet_when_forked()
    for start in range(0, len(texts), BATCH):
        for encoding in tokenizer.encode_batch_fast(list(texts[start : start + BATCH]), **options):
            yield encoding.ids


def encode_with_offsets(
    tokenizer: Tokenizer, text: str, max_length: int
) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
    """The numbers (T,) that :func:`encode` gives, and where each token begins and ends in ``text``, (T, 2).

    [CLS] and [SEP] are nowhere in the text: theirs is (0, 0).
    """
    integer("max_length", max_length, at_least=SHORTEST)
    encoding = tokenizer.encode(text)
    ids, offsets = (np.array(_cut(part, max_length), dtype=np.int64) for part in (encoding.ids, encoding.offsets))
    return ids, offsets


def bert_tokenizer(tokens: Sequence[str]) -> Tokenizer:
    """BERT's uncased normalisation and word splitting, then the longest of ``tokens`` first."""
    with extra("train"):
        from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, processors
    vocabulary = {token: index for index, token in enumerate(tokens)}
    tokenizer = Tokenizer(models.WordPiece(vocab=vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    tokenizer.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]",
        pair="[CLS] $A [SEP] $B:1 [SEP]:1",
        special_tokens=[(token, vocabulary[token]) for token in ("[CLS]", "[SEP]")],
    )
    tokenizer.decoder = decoders.WordPiece()
    return tokenizer


def _cut(values: list[Any], max_length: int) -> list[Any]:
    return values if len(values) <= max_length else [*values[: max_length - 1], values[-1]]


def _check_texts(texts: Sequence[str]) -> None:
    if isinstance(texts, (str, bytes)):
        raise TypeError("texts must be a sequence of texts, got one text; put it in a list.")


def be_quiet_when_forked() -> None:
    """Versions of the library that keep threads warn in every forked worker; who wants threads sets the variable."""
    os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")
