"""Folders with things of others in them, races for one folder, data changed under a run, SIGTERM at any
moment."""

import os
import random
import shutil
import signal
from pathlib import Path

import pytest

from .runs import COMMANDS, contents

pytestmark = pytest.mark.timeout(3600)  # all is imported once more, on a machine that may be busy
FOLDERS = [
    "train",
    *(pytest.param(name, marks=pytest.mark.slow) for name in ("audit", "compare", "prune", "reproduce", "tune")),
]
EVERY = ["train", "train texts", "tune", "audit", "compare", "prune", "reproduce", "simulate", "svm"]
SLOW_RACES, SLOW_SIGNALS = 7, 10
TERMINATED = 143


def lay_out(folder, precious):
    """Hidden files, a repository and links in a folder that a command is about to write to."""
    folder.mkdir(parents=True)
    for name in (".env", ".bashrc", ".lock", ".audit.lock", ".config-abcd1234.json", ".mirrormax-notes"):
        (folder / name).write_text(f"mine: {name}")
    (folder / ".git").mkdir()
    (folder / ".git" / "HEAD").write_text("ref: refs/heads/main")
    precious.mkdir()
    (precious / "key").write_text("secret")
    (folder / ".ssh").symlink_to(precious)
    (folder / ".link").symlink_to(precious / "key")


def hidden(folder, precious):
    """What was laid out, as it is now."""
    found = {path.name: path.read_text() for path in folder.iterdir() if path.is_file() and path.name[0] == "."}
    found = {name: text for name, text in found.items() if name != ".mirrormax.lock"}
    return found, (folder / ".git" / "HEAD").read_text(), (precious / "key").read_text(), os.readlink(folder / ".ssh")


@pytest.mark.parametrize("name", FOLDERS)
def test_hidden_files_and_links_of_others_are_never_touched(name, launch, begin, attack):
    folder = begin()
    lay_out(folder / "out", folder / "precious")
    before = hidden(folder / "out", folder / "precious")
    for more in ((), (), ("--force",)):
        if more and name in ("audit", "compare"):
            continue
        with attack(f"{name} {' '.join(more)}"):
            ended = launch(*COMMANDS[name], *more, cwd=folder)
            assert ended.code == 0 or ended.refused, ended.err
            assert hidden(folder / "out", folder / "precious") == before


def check_link(name, place, launch, folder):
    """A link to somebody's file in the place where a file of ours would go."""
    precious = folder / "precious"
    precious.write_text("mine")
    link = folder / "out" / place
    link.parent.mkdir(parents=True)
    link.symlink_to(precious)
    ended = launch(*COMMANDS[name], cwd=folder)
    assert ended.code == 0 or ended.refused, ended.err
    assert precious.read_text() == "mine"
    assert link.is_symlink()
    shutil.rmtree(folder)


@pytest.mark.parametrize("place", [".mirrormax.lock", "mirrormax.json", "model"])
def test_a_link_in_place_of_a_file_is_never_followed(place, launch, begin, attack):
    with attack(f"train: {place}"):
        check_link("train", place, launch, begin())


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "audit", "compare", "prune", "reproduce", "tune"])
def test_a_link_in_place_of_any_file_or_folder_is_never_followed(name, launch, begin, whole, attack):
    files = [Path(path).relative_to("out") for path in whole(name)[0] if path.startswith("out/")]
    places = {Path(".mirrormax.lock"), *files, *(parent for file in files for parent in list(file.parents)[:-1])}
    for place in sorted(places):
        with attack(f"{name}: {place}"):
            check_link(name, place, launch, begin())


def check_race(name, folder, launch, whole):
    for ended in (both := launch.race(*COMMANDS[name], cwd=folder)):
        assert ended.code == 0 or ended.refused, ended.err
        if ended.refused:
            assert "is writing to" in ended.err
            assert "--force" not in ended.err
    assert 0 in [ended.code for ended in both]
    assert contents(folder) == whole(name)[0]
    shutil.rmtree(folder)


def test_two_processes_in_one_folder_never_spoil_each_others_work(launch, begin, whole, attack):
    with attack("train"):
        check_race("train", begin(), launch, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_many_races_for_one_folder(name, launch, begin, whole, attack):
    for _ in range(SLOW_RACES):
        with attack(name):
            check_race(name, begin(), launch, whole)


@pytest.mark.parametrize("name", ["train texts", pytest.param("tune texts", marks=pytest.mark.slow)])
def test_data_changed_or_deleted_under_a_run_are_never_shown_as_they_were(name, launch, begin, whole, attack):
    for moment, how in (("finished", "changed"), ("half-done", "deleted")):
        with attack(f"{name}, {moment}, {how}"):
            folder = begin()
            die_at = None if moment == "finished" else whole(name)[2] // 2
            launch(*COMMANDS[name], cwd=folder, die_at=die_at)
            table = folder / "texts.csv"
            sound = table.read_bytes()
            before = contents(folder / "out")
            if how == "changed":
                table.write_bytes(sound.replace(b"good film", b"good town", 1).replace(b",bad", b",bed", 1))
            else:
                table.unlink()
            ended = launch(*COMMANDS[name], cwd=folder)
            assert ended.refused, ended.err
            assert "texts.csv" in ended.err
            assert contents(folder / "out") == before
            table.write_bytes(sound)
            assert launch(*COMMANDS[name], cwd=folder).code == 0
            assert contents(folder) == whole(name)[0]


def check_termination(name, rng, launch, folder, whole):
    first, seconds, _ = whole(name)
    ended = launch(*COMMANDS[name], cwd=folder, kill_after=rng.uniform(0, seconds), signal=signal.SIGTERM)
    # Before and after main, the process has no handler of ours, and the shell sees the same 143.
    assert ended.code in (0, TERMINATED, -signal.SIGTERM), ended.err
    if ended.code == TERMINATED:
        assert ended.err.startswith("mirrormax: terminated; "), ended.err
        assert ended.err.count("\n") == 1, ended.err
    assert launch(*COMMANDS[name], cwd=folder).code == 0
    assert contents(folder) == first
    shutil.rmtree(folder)


def test_sigterm_at_a_random_moment_leaves_a_training_to_go_on(launch, begin, whole, attack):
    with attack("train"):
        check_termination("train", random.Random("terminate train"), launch, begin(), whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", EVERY)
def test_sigterm_at_many_random_moments(name, launch, begin, whole, attack):
    rng = random.Random(f"terminate {name}")
    for _ in range(SLOW_SIGNALS):
        with attack(name):
            check_termination(name, rng, launch, begin(), whole)
