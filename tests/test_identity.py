"""What makes a result current: configuration, content of the data, and the code that is imported; nothing else."""

import os
import subprocess
import sys
import textwrap

import pytest

from mirrormax._identity import code_digest, content_digest, differences, identity, imported_modules, key

DIGESTS = "from mirrormax._identity import code_digest; print(code_digest('mirrormax.maker', ('run',)))"
FILES = {
    "__init__.py": "__version__ = '0'",
    "_files.py": None,
    "_identity.py": None,
    "maker.py": """
        '''Makes numbers.'''
        from __future__ import annotations
        from typing import TYPE_CHECKING
        from mirrormax.room import answer
        from mirrormax.words import Text, sentence
        if TYPE_CHECKING:
            from mirrormax.types import Answer
        TITLE = 'Numbers'
        TABLE = {1: 2}
        TABLE.update({3: 4})
        COLOURS = ('red',)
        def run() -> Text:
            '''Doc.'''
            from mirrormax import late
            from mirrormax.lazy import part
            return _helper() + late.MORE + part()  # a comment
        def _helper():
            return answer() + TABLE[1]
        def tells():
            return sentence(TITLE)
        def draw():
            from mirrormax import plotting
            return COLOURS
    """,
    "room/__init__.py": "from mirrormax.room._inside import answer",
    "room/_inside.py": "def answer(): return 42",
    "late.py": "MORE = 1",
    "lazy/__init__.py": """
        from typing import TYPE_CHECKING
        if TYPE_CHECKING:
            from mirrormax.lazy._part import part
            from mirrormax.lazy._other import other
    """,
    "lazy/_part.py": "def part(): return 7",
    "lazy/_other.py": "def other(): return 7",
    "other.py": "X = 1",
    "types.py": "Answer = int",
    "plotting.py": "COLOUR = 'red'",
    "words.py": "Text = str; sentence = str.title",
}


@pytest.fixture
def package(tmp_path):
    """A package of the same name in a folder of its own, and its digest in a fresh process."""
    import mirrormax

    root = tmp_path / "mirrormax"
    for name, text in FILES.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        if text is None:
            path.symlink_to(os.path.join(mirrormax.__path__[0], name))
        else:
            path.write_text(textwrap.dedent(text))

    def digest():
        environment = {**os.environ, "PYTHONPATH": str(tmp_path), "PYTHONDONTWRITEBYTECODE": "1"}
        return subprocess.run(
            [sys.executable, "-c", DIGESTS], capture_output=True, text=True, check=True, env=environment
        ).stdout

    return root, digest


@pytest.mark.parametrize(
    ("name", "old", "new", "changes"),
    [
        ("room/_inside.py", "42", "43", True),
        ("room/__init__.py", "import answer", "import answer as answer", True),
        ("late.py", "1", "2", True),
        ("lazy/_part.py", "7", "8", True),
        ("lazy/_other.py", "7", "8", False),
        ("maker.py", "late.MORE", "late.MORE * 2", True),
        ("maker.py", "# a comment", "# another", False),
        ("maker.py", "Makes numbers.", "Makes them.", False),
        ("maker.py", "'''Doc.'''", "'''Other.'''", False),
        ("maker.py", "import plotting", "import plotting as p", False),
        ("maker.py", "TABLE[1]", "TABLE[3]", True),
        ("maker.py", "{3: 4}", "{3: 5}", True),
        ("maker.py", "'Numbers'", "'All numbers'", False),
        ("maker.py", "('red',)", "('blue',)", False),
        ("maker.py", "sentence(TITLE)", "sentence(TITLE[0])", False),
        ("words.py", "str.title", "str.upper", False),
        ("plotting.py", "red", "blue", False),
        ("types.py", "int", "float", False),
        ("other.py", "1", "2", False),
        ("__init__.py", "0", "1", False),
    ],
    ids=lambda value: str(value)[:20],
)
def test_only_what_is_imported_for_the_numbers_changes_the_digest(package, name, old, new, changes):
    root, digest = package
    before = digest()
    path = root / name
    assert old in path.read_text()
    path.write_text(path.read_text().replace(old, new))
    assert (digest() != before) is changes


def test_the_closure_follows_the_real_package():
    found = imported_modules("mirrormax.svm.api")
    assert {"mirrormax.svm", "mirrormax.svm.api"} <= set(found)
    assert not any(name.startswith(("mirrormax.experiments", "mirrormax.report", "mirrormax.app")) for name in found)


def test_a_function_that_is_not_there_is_an_error():
    with pytest.raises(ValueError, match="no fly in the module"):
        code_digest("mirrormax.geometry", ("fly",))


def test_a_module_that_is_not_there_is_an_error():
    with pytest.raises(ModuleNotFoundError, match=r"mirrormax\.nowhere"):
        code_digest("mirrormax.nowhere")


def test_the_contents_of_a_file_count_and_not_its_name(tmp_path):
    a, b = tmp_path / "a", tmp_path / "b"
    a.write_text("same")
    b.write_text("same")
    assert content_digest(a) == content_digest(b)
    before = content_digest(a)
    a.write_text("changed")
    assert content_digest(a) != before
    with pytest.raises(FileNotFoundError):
        content_digest(tmp_path / "gone")


def test_identities_differ_by_choice_data_code_and_version():
    one = identity({"p": 1.1, "lr": 0.1}, module="mirrormax.geometry", data={"a": "1"})
    assert one == identity({"lr": 0.1, "p": 1.1}, module="mirrormax.geometry", data={"a": "1"})
    other = identity({"p": 2, "lr": 0.1}, module="mirrormax.optim", data={"a": "2"})
    assert differences(one, other) == ["p", "the contents of a", "code"]
    assert key(one) != key(other)
    assert len(key(one)) == 12
