import itertools

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from mirrormax.nets import VisionConfig
from mirrormax.training.batches import POOL, EpochBatches, ImageBatches, TextBatches, crop_and_flip, loader

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)
SIZES, WORLDS = st.integers(1, 9), st.integers(1, 5)


def in_epoch(batches, epoch):
    batches.set_epoch(epoch)
    return list(batches)


@given(LENGTHS, SIZES, st.integers(0, 9))
def test_an_epoch_has_every_example_once(lengths, size, epoch):
    batches = EpochBatches(lengths, size, seed=3)
    found = in_epoch(batches, epoch)
    assert sorted(itertools.chain(*found)) == list(range(len(lengths)))
    assert len(found) == len(batches)
    assert sorted(map(len, found))[1:] == [size] * (len(found) - 1)


def test_batches_depend_on_seed_and_epoch_alone():
    lengths = np.random.default_rng(0).integers(1, 50, 100)
    used, fresh = EpochBatches(lengths, 8, seed=1), EpochBatches(lengths, 8, seed=1)
    for epoch in (0, 1, 2):
        last = in_epoch(used, epoch)
    torch.rand(3), np.random.default_rng().random()
    assert in_epoch(fresh, 2) == last
    assert in_epoch(fresh, 1) != last
    assert in_epoch(EpochBatches(lengths, 8, seed=2), 2) != last


@pytest.mark.parametrize("by_length", [True, False])
def test_a_batch_has_texts_of_like_length_if_asked_for(by_length):
    lengths = np.random.default_rng(0).integers(1, 500, 4 * POOL)
    data = TextBatches([np.ones(length, dtype=np.int64) for length in lengths], np.zeros(len(lengths), dtype=np.int64))
    padded = sum(ids.numel() for ids, _ in loader(data, 4, seed=0, by_length=by_length))
    assert (padded < 1.05 * lengths.sum()) == by_length


@given(LENGTHS, SIZES, WORLDS)
def test_several_processes_evaluate_every_example_once(lengths, size, world):
    parts = [EpochBatches(lengths, size, seed=None, rank=rank, world=world) for rank in range(world)]
    found = [list(part) for part in parts]
    assert sorted(itertools.chain(*itertools.chain(*found))) == list(range(len(lengths)))
    assert [len(part) for part in parts] == [len(part) for part in found]


@given(LENGTHS, SIZES, WORLDS)
def test_several_processes_train_on_equally_many_batches_and_on_every_example(lengths, size, world):
    alone = EpochBatches(lengths, size, seed=5)
    parts = [EpochBatches(lengths, size, seed=5, rank=rank, world=world) for rank in range(world)]
    found = [in_epoch(part, 4) for part in parts]
    assert {len(part) for part in found} == {len(part) for part in parts} == {-(-len(alone) // world)}
    shared = [tuple(batch) for step in zip(*found, strict=True) for batch in step]
    assert shared[: len(alone)] == [tuple(batch) for batch in in_epoch(alone, 4)]
    assert set(shared) == set(shared[: len(alone)])


def test_starting_a_loader_takes_nothing_from_the_common_generator():
    """A run that goes on starts its loader at another moment, and must not have other dropout for it."""
    batches = loader(TextBatches([np.ones(2, dtype=np.int64)] * 5, np.zeros(5, dtype=np.int64)), 2, seed=0)
    torch.manual_seed(0)
    before = torch.get_rng_state()
    iterator = iter(batches)
    batches.batch_sampler.set_epoch(3)
    list(iterator)
    assert torch.equal(torch.get_rng_state(), before)


def test_an_epoch_that_is_set_after_the_start_counts():
    late, early = EpochBatches(range(50), 4, seed=0), EpochBatches(range(50), 4, seed=0)
    iterator = iter(late)
    late.set_epoch(2)
    assert list(iterator) == in_epoch(early, 2)


def test_texts_are_padded_to_the_longest_of_their_batch():
    rows = [np.arange(1, length + 1) for length in (3, 1, 5, 2)]
    batches = list(loader(TextBatches(rows, np.array([0, 1, 2, 3])), 2, None))
    assert [ids.tolist() for ids, _ in batches] == [[[1, 0], [1, 2]], [[1, 2, 3, 0, 0], [1, 2, 3, 4, 5]]]
    assert [labels.tolist() for _, labels in batches] == [[1, 3], [0, 2]]


def test_images_are_scaled_around_zero():
    pixels = np.array([0, 255], dtype=np.uint8).repeat(16).reshape(2, 1, 4, 4)
    (found, labels), *rest = loader(ImageBatches(pixels, np.array([7, 8]), VisionConfig(image_size=8)), 2, None)
    assert not rest
    assert found.shape == (2, 1, 8, 8)
    torch.testing.assert_close(found, torch.tensor([-2.0, 2.0])[:, None, None, None].expand(2, 1, 8, 8))
    assert labels.tolist() == [7, 8]


def test_images_are_cropped_with_a_black_border_before_they_are_scaled_by_channel():
    torch.manual_seed(0)
    pixels = np.full((200, 3, 8, 8), 255, dtype=np.uint8)
    mean, std = (0.5, 0.4, 0.3), (0.1, 0.2, 0.3)
    config = VisionConfig(image_size=8, mean=mean, std=std)
    found, _ = ImageBatches(pixels, np.zeros(200, dtype=np.int64), config, augment=True).__getitems__(range(200))
    for channel in range(3):
        expected = {(value - mean[channel]) / std[channel] for value in (0.0, 1.0)}
        assert sorted(found[:, channel].unique().tolist()) == pytest.approx(sorted(expected), abs=1e-5)


def test_cropping_moves_by_an_eighth_at_most_and_may_mirror():
    torch.manual_seed(0)
    image = torch.arange(1.0, 257).reshape(1, 1, 16, 16)
    padded = torch.nn.functional.pad(image, (2, 2, 2, 2))
    moved = [padded[:, :, top : top + 16, left : left + 16] for top in range(5) for left in range(5)]
    possible = {tuple(each.flatten().tolist()) for view in moved for each in (view, view.flip(-1))}
    found = {tuple(each.flatten().tolist()) for each in crop_and_flip(image.expand(400, 1, 16, 16))}
    assert found <= possible
    assert len(found) == 50


@pytest.mark.parametrize("augment", [False, True])
def test_augmentation_is_random_only_where_asked_for(augment):
    pixels = np.random.default_rng(0).integers(0, 255, (8, 1, 8, 8), dtype=np.uint8)
    data = ImageBatches(pixels, np.zeros(8, dtype=np.int64), VisionConfig(image_size=8), augment=augment)
    torch.manual_seed(0)
    first, second = data.__getitems__(list(range(8)))[0], data.__getitems__(list(range(8)))[0]
    assert torch.equal(first, second) == (not augment)
