"""Images with class labels, from any source, by one call.

The digits are those that scikit-learn carries. CIFAR-10 and CIFAR-100 are read from the official *binary* archives; the
pickled ones are never opened. A row of these is the label bytes (one for CIFAR-10; the coarse and the fine one for
CIFAR-100), then 3 planes of 32 x 32 bytes.

>>> load_images("digits").describe()
'digits: 1,438 images of 1 x 8 x 8 to train on, 359 images of 1 x 8 x 8 to test on, 10 classes'
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from mirrormax._extras import extra
from mirrormax.data.files import VARIABLE, check_file, read_bytes, read_utf8, resolve_data_dir
from mirrormax.data.labelled import ImageData, Images, split

LEVELS = 16  # a pixel of a digit counts the inked points of a 4 x 4 square
TEST_SHARE = 0.2  # of the digits
SHAPE = (3, 32, 32)


@dataclass(frozen=True)
class Layout:
    """How an archive is laid out: its folder, its files, and how many values each label byte may take."""

    folder: str
    train: str
    test: str
    names: str
    label_ranges: tuple[int, ...]  # the last byte is the class


LAYOUTS = {
    "cifar10": Layout("cifar-10-batches-bin", "data_batch_*.bin", "test_batch.bin", "batches.meta.txt", (10,)),
    "cifar100": Layout("cifar-100-binary", "train.bin", "test.bin", "fine_label_names.txt", (20, 100)),
}
IMAGE_SOURCES = ("digits", *LAYOUTS)
"""The images that are read by name."""


def load_images(source: str, data_dir: str | Path | None = None) -> ImageData:
    """Labelled images of a named source.

    Args:
        source: ``"digits"``, the 1,797 digits of scikit-learn; ``"cifar10"`` or ``"cifar100"``, from the official
            binary archive unpacked in ``data_dir``.
        data_dir: the directory of the data sets; that of the environment's MIRRORMAX_DATA if not given.
    """
    paths = image_files(source, data_dir)
    if source == "digits":
        from sklearn import datasets

        bunch = datasets.load_digits()
        pixels = np.rint(bunch.images * (255 / LEVELS)).astype(np.uint8)[:, None]
        train, test = split(Images(pixels, bunch.target), TEST_SHARE, seed=0)  # always the same ones
        return ImageData("digits", tuple(map(str, bunch.target_names)), train, test)
    layout = LAYOUTS[source]
    (names,) = (path for path in paths if path.name == layout.names)
    batches = {path.name: read_batch(path, layout.label_ranges) for path in paths if path != names}
    tested = batches.pop(layout.test, None)
    pixels = np.concatenate([batch.pixels for batch in batches.values()])
    train = Images(pixels, np.concatenate([batch.labels for batch in batches.values()]))
    lines = [line.strip() for line in read_utf8(names, "file of class names").splitlines()]
    classes, count = tuple(line for line in lines if line), layout.label_ranges[-1]
    if len(set(classes)) != count or len(classes) != count:
        raise ValueError(f"{names} must name {count} different classes, one per line, but has {len(set(classes))}.")
    return ImageData(source, classes, train, tested)


def image_files(source: str, data_dir: str | Path | None = None) -> list[Path]:
    """The files that :func:`load_images` would read, in order; OSError with one sentence where one is missing."""
    if source == "digits":
        with extra("train"):
            from sklearn import datasets
        return [Path(datasets.__file__).parent / "data" / "digits.csv.gz"]
    if source not in LAYOUTS:
        raise ValueError(f"{source!r} is no set of images; choose 'digits', 'cifar10' or 'cifar100'.")
    layout, data_dir = LAYOUTS[source], resolve_data_dir(data_dir)
    archive = f"{source.replace('cifar', 'cifar-')}-binary.tar.gz"
    get = f"unpack {archive} of https://www.cs.toronto.edu/~kriz/cifar.html there"
    if data_dir is None:
        raise ValueError(f"data_dir must be given for {source}, or {VARIABLE} set in the environment; {get}.")
    folder = data_dir / layout.folder
    paths = sorted(folder.glob(layout.train))
    if not paths:
        raise FileNotFoundError(f"there is no {layout.folder}/{layout.train} in {data_dir}; {get}.")
    check_file(folder / layout.names, "file of class names")
    test = folder / layout.test
    return [*paths, folder / layout.names, *([test] if test.exists() else [])]


def read_batch(path: Path, label_ranges: tuple[int, ...]) -> Images:
    """The images of one CIFAR file, whose rows have as many label bytes as there are ranges."""
    content = np.frombuffer(read_bytes(path, "CIFAR file"), dtype=np.uint8)
    width = len(label_ranges) + math.prod(SHAPE)
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
