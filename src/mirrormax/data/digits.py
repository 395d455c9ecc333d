"""The 1,797 handwritten digits that scikit-learn carries."""

from __future__ import annotations

import numpy as np
from sklearn import datasets

from mirrormax.data.images import ImageData, Images
from mirrormax.data.splits import split

LEVELS = 16  # a pixel counts the inked points of a 4 x 4 square
TEST_SHARE = 0.2


def load_digits() -> ImageData:
    """Grey images of 8 x 8, a fifth of every class as test images, always the same ones."""
    bunch = datasets.load_digits()
    pixels = np.rint(bunch.images * (255 / LEVELS)).astype(np.uint8)[:, None]
    train, test = split(Images(pixels, bunch.target), TEST_SHARE, seed=0)
    return ImageData("digits", tuple(map(str, bunch.target_names)), train, test)
