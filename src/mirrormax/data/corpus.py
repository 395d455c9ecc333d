"""Text for language models: where it comes from, and as a stream of tokens.

All three kinds of tokens lose nothing: ``byte`` (one per byte), ``char`` (one per character of the training text,
others by their bytes) and ``bpe`` (merges of bytes, learnt from the training text). ``END`` stands behind every text,
and nothing in a text can be spelt so that it becomes one.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mirrormax._checks import as_path, integer, one_of
from mirrormax._extras import extra
from mirrormax.data.files import check_file, read_columns, read_utf8
from mirrormax.data.labelled import Texts, split
from mirrormax.data.text import TABLES, TEXT_SOURCES, check_texts, load_text, text_files
from mirrormax.data.tokenizer import LONG_WORD, be_quiet_when_forked, token_ids

if TYPE_CHECKING:
    from tokenizers import Tokenizer

TOKENS: tuple[str, ...] = ("byte", "char", "bpe")
"""The kinds of tokens."""
END = "<|endoftext|>"
"""The token behind every text, number 0."""
BYTES = 256
MOST_CHARACTERS = 10_000  # of their own; rarer ones are spelt by their bytes


def corpus_files(source: str | Path, data_dir: str | Path | None = None) -> list[Path]:
    """The files that :func:`load_corpus` would read, in order; OSError with one sentence where one is missing."""
    if str(source) in TEXT_SOURCES:
        return text_files(source, data_dir)
    path = as_path("source", source)
    if path.is_dir():
        paths = sorted(path.glob("*.txt"))
        if not paths:
            raise FileNotFoundError(f"the folder {path} holds no *.txt; give text files, or a .csv or .parquet file.")
        return paths
    if path.suffix.lower() not in (*TABLES, ".txt"):
        raise ValueError(
            "data must be 'reviews', 'imdb', a .txt, .csv or .parquet file or a folder of .txt files, got "
            f"{str(source)!r}."
        )
    check_file(path, "text")
    return [path]


def load_corpus(
    source: str | Path,
    data_dir: str | Path | None = None,
    *,
    text_column: str = "text",
    validation: float = 0.1,
    test: float = 0.2,
    seed: int = 0,
) -> tuple[Texts, Texts, Texts]:
    """Training, validation and test texts (their labels mean nothing).

    Args:
        source: ``"reviews"`` or ``"imdb"`` (see :func:`~mirrormax.data.load_text`), a ``.csv`` or ``.parquet`` file, a
            ``.txt`` file, or a folder of these.
        data_dir: the directory of the named data sets.
        text_column: the column of a table that holds the texts.
        validation: the share of the training texts that is held out.
        test: the share held out to test on, where there are no test texts.
        seed: decides which rows of a table these are. A text file is cut in this order: training, validation, test.
    """
    if str(source) in TEXT_SOURCES:
        data = load_text(source, data_dir)
        train, tested = (data.train, data.test) if data.test is not None else split(data.train, test, seed)
        return (*split(train, validation, seed), tested)
    files = corpus_files(source)
    if files[0].suffix.lower() in TABLES:
        (texts,) = read_columns(files[0], [text_column], "table")
        check_texts(texts, f"the table {files[0]}")
        if len(texts) < 3:
            raise ValueError(f"the table {files[0]} has {len(texts)} texts, too few for three splits; give more.")
        train, tested = split(_unlabelled(texts), test, seed)
        return (*split(train, validation, seed), tested)
    parts = []
    for path in files:
        text = read_utf8(path, "text")
        last = round(len(text) * (1 - test))
        first = round(last * (1 - validation))
        parts.append((text[:first], text[first:last], text[last:]))
        if not all(part.strip() for part in parts[-1]):
            raise ValueError(f"the text {path} is too short to be cut into three splits; give a longer one.")
    train, held_out, tested = map(_unlabelled, zip(*parts, strict=True))
    return train, held_out, tested


def _unlabelled(texts: Sequence[str]) -> Texts:
    return Texts(tuple(texts), np.zeros(len(texts), dtype=np.int64))


def language_tokenizer(kind: str, texts: Sequence[str], vocab_size: int = 1024) -> Tokenizer:
    """A tokenizer of one of the kinds ``TOKENS``; ``char`` and ``bpe`` learn from ``texts``, ``bpe`` at most
    ``vocab_size`` tokens."""
    with extra("train"):
        from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers
    one_of("tokens", kind, TOKENS)
    be_quiet_when_forked()
    if kind == "bpe":
        learner = Tokenizer(models.BPE())
        learner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        trainer = trainers.BpeTrainer(
            vocab_size=integer("vocab_size", vocab_size, at_least=BYTES + 2),
            min_frequency=2,
            special_tokens=[END],
            initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
            show_progress=False,
        )
        learner.train_from_iterator((LONG_WORD.sub(" ", text) for text in texts), trainer)
        # Taken out of the learner, which would read END in a text as the token.
        learnt = json.loads(learner.to_str())["model"]
        merges = [tuple(pair) for pair in learnt["merges"]]
        tokenizer = Tokenizer(models.BPE(vocab=learnt["vocab"], merges=merges))
        tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
        tokenizer.decoder = decoders.ByteLevel()
        return tokenizer
    counts = Counter(character for text in texts for character in text) if kind == "char" else Counter[str]()
    ranked = sorted(counts, key=lambda character: (-counts[character], character))[:MOST_CHARACTERS]
    names = [END, *(f"<0x{byte:02X}>" for byte in range(BYTES)), *sorted(ranked)]
    vocabulary = {name: place for place, name in enumerate(names)}
    tokenizer = Tokenizer(models.BPE(vocab=vocabulary, merges=[], byte_fallback=True))
    tokenizer.decoder = decoders.Sequence([decoders.ByteFallback(), decoders.Fuse()])
    return tokenizer


def token_stream(tokenizer: Tokenizer, texts: Sequence[str]) -> npt.NDArray[np.int64]:
    """The tokens of all texts, one after the other, with END (0) behind each."""
    if tokenizer.get_vocab_size() == 1 + BYTES:  # token 1 + b is the byte b: no need to ask the library for each
        spelt = (np.frombuffer(text.encode(), dtype=np.uint8) for text in texts)
        return np.concatenate([np.append(part.astype(np.int64) + 1, 0) for part in spelt])
    numbers = token_ids(tokenizer, texts, add_special_tokens=False)
    return np.concatenate([np.array([*ids, 0], dtype=np.int64) for ids in numbers])


def text_of(tokenizer: Tokenizer, ids: Sequence[int]) -> str:
    """The text of these tokens up to the first END; bytes that are no UTF-8 become replacement characters."""
    ids = list(ids)
    ids = ids[: ids.index(0)] if 0 in ids else ids
    if tokenizer.pre_tokenizer is not None:  # merges of bytes
        return str(tokenizer.decode(ids, skip_special_tokens=False))
    # The library gives up on all bytes of a run of which one is wrong.
    spelt = (bytes([token - 1]) if token <= BYTES else str(tokenizer.id_to_token(token)).encode() for token in ids)
    return b"".join(spelt).decode("utf-8", "replace")
