"""The package's face: every public name and every room is an attribute, found without importing the rest."""

import ast
import importlib
import inspect
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


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="has no attribute 'nothing'"):
        _ = mirrormax.nothing


def test_a_renamed_one_says_its_new_name():
    with pytest.raises(AttributeError, match="it is called 'leads' now"):
        _ = mirrormax.margins


def test_importing_the_package_imports_no_part_of_it():
    code = "import sys, mirrormax; print([m for m in sys.modules if m.startswith(('mirrormax.', 'torch', 'numpy'))])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "['mirrormax._extras']\n"  # a table of names that imports nothing


def annotations(thing):
    """(where, annotation) of every parameter, result and field that a reader of ``thing`` sees."""
    functions = {"": thing}
    if inspect.isclass(thing):
        yield from ((name, kind) for name, kind in vars(thing).get("__annotations__", {}).items())
        members = {name: getattr(member, "fget", member) for name, member in vars(thing).items()}
        members = {name: getattr(member, "__func__", member) for name, member in members.items()}
        functions = {name: member for name, member in members.items() if inspect.isfunction(member)}
    for name, function in functions.items():
        if name.startswith("_") and name != "__init__":
            continue
        signature = inspect.signature(function)
        yield f"{name} ->", signature.return_annotation
        for parameter in signature.parameters.values():
            if parameter.kind not in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
                yield f"{name}({parameter.name})", parameter.annotation


MATHEMATICS = ("attention", "dynamics", "geometry", "optim", "svm", "theory")
FACE = {name: getattr(mirrormax, name) for name in mirrormax.__all__} | {
    f"{room}.{name}": getattr(getattr(mirrormax, room), name)
    for room in MATHEMATICS
    for name in getattr(mirrormax, room).__all__
}


@pytest.mark.parametrize("name", [name for name, thing in FACE.items() if callable(thing)])
def test_no_public_signature_says_any(name):
    said = [where for where, kind in annotations(FACE[name]) if str(kind) in ("Any", "Any | None", "typing.Any")]
    assert said == []


def test_what_takes_a_problem_shows_its_own_parameters_and_help():
    for name in (
        "att_svm",
        "simulate",
        "token_scores",
        "is_locally_optimal",
        "theory.constants",
        "theory.check_lemmas",
    ):
        parameters = list(inspect.signature(FACE[name]).parameters)
        assert parameters[0] in ("X", "problem")
        assert not {"args", "kwargs"} & set(parameters)
        assert inspect.getdoc(FACE[name])


TYPED = """
import numpy as np
import torch
import mirrormax as mm

array, tensor = np.zeros((1, 2, 3)), torch.zeros(1, 2, 3)
reveal_type(mm.Problem(X=array).X)  # ndarray
reveal_type(mm.Problem(X=tensor).leads([0]))  # Tensor
reveal_type(mm.Problem(X=array).tensors())  # Problem[torch
reveal_type(mm.token_scores(tensor, tensor, tensor))  # Tensor
reveal_type(mm.att_svm(mm.Problem(X=array), [0], p=1.5))  # Solution
reveal_type(mm.att_svm(array, array, [0], p=1.5))  # Solution
mm.att_svm(array, array, [0], q=1.5)  # No overload variant
mm.theory.constants(mm.Problem(X=array), [0], p=1.5)
"""


@pytest.mark.slow
def test_a_type_checker_sees_the_arguments_and_the_kind_of_the_answer(tmp_path):
    (tmp_path / "user.py").write_text(TYPED)
    run = [sys.executable, "-m", "mypy", str(tmp_path / "user.py")]  # as pyproject.toml says, with its cache
    root = Path(__file__).parents[1]
    lines = subprocess.run(run, capture_output=True, text=True, check=False, cwd=root).stdout.splitlines()
    found = {}
    for line in lines:
        if "user.py:" in line:
            found.setdefault(int(line.split("user.py:")[1].split(":")[0]), line)
    for number, line in enumerate(TYPED.splitlines(), start=1):
        _, _, said = line.partition("  # ")
        assert (said in found[number]) if said else (number not in found), lines
