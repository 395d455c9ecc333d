"""Encoded texts kept on disk, because encoding a large corpus takes longer than an epoch of a small model."""

from __future__ import annotations

import hashlib
import zipfile
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import numpy.typing as npt

from mirrormax._files import load_arrays, save_arrays
from mirrormax.data.tokenizer import encode

if TYPE_CHECKING:
    from tokenizers import Tokenizer

WORTH_KEEPING = 2000  # texts; fewer are encoded in a moment


def encode_once(
    tokenizer: Tokenizer, texts: Sequence[str], max_length: int, cache_dir: str | Path
) -> list[npt.NDArray[np.int64]]:
    """What :func:`~mirrormax.data.encode` gives, from ``cache_dir`` if the same was asked before."""
    if len(texts) < WORTH_KEEPING:
        return encode(tokenizer, texts, max_length)
    digest = hashlib.sha256(f"{max_length}\0{tokenizer.to_str()}".encode())
    for text in texts:
        digest.update(hashlib.sha256(text.encode("utf-8", "surrogatepass")).digest())
    path = Path(cache_dir) / f"encoded-{digest.hexdigest()[:32]}.npz"
    kept = _read(path)
    if kept is not None and len(kept) == len(texts):
        return kept
    encoded = encode(tokenizer, texts, max_length)
    flat = np.concatenate(encoded).astype(np.int32)
    lengths = np.array([len(row) for row in encoded])
    save_arrays(path, ids=flat, lengths=lengths, check=np.array(_check(flat, lengths)))
    return encoded


def _read(path: Path) -> list[npt.NDArray[np.int64]] | None:
    """The encoded texts of a file, or None if it is not there or not as it was written."""
    try:
        kept = load_arrays(path)
        ids, lengths = kept["ids"], kept["lengths"]
        if str(kept["check"]) != _check(ids, lengths):
            return None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile, zlib.error):
        return None
    return np.split(ids.astype(np.int64), np.cumsum(lengths)[:-1])


def _check(ids: npt.NDArray[np.int32], lengths: npt.NDArray[np.int64]) -> str:
    return hashlib.sha256(ids.tobytes() + lengths.tobytes()).hexdigest()
