"""The checkpoints that the Attention page offers: those of a folder of the user, and any in the package."""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

SHIPPED = Path(__file__).parent / "models"
DEEPEST = 4
FILES = ("config.json", "model.safetensors", "tokenizer.json")


@dataclass(frozen=True)
class Entry:
    """A checkpoint folder of a text model: a name to ask for it by, where it is, and what it says of itself."""

    name: str
    folder: Path
    about: str


class Checkpoints:
    """All text checkpoints below some folders. A request names one of these and never a path."""

    def __init__(self, folder: Path | None, shipped: Path = SHIPPED) -> None:
        self._roots = [shipped] if folder is None else [folder, shipped]
        self._load = lru_cache(maxsize=4)(_load)

    def entries(self) -> list[Entry]:
        """What is there now, the user's own before the shipped ones; a name that occurs twice means the first."""
        found: dict[str, Entry] = {}
        for root in self._roots:
            for folder in _folders(root, DEEPEST):
                entry = _entry(root, folder)
                if entry is not None:
                    found.setdefault(entry.name, entry)
        return list(found.values())

    def load(self, name: Any) -> Any:
        """The checkpoint of this name, as :func:`mirrormax.nets.load_model` gives it."""
        known = {entry.name: entry for entry in self.entries()}
        if not isinstance(name, str) or name not in known:
            raise ValueError(f"there is no checkpoint {name!r}; choose one from the list.")
        folder = known[name].folder
        return self._load(folder, (folder / "model.safetensors").stat().st_mtime_ns)


def _load(folder: Path, _changed: int) -> Any:
    """Load a checkpoint again only if its file has changed since."""
    from mirrormax.nets import load_model

    return load_model(folder)


def _folders(root: Path, depth: int) -> Iterator[Path]:
    yield root
    if depth and root.is_dir():
        for child in sorted(root.iterdir()):
            if child.is_dir() and not child.is_symlink() and not child.name.startswith("."):
                yield from _folders(child, depth - 1)


def _entry(root: Path, folder: Path) -> Entry | None:
    """What a folder holds, or None if that is no text model of ours."""
    if not all((folder / file).is_file() for file in FILES):
        return None
    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        if config.get("kind") != "sentiment":
            return None
        return Entry(_name(root, folder), folder, _about(config))
    except (OSError, ValueError, AttributeError, TypeError):
        return None


def _name(root: Path, folder: Path) -> str:
    """The place below the root; the ``model`` of a training run goes by the name of the run."""
    parts = folder.relative_to(root).parts
    if len(parts) > 1 and parts[-1] == "model":
        parts = parts[:-1]
    return "/".join(parts) or folder.name


def _about(config: dict[str, Any]) -> str:
    model, training = config.get("model") or {}, config.get("training") or {}
    told = [f"{name} {model[name]}" for name in ("blocks", "heads", "dim") if name in model]
    told += [f"{name} = {training[name]}" for name in ("p", "optimizer", "lr") if training.get(name) is not None]
    return ", ".join(told)
