"""What is missing is named with the extra that brings it."""

import json
import os
import subprocess
import sys
from importlib.metadata import metadata

import pytest

from mirrormax import _extras


def test_the_extras_that_are_named_exist():
    assert {*_extras.ROOMS.values(), *_extras.COMMANDS.values()} <= set(metadata("mirrormax").get_all("Provides-Extra"))


WITHOUT = """
import importlib.machinery, json, os, sys
import scipy.linalg, torch  # once for all: no case is about these

find = importlib.machinery.PathFinder.find_spec
for module, code in json.loads(sys.argv[1]):
    if os.fork() == 0:
        importlib.machinery.PathFinder.find_spec = lambda name, *rest: None if name == module else find(name, *rest)
        try:
            exec(code)
        except ModuleNotFoundError as error:
            print(error)
        sys.stdout.flush()
        os._exit(0)
    os.wait()
    print("end of a case", flush=True)
"""
MISSED = [
    ("lightning", "from mirrormax.training import train", "train"),
    ("optuna", "import mirrormax as mm; mm.tuning.Plan", "tune"),
    ("sklearn", "import mirrormax.contrib.sklearn", "sklearn"),
    ("pyarrow", "from mirrormax.data import load_text; load_text('a.parquet')", "train"),
    ("starlette", "import mirrormax as mm; mm.app", "explore"),
]
OTHERS = [
    ("import mirrormax, numba", "No module named 'numba'"),
    ("import mirrormax as mm; print(mm.simulate(mm.data.example1(), p=2, steps=2).status)", "steps"),
]


@pytest.fixture(scope="module")
def without():
    """What each program prints where a module is not installed: {(module, program): text}."""
    if not hasattr(os, "fork"):
        pytest.skip("needs fork")
    cases = [*((module, code) for module, code, _ in MISSED), *(("numba", code) for code, _ in OTHERS)]
    command = [sys.executable, "-c", WITHOUT, json.dumps(cases)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    printed = done.stdout.split("end of a case\n")[: len(cases)]
    return dict(zip(cases, map(str.strip, printed), strict=True))


@pytest.mark.parametrize(("module", "code", "extra"), MISSED)
def test_the_extra_is_named_where_one_is_missed(module, code, extra, without):
    printed = without[module, code]
    assert module in printed
    assert f"mirrormax[{extra}]" in printed
    assert f"'.[{extra}]'" in printed


@pytest.mark.parametrize(("code", "printed"), OTHERS)
def test_others_are_answered_as_ever(code, printed, without):
    assert without["numba", code] == printed
