"""CIFAR-10 and CIFAR-100 from the official *binary* archives; the pickled ones are never opened.

A row is the label bytes (one for CIFAR-10; the coarse and the fine one for CIFAR-100), then 3 planes of 32 x 32 bytes.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mirrormax.data.images import ImageData, Images
from mirrormax.data.sources import VARIABLE, read_bytes, read_utf8

SHAPE = (3, 32, 32)
PIXELS = 3 * 32 * 32


@dataclass(frozen=True)
class Layout:
    """How an archive is laid out: its name, its folder, its files, and how many values each label byte may take."""

    archive: str
    folder: str
    train: str
    test: str
    names: str
    label_ranges: tuple[int, ...]  # the last byte is the class


LAYOUTS = {
    "cifar10": Layout(
        "cifar-10-binary.tar.gz",
        "cifar-10-batches-bin",
        "data_batch_*.bin",
        "test_batch.bin",
        "batches.meta.txt",
        (10,),
    ),
    "cifar100": Layout(
        "cifar-100-binary.tar.gz", "cifar-100-binary", "train.bin", "test.bin", "fine_label_names.txt", (20, 100)
    ),
}


def load_cifar(name: str, data_dir: Path | None) -> ImageData:
    """All training files that are there, in order, and the test file if it is; ``describe()`` counts the images."""
    layout = LAYOUTS[name]
    get = f"unpack {layout.archive} of https://www.cs.toronto.edu/~kriz/cifar.html there"
    if data_dir is None:
        raise ValueError(f"source {name!r} needs a data_dir, or {VARIABLE} in the environment; {get}.")
    folder = data_dir / layout.folder
    paths = sorted(folder.glob(layout.train), key=_batch_number)
    if not paths:
        raise FileNotFoundError(f"there is no {layout.folder}/{layout.train} in {data_dir}; {get}.")
    batches = [read_batch(path, layout.label_ranges) for path in paths]
    pixels = np.concatenate([batch.pixels for batch in batches])
    train = Images(pixels, np.concatenate([batch.labels for batch in batches]))
    test_path = folder / layout.test
    test = read_batch(test_path, layout.label_ranges) if test_path.exists() else None
    return ImageData(name, _class_names(folder / layout.names, layout.label_ranges[-1]), train, test)


def read_batch(path: Path, label_ranges: tuple[int, ...]) -> Images:
    """The images of one file, whose rows have as many label bytes as there are ranges."""
    content = np.frombuffer(read_bytes(path, "CIFAR file"), dtype=np.uint8)
    width = len(label_ranges) + PIXELS
    whole, rest = divmod(content.size, width)
    if rest:
        raise ValueError(
            f"the CIFAR file {path} is truncated: row {whole + 1} has {rest} of {width} bytes; unpack it again."
        )
    rows = content.reshape(whole, width)
    for column, limit in enumerate(label_ranges):
        wrong = np.flatnonzero(rows[:, column] >= limit)
        if wrong.size:
            raise ValueError(
                f"row {wrong[0] + 1} of the CIFAR file {path} has the label {rows[wrong[0], column]}, "
                f"which must be below {limit}; unpack it again."
            )
    labels = rows[:, len(label_ranges) - 1].astype(np.int64)
    return Images(rows[:, len(label_ranges) :].reshape(whole, *SHAPE).copy(), labels)


def _class_names(path: Path, count: int) -> tuple[str, ...]:
    names = tuple(line.strip() for line in read_utf8(path, "file of class names").splitlines() if line.strip())
    if len(set(names)) != count or len(names) != count:
        raise ValueError(f"{path} must name {count} different classes, one a line, but has {len(set(names))}.")
    return names


def _batch_number(path: Path) -> tuple[int, str]:
    digits = re.search(r"(\d{1,18})\.bin$", path.name)
    return (int(digits[1]) if digits else -1, path.name)
