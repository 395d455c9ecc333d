"""Names that are imported when they are first used, so that ``mirrormax --help`` need not wait for torch.

A package that loads its parts this way lists them once, for the type checker and for the reader alike:

.. code-block:: python

    if TYPE_CHECKING:
        from mirrormax.svm import att_svm as att_svm

    __getattr__, __dir__ = lazy(__name__)
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Callable
from importlib import import_module
from pathlib import Path
from typing import Any

from mirrormax._extras import ROOMS, extra


def lazy(package: str) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """``__getattr__`` and ``__dir__`` of a package, for what it imports under ``if TYPE_CHECKING``."""
    module = sys.modules[package]
    homes = lazy_names(package)

    def get(name: str) -> Any:
        if name not in homes:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        is_module = homes[name] == package
        home = f"{package}.{name}" if is_module else homes[name]
        with extra(ROOMS.get(home.split(".")[1])):
            return import_module(home) if is_module else getattr(import_module(home), name)

    return get, lambda: sorted({*vars(module), *homes})


def lazy_names(package: str) -> dict[str, str]:
    """Each name that a package imports under ``if TYPE_CHECKING``, with the module that it comes from."""
    source = Path(str(sys.modules[package].__file__)).read_text("utf-8")
    return {
        alias.name: str(statement.module)
        for block in ast.parse(source).body
        if isinstance(block, ast.If) and ast.unparse(block.test) == "TYPE_CHECKING"
        for statement in block.body
        if isinstance(statement, ast.ImportFrom)
        for alias in statement.names
    }
