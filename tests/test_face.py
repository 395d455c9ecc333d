"""The package's face: every public name and every room is an attribute, found without importing the rest."""

import ast
import importlib
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mirrormax

ROOMS = sorted(m.name for m in pkgutil.iter_modules(mirrormax.__path__) if m.ispkg and not m.name.startswith("_"))
SOURCE = ast.parse(Path(mirrormax.__file__).read_text("utf-8"))


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_an_attribute(room):
    assert getattr(mirrormax, room) is importlib.import_module(f"mirrormax.{room}")
    assert room in dir(mirrormax)


@pytest.mark.parametrize("name", mirrormax.__all__)
def test_every_public_name_is_what_its_room_exports(name):
    room = importlib.import_module(f"mirrormax.{mirrormax._HOMES[name]}")
    assert getattr(mirrormax, name) is getattr(room, name)
    assert name in getattr(room, "__all__", [name])


def test_the_map_the_list_and_what_the_type_checker_sees_agree():
    blocks = [node for node in SOURCE.body if isinstance(node, ast.If)]
    seen = {
        alias.name: node.module.removeprefix("mirrormax.").split(".")[0]
        for block in blocks
        for node in block.body
        for alias in node.names
    }
    assert seen == mirrormax._HOMES
    assert sorted(seen) == sorted(mirrormax.__all__)


def test_the_audit_is_a_plain_function_whatever_was_imported_before():
    code = "import mirrormax, mirrormax.auditing as a; assert mirrormax.audit is a.audit; print(type(a.audit).__name__)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "function\n"


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mirrormax.nothing


def test_importing_the_package_imports_no_part_of_it():
    code = "import sys, mirrormax; print([m for m in sys.modules if m.startswith(('mirrormax.', 'torch', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['mirrormax._extras']\n"  # a table of names that imports nothing
