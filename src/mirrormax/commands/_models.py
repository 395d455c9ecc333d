"""What the commands that read models have in common: arguments, data, and a folder in which a result is kept."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mirrormax import auditing
from mirrormax._identity import content_digests, identity
from mirrormax._results import ResultFolder
from mirrormax.commands._shared import check_data_dir, progress

DATA_CHOICES = ("data", "text_column", "label_column", "limit", "max_length", "batch_size", "allow_pickle")
MODEL = "a checkpoint, a run, a Hugging Face folder, a GGUF file, or an installed package with one"
SMALL_BATCH, BATCH = 4, 32
"""Sequences at a time, of a language model and of others: activations stay well below the weights."""


def add_model_arguments(
    parser: argparse.ArgumentParser, models: Mapping[str, str], out: str, *, usual_data: bool = True
) -> None:
    """The models by name and as the help shows them, their data, and the folder for the results."""
    for name, metavar in models.items():
        parser.add_argument(name, type=str, metavar=metavar, help=MODEL)
    parser.add_argument(
        "--data",
        type=str,
        required=not usual_data,
        metavar="FILE",
        help=".csv, .parquet, .txt with a text per line, .npz of pixels; or reviews, imdb, digits, cifar10, cifar100"
        + (" (default: reviews, or digits for models of images)" if usual_data else ""),
    )
    parser.add_argument("--data-dir", type=Path, help="folder with data sets (default: $MIRRORMAX_DATA)")
    parser.add_argument("--text-column", default="text", help="of a table")
    parser.add_argument("--label-column", help="of a table; needed where labels are")
    parser.add_argument("--limit", type=int, default=512, help="sequences to read, drawn evenly; 0 for all")
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text to read")
    parser.add_argument("--batch-size", type=int, help="sequences at a time (default: 32, of a language model 4)")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice")
    parser.add_argument("--allow-pickle", action="store_true", help="also read weights that are not safetensors")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--out", type=Path, default=Path(out), help="folder for the results")
    parser.add_argument("--force", action="store_true", help="replace another result in the folder")


def options_from(args: argparse.Namespace, **fixed: Any) -> auditing.AuditOptions:
    """The options of the command line, those of ``fixed`` in their place."""
    names = [option.name for option in fields(auditing.AuditOptions) if hasattr(args, option.name)]
    return auditing.AuditOptions(**{**{name: getattr(args, name) for name in names}, **fixed})


def data_of(args: argparse.Namespace, models: Sequence[auditing.Loaded]) -> auditing.Data:
    """The data of the command line, of which the models have not seen what they may be judged by.

    What was not asked for, of data and batches, is put into ``args`` as it suits the models.
    """
    args.data = args.data or ("reviews" if models[0].reads == "words" else "digits")
    if args.batch_size is None:
        args.batch_size = SMALL_BATCH if any(loaded.causal for loaded in models) else BATCH
    check_data_dir(args.data_dir)
    if args.limit < 0:
        raise ValueError(f"--limit must be at least 1, or 0 for all, got {args.limit}.")
    return auditing.read_data(
        args.data,
        args.data_dir,
        text_column=args.text_column,
        label_column=args.label_column,
        limit=args.limit or None,
        seed=args.seed,
        models=models,
    )


def data_choices(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of the data."""
    return {name: getattr(args, name) for name in DATA_CHOICES}


class Kept:
    """A result in the folder ``--out``: current, or to be written; ValueError if another one is there.

    It depends on the choices, on what the data and the models hold, and on the producer's revision.
    """

    def __init__(
        self,
        args: argparse.Namespace,
        kind: str,
        choices: Mapping[str, Any],
        data: auditing.Data,
        models: Mapping[str, auditing.Loaded],
        revision: int,
    ) -> None:
        self.args, self.folder = args, ResultFolder(args.out, kind)
        digests = {f"data {name}": digest for name, digest in content_digests(data.files).items()}
        for name, loaded in models.items():
            digests |= {f"{name} {part}": digest for part, digest in content_digests(loaded.files).items()}
        folders = {name: loaded.folder for name, loaded in models.items()}
        self.identity = identity({**choices, **data_choices(args), **folders}, revision=revision, data=digests)
        self.current = not args.force and self.folder.is_current(self.identity)
        if not self.current:
            self.folder.check(self.identity, force=args.force)

    @contextmanager
    def writing(self) -> Iterator[ResultFolder]:
        """The folder, to write all of the result into."""
        with self.folder.open(self.identity, force=self.args.force):
            yield self.folder
            self.folder.finish()

    def tell(self, name: str) -> None:
        """Say where the main file is."""
        written = "already there" if self.current else "written"
        tell_place(self.args, self.args.out / name, written)


def tell_place(args: argparse.Namespace, path: Path, what: str) -> None:
    """The address of a file or folder, and what became of it."""
    Console(quiet=args.quiet).print(f"{path.resolve().as_uri()} ({what})", soft_wrap=True, highlight=False)


def tell_rows(args: argparse.Namespace, rows: Sequence[str], warnings: Sequence[str]) -> None:
    """Say which rows are looked at, before the work, and on stderr what speaks against trusting them."""
    console = Console(quiet=args.quiet)
    for sentence in rows:
        console.print(f"• {sentence}", highlight=False, markup=False)
    for sentence in warnings:
        Console(stderr=True, quiet=args.quiet).print(f"warning: {sentence}", highlight=False, markup=False)


def shown_name(folder: str) -> str:
    """The folder's name, or its parent's where it is just called model."""
    path = Path(os.path.abspath(folder))  # a link keeps its own name
    return path.parent.name if path.name == "model" else path.name


def audit_loaded(
    batches: auditing.Batches,
    data: auditing.Data,
    options: auditing.AuditOptions,
    args: argparse.Namespace,
    client: Any = None,
    held_out: auditing.Batches | None = None,
) -> auditing.Audit:
    """Audit one loaded model, and note what was done to the data."""
    loaded = batches.loaded
    with progress(args.command, args.quiet) as show:
        result = auditing.audit(
            loaded.model,
            batches,
            options,
            vocabulary=loaded.vocabulary,
            held_out=held_out,
            client=client,
            progress=lambda stage, done, total: show(stage, done, total or len(batches)),
        )
    extra = {"folder": loaded.folder, **data_choices(args), "command": command_line()}
    notes = [data.note, *data.caveats, *batches.warnings, *batches.shortened, *result.notes]
    return replace(result, config={**result.config, **extra}, notes=notes)


def command_line() -> str:
    """As it was typed, for the page."""
    return shlex.join(["mirrormax", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("mirrormax", "__main__") else ""
