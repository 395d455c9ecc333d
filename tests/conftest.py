"""Settings for the whole suite: one thread per worker, the longest files first, the same examples every time, and a
count of attacks."""

import os
from collections import Counter
from contextlib import contextmanager

# Before NumPy is imported, and for processes that tests start. Threads of BLAS that wait for each other do so at full
# speed: with two of them, products of 128 x 128 on a busy machine took a hundred times the processor time of one.
os.environ.setdefault("OMP_NUM_THREADS", "1")

import pytest
import torch
from hypothesis import settings

# Some virtual machines name matrix instructions that they do not have; torch asks for this at its first product.
os.environ.setdefault("ONEDNN_MAX_CPU_ISA", "AVX512_CORE_BF16")
torch.set_num_threads(1)
settings.register_profile("mirrormax", deadline=None, derandomize=True, max_examples=40, print_blob=True)
settings.load_profile("mirrormax")


# Files of few tests that take long each. Whoever begins them last keeps the others waiting, and xdist would.
LONGEST = (
    "tests/faults/",
    "tests/optim/test_compiled.py",
    "tests/experiments/",
    "tests/commands/",
    "tests/optim/test_distributed.py",
    "tests/training/",
    "tests/app/",
)


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items):
    items.sort(key=lambda item: next((k for k, name in enumerate(LONGEST) if item.nodeid.startswith(name)), 99))


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config, log):
    """A worker for each file, in the order above; one for all of tests/faults, which share what launches them."""
    if config.getvalue("dist") != "loadfile":
        return None
    from xdist.scheduler import LoadFileScheduling

    class LongestFirst(LoadFileScheduling):
        def _split_scope(self, nodeid):
            return "tests/faults" if nodeid.startswith("tests/faults/") else super()._split_scope(nodeid)

    config.option.loadscopereorder = False  # not by the number of tests
    return LongestFirst(config, log)


@pytest.fixture
def three_threads():
    """For torch, where the suite allows one."""
    before = torch.get_num_threads()
    torch.set_num_threads(3)
    yield
    torch.set_num_threads(before)


@pytest.fixture
def dots(monkeypatch):
    """A dot is saved in the place of every picture, see :mod:`pictures`."""
    from pictures import save_dots  # matplotlib is not for everybody

    save_dots(monkeypatch.setattr)


class Attacks:
    """Attacks on what the commands write. One that does harm is counted, and the others are still made."""

    def __init__(self):
        self.tried, self.harm = 0, []

    @contextmanager
    def __call__(self, what):
        self.tried += 1
        try:
            yield
        except AssertionError as error:
            self.harm.append(f"{what}: {error}")


@pytest.fixture
def attack(request):
    """``with attack("what is done"):`` holds one attack, and asserts there that nothing was lost."""
    attacks = Attacks()
    yield attacks
    kind = request.node.originalname.removeprefix("test_").replace("_", " ")
    request.node.user_properties.append(("attacks", (kind, attacks.tried, len(attacks.harm))))
    assert attacks.tried, "no attack was made"
    assert not attacks.harm, "\n".join(attacks.harm)


def pytest_terminal_summary(terminalreporter):
    """How many attacks were made and how many did harm, by test, from all workers."""
    tried, harm = Counter(), Counter()
    for reports in terminalreporter.stats.values():
        for report in reports:
            if getattr(report, "when", None) == "teardown":
                for name, value in report.user_properties:
                    if name == "attacks":
                        tried[value[0]] += value[1]
                        harm[value[0]] += value[2]
    if tried:
        terminalreporter.section("attacks")
        for kind, count in sorted(tried.items()):
            terminalreporter.write_line(f"{count:5d} tried, {harm[kind]} did harm: {kind}")
        terminalreporter.write_line(f"{tried.total():5d} tried, {harm.total()} did harm: all")
