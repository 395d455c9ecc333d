"""``mirrormax audit MODEL --data FILE``: what a model selects, as a page, tables and JSON."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from rich.console import Console

from mirrormax._identity import content_digests, identity
from mirrormax._parallel import dask_client
from mirrormax._results import ResultFolder
from mirrormax.auditing import (
    KIND,
    TARGETS,
    Audit,
    Batches,
    Data,
    Loaded,
    audit,
    check_settings,
    growth_notes,
    load_audit,
    load_for_audit,
    make_batches,
    read_data,
)
from mirrormax.commands._shared import numbers, progress
from mirrormax.report import sentences, write_audit

CHOICES = (
    "p", "query", "scan", "samples", "rivals", "controls", "quantile", "C", "target", "examples", "seed", "skip_sink",
    "form", "settle", "interventions", "intervention_texts",
)  # fmt: skip
DATA_CHOICES = ("data", "text_column", "label_column", "limit", "max_length", "batch_size", "allow_pickle")
SCAN = (1.1, 1.5, 2.0, 3.0)
WRITTEN = {False: "written", True: "already there"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax audit``."""
    parser.add_argument(
        "model",
        metavar="MODEL",
        help="a checkpoint, a run, a Hugging Face folder, a GGUF file, or an installed package with one",
    )
    add_data_arguments(parser, required=False)
    parser.add_argument("--p", type=float, default=2.0, help="the geometry of the margins, p > 1 (default 2)")
    parser.add_argument(
        "--scan",
        type=numbers,
        default=None,
        metavar="P,P,…",
        help="p to compare; '' for none (default 1.1,1.5,2,3; none for language models, which have many heads)",
    )
    parser.add_argument(
        "--query",
        type=query,
        default=None,
        help="first, last, all, or a position (default: the last of a language model, the first of others)",
    )
    parser.add_argument("--skip-sink", action="store_true", help="leave out the first token and a learned sink")
    parser.add_argument(
        "--form",
        choices=("token", "query"),
        default=None,
        help="of the margin problems (default: token where there is)",
    )
    add_sample_arguments(parser)
    parser.add_argument(
        "--settle",
        type=float,
        default=None,
        metavar="SHARE",
        help="solve 16, 32, … rows, at most --samples, until ratios and divergences move by no more",
    )
    parser.add_argument("--controls", type=int, default=2, help="heads of shuffled weights per layer (default 2)")
    parser.add_argument("--quantile", type=float, default=0.1, help="of the rows' margins (default 0.1)")
    parser.add_argument("--C", type=float, default=10.0, help="price of soft margins, where needed (default 10)")
    parser.add_argument(
        "--target", choices=TARGETS, default="prediction", help="whose score: the predicted class or the label"
    )
    parser.add_argument(
        "--interventions", type=int, default=0, help="heads per layer to switch off and to change (default 0)"
    )
    parser.add_argument("--intervention-texts", type=int, default=16, help="on how many texts (default 16)")
    parser.add_argument(
        "--scheduler", default=None, metavar="ADDRESS", help="spread the heads over this dask cluster, tcp://host:port"
    )
    parser.add_argument("--examples", type=int, default=4, help="rows shown as attention maps (default 4)")
    parser.add_argument("--out", type=Path, default=Path("audit"), help="folder for the results (default: audit)")
    parser.add_argument("--force", action="store_true", help="replace another audit in the folder")


def add_sample_arguments(parser: argparse.ArgumentParser) -> None:
    """How large margin problems are."""
    parser.add_argument(
        "--samples",
        type=int,
        default=None,
        help="rows in each margin problem (default 64 for p = 2 alone, 24 where other p are solved too)",
    )
    parser.add_argument(
        "--rivals",
        type=int,
        default=None,
        help="strongest rivals of a row (default 128 for p = 2 alone, 12 where other p are solved too)",
    )


