"""CIFAR in the official binary layout, scikit-learn's digits, and every broken byte refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn import datasets

from mirrormax.data import Images, load_images
from mirrormax.data.images import read_batch

CLASSES10 = [f"thing {i}" for i in range(10)]
CLASSES100 = [f"thing {i}" for i in range(100)]


def rows(*labels, start=0):
    """A row for every tuple of label bytes; row i has the bytes i, i + 1, …."""
    pixels = [(np.arange(3072) + start + i).astype(np.uint8).tobytes() for i in range(len(labels))]
    return b"".join(bytes(label) + pixel for label, pixel in zip(labels, pixels, strict=True))


def cifar10(folder, batches=(1, 2), test=True):
    folder = folder / "cifar-10-batches-bin"
    folder.mkdir(parents=True)
    for number in batches:
        (folder / f"data_batch_{number}.bin").write_bytes(rows([number % 10], [9], start=number))
    if test:
        (folder / "test_batch.bin").write_bytes(rows([0], [1], [2]))
    (folder / "batches.meta.txt").write_text("\n".join(CLASSES10) + "\n\n")
    return folder


def test_cifar10_takes_the_batches_that_are_there_in_order_and_counts_them(tmp_path, monkeypatch):
    cifar10(tmp_path, batches=(5, 2, 1))
    data = load_images("cifar10", tmp_path)
    assert (
        data.describe()
        == "cifar10: 6 images of 3 x 32 x 32 to train on, 3 images of 3 x 32 x 32 to test on, 10 classes"
    )
    assert data.train.labels.tolist() == [1, 9, 2, 9, 5, 9]
    assert data.train.labels.dtype == np.int64
    assert data.classes == tuple(CLASSES10)
    expected = (np.arange(3072) + 2).astype(np.uint8).reshape(3, 32, 32)
    assert np.array_equal(data.train.pixels[2], expected)
    assert data.test.pixels.flags.writeable  # torch warns of arrays that are not
    monkeypatch.setenv("MIRRORMAX_DATA", str(tmp_path))
    assert len(load_images("cifar10").train) == 6


def test_cifar10_without_a_test_batch_has_no_test_images(tmp_path):
    cifar10(tmp_path, test=False)
    data = load_images("cifar10", tmp_path)
    assert data.test is None
    assert "none to test on" in data.describe()


def test_cifar100_has_fine_labels(tmp_path):
    folder = tmp_path / "cifar-100-binary"
    folder.mkdir()
    (folder / "train.bin").write_bytes(rows([19, 99], [0, 20]))
    (folder / "test.bin").write_bytes(rows([3, 4]))
    (folder / "fine_label_names.txt").write_text("\n".join(CLASSES100))
    data = load_images("cifar100", tmp_path)
    assert data.train.labels.tolist() == [99, 20]
    assert data.test.labels.tolist() == [4]
    assert np.array_equal(data.train.pixels[1].ravel()[:3], [1, 2, 3])
    (folder / "train.bin").write_bytes(rows([20, 0]))
    with pytest.raises(
        ValueError, match=r"row 1 of the CIFAR file .*train\.bin has the label 20, which must be below 20"
    ):
        load_images("cifar100", tmp_path)


@pytest.mark.parametrize(("name", "archive"), [("cifar10", "cifar-10-binary"), ("cifar100", "cifar-100-binary")])
def test_where_there_is_no_cifar_its_archive_is_named(tmp_path, monkeypatch, name, archive):
    monkeypatch.delenv("MIRRORMAX_DATA", raising=False)
    with pytest.raises(ValueError, match=rf"data_dir must be given for {name}.*unpack {archive}\.tar\.gz"):
        load_images(name)
    with pytest.raises(FileNotFoundError, match=rf"unpack {archive}\.tar\.gz"):
        load_images(name, tmp_path)


def test_the_pickled_version_is_not_taken_for_the_binary_one(tmp_path):
    (tmp_path / "cifar-10-batches-py").mkdir()
    (tmp_path / "cifar-10-batches-py/data_batch_1").write_bytes(b"\x80\x04\x95.")
    with pytest.raises(FileNotFoundError, match=r"cifar-10-binary\.tar\.gz"):
        load_images("cifar10", tmp_path)


BAD_FILES = {
    "empty": (b"", r"data_batch_2\.bin is empty"),
    "cut": (rows([0], [1])[:-1], r"data_batch_2\.bin is truncated: row 2 has 3072 of 3073 bytes"),
    "longer": (rows([0]) + b"\0", r"truncated: row 2 has 1 of 3073 bytes"),
    "label": (rows([0], [9], [10]), r"row 3 of the CIFAR file .*data_batch_2\.bin has the label 10, .* below 10"),
}


@pytest.mark.parametrize("name", BAD_FILES)
def test_a_bad_file_is_refused_by_row(tmp_path, name):
    content, message = BAD_FILES[name]
    (cifar10(tmp_path) / "data_batch_2.bin").write_bytes(content)
    with pytest.raises(ValueError, match=message):
        load_images("cifar10", tmp_path)


def test_a_directory_in_place_of_a_batch_is_refused(tmp_path):
    (cifar10(tmp_path) / "data_batch_3.bin").mkdir()
    with pytest.raises(IsADirectoryError, match=r"data_batch_3\.bin is not a file"):
        load_images("cifar10", tmp_path)


@pytest.mark.parametrize("names", [CLASSES10[:9], [*CLASSES10, "more"], [*CLASSES10[:9], CLASSES10[0]]])
def test_class_names_must_be_as_many_as_the_classes_and_differ(tmp_path, names):
    (cifar10(tmp_path) / "batches.meta.txt").write_text("\n".join(names))
    with pytest.raises(ValueError, match=r"batches\.meta\.txt must name 10 different classes"):
        load_images("cifar10", tmp_path)


@given(content=st.binary(max_size=64) | st.builds(lambda b, n: b * n, st.binary(min_size=1, max_size=8), st.just(3073)))
def test_no_bytes_make_the_cifar_reader_raise_anything_else(tmp_path_factory, content):
    path = tmp_path_factory.mktemp("cifar") / "batch.bin"
    path.write_bytes(content)
    for ranges in ((10,), (20, 100)):
        try:
            images = read_batch(path, ranges)
        except ValueError:
            continue
        assert images.labels.max() < ranges[-1]
        assert images.pixels.nbytes + len(ranges) * len(images) == len(content)


def test_digits_are_all_there_scaled_to_bytes_and_split_by_class():
    data = load_images("digits")
    published = datasets.load_digits()
    assert len(data.train) + len(data.test) == 1797
    assert data.classes == tuple("0123456789")
    together = np.concatenate([data.train.pixels, data.test.pixels])[:, 0]
    assert together.max() == 255
    back = np.rint(together * (16 / 255))
    assert sorted(map(bytes, back.astype(np.uint8))) == sorted(map(bytes, published.images.astype(np.uint8)))
    share = np.bincount(data.test.labels) / np.bincount(published.target)
    assert np.abs(share - 0.2).max() < 0.005
    assert np.array_equal(load_images("digits").test.pixels, data.test.pixels)


def test_an_unknown_source_is_refused():
    with pytest.raises(ValueError, match="'mnist' is no set of images; choose 'digits'"):
        load_images("mnist")


def test_pixels_and_labels_must_fit():
    with pytest.raises(ValueError, match=r"pixels must be uint8 of shape \(n, C, H, W\), got float64"):
        Images(np.zeros((2, 1, 2, 2)), np.zeros(2, dtype=np.int64))
    with pytest.raises(ValueError, match=r"labels must have shape \(2,\)"):
        Images(np.zeros((2, 1, 2, 2), dtype=np.uint8), np.zeros(3, dtype=np.int64))
