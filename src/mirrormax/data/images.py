"""Images with class labels, from any source, by one call.

>>> load_images("digits").describe()
'digits: 1,438 training images, 359 test images of 1 x 8 x 8, 10 classes'
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.data.sources import resolve_data_dir


@dataclass(frozen=True, eq=False)
class Images:
    """n images: pixels (n, C, H, W), bytes of 0 to 255, and labels (n,), numbers of classes."""

    pixels: npt.NDArray[np.uint8]
    labels: npt.NDArray[np.int64]

    def __post_init__(self) -> None:
        object.__setattr__(self, "labels", np.asarray(self.labels, dtype=np.int64))
        if self.pixels.dtype != np.uint8 or self.pixels.ndim != 4:
            raise ValueError(
                f"pixels must be uint8 of shape (n, C, H, W), got {self.pixels.dtype} of shape {self.pixels.shape}."
            )
        if self.labels.shape != (len(self.pixels),):
            raise ValueError(
                f"labels must have shape ({len(self.pixels)},), one for each image, got {self.labels.shape}."
            )

    def __len__(self) -> int:
        return len(self.pixels)

    def subset(self, indices: Sequence[int] | npt.NDArray[Any]) -> Images:
        """The images with these numbers, in this order."""
        chosen = np.asarray(indices, dtype=np.intp)
        return Images(self.pixels[chosen], self.labels[chosen])


@dataclass(frozen=True, eq=False)
class ImageData:
    """Images to train on, the names of their classes, and test images where there are any."""

    name: str
    classes: tuple[str, ...]
    train: Images
    test: Images | None

    def describe(self) -> str:
        """What was found, in one line."""
        test = "no test images" if self.test is None else f"{len(self.test):,} test images"
        size = " x ".join(map(str, self.train.pixels.shape[1:]))
        return f"{self.name}: {len(self.train):,} training images, {test} of {size}, {len(self.classes)} classes"


def load_images(source: str, data_dir: str | Path | None = None) -> ImageData:
    """Labelled images of a named source.

    Args:
        source: ``"digits"``, the 1,797 digits of scikit-learn; ``"cifar10"`` or ``"cifar100"``, from the official
            binary archive unpacked in ``data_dir``.
        data_dir: the directory of the data sets; that of the environment's MIRRORMAX_DATA if not given.
    """
    # The readers are imported where they are used: what one needs is not needed by the others.
    if source == "digits":
        from mirrormax.data.digits import load_digits

        return load_digits()
    if source in ("cifar10", "cifar100"):
        from mirrormax.data.cifar import load_cifar

        return load_cifar(source, resolve_data_dir(data_dir))
    raise ValueError(f"source must be 'digits', 'cifar10' or 'cifar100', got {source!r}.")
