"""The same command twice: the same files, timing aside."""

import pytest

from .runs import COMMANDS, contents

QUICK = ("reproduce", "train", "audit", "simulate", "svm")


@pytest.mark.timeout(1800)  # all is imported once more, on a machine that may be busy
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_the_same_command_twice_gives_identical_result_files(name, launch, whole, begin, inputs):
    folder = begin()
    assert launch(*COMMANDS[name], cwd=folder).code == 0
    found = contents(folder)
    assert found == whole(name)[0]
    assert len(found) > len(contents(inputs))
