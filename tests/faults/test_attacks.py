"""Folders with things of others in them, races for one folder, data changed under a run, SIGTERM at any moment."""

import os
import random
import shutil
import signal

import pytest

from .runs import COMMANDS, contents

pytestmark = pytest.mark.timeout(1800)  # all is imported once more, on a machine that may be busy
FOLDERS = ["train", *(pytest.param(name, marks=pytest.mark.slow) for name in ("audit", "reproduce", "tune"))]
QUICK_RACES, SLOW_RACES = 1, 7
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
def test_hidden_files_and_links_of_others_are_never_touched(name, launch, begin, whole):
    folder = begin()
    lay_out(folder / "out", folder / "precious")
    before = hidden(folder / "out", folder / "precious")
    for more in ((), (), ("--force",)):
        if more and name == "audit":
            continue
        ended = launch(*COMMANDS[name], *more, cwd=folder)
        assert ended.code == 0 or ended.refused, ended.err
        assert hidden(folder / "out", folder / "precious") == before


@pytest.mark.parametrize("name", ["train", pytest.param("audit", marks=pytest.mark.slow)])
@pytest.mark.parametrize("place", [".mirrormax.lock", "mirrormax.json", "config.json", "model"])
def test_a_link_in_place_of_a_file_of_ours_is_never_followed(name, place, launch, begin):
    folder = begin()
    precious = folder / "precious"
    precious.write_text("mine")
    (folder / "out").mkdir()
    (folder / "out" / place).symlink_to(precious)
    ended = launch(*COMMANDS[name], cwd=folder)
    assert ended.code == 0 or ended.refused, ended.err
    assert precious.read_text() == "mine"
    assert (folder / "out" / place).is_symlink()


def check_race(name, folder, launch, whole):
    first, second = launch.race(*COMMANDS[name], cwd=folder)
    for ended in (first, second):
        assert ended.code == 0 or ended.refused, ended.err
        if ended.refused:
            assert "is writing to" in ended.err
            assert "--force" not in ended.err
    assert 0 in (first.code, second.code)
    assert contents(folder) == whole(name)[0]
    return ended.refused or first.refused


@pytest.mark.parametrize("name", ["train"])
def test_two_processes_in_one_folder_never_spoil_each_others_work(name, launch, begin, whole):
    for _ in range(QUICK_RACES):
        check_race(name, begin(), launch, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "train texts", "tune", "audit", "reproduce"])
def test_many_races_for_one_folder(name, launch, begin, whole, capsys):
    refused = sum(check_race(name, begin(), launch, whole) for _ in range(SLOW_RACES))
    with capsys.disabled():
        print(f"\n{name}: {SLOW_RACES} races, {refused} told who holds the folder, 0 spoilt")


@pytest.mark.parametrize("moment", ["finished", "half-done"])
def test_data_changed_or_deleted_under_a_run_are_never_shown_as_they_were(moment, launch, begin, whole):
    name = "train texts"
    for attack in ("change", "delete"):
        folder = begin()
        die_at = None if moment == "finished" else whole(name)[2] // 2
        launch(*COMMANDS[name], cwd=folder, die_at=die_at)
        table = folder / "texts.csv"
        sound = table.read_bytes()
        before = contents(folder / "out")
        if attack == "change":
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


def terminate(name, rng, launch, folder, seconds):
    ended = launch(*COMMANDS[name], cwd=folder, kill_after=rng.uniform(0, seconds), signal=signal.SIGTERM)
    # Before and after main, the process has no handler of ours, and the shell sees the same 143.
    assert ended.code in (0, TERMINATED, -signal.SIGTERM), ended.err
    if ended.code == TERMINATED:
        assert ended.err.startswith("mirrormax: terminated; what was finished is kept"), ended.err
        assert ended.err.count("\n") == 1, ended.err
    return ended.code != 0


def check_terminations(name, count, launch, begin, whole):
    rng, (_, seconds, _) = random.Random(f"terminate {name}"), whole(name)
    stopped = 0
    for _ in range(count):
        folder = begin()
        stopped += terminate(name, rng, launch, folder, seconds)
        assert launch(*COMMANDS[name], cwd=folder).code == 0
        assert contents(folder) == whole(name)[0]
        shutil.rmtree(folder)
    return stopped


def test_sigterm_at_a_random_moment_leaves_a_training_to_go_on(launch, begin, whole):
    check_terminations("train", 2, launch, begin, whole)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["train", "train texts", "tune", "audit", "reproduce"])
def test_sigterm_at_many_random_moments(name, launch, begin, whole, capsys):
    stopped = check_terminations(name, 10, launch, begin, whole)
    with capsys.disabled():
        print(f"\n{name}: 10 signals, {stopped} of them in time, 0 results lost")
