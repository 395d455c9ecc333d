"""What makes a result current: its choices, the contents of its data, and its producer's revision; nothing else."""

from dataclasses import dataclass, field

import pytest

import mirrormax
from mirrormax._identity import choices, content_digest, differences, identity, key, this_code
from mirrormax._results import ResultFolder


def test_the_contents_of_a_file_count_and_not_its_name(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("same")
    b.write_text("same")
    assert content_digest(a) == content_digest(b)
    before = content_digest(a)
    a.write_text("changed")
    assert content_digest(a) != before
    with pytest.raises(FileNotFoundError):
        content_digest(tmp_path / "gone")


def test_identities_differ_by_choice_data_and_revision():
    first = identity({"p": 1.1, "lr": 0.1}, revision=1, data={"a": "1"})
    assert first == identity({"lr": 0.1, "p": 1.1}, revision=1, data={"a": "1"})
    other = identity({"p": 2, "lr": 0.1}, revision=2, data={"a": "2"})
    assert differences(first, other) == ["p", "the contents of a", "the revision of its numbers"]
    assert key(first) != key(other)
    assert len(key(first)) == 12


@dataclass(frozen=True)
class Inner:
    width: int = 3
    bias: bool = field(default=True, metadata={"later": True})


@dataclass(frozen=True)
class Outer:
    inner: Inner = Inner()
    sizes: tuple[int, ...] = (1, 2)
    depth: int = field(default=1, metadata={"later": True})


def test_a_choice_that_was_added_later_counts_only_where_it_was_made():
    assert choices(Outer()) == {"inner": {"width": 3}, "sizes": [1, 2]}
    made = choices(Outer(Inner(bias=False), depth=2))
    assert made == {"inner": {"width": 3, "bias": False}, "sizes": [1, 2], "depth": 2}


def finished(folder, asked):
    with folder.open(asked):
        folder.save_text("a.txt", "kept")
        folder.finish()


def test_a_result_of_another_version_stays_current_and_says_who_made_it(tmp_path, monkeypatch):
    folder, asked = ResultFolder(tmp_path / "out", "table"), identity({"p": 2}, revision=1)
    monkeypatch.setattr("mirrormax._results.this_code", lambda: "0.1.9, code abc")
    finished(folder, asked)
    monkeypatch.undo()
    assert folder.is_current(asked)
    with folder.open(asked):
        folder.save_text("b.txt", "added")
        folder.finish()
    assert folder.manifest().made_by == ("0.1.9, code abc", this_code())
    assert this_code().startswith(mirrormax.__version__)


def test_a_result_of_another_revision_is_refused_and_left_alone(tmp_path):
    folder = ResultFolder(tmp_path / "out", "table")
    finished(folder, identity({"p": 2}, revision=1))
    with pytest.raises(ValueError, match=r"revision .*made by"):
        folder.check(identity({"p": 2}, revision=2))
    assert (tmp_path / "out" / "a.txt").read_text() == "kept"
