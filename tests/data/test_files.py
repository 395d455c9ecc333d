"""Where data lies is decided in one place; files are looked at before they are opened, and unpack within bounds."""

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from mirrormax.data import (
    files,
    image_files,
    load_text,
    read_columns,
    read_npz,
    read_utf8,
    resolve_data_dir,
    reviews_file,
    text_files,
)


def test_the_given_directory_comes_before_the_environment(tmp_path, monkeypatch):
    (tmp_path / "given").mkdir()
    (tmp_path / "set").mkdir()
    monkeypatch.setenv("MIRRORMAX_DATA", str(tmp_path / "set"))
    assert resolve_data_dir(tmp_path / "given") == tmp_path / "given"
    assert resolve_data_dir() == tmp_path / "set"
    monkeypatch.setenv("MIRRORMAX_DATA", "")
    assert resolve_data_dir() is None
    monkeypatch.delenv("MIRRORMAX_DATA")
    assert resolve_data_dir() is None


def test_a_directory_that_is_not_there_is_refused_by_where_it_was_named(tmp_path, monkeypatch):
    with pytest.raises(FileNotFoundError, match=r"^data_dir is .*nowhere, which does not exist"):
        resolve_data_dir(tmp_path / "nowhere")
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("MIRRORMAX_DATA", str(tmp_path / "file"))
    with pytest.raises(NotADirectoryError, match=r"MIRRORMAX_DATA is .*file, which is a file"):
        resolve_data_dir()


def test_text_files_are_utf8_without_nul(tmp_path):
    path = tmp_path / "a.txt"
    path.write_bytes(b"\xef\xbb\xbfgood\n")
    assert read_utf8(path, "note") == "good\n"
    path.write_bytes(b"one\ntw\xe9\n")
    with pytest.raises(ValueError, match=r"line 2 of the note .*a\.txt is not UTF-8 \(byte 0xe9\)"):
        read_utf8(path, "note")
    path.write_bytes(b"one\ntwo\nth\0ree\n")
    with pytest.raises(ValueError, match=r"line 3 of the note .*a\.txt holds a NUL byte"):
        read_utf8(path, "note")


def test_a_csv_with_an_endless_field_is_refused_at_once(tmp_path):
    path = tmp_path / "a.csv"
    path.write_text("text,label\nfine,0\n" + "x" * 2**24 + "xx,1\n")
    with pytest.raises(ValueError, match=r"row 2 of the table .*a\.csv cannot be read \(field larger than field limit"):
        load_text(path)
    path.write_text("text,label\nfine,0\n" + "x" * 1_000_001 + ",1\n")
    with pytest.raises(ValueError, match=r"row 2 of the table .* has a text of 1,000,001 characters.*; shorten it"):
        load_text(path)


def test_a_small_parquet_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a" * 30_000_000, "b"], "label": [0, 1]}), path, compression="zstd")
    assert path.stat().st_size < 100_000
    monkeypatch.setattr(files, "UNPACKED", 10_000_000)
    with pytest.raises(ValueError, match=r"the table .*a\.parquet cannot be read: its [0-9,]+ bytes unpack to 30,"):
        load_text(path)


@pytest.mark.parametrize("kind", [pa.string(), pa.large_string(), pa.dictionary(pa.int32(), pa.string())])
def test_a_parquet_of_endless_equal_texts_is_refused(tmp_path, monkeypatch, kind):
    """A dictionary of one string is small, on disk and as it is declared, however many rows refer to it."""
    path = tmp_path / "a.parquet"
    texts = pa.array(["a" * 100_000, None] * 200, pa.string()).cast(kind)
    pq.write_table(pa.table({"text": texts, "label": [0, 1] * 200}), path, compression="zstd")
    assert path.stat().st_size < 10_000
    assert read_columns(path, ["text"], "table")[0][:2] == ["a" * 100_000, None]
    monkeypatch.setattr(files, "UNPACKED", 10_000_000)
    with pytest.raises(ValueError, match=r"a\.parquet cannot be read: its [0-9,]+ bytes unpack to 20,000,000"):
        read_columns(path, ["text"], "table")


def test_a_parquet_of_endless_equal_numbers_is_refused(tmp_path, monkeypatch):
    path = tmp_path / "a.parquet"
    pq.write_table(pa.table({"text": ["a"] * 300_000, "label": [0] * 300_000}), path)
    assert path.stat().st_size < 10_000
    monkeypatch.setattr(files, "UNPACKED", 1_000_000)
    with pytest.raises(ValueError, match=r"unpack to 4,800,000"):
        load_text(path)


def test_columns_that_nobody_asked_for_are_not_counted_or_read(tmp_path, monkeypatch):
    monkeypatch.setattr(files, "UNPACKED", 10_000_000)
    table = pa.table({"text": ["good", "bad"], "label": [0, 1], "image": [b"0" * 30_000_000] * 2})
    pq.write_table(table, tmp_path / "a.parquet", compression="zstd")
    assert load_text(tmp_path / "a.parquet").train.texts == ("good", "bad")


def test_a_small_npz_that_unpacks_to_gigabytes_is_refused_before_it_does(tmp_path, monkeypatch):
    path = tmp_path / "a.npz"
    np.savez_compressed(path, X=np.zeros(3_000_000), y=np.ones(3))
    monkeypatch.setattr(files, "UNPACKED", 10_000_000)
    with pytest.raises(ValueError, match=r"the problem file .*a\.npz cannot be read: its [0-9,]+ bytes unpack to 24,"):
        read_npz(path)
    honest = np.random.default_rng(0).random(3_000_000)
    np.savez(path, X=honest)
    np.testing.assert_array_equal(read_npz(path)["X"], honest)  # large, but not packed


def test_the_files_of_every_source_are_those_that_are_read(tmp_path, monkeypatch):
    monkeypatch.delenv("MIRRORMAX_DATA", raising=False)
    assert text_files("reviews") == text_files("imdb") == [reviews_file()]
    assert [path.name for path in image_files("digits")] == ["digits.csv.gz"]
    assert image_files("digits")[0].is_file()
    table = tmp_path / "a.csv"
    with pytest.raises(FileNotFoundError, match=r"the table .*a\.csv does not exist"):
        text_files(table)
    table.write_text("text,label\na,0\n")
    assert text_files(str(table)) == [table]
    folder = tmp_path / "imdb"
    folder.mkdir()
    for name in ("test-00000-of-00001.parquet", "train-00000-of-00001.parquet"):
        pq.write_table(pa.table({"text": ["a", "b"], "label": [0, 1]}), folder / name)
    assert [path.name[:5] for path in text_files("imdb", tmp_path)] == ["train", "test-"]
    for part in ("train", "test"):
        for sign in ("pos", "neg"):
            (tmp_path / "other" / "aclImdb" / part / sign).mkdir(parents=True)
            (tmp_path / "other" / "aclImdb" / part / sign / "0_1.txt").write_text(sign)
    assert len(text_files("imdb", tmp_path / "other")) == 4
    cifar = tmp_path / "cifar-100-binary"
    cifar.mkdir()
    for name in ("train.bin", "fine_label_names.txt", "test.bin"):
        (cifar / name).write_bytes(b"x")
    assert [path.name for path in image_files("cifar100", tmp_path)] == [
        "train.bin",
        "fine_label_names.txt",
        "test.bin",
    ]
    with pytest.raises(FileNotFoundError, match=r"there is no cifar-10-batches-bin/data_batch_"):
        image_files("cifar10", tmp_path)
