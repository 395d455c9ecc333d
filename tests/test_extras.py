"""What is missing is named with the extra that brings it."""

import json
import os
import re
import subprocess
import sys
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from mirrormax._extras import EXTRAS, MODULES, WITHIN, extra_of

ROOT = Path(__file__).parents[1]


def declared():
    """Extra → packages, from pyproject.toml, without those that other extras bring."""
    text = (ROOT / "pyproject.toml").read_text("utf-8")
    section = text.split("[project.optional-dependencies]")[1].split("\n[")[0]
    blocks = re.findall(r"^(\w+) = \[(.*?)\]$", section, re.M | re.S)
    return {
        name: set(re.findall(r'"([A-Za-z0-9][\w.-]*?)(?:\[[\w,]+\])?[><=]', block)) - {"mirrormax"}
        for name, block in blocks
    }


def test_every_package_of_an_extra_for_users_is_known_and_where_it_is_said_to_be():
    extras = declared()
    wanted = set().union(*(names for extra, names in extras.items() if extra not in ("dev", "docs")))
    assert {name for names in EXTRAS.values() for name in names} == wanted
    for extra, names in EXTRAS.items():
        assert set(names) <= extras[extra], extra
    assert set(WITHIN.values()) <= set(extras)
    assert requires("mirrormax")


@pytest.mark.parametrize("package", [name for names in EXTRAS.values() for name in names])
def test_packages_are_imported_by_the_names_that_are_said(package):
    assert find_spec(MODULES.get(package, package)) is not None


def test_a_module_of_no_extra_has_none():
    assert extra_of("mirrormax.nothing") is None
    assert extra_of("nonsense", "train") is None


def test_a_room_or_command_asks_for_all_that_it_needs():
    assert extra_of("rich.console") == "train"
    assert extra_of("rich.console", "reproduce") == "reproduce"
    assert extra_of("transformers", "auditing") == "audit"
    assert extra_of("sklearn.base", "contrib.sklearn") == "sklearn"


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
    ("lightning", "from mirrormax.training.run import train", "needs 'lightning'; pip install 'mirrormax[train]'."),
    ("optuna", "import mirrormax.tuning.study", "needs 'optuna'; pip install 'mirrormax[tune]'."),
    ("sklearn", "import mirrormax.contrib.sklearn", "needs 'sklearn'; pip install 'mirrormax[sklearn]'."),
    (
        "pyarrow",
        "from mirrormax.data.files import read_parquet; read_parquet(__import__('pathlib').Path('a'), [])",
        "mirrormax.data.files needs 'pyarrow'; pip install 'mirrormax[train]'.",
    ),
    ("starlette", "import mirrormax.app.server", "needs 'starlette'; pip install 'mirrormax[explore]'."),
]
OTHERS = [
    ("import mirrormax, numba", "No module named 'numba'"),
    ("import mirrormax, importlib.util as u; print(u.find_spec('numba'))", "None"),
    (
        "import mirrormax as mm; p = mm.data.example1(); print(mm.simulate(p.X, p.y, p.z, p.v, steps=2).status)",
        "steps",
    ),
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


@pytest.mark.parametrize(("module", "code", "said"), MISSED)
def test_the_package_names_the_extra_wherever_it_misses_one(module, code, said, without):
    printed = without[module, code]
    assert printed.startswith("mirrormax.")
    assert printed.endswith(said)


@pytest.mark.parametrize(("code", "printed"), OTHERS)
def test_others_are_answered_as_ever(code, printed, without):
    assert without["numba", code] == printed
