"""What is missing is named with the extra that brings it."""

import re
from importlib.metadata import requires
from importlib.util import find_spec
from pathlib import Path

import pytest

from mirrormax._extras import EXTRAS, MODULES, WITHIN, extra_of, naming_extra

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
    assert extra_of("transformers", "mirrormax.auditing") == "audit"
    assert extra_of("sklearn.base", "contrib.sklearn") == "sklearn"


def test_the_sentence_stands_in_the_error():
    with (
        pytest.raises(
            ModuleNotFoundError, match=r"^mirrormax.nets needs 'safetensors'; pip install 'mirrormax\[train\]'\.$"
        ),
        naming_extra("mirrormax.nets", "nets"),
    ):
        raise ModuleNotFoundError("No module named 'safetensors'", name="safetensors")
    unknown = pytest.raises(ModuleNotFoundError, match=r"^No module named 'mirrormax\.oops'$")
    with unknown, naming_extra("mirrormax.nets"):
        raise ModuleNotFoundError("No module named 'mirrormax.oops'", name="mirrormax.oops")
