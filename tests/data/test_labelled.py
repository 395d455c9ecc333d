"""A split is disjoint, complete, stratified, and the same for the same seed."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from mirrormax.data import Images, Texts, split, split_indices


@given(
    labels=st.lists(st.integers(0, 3), min_size=8, max_size=60),
    fraction=st.floats(0.05, 0.95),
    seed=st.integers(0, 2**32),
)
def test_the_parts_are_disjoint_complete_and_stratified(labels, fraction, seed):
    labels = np.array([0] * 20 + labels)
    rest, held = split_indices(labels, fraction, seed)
    assert sorted([*rest, *held]) == list(range(len(labels)))
    assert (np.diff(rest) > 0).all()
    assert (np.diff(held) > 0).all()
    for label in np.unique(labels):
        size = (labels == label).sum()
        assert abs((labels[held] == label).sum() - fraction * size) <= 1
        assert (labels[rest] == label).any()
    again = split_indices(labels, fraction, seed)
    assert np.array_equal(again[0], rest)
    assert np.array_equal(again[1], held)


def test_another_seed_holds_out_other_rows():
    labels = np.arange(100) % 2
    assert not np.array_equal(split_indices(labels, 0.5, 0)[1], split_indices(labels, 0.5, 1)[1])


def test_texts_and_images_are_split_alike():
    labels = np.arange(10) % 2
    texts = Texts(tuple(f"text {i}" for i in range(10)), labels)
    images = Images(np.arange(10, dtype=np.uint8).reshape(10, 1, 1, 1), labels)
    rest, held = split(texts, 0.4, 5)
    held_images = split(images, 0.4, 5)[1]
    assert held.texts == tuple(f"text {i}" for i in held_images.pixels.ravel())
    assert list(held.labels) == list(held_images.labels)
    assert not set(rest.texts) & set(held.texts)
    assert (len(rest), len(held)) == (6, 4)


@pytest.mark.parametrize(
    ("fraction", "seed", "error", "message"),
    [
        (0.0, 0, ValueError, "fraction must be .* greater than 0"),
        (1.0, 0, ValueError, "fraction must be .* less than 1"),
        ("half", 0, TypeError, "fraction must be a number, got 'half'"),
        (0.001, 0, ValueError, r"fraction 0\.001 holds out none of the 10 rows"),
        (0.5, None, TypeError, "seed must be an integer, got None"),
        (0.5, -1, ValueError, "seed must be at least 0, got -1"),
    ],
)
def test_a_split_that_cannot_be_is_refused(fraction, seed, error, message):
    with pytest.raises(error, match=message):
        split_indices(np.arange(10) % 2, fraction, seed)
