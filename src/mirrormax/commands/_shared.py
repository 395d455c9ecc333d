"""What commands have in common: outputs that replace nothing of anybody's, progress, tables."""

from __future__ import annotations

import argparse
import os
import sys
import time
import zipfile
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import fields
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any, get_args, get_type_hints

from mirrormax._files import refuse_irregular, refuse_unwritable

if TYPE_CHECKING:
    from rich.table import Table

Show = Callable[[str, float, float | None], None]
"""Says how far the work is: ``done`` of ``total`` of a stage; a new name begins a new stage."""
LINE_EVERY = 10.0
"""Seconds between lines of progress in a log file; what is done sooner leaves none."""


def numbers(text: str) -> tuple[float, ...]:
    """``1.1,1.5,2`` as numbers, and nothing as none, for an option."""
    try:
        return tuple(float(part) for part in text.split(",")) if text else ()
    except ValueError:
        message = f"give numbers with commas between them, such as 0.5,0.8, not {text!r}"
        raise argparse.ArgumentTypeError(message) from None


def names(text: str) -> tuple[str, ...]:
    """``3.1,7.0`` as names, and nothing as none, for an option."""
    parts = tuple(part.strip() for part in text.split(",")) if text else ()
    if not all(parts):
        raise argparse.ArgumentTypeError(f"give names with commas between them, not {text!r}")
    return parts


def add_flags(parser: argparse._ActionsContainer, options: Any, without: Collection[str] = ()) -> None:
    """A flag for each field of a dataclass of options but those ``without``; ``options`` has the defaults.

    What is not given on the command line is not in the namespace either.
    """
    types = get_type_hints(type(options))
    for field in fields(options):
        if field.name in without:
            continue
        flag, default, about = f"--{field.name.replace('_', '-')}", getattr(options, field.name), field.metadata
        shown = "none" if default in ((), None) else default
        meaning = about["meaning"] + ("" if "(default: " in about["meaning"] else f" (default: {shown})")
        if types[field.name] is bool:
            action = argparse.BooleanOptionalAction
            parser.add_argument(flag, action=action, default=argparse.SUPPRESS, help=meaning)
            continue
        read = reader(types[field.name])
        choices = getattr(about["check"], "known", None)
        metavar = None if choices else about.get("metavar", read.__name__.upper())
        parser.add_argument(flag, type=read, choices=choices, default=argparse.SUPPRESS, metavar=metavar, help=meaning)


def reader(hint: Any) -> Callable[[str], Any]:
    """What reads an option of a type from the command line."""
    kinds = get_args(hint) or (hint,)
    if Ellipsis in kinds:
        several = {*(get_args(kinds[0]) or kinds)}
        return mixed if {str, float} <= several else numbers if float in several else names
    return place if {int, str} <= set(kinds) else next(kind for kind in (int, float, str) if kind in kinds)


def mixed(text: str) -> tuple[str | float, ...]:
    """``int8,0.5`` as names and shares."""
    return tuple(float(part) if part.replace(".", "", 1).isdigit() else part for part in names(text))


def place(text: str) -> int | str:
    """A position or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def counted(count: int, thing: str) -> str:
    """``1 epoch``, ``2 epochs``."""
    return f"{count:,} {thing}" + "s" * (count != 1)


def chosen(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named ones in their usual order; all of them for no name or ``all``."""
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"{name!r} is not one of {', '.join(known)} or all; choose from these.")
    return list(known) if not names or "all" in names else [name for name in known if name in names]


def check_data_dir(folder: Path | None) -> None:
    """Raise ValueError for a --data-dir that is no folder."""
    if folder is not None and not folder.is_dir():
        raise ValueError(f"--data-dir {folder} is not a folder; give one that exists.")


def check_out_file(out: Path, command: str, arrays: Collection[str], inputs: Iterable[str | Path]) -> None:
    """Raise ValueError or OSError, before any work, for an --out of ``command`` that must not or cannot be written.

    An existing file is replaced only if it is an earlier output of the same command: an ``.npz`` that has all of
    ``arrays``. Inputs are never replaced, whatever name, link or hard link they are reached by.
    """
    if out.suffix != ".npz":
        raise ValueError(f"--out {out} must be an .npz file; end the name with .npz.")
    for given in inputs:
        if os.path.exists(given) and os.path.exists(out) and os.path.samefile(given, out):
            raise ValueError(f"--out {out} is the input file {given} itself; give another name.")
    refuse_irregular(out)
    refuse_unwritable(out)
    if out.exists():
        names: list[str] = []  # of what is no archive; of one, nothing is unpacked
        with suppress(OSError, ValueError, NotImplementedError, zipfile.BadZipFile), zipfile.ZipFile(out) as archive:
            names = archive.namelist()
        if not {f"{name}.npy" for name in arrays} <= {*names}:
            raise ValueError(
                f"--out {out} exists and is no output of 'mirrormax {command}'; move it away, or give another name."
            )


def _in_lines(command: str) -> Show:
    """Plain lines for a log file, one every ten seconds at most, and one for every stage of long work."""
    began = last = time.monotonic()
    current = ""

    def show(stage: str, done: float, total: float | None) -> None:
        nonlocal last, current
        now = time.monotonic()
        is_new = stage != current and now - began > LINE_EVERY
        current = stage
        if is_new or now - last >= LINE_EVERY:
            last = now
            share = f"{done / total:.0%}" if total else f"{done:g}"
            sys.stderr.write(f"mirrormax {command}: {stage} {share}, after {now - began:.0f} s\n")

    return show


@contextmanager
def progress(command: str, quiet: bool, bar: bool = True) -> Iterator[Show]:
    """A ``bar`` on stderr if that is a terminal, with rich; else lines, every ten seconds; nothing if ``quiet``."""
    if quiet:
        yield lambda stage, done, total: None
    elif not bar or not sys.stderr.isatty() or find_spec("rich") is None:
        yield _in_lines(command)
    else:
        from rich import progress as rich_progress
        from rich.console import Console

        columns = (
            rich_progress.TextColumn("{task.description:10}"),
            rich_progress.BarColumn(bar_width=None),
            rich_progress.TaskProgressColumn(),
            rich_progress.TimeElapsedColumn(),
            rich_progress.TimeRemainingColumn(),
        )
        with rich_progress.Progress(*columns, console=Console(stderr=True), transient=True, expand=True) as bars:
            task = bars.add_task("beginning", total=None)

            def show(stage: str, done: float, total: float | None) -> None:
                is_new = bars.tasks[0].description != stage
                bars.update(task, description=stage, completed=done, total=total, refresh=is_new)

            yield show


def table(title: str, columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Table:
    """A table for a terminal, whose cells are plain text."""
    from rich.table import Table
    from rich.text import Text

    made = Table(*columns, title=title or None, title_justify="left")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made
