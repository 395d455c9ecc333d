"""``mirrormax audit MODEL --data FILE``: what a model selects, as a page, tables and JSON."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from mirrormax.auditing import Audit, audit
from mirrormax.auditing.data import Batches, Data, make_batches, read_data
from mirrormax.auditing.models import Loaded, load_for_audit
from mirrormax.auditing.settings import TARGETS
from mirrormax.report.audit import figures
from mirrormax.report.audit.page import write_audit_page
from mirrormax.report.audit.summary import sentences
from mirrormax.report.audit.writing import AUDIT, PAGE, PICTURES, writing
from mirrormax.report.style import house_style, save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax audit``."""
    parser.add_argument("model", metavar="MODEL", help="a checkpoint, a run, or a Hugging Face folder")
    add_data_arguments(parser)
    parser.add_argument("--p", type=float, default=2.0, help="the geometry of the margins, p > 1 (default 2)")
    parser.add_argument(
        "--scan",
        type=exponents,
        default=(1.1, 1.5, 2.0, 3.0),
        metavar="P,P,…",
        help="p to compare; '' for none (default 1.1,1.5,2,3)",
    )
    parser.add_argument("--query", type=query, default="first", help="first, last, all, or a position (default first)")
    parser.add_argument("--samples", type=int, default=24, help="rows in each margin problem (default 24)")
    parser.add_argument("--rivals", type=int, default=12, help="strongest rivals kept in a row (default 12)")
    parser.add_argument("--controls", type=int, default=2, help="heads of shuffled weights a layer (default 2)")
    parser.add_argument("--quantile", type=float, default=0.1, help="of the rows' margins (default 0.1)")
    parser.add_argument("--C", type=float, default=10.0, help="price of soft margins, where needed (default 10)")
    parser.add_argument(
        "--target", choices=TARGETS, default="prediction", help="whose score: the predicted class or the label"
    )
    parser.add_argument("--examples", type=int, default=4, help="rows shown as attention maps (default 4)")
    parser.add_argument("--out", type=Path, default=Path("audit"), help="folder for the results (default: audit)")


def add_data_arguments(parser: argparse.ArgumentParser) -> None:
    """What ``audit`` and ``compare`` share."""
    parser.add_argument(
        "--data",
        required=True,
        metavar="FILE",
        help=".csv, .parquet, .txt with a text a line, .npz of pixels; or reviews, imdb, digits, cifar10, cifar100",
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data sets (default: $MIRRORMAX_DATA)")
    parser.add_argument("--text-column", default="text", help="of a table (default: text)")
    parser.add_argument("--label-column", default=None, help="of a table; needed where labels are")
    parser.add_argument(
        "--limit", type=int, default=512, help="sequences to read, drawn evenly; 0 for all (default 512)"
    )
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text to read (default 128)")
    parser.add_argument("--batch-size", type=int, default=32, help="sequences at a time (default 32)")
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default 0)")
    parser.add_argument("--allow-pickle", action="store_true", help="also read weights that are not safetensors")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def exponents(text: str) -> tuple[float, ...]:
    """``1.1,1.5,2`` as numbers."""
    return tuple(float(part) for part in text.split(",") if part.strip())


def query(text: str) -> int | str:
    """A position or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def run(args: argparse.Namespace) -> int:
    """Run the command; bad input raises ValueError or OSError with one sentence before anything is written."""
    check_folder(args.out)
    data = data_of(args)
    loaded = load_for_audit(args.model, allow_pickle=args.allow_pickle)
    found = audit_loaded(loaded, data, args, args.model, with_labels=args.target == "label")
    write(found, args.out, f"Audit of {shown_name(args.model)}")
    console = Console(quiet=args.quiet)
    for sentence in sentences(found):
        console.print(f"• {sentence}", highlight=False, markup=False)
    console.print((args.out / "audit.html").resolve().as_uri(), soft_wrap=True)
    return 0


def shown_name(folder: str) -> str:
    """The folder's name, or its parent's where it is just called model."""
    path = Path(os.path.abspath(folder))  # a link keeps its own name
    return path.parent.name if path.name == "model" else path.name


def check_folder(out: Path) -> None:
    """Refuse a file where a folder is to be written."""
    if out.exists() and not out.is_dir():
        raise ValueError(f"--out {out} is a file; give a folder.")


def data_of(args: argparse.Namespace) -> Data:
    """The data of the command line."""
    if args.limit < 0:
        raise ValueError(f"--limit must be at least 1, or 0 for all, got {args.limit}.")
    return read_data(
        args.data,
        args.data_dir,
        text_column=args.text_column,
        label_column=args.label_column,
        limit=args.limit or None,
        seed=args.seed,
    )


def audit_loaded(loaded: Loaded, data: Data, args: argparse.Namespace, name: str, *, with_labels: bool) -> Audit:
    """Audit one loaded model with the settings of the command line, and note what was done to the data."""
    batches = make_batches(loaded, data, args.max_length, args.batch_size, with_labels=with_labels)
    choices = ("p", "query", "scan", "samples", "rivals", "controls", "quantile", "C", "target", "examples", "seed")
    with progress_bar(args.quiet, len(batches)) as tell:
        found = audit(
            loaded.model,
            batches,
            names=loaded.names,
            progress=tell,
            **{choice: getattr(args, choice) for choice in choices},
        )
    return replace(
        found, config={**found.config, **_told(args, name)}, notes=[*data_notes(data, batches), *found.notes]
    )


def data_notes(data: Data, batches: Batches) -> list[str]:
    """What of the data was read, and what was cut."""
    told = [data.note]
    if batches.cut:
        told.append(f"{batches.cut} of {len(batches)} texts were longer than the limit of tokens and lost their end.")
    return told


def _told(args: argparse.Namespace, name: str) -> dict[str, Any]:
    names = ("data", "text_column", "label_column", "limit", "max_length", "batch_size", "allow_pickle")
    return {"folder": str(name), **{one: getattr(args, one) for one in names}, "command": command_line()}


def command_line() -> str:
    """As it was typed, for the page."""
    return shlex.join(["mirrormax", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("mirrormax", "__main__") else ""


def write(found: Audit, out: Path, title: str) -> None:
    """Everything an audit leaves: JSON, tables, pictures and the page."""
    pictures = []
    with writing(out, (*AUDIT, *PICTURES, *PAGE)), house_style():
        found.save(out)
        save(figures.heat_maps(found), out, "heads")
        pictures.append(("Layers and heads", out / "heads.png"))
        if found.scan:
            save(figures.scan(found), out, "scan")
            pictures.append(("For which p does a head look most like a max-margin solution?", out / "scan.png"))
        write_audit_page(out / "audit.html", found, title, found.config.get("command", ""), pictures)


@contextmanager
def progress_bar(quiet: bool, sequences: int) -> Iterator[Callable[[str, int, int | None], None]]:
    """A bar for reading and one for solving, on a terminal."""
    columns = (
        TextColumn("{task.description:8}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TimeRemainingColumn(),
    )
    console = Console(stderr=True)
    # Where nobody watches, stderr is for errors alone.
    with Progress(*columns, console=console, disable=quiet or not console.is_terminal, transient=True) as progress:
        tasks = {"reading": progress.add_task("reading", total=sequences)}

        def tell(stage: str, done: int, total: int | None) -> None:
            if stage not in tasks:
                tasks[stage] = progress.add_task(stage, total=total)
            progress.update(tasks[stage], completed=done)

        yield tell