def add_data_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """What ``audit`` and ``compare`` share."""
    parser.add_argument(
        "--data",
        required=required,
        metavar="FILE",
        help=".csv, .parquet, .txt with a text per line, .npz of pixels; or reviews, imdb, digits, cifar10, cifar100"
        + ("" if required else " (default: reviews, or digits for models of images)"),
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data sets (default: $MIRRORMAX_DATA)")
    parser.add_argument("--text-column", default="text", help="of a table (default: text)")
    parser.add_argument("--label-column", default=None, help="of a table; needed where labels are")
    parser.add_argument(
        "--limit", type=int, default=512, help="sequences to read, drawn evenly; 0 for all (default 512)"
    )
    parser.add_argument("--max-length", type=int, default=128, help="tokens of a text to read (default 128)")
    parser.add_argument(
        "--batch-size", type=int, default=None, help="sequences at a time (default 32, of a language model 4)"
    )
    parser.add_argument("--seed", type=int, default=0, help="of every random choice (default 0)")
    parser.add_argument("--allow-pickle", action="store_true", help="also read weights that are not safetensors")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def query(text: str) -> int | str:
    """A position or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def run(args: argparse.Namespace) -> int:
    """Run the command; bad input raises ValueError or OSError with one sentence before anything is written."""
    check_settings(**{choice: getattr(args, choice) for choice in CHOICES} | {"scan": args.scan or ()})
    loaded = load_for_audit(args.model, allow_pickle=args.allow_pickle)
    args.data = args.data or ("reviews" if loaded.reads == "words" else "digits")
    args.batch_size = batch_size(args, loaded)
    if args.scan is None:
        args.scan = () if loaded.causal else SCAN
    settings = check_settings(**{choice: getattr(args, choice) for choice in CHOICES})
    args.samples, args.rivals = settings.samples, settings.rivals
    data = data_of(args, [loaded])
    batches = make_batches(loaded, data, args.max_length, args.batch_size, with_labels=args.target == "label")
    folder = ResultFolder(args.out, KIND)
    asked = identity_of(args, (*CHOICES, *DATA_CHOICES), data, {"model": loaded}, "mirrormax.report.audits")
    current = not args.force and folder.is_current(asked)
    if not current:
        folder.check(asked, force=args.force)
    scheduler = None if current else args.scheduler
    with dask_client(1, "loky" if scheduler is None else "dask", scheduler) as client:
        tell_rows(args, [data.note, *data.caveats, *batches.shortened], batches.warnings)
        found = load_audit(args.out) if current else audit_loaded(batches, data, args, client)
    if not current:
        with folder.open(asked, force=args.force):
            write_audit(folder, found, f"Audit of {shown_name(args.model)}")
            folder.finish()
    console = Console(quiet=args.quiet)
    for sentence in [*sentences(found), *growth_notes(found.config["settle"], found.growth)]:
        console.print(f"• {sentence}", highlight=False, markup=False)
    console.print(
        f"{(args.out / 'audit.html').resolve().as_uri()} ({WRITTEN[current]})", soft_wrap=True, highlight=False
    )
    return 0


def batch_size(args: argparse.Namespace, loaded: Loaded) -> int:
    """As asked for, or what keeps a model's activations well below its weights."""
    return args.batch_size if args.batch_size is not None else 4 if loaded.causal else 32


def tell_rows(args: argparse.Namespace, rows: Sequence[str], warnings: Sequence[str]) -> None:
    """Say which rows are looked at, before the work, and on stderr what speaks against trusting them."""
    console = Console(quiet=args.quiet)
    for sentence in rows:
        console.print(f"• {sentence}", highlight=False, markup=False)
    for sentence in warnings:
        Console(stderr=True, quiet=args.quiet).print(f"warning: {sentence}", highlight=False, markup=False)


def identity_of(
    args: argparse.Namespace, choices: Sequence[str], data: Data, models: Mapping[str, Loaded], module: str
) -> dict[str, Any]:
    """What the result depends on: choices, what the data and the models hold, and the code."""
    digests = {f"data {name}": digest for name, digest in content_digests(data.files).items()}
    for name, loaded in models.items():
        digests |= {f"{name} {part}": digest for part, digest in content_digests(loaded.files).items()}
    folders = {name: loaded.folder for name, loaded in models.items()}
    return identity({**{one: getattr(args, one) for one in choices}, **folders}, module=module, data=digests)


def shown_name(folder: str) -> str:
    """The folder's name, or its parent's where it is just called model."""
    path = Path(os.path.abspath(folder))  # a link keeps its own name
    return path.parent.name if path.name == "model" else path.name


def data_of(args: argparse.Namespace, models: Sequence[Loaded]) -> Data:
    """The data of the command line, of which the models have not seen what they may be judged by."""
    if args.limit < 0:
        raise ValueError(f"--limit must be at least 1, or 0 for all, got {args.limit}.")
    return read_data(
        args.data,
        args.data_dir,
        text_column=args.text_column,
        label_column=args.label_column,
        limit=args.limit or None,
        seed=args.seed,
        models=models,
    )


def audit_loaded(batches: Batches, data: Data, args: argparse.Namespace, client: Any = None) -> Audit:
    """Audit one loaded model with the settings of the command line, and note what was done to the data."""
    loaded = batches.loaded
    with progress("audit", args.quiet) as meter:
        found = audit(
            loaded.model,
            batches,
            names=loaded.names,
            separators=loaded.separators,
            random_tokens=loaded.ordinary,
            start=loaded.start,
            client=client,
            progress=lambda stage, done, total: meter.show(stage, done, total or len(batches)),
            **{choice: getattr(args, choice) for choice in CHOICES},
        )
    told = {"folder": loaded.folder, **{one: getattr(args, one) for one in DATA_CHOICES}, "command": command_line()}
    notes = [data.note, *data.caveats, *batches.notes, *found.notes]
    return replace(found, config={**found.config, **told}, notes=notes)


def command_line() -> str:
    """As it was typed, for the page."""
    return shlex.join(["mirrormax", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("mirrormax", "__main__") else ""
