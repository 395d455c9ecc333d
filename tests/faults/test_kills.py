"""Runs killed by SIGKILL, between any two changes to files or at random moments: the next goes on to the same end."""

import json
import random
import shutil

import pytest

from .runs import COMMANDS, contents

KILLED = -9
KILLS = 2  # of the quick suite: all results are written through the same folder
SLOW = {"reproduce": 12, "reproduce trained": 8, "train": 16, "train texts": 8, "tune": 8, "audit": 8, "prune": 8}


def check_whole_files(folder):
    """No name but a temporary one, which begins with a dot, is ever of half a file."""
    for path in folder.rglob("*.json"):
        if not any(part.startswith(".") for part in path.relative_to(folder).parts):
            json.loads(path.read_text("utf-8"))


def check_the_end(name, folder, launch, whole):
    """The run goes on to what an uninterrupted one leaves, to the byte."""
    ended = launch(*COMMANDS[name], cwd=folder)
    assert (ended.code, ended.err) == (0, "")
    assert contents(folder) == whole(name)[0]
    assert not [path for path in folder.rglob(".*") if path.name not in (".lock", ".mirrormax.lock")]


@pytest.mark.timeout(1800)  # all is imported once more, on a machine that may be busy
def test_a_run_killed_before_any_change_to_files_goes_on_to_the_same_result(launch, whole, begin, attack):
    for moment in random.Random("train").sample(range(1, whole("train")[2] + 1), KILLS):
        with attack(f"train, before change {moment}"):
            check_kill("train", moment, launch, whole, begin())


def check_kill(name, moment, launch, whole, folder):
    assert launch(*COMMANDS[name], cwd=folder, die_at=moment).code == KILLED
    check_whole_files(folder)
    check_the_end(name, folder, launch, whole)
    shutil.rmtree(folder)


@pytest.mark.slow
@pytest.mark.timeout(3600)
@pytest.mark.parametrize("name", SLOW)
def test_a_run_killed_at_random_moments_goes_on_to_the_same_result(name, launch, whole, begin, attack):
    """Killed up to three times in a row, half of the time by the clock and half between two changes to files."""
    rng = random.Random(name)
    _, seconds, changes = whole(name)
    while attack.tried < SLOW[name]:
        folder = begin()
        for _ in range(rng.randint(1, 3)):
            how = rng.choice([{"kill_after": rng.uniform(0, seconds)}, {"die_at": rng.randint(1, changes)}])
            with attack(f"{name}, {how}"):
                ended = launch(*COMMANDS[name], cwd=folder, **how)
                assert ended.code in (KILLED, 0), ended.err
                check_whole_files(folder)
        with attack(f"{name}, gone on with"):
            check_the_end(name, folder, launch, whole)


@pytest.mark.slow
@pytest.mark.timeout(3600)
def test_a_training_killed_before_each_of_its_changes_goes_on_to_the_same_result(launch, whole, begin, attack):
    for moment in range(1, whole("train")[2] + 1):
        with attack(f"train, before change {moment}"):
            check_kill("train", moment, launch, whole, begin())
