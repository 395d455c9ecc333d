"""The package's face: every public name and every room is an attribute, found without importing the rest."""

import importlib
import inspect
import pkgutil
import subprocess
import sys
from pathlib import Path

import pytest

import mirrormax

ROOMS = sorted(m.name for m in pkgutil.iter_modules(mirrormax.__path__) if m.ispkg and not m.name.startswith("_"))


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_an_attribute(room):
    assert getattr(mirrormax, room) is importlib.import_module(f"mirrormax.{room}")
    assert room in dir(mirrormax)


def test_every_public_name_is_what_a_room_exports():
    exported = {name for room in ROOMS for name in getattr(getattr(mirrormax, room), "__all__", ())}
    assert set(mirrormax.__all__) <= exported
    for name in mirrormax.__all__:
        assert getattr(mirrormax, name).__name__ == name


def test_an_unknown_name_is_an_attribute_error():
    with pytest.raises(AttributeError, match="nothing"):
        _ = mirrormax.nothing


@pytest.mark.parametrize("name", sorted(mirrormax._MOVED))
def test_a_name_that_moved_says_where_it_is(name):
    with pytest.raises(AttributeError, match=rf"mirrormax\.\w+\.{name}") as raised:
        getattr(mirrormax, name)
    place = str(raised.value).split()[2].split(".")
    assert getattr(getattr(mirrormax, place[1]), name)


def test_importing_the_package_imports_neither_torch_nor_numpy():
    code = "import sys, mirrormax; print({m.split('.')[0] for m in sys.modules} & {'torch', 'numpy'})"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "set()\n"


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
        "attention.token_scores",
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
reveal_type(mm.attention.token_scores(tensor, tensor, tensor))  # Tensor
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
