"""The folder of results: nothing of anybody's is lost, nothing stale is current, one process writes at a time."""

import json
import os
import subprocess
import sys
import threading

import pytest

from mirrormax._results import LOCK, MANIFEST, ResultFolder

ONE, OTHER = {"config": {"p": 1.1}, "data": {"a.csv": "1"}}, {"config": {"p": 2.0}, "data": {"a.csv": "2"}}


def folder(path, **options):
    return ResultFolder(path, "test run", **options)


def write(path, identity=ONE, text="old", name="a.txt", **options):
    made = folder(path)
    with made.open(identity, **options):
        made.save_text(name, text)
        made.finish(seconds=1.0)
    return made


def contents(path):
    return {
        str(p.relative_to(path)): p.read_bytes() if p.is_file() else b"" for p in sorted(path.rglob("*")) if p.is_file()
    }


def test_a_finished_result_is_current_for_its_identity_alone(tmp_path):
    made = write(tmp_path / "run")
    assert made.is_current(ONE)
    assert not made.is_current(OTHER)
    assert made.manifest().facts == {"seconds": 1.0}
    assert not (tmp_path / "run" / LOCK).exists()


def test_a_half_written_result_is_not_current_and_goes_on(tmp_path):
    made = folder(tmp_path / "run")
    with made.open(ONE):
        made.save_text("a.txt", "half")
    assert not made.is_current(ONE)
    with made.open(ONE):
        assert (tmp_path / "run" / "a.txt").read_text() == "half"
        made.finish()
    assert made.is_current(ONE)


def test_what_differs_is_named_and_nothing_is_changed(tmp_path):
    write(tmp_path / "run")
    before = contents(tmp_path)
    with pytest.raises(ValueError, match=r"differs in p, the contents of a\.csv.*--force"):
        write(tmp_path / "run", OTHER)
    assert contents(tmp_path) == before


def test_force_takes_away_what_the_manifest_names_and_nothing_else(tmp_path):
    run = tmp_path / "run"
    write(run, name="sub/a.txt")
    for name in ("notes.txt", ".env", ".git/config", "sub/mine.txt", ".mirrormax-abcdefgh-mine.txt"):
        (run / name).parent.mkdir(exist_ok=True)
        (run / name).write_text("mine")
    write(run, OTHER, "new", name="b.txt", force=True)
    assert not (run / "sub/a.txt").exists()
    assert {name for name, text in contents(run).items() if text == b"mine"} == {
        "notes.txt",
        ".env",
        ".git/config",
        "sub/mine.txt",
        ".mirrormax-abcdefgh-mine.txt",
    }


def test_a_folder_with_files_of_others_is_refused_and_left(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    with pytest.raises(ValueError, match=r"not of a test run \(thesis\.tex\)"):
        write(tmp_path)
    assert contents(tmp_path) == {"thesis.tex": b"mine"}


def test_hidden_files_of_others_are_neither_in_the_way_nor_touched(tmp_path):
    (tmp_path / ".git").mkdir()
    (tmp_path / ".git" / "HEAD").write_text("mine")
    (tmp_path / ".mirrormax-12345678-a.txt").write_text("mine, though it looks like a leftover")
    write(tmp_path)
    assert (tmp_path / ".git" / "HEAD").read_text() == "mine"
    assert (tmp_path / ".mirrormax-12345678-a.txt").exists()


def test_a_shared_folder_keeps_files_of_others_and_refuses_to_replace_one(tmp_path):
    (tmp_path / "thesis.tex").write_text("mine")
    (tmp_path / "b.txt").write_text("mine")
    made = folder(tmp_path, shared=True)
    with made.open(ONE):
        made.save_text("a.txt", "ours")
        with pytest.raises(ValueError, match=r"b\.txt is in the way"):
            made.save_text("b.txt", "ours")
    assert (tmp_path / "b.txt").read_text() == "mine"


def test_leftovers_of_a_killed_writer_go_and_links_named_like_them_stay(tmp_path):
    run = tmp_path / "run"
    write(run)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run / ".mirrormax-12345678-a.txt").write_text("half")
    (run / ".mirrormax-87654321-a.txt").symlink_to(precious)
    with folder(run).open(ONE):
        pass
    assert not (run / ".mirrormax-12345678-a.txt").exists()
    assert (run / ".mirrormax-87654321-a.txt").is_symlink()
    assert precious.read_text() == "mine"


@pytest.mark.parametrize("name", [LOCK, MANIFEST])
def test_a_link_in_place_of_our_files_is_refused_and_its_target_left(name, tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / name).symlink_to(precious)
    with pytest.raises(ValueError, match=r"link|manifest"):
        write(tmp_path / "run")
    assert precious.read_text() == "mine"


