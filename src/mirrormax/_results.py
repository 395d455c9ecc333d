"""A folder of results: what it came from, what it holds, and one writer at a time.

``mirrormax.json`` in the folder is its manifest: the kind of result, its identity (see ``_identity``), every file that
was written with its SHA-256, and whether the result is complete. It is the proof of what is ours. Only files that it
names are ever replaced or removed, never through a link; everything else in the folder is somebody's, and stays.
"""

from __future__ import annotations

import csv
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, suppress
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path, PurePosixPath
from typing import Any

from mirrormax import _files
from mirrormax._identity import as_json, differences, this_code

FORMAT = 1
MANIFEST, LOCK = "mirrormax.json", ".mirrormax.lock"


@dataclass(frozen=True)
class Manifest:
    """What ``mirrormax.json`` says.

    ``files`` has None for one that is not finished or not checked; ``made_by`` names each version of the code that has
    written to the folder, in order.
    """

    kind: str
    identity: dict[str, Any]
    files: dict[str, str | None] = field(default_factory=dict)
    complete: bool = False
    facts: dict[str, Any] = field(default_factory=dict)
    made_by: tuple[str, ...] = ()
    format: int = FORMAT


class ResultFolder:
    """A folder that holds one result of one ``kind``, such as ``"training run"``.

    Args:
        path: the folder; made when it is first written to.
        kind: what it holds, in words for messages.
        within: a folder above it that the user named; no link between the two is followed.
        shared: whether files of others may already lie in it, as where a page is written into any folder.
    """

    def __init__(self, path: Path, kind: str, *, within: Path | None = None, shared: bool = False) -> None:
        self.path, self.kind, self.within, self.shared = Path(path), kind, within, shared

    def manifest(self) -> Manifest | None:
        """The manifest, or None if there is none; ValueError if it is damaged or of another kind."""
        if self.within is not None:
            _refuse_links(self.within, self.path.relative_to(self.within).parts)
        place = self.path / MANIFEST
        try:
            _files.refuse_irregular(place)
            manifest = _read(place.read_text("utf-8"))
        except (FileNotFoundError, NotADirectoryError):
            return None
        except (TypeError, ValueError, RecursionError) as error:
            raise ValueError(f"{place} is no manifest that this version reads; give another folder.") from error
        if manifest.kind != self.kind:
            stored, wanted = _with_article(manifest.kind), _with_article(self.kind)
            raise ValueError(f"{self.path} holds {stored}, not {wanted}; give another folder.")
        return manifest

    def is_current(self, identity: Mapping[str, Any]) -> bool:
        """Whether the folder holds a complete, undamaged result of just this identity."""
        manifest = self.manifest()
        current = manifest is not None and manifest.complete and manifest.identity == as_json(identity)
        return current and self.damaged() is None

    def damaged(self) -> str | None:
        """The first file that is not as it was written, by its checksum; None if there is none."""
        manifest = self.manifest()
        for name, known in (manifest.files if manifest else {}).items():
            path = self._place(name)
            if known is not None and (not path.is_file() or path.is_symlink() or _files.checksum(path) != known):
                return name
        return None

    def check(self, identity: Mapping[str, Any], *, force: bool = False) -> None:
        """Raise as :meth:`open` would, and change nothing: for a look before work that takes long."""
        self._refuse_others()
        stored = self.manifest()
        if stored is None or force:
            return
        wanted = as_json(identity)
        if stored.identity != wanted:
            differs = ", ".join(differences(stored.identity, wanted))
            maker = f" (it was made by {stored.made_by[-1]})" if stored.made_by else ""
            raise ValueError(
                f"{self.path} holds {_with_article(self.kind)} that differs in {differs}{maker}; give another folder, "
                "or begin anew with --force."
            )
        damaged = self.damaged() if stored.complete else None
        if damaged is not None:
            raise ValueError(
                f"the {self.kind} in {self.path} is damaged: {damaged} is not as it was written; give another folder, "
                "or begin anew with --force."
            )

    @contextmanager
    def open(self, identity: Mapping[str, Any], *, force: bool = False, wait: bool = False) -> Iterator[None]:
        """Hold the folder for writing a result of this identity, from the start or going on with a part of it.

        Raises ValueError, with nothing changed, if another process writes here, or the folder holds something else:
        files of others, another kind of result, or one of another identity, unless ``force`` is given to take away
        exactly what an earlier result has written.
        """
        self._refuse_others()
        with _files.locked(self.path / LOCK, wait=wait):
            self.check(identity, force=force)  # now that nobody else writes
            stored = self.manifest()
            self._remove_leftovers(stored)
            if stored is not None and force:
                self._remove_files(stored)
            # What another process has completed in the meantime stays complete until it is written to.
            if stored is None or force or not stored.complete:
                kept = Manifest(self.kind, {}) if stored is None or force else stored
                self._save(replace(kept, identity=as_json(identity), complete=False, facts={}))
            yield

    def writing(self, name: str, *failures: type[Exception]) -> AbstractContextManager[Path]:
        """A temporary path that becomes the file ``name`` (with ``/`` for folders) when the block ends well."""
        return _files.replacing(self.claim(name), *failures)

    def claim(self, name: str) -> Path:
        """Record ``name`` as ours before it is written; refused if a file of that name is somebody's."""
        manifest = self._own()
        path = self._place(name)
        if name not in manifest.files and (path.exists() or path.is_symlink()):
            raise ValueError(
                f"{path} is in the way and was not written as part of this {self.kind}; move it or give another folder."
            )
        if manifest.complete or manifest.files.get(name, "") is not None:
            self._save(replace(manifest, files={**manifest.files, name: None}, complete=False))
        _files.refuse_irregular(path)
        return path

    def remove(self, *names: str) -> None:
        """Take away files of this result that are needed no more."""
        manifest = self._own()
        for name in manifest.files.keys() & names:
            self._unlink(name)
        self._save(replace(manifest, files={n: known for n, known in manifest.files.items() if n not in names}))

    def finish(self, *scratch: str, **facts: Any) -> None:
        """Put the checksum of every file but ``scratch`` ones, which may change or go, into the manifest: complete."""
        manifest = self._own()
        there = [name for name in manifest.files if self._place(name).is_file()]
        files = {name: None if name in scratch else _files.checksum(self._place(name)) for name in there}
        self._save(replace(manifest, files=dict(sorted(files.items())), complete=True, facts=as_json(facts)))

    def clear(self) -> None:
        """Take away all that the manifest names, then the manifest, then the folder if nothing else is in it."""
        manifest = self.manifest()
        if manifest is None:
            return
        with _files.locked(self.path / LOCK):
            self._remove_leftovers(manifest)
            self._remove_files(manifest)
            (self.path / MANIFEST).unlink(missing_ok=True)
        with suppress(OSError):  # somebody's files are in it
            self.path.rmdir()

    def save_json(self, name: str, value: Any) -> None:
        """Write JSON."""
        _files.save_json(self.claim(name), value)

    def save_text(self, name: str, text: str) -> None:
        """Write text."""
        with self.writing(name) as temporary:
            temporary.write_text(text, encoding="utf-8")

    def save_arrays(self, name: str, **arrays: Any) -> None:
        """Write an ``.npz`` of numbers."""
        _files.save_arrays(self.claim(name), **arrays)

    def save_rows(self, name: str, columns: Sequence[str], rows: Sequence[Mapping[str, Any]]) -> None:
        """Write a table as CSV; what a row has beyond the columns is left out."""
        with self.writing(name) as temporary, temporary.open("w", newline="", encoding="utf-8") as file:
            writer = csv.DictWriter(file, fieldnames=columns, extrasaction="ignore")
            writer.writeheader()
            writer.writerows(rows)

    def _own(self) -> Manifest:
        manifest = self.manifest()
        if manifest is None:
            raise RuntimeError(f"{self.path} is written to without having been opened.")
        return manifest

    def _save(self, manifest: Manifest) -> None:
        made_by = dict.fromkeys((*manifest.made_by, this_code()))
        _files.save_json(self.path / MANIFEST, {**asdict(manifest), "made_by": list(made_by)})

    def _place(self, name: str) -> Path:
        """Where a file is; refused if its name leads out of the folder or a folder on the way is a link."""
        parts = PurePosixPath(name).parts
        if not parts or PurePosixPath(name).is_absolute() or ".." in parts or name in (MANIFEST, LOCK):
            raise ValueError(f"{name!r} is no name for a file of {self.path}.")
        return _refuse_links(self.path, parts[:-1]) / parts[-1]

    def _refuse_others(self) -> None:
        """Raise if the folder is none or cannot be written to, or has files and no manifest (hidden ones aside)."""
        # Up to the first that is there; asked in this order, as another process may be making it.
        place = next(place for place in (self.path, *self.path.absolute().parents) if os.path.lexists(place))
        if not place.is_dir():
            kind = "a link to nothing" if place.is_symlink() else "a file"
            raise NotADirectoryError(f"{place} is {kind}; give another folder for the {self.kind}.")
        _files.refuse_unwritable(place / MANIFEST)
        if self.manifest() is not None or self.shared or not self.path.is_dir():
            return
        others = sorted(path.name for path in self.path.iterdir() if not path.name.startswith("."))
        # A manifest that has come since belongs to a process that is writing: the lock will tell.
        if others and MANIFEST not in others:
            raise ValueError(
                f"{self.path} holds files that are not of {_with_article(self.kind)} ({others[0]}); give an empty or "
                "new folder."
            )

    def _remove_leftovers(self, manifest: Manifest | None) -> None:
        for path in (self.path / MANIFEST, *map(self._place, manifest.files if manifest else ())):
            for leftover in _files.leftovers(path):
                leftover.unlink(missing_ok=True)

    def _remove_files(self, manifest: Manifest) -> None:
        # Not complete from the first moment on, lest half a folder should pass for a finished result.
        self._save(replace(manifest, complete=False))
        for name in manifest.files:
            self._unlink(name)

    def _unlink(self, name: str) -> None:
        path = self._place(name)
        _files.refuse_irregular(path)
        path.unlink(missing_ok=True)
        for parent in list(path.relative_to(self.path).parents)[:-1]:
            with suppress(OSError):  # somebody's files are in it, or it is gone
                (self.path / parent).rmdir()


def _refuse_links(place: Path, parts: Sequence[str]) -> Path:
    """The place of these folders below ``place``; ValueError if one of them is a link."""
    for part in parts:
        place = place / part
        if place.is_symlink():
            raise ValueError(f"{place} is a link, and links are not written through; give another folder.")
    return place


def _read(text: str) -> Manifest:
    """A manifest of this version; TypeError or ValueError if it is none."""
    manifest = Manifest(**json.loads(text))
    types = {"kind": str, "identity": dict, "files": dict, "complete": bool, "facts": dict, "made_by": list}
    if manifest.format != FORMAT or not all(isinstance(getattr(manifest, name), of) for name, of in types.items()):
        raise ValueError("fields of other types")
    if not all(known is None or isinstance(known, str) for known in manifest.files.values()):
        raise ValueError("checksums of other types")
    return replace(manifest, made_by=tuple(map(str, manifest.made_by)))


def _with_article(kind: str) -> str:
    return f"an {kind}" if kind[0] in "aeiou" else f"a {kind}"
