"""The same command twice: the same files, pictures too, timing aside."""

import pytest

from .runs import COMMANDS, contents

QUICK = ("reproduce one", "train", "audit", "simulate")
DRAWN = "reproduce one"  # all pictures are drawn and saved in one way


@pytest.mark.timeout(1800)  # all is imported once more, on a machine that may be busy
@pytest.mark.parametrize(
    "name", [name if name in QUICK else pytest.param(name, marks=pytest.mark.slow) for name in COMMANDS]
)
def test_the_same_command_twice_gives_identical_result_files(name, launch, begin, inputs):
    found = []
    for folder in (begin(), begin()):
        assert launch(*COMMANDS[name], cwd=folder, pictures=name == DRAWN or name not in QUICK).code == 0
        found.append(contents(folder))
    assert found[0] == found[1]
    assert len(found[0]) > len(contents(inputs))