def test_a_hard_link_or_a_file_of_others_in_place_of_the_lock_is_left(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("")
    (tmp_path / "run").mkdir()
    os.link(precious, tmp_path / "run" / LOCK)
    with pytest.raises(ValueError, match="no lock of mirrormax"):
        write(tmp_path / "run")
    (tmp_path / "run" / LOCK).unlink()
    (tmp_path / "run" / LOCK).write_text("my own notes")
    with pytest.raises(ValueError, match="no lock of mirrormax"):
        write(tmp_path / "run")
    assert (tmp_path / "run" / LOCK).read_text() == "my own notes"


def test_a_result_file_that_became_a_link_is_not_written_through_or_removed(tmp_path):
    run = tmp_path / "run"
    write(run)
    precious = tmp_path / "precious"
    precious.write_text("mine")
    (run / "a.txt").unlink()
    (run / "a.txt").symlink_to(precious)
    for force in (False, True):
        with pytest.raises(ValueError, match=r"damaged|link"):
            write(run, force=force)
    assert precious.read_text() == "mine"
    assert (run / "a.txt").is_symlink()


def test_folders_on_the_way_that_are_links_are_not_followed(tmp_path):
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "vit").symlink_to(elsewhere)
    made = ResultFolder(tmp_path / "out" / "vit" / "key", "test run", within=tmp_path / "out")
    with pytest.raises(ValueError, match="vit is a link"), made.open(ONE):
        pass
    other = folder(tmp_path / "run")
    with other.open(ONE):
        (tmp_path / "run" / "sub").symlink_to(elsewhere)
        with pytest.raises(ValueError, match="sub is a link"):
            other.save_text("sub/a.txt", "ours")
    assert list(elsewhere.iterdir()) == []


@pytest.mark.parametrize("name", ["../a.txt", "/etc/a.txt", "a/../../b", MANIFEST, LOCK, ""])
def test_names_that_lead_out_of_the_folder_are_refused(name, tmp_path):
    made = folder(tmp_path / "run")
    with made.open(ONE), pytest.raises(ValueError, match="no name for a file"):
        made.save_text(name, "x")


def test_a_manifest_that_names_files_outside_removes_none_of_them(tmp_path):
    precious = tmp_path / "precious"
    precious.write_text("mine")
    made = write(tmp_path / "run")
    told = json.loads((tmp_path / "run" / MANIFEST).read_text())
    told["files"]["../precious"] = None
    (tmp_path / "run" / MANIFEST).write_text(json.dumps(told))
    with pytest.raises(ValueError, match="no name for a file"):
        write(tmp_path / "run", force=True)
    with pytest.raises(ValueError, match="no name for a file"):
        made.clear()
    assert precious.read_text() == "mine"


def test_a_changed_file_is_damage_that_is_named(tmp_path):
    made = write(tmp_path / "run")
    (tmp_path / "run" / "a.txt").write_text("edited")
    assert made.damaged() == "a.txt"
    assert not made.is_current(ONE)
    with pytest.raises(ValueError, match=r"damaged: a\.txt"):
        write(tmp_path / "run")
    assert (tmp_path / "run" / "a.txt").read_text() == "edited"
    assert write(tmp_path / "run", text="new", force=True).is_current(ONE)


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"kind": 5}', "[" * 100_000, '{"kind": "test run", "x": 1}'])
def test_a_damaged_manifest_is_refused_with_one_sentence(text, tmp_path):
    (tmp_path / MANIFEST).write_text(text)
    with pytest.raises(ValueError, match="is no manifest that this version reads"):
        folder(tmp_path).manifest()


def test_another_kind_of_result_is_refused(tmp_path):
    write(tmp_path / "run")
    with pytest.raises(ValueError, match="holds a test run, not a study"):
        ResultFolder(tmp_path / "run", "study").manifest()


def test_a_file_in_place_of_the_folder_is_refused(tmp_path):
    (tmp_path / "run").write_text("mine")
    with pytest.raises(NotADirectoryError, match="is a file"):
        write(tmp_path / "run")


def test_clearing_leaves_an_empty_place_or_only_files_of_others(tmp_path):
    write(tmp_path / "a").clear()
    assert not (tmp_path / "a").exists()
    made = write(tmp_path / "b")
    (tmp_path / "b" / "notes").write_text("mine")
    made.clear()
    assert contents(tmp_path / "b") == {"notes": b"mine"}


HOLD = """
import sys, time
from pathlib import Path
from mirrormax._results import ResultFolder
made = ResultFolder(Path(sys.argv[1]), "test run")
with made.open({"config": {"p": 1.1}, "data": {"a.csv": "1"}}):
    print("held", flush=True)
    sys.stdin.readline()
"""


def test_the_second_process_is_told_who_holds_the_folder(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        assert holder.stdout.readline() == "held\n"
        before = contents(tmp_path)
        for force in (False, True):
            with pytest.raises(ValueError, match=rf"another process \({holder.pid} on .* is writing to .*run; wait"):
                write(tmp_path / "run", force=force)
        assert contents(tmp_path) == before
    finally:
        holder.communicate("\n")
    assert write(tmp_path / "run").is_current(ONE)


def test_a_killed_holder_leaves_no_lock_behind(tmp_path):
    holder = subprocess.Popen(
        [sys.executable, "-c", HOLD, str(tmp_path / "run")], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout.readline() == "held\n"
    holder.kill()
    holder.communicate()
    assert write(tmp_path / "run").is_current(ONE)


@pytest.mark.parametrize("attempt", range(5))
def test_waiting_writers_take_turns(tmp_path, attempt):
    inside, most, done, begin = [], [], [], threading.Barrier(12)

    def work(k):
        made = folder(tmp_path / "run")
        begin.wait()  # who makes the folder first is nobody's to know
        with made.open(ONE, wait=True):
            inside.append(k)
            most.append(len(inside))
            made.save_text("a.txt", str(k))
            inside.remove(k)
        done.append(k)

    threads = [threading.Thread(target=work, args=(k,)) for k in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(done) == list(range(12))
    assert max(most) == 1
