"""The one rule for what makes a result current: the configuration, the data and the code that it came from.

A result whose :func:`identity` is not the one asked for belongs to other choices, other data or other code, and is
never shown or gone on with in place of what was asked. Experiments, training, tuning and audits all use this rule.
"""

from __future__ import annotations

import ast
import hashlib
import json
import os
from collections import Counter
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from pathlib import Path
from typing import Any

import mirrormax
from mirrormax._files import checksum

PACKAGE = "mirrormax"
MANY = 100  # files that are named one by one

_digests: dict[tuple[str, int, int, int], str] = {}


def identity(
    config: Mapping[str, Any], *, module: str, data: Mapping[str, str] | None = None, names: Collection[str] = ()
) -> dict[str, Any]:
    """What a result depends on, as plain JSON.

    Args:
        config: every choice.
        module: the full name of the module that makes the result; all that it imports counts.
        data: a digest per data file or source, as of :func:`content_digests`.
        names: of functions in ``module`` that make the result; what they do not reach there, such as what only draws or
            tells, does not count. By default all of the module does.
    """
    told = {
        "config": dict(config),
        "data": dict(data or {}),
        "code": code_digest(module, tuple(sorted(names))),
        "version": mirrormax.__version__,
    }
    return dict(json.loads(json.dumps(told, sort_keys=True)))


def key(identity: Mapping[str, Any]) -> str:
    """Twelve characters that stand for an identity, for the name of a folder."""
    return hashlib.sha256(json.dumps(identity, sort_keys=True).encode()).hexdigest()[:12]


def differences(found: Mapping[str, Any], asked: Mapping[str, Any]) -> list[str]:
    """Names of what differs between two identities: choices by their own names, then data files, code, version."""
    names: list[str] = []
    for part in ("config", "data"):
        a, b = (side.get(part) for side in (found, asked))
        a, b = (side if isinstance(side, dict) else {} for side in (a, b))
        prefix = "" if part == "config" else "the contents of "
        names += [prefix + name for name in sorted({*a, *b}) if a.get(name) != b.get(name)]
    rest = sorted({*found, *asked} - {"config", "data"})
    return names + [name for name in rest if found.get(name) != asked.get(name)]


def content_digest(path: Path) -> str:
    """The SHA-256 of a data file; hashed once per process for each size and time of change."""
    about = os.stat(path)
    known = (os.path.realpath(path), about.st_size, about.st_mtime_ns, about.st_ino)
    if known not in _digests:
        _digests[known] = checksum(path)
    return _digests[known]


def content_digests(paths: Sequence[Path]) -> dict[str, str]:
    """The SHA-256 of every file by its name, or by its path where names repeat; of many, one for each folder."""
    if len(paths) <= MANY:
        repeated = Counter(path.name for path in paths)
        return {path.name if repeated[path.name] == 1 else str(path): content_digest(path) for path in paths}
    folders: dict[str, Any] = {}
    for path in paths:
        place = folders.setdefault("/".join(path.parts[-3:-1]), hashlib.sha256())
        place.update(f"{path.name}\0{content_digest(path)}\0".encode())
    return {name: digest.hexdigest() for name, digest in folders.items()}


@cache
def code_digest(module: str, names: tuple[str, ...] = ()) -> str:
    """A digest of a module, or of what ``names`` reach in it, and of all modules of this package that it imports.

    The syntax trees are compared, so comments, docstrings and layout do not count. An import within a function counts
    like any other, one for the type checker alone does not. Where a package loads its parts only when they are asked
    for, what it tells the type checker says which part a name is in. ``import mirrormax`` alone stands for nothing, and
    a module loaded by a computed name is not seen.
    """
    digest = hashlib.sha256()
    for name, source in sorted(_closure(module, names).items()):
        digest.update(f"{name}\0{source}\0".encode())
    return digest.hexdigest()


def imported_modules(module: str, names: tuple[str, ...] = ()) -> list[str]:
    """The names of the modules behind :func:`code_digest`."""
    return sorted(_closure(module, names))


def _closure(module: str, names: tuple[str, ...]) -> dict[str, str]:
    """The digest of every module that counts."""
    found: dict[str, str] = {}
    waiting = [module]
    while waiting:
        name = waiting.pop()
        if name in found or name == PACKAGE:
            continue
        found[name], imports = _read(name, names if name == module else ())
        waiting += imports
        waiting.append(name.rpartition(".")[0])  # a package is executed before what is in it
    return found


@cache  # a report asks for the code of every experiment, and these share most of their modules
def _read(module: str, names: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """A digest of a module's own syntax tree, and the modules of this package that it imports."""
    path = _file_of(module)
    if path is None:
        raise ModuleNotFoundError(f"no module named {module!r}", name=module)
    tree = _syntax(path, names)
    imports = _imports(tree, module if path.name == "__init__.py" else module.rpartition(".")[0])
    return hashlib.sha256(ast.dump(tree).encode()).hexdigest(), tuple(imports)


def _file_of(module: str) -> Path | None:
    """The source of a module of this package, or None if there is none of that name."""
    first, *rest = module.split(".")
    if first != PACKAGE:
        return None
    for root in map(Path, mirrormax.__path__):
        place = root.joinpath(*rest)
        for path in (place.with_suffix(".py") if rest else place / "__init__.py", place / "__init__.py"):
            if path.is_file():
                return path
    return None


def _syntax(path: Path, names: tuple[str, ...]) -> ast.Module:
    """A file's syntax tree without docstrings and what is for the type checker; of ``names``, what they reach."""
    tree: ast.Module = _Bare().visit(ast.parse(path.read_bytes()))
    if names:
        tree.body = _reached(tree.body, names)
    return ast.fix_missing_locations(tree)


def _reached(body: list[ast.stmt], names: tuple[str, ...]) -> list[ast.stmt]:
    """The statements that bind ``names`` or a name that these use, directly or not; of imports the names in use."""
    waiting, reached, kept = list(names), set[str](), set[int]()
    while waiting:
        name = waiting.pop()
        if name in reached:
            continue
        reached.add(name)
        for place, node in enumerate(body):
            if name in _bound(node):
                kept.add(place)
                waiting += [] if isinstance(node, (ast.Import, ast.ImportFrom)) else _used(node)
    if missing := set(names) - {name for node in body for name in _bound(node)}:
        raise ValueError(f"no {', '.join(sorted(missing))} in the module whose code is asked for.")
    for place in kept:
        node = body[place]
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            node.names = [alias for alias in node.names if _local(alias) in reached]
    return [body[place] for place in sorted(kept)]


def _bound(node: ast.stmt) -> set[str]:
    """Names that a statement of a module gives a meaning, or may change."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return {node.name}
    if isinstance(node, (ast.Import, ast.ImportFrom)):
        return {_local(alias) for alias in node.names}
    targets = node.targets if isinstance(node, ast.Assign) else [getattr(node, "target", node)]
    return {inner.id for target in targets for inner in ast.walk(target) if isinstance(inner, ast.Name)}


def _local(alias: ast.alias) -> str:
    return alias.asname or alias.name.partition(".")[0]


def _used(node: ast.AST) -> Iterator[str]:
    """Names that a statement uses, those in annotations aside: they make no numbers."""
    for field, value in ast.iter_fields(node):
        if field in ("annotation", "returns"):
            continue
        for inner in value if isinstance(value, list) else [value]:
            if isinstance(inner, ast.Name):
                yield inner.id
            if isinstance(inner, ast.AST):
                yield from _used(inner)


class _Bare(ast.NodeTransformer):
    def _without_docstring(self, node: Any) -> Any:
        self.generic_visit(node)
        first = node.body[0] if node.body else None
        if isinstance(first, ast.Expr) and isinstance(first.value, ast.Constant) and isinstance(first.value.value, str):
            node.body = node.body[1:] or [ast.Pass()]
        return node

    visit_Module = visit_ClassDef = visit_FunctionDef = visit_AsyncFunctionDef = _without_docstring

    def visit_If(self, node: ast.If) -> Any:
        self.generic_visit(node)
        return node.orelse if _for_types(node) else node


def _imports(tree: ast.Module, package: str) -> Iterator[str]:
    """Modules of this package that are imported anywhere in the tree."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names if _file_of(alias.name) is not None)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")
                base = ".".join([*parents[: len(parents) - node.level + 1], *([base] if base else [])])
            if _file_of(base) is not None:
                yield base
                for alias in node.names:
                    name = _lazy_exports(base).get(alias.name, f"{base}.{alias.name}")
                    if _file_of(name) is not None:
                        yield name


@cache
def _lazy_exports(package: str) -> dict[str, str]:
    """Public names of a package that are imported for the type checker alone, with the modules that they are in."""
    path = _file_of(package)
    if path is None or path.name != "__init__.py":
        return {}
    blocks = [node for node in ast.parse(path.read_bytes()).body if isinstance(node, ast.If) and _for_types(node)]
    imports = [node for block in blocks for node in block.body if isinstance(node, ast.ImportFrom)]
    return {alias.asname or alias.name: node.module or "" for node in imports for alias in node.names}


def _for_types(node: ast.If) -> bool:
    test = node.test
    return "TYPE_CHECKING" in (getattr(test, "id", None), getattr(test, "attr", None))
