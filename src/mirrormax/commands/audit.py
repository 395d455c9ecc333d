"""``mirrormax audit MODEL --data FILE``: what a model selects, as a page, tables and JSON."""

from __future__ import annotations

import argparse
import os
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import asdict, fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from rich.console import Console

from mirrormax import auditing, report
from mirrormax._identity import content_digests, identity
from mirrormax._results import ResultFolder
from mirrormax.commands._shared import Meter, check_data_dir, numbers, progress, table

DATA_CHOICES = ("data", "text_column", "label_column", "limit", "max_length", "batch_size", "allow_pickle")
WRITTEN = {False: "written", True: "already there"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax audit``."""
    parser.add_argument(
        "model",
        type=str,
        metavar="MODEL",
        help="a checkpoint, a run, a Hugging Face folder, a GGUF file, or an installed package with one",
    )
    add_data_arguments(parser, required=False)
    add_options(parser, [option.name for option in fields(auditing.AuditOptions) if option.name != "seed"])
    parser.add_argument(
        "--held-out", type=int, default=0, metavar="TEXTS", help="keep so many out, to measure --robustness on them"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="spread the heads over this dask cluster, tcp://host:port"
    )
    parser.add_argument("--out", type=Path, default=Path("audit"), help="folder for the results")
    parser.add_argument("--force", action="store_true", help="replace another audit in the folder")


def add_options(parser: argparse.ArgumentParser, names: Sequence[str]) -> None:
    """A flag for each of these fields of :class:`~mirrormax.auditing.AuditOptions`."""
    types = get_type_hints(auditing.AuditOptions)
    for option in fields(auditing.AuditOptions):
        if option.name not in names:
            continue
        flag, meaning = f"--{option.name.replace('_', '-')}", option.metadata["meaning"]
        if types[option.name] is bool:
            parser.add_argument(flag, action="store_true", help=meaning)
            continue
        parser.add_argument(
            flag,
            type=_parsed(types[option.name]),
            default=option.default,
            metavar=option.metadata.get("metavar"),
            help=meaning,
        )


def _parsed(hint: Any) -> Any:
    """What reads an option of a type from the command line."""
    kinds = getattr(hint, "__args__", (hint,))
    if Ellipsis in kinds:
        several = {*getattr(kinds[0], "__args__", kinds)}
        return schemes if {str, float} <= several else numbers if float in several else names
    return query if {int, str} <= set(kinds) else next(kind for kind in (int, float, str) if kind in kinds)


def options_from(args: argparse.Namespace, **fixed: Any) -> auditing.AuditOptions:
    """The options of the command line, those of ``fixed`` in their place."""
    names = [option.name for option in fields(auditing.AuditOptions) if hasattr(args, option.name)]
    return auditing.AuditOptions(**{**{name: getattr(args, name) for name in names}, **fixed})


def add_data_arguments(parser: argparse.ArgumentParser, required: bool = True) -> None:
    """What ``audit`` and ``compare`` share."""
    parser.add_argument(
        "--data",
        type=str,
        required=required,
        metavar="FILE",
        help=".csv, .parquet, .txt with a text per line, .npz of pixels; or reviews, imdb, digits, cifar10, cifar100"
        + ("" if required else " (default: reviews, or digits for models of images)"),
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


def schemes(text: str) -> tuple[str | float, ...]:
    """``int8,0.5`` as names and shares."""
    return tuple(float(part) if part.replace(".", "", 1).isdigit() else part for part in names(text))


def names(text: str) -> tuple[str, ...]:
    """``3.1,7.0`` as names, and nothing as none."""
    parts = tuple(part.strip() for part in text.split(",")) if text else ()
    if not all(parts):
        raise argparse.ArgumentTypeError(f"give names with commas between them, not {text!r}")
    return parts


def query(text: str) -> int | str:
    """A position or a name."""
    return int(text) if text.lstrip("-").isdigit() else text


def run(args: argparse.Namespace) -> int:
    """Run the command; bad input raises ValueError or OSError with one sentence before anything is written."""
    from mirrormax._parallel import dask_client

    options = options_from(args).sized()  # before the model is read, which takes a while
    loaded = auditing.load_for_audit(args.model, allow_pickle=args.allow_pickle)
    args.data = args.data or ("reviews" if loaded.reads == "words" else "digits")
    args.batch_size = batch_size(args, loaded)
    data = data_of(args, [loaded])
    batches = auditing.make_batches(
        loaded, data, args.max_length, args.batch_size, with_labels=options.target == "label"
    )
    if loaded.reads == "words" and isinstance(options.query, int) and options.query >= args.max_length:
        raise ValueError(f"--query must be a position below --max-length {args.max_length}, got {options.query}.")
    held_out = None
    if args.held_out:
        if not options.robustness:
            raise ValueError(f"--held-out measures what --robustness predicts, got {args.held_out} without it.")
        if not 0 < args.held_out < len(batches):
            raise ValueError(f"--held-out must leave some of the {len(batches)} rows to audit, got {args.held_out}.")
        held_out, batches = auditing.apart(batches, args.held_out)
    if options.heads:
        auditing.check_heads(loaded.model, options.heads, batches)
    folder = ResultFolder(args.out, auditing.KIND)
    choices = {**asdict(options), **data_choices(args), "held_out": args.held_out}
    wanted = identity_of(choices, data, {"model": loaded}, auditing.REVISION)
    current = not args.force and folder.is_current(wanted)
    if not current:
        folder.check(wanted, force=args.force)
    scheduler = None if current else args.scheduler
    with dask_client(1, "loky" if scheduler is None else "dask", scheduler) as client:
        tell_rows(args, [data.note, *data.caveats, *batches.shortened], batches.warnings)
        if current:
            result = auditing.load_audit(args.out)
        else:
            with progress("audit", args.quiet) as meter:
                result = audit_loaded(batches, data, options, args, meter, client, held_out)
                with folder.open(wanted, force=args.force):
                    report.write_audit(folder, result, f"Audit of {shown_name(args.model)}", meter.show)
                    folder.finish()
    console = Console(quiet=args.quiet)
    lines, rows = report.summary(result)
    console.print(lines[0], highlight=False)
    console.print(table("", rows[0], rows[1:]))
    for sentence in [*lines[1:], *auditing.growth_notes(result.config["settle"], result.growth)]:
        console.print(sentence, highlight=False, markup=False)
    if options.heads:
        changes = [
            (effect.name, effect.kind, f"{effect.mean:+.4f}", f"[{effect.low:+.4f}, {effect.high:+.4f}]")
            for effect in result.effects
            if effect.kind != auditing.MAX_MARGIN
        ]
        named = [change for change in changes if change[0] in options.heads]
        measure = "rise of the loss" if result.heads[0].importance is not None else "1 − cosine"
        console.print(table("", ("head", "change", measure, "over texts"), named))
    console.print(
        f"{(args.out / 'audit.html').resolve().as_uri()} ({WRITTEN[current]})", soft_wrap=True, highlight=False
    )
    return 0


def batch_size(args: argparse.Namespace, loaded: auditing.Loaded) -> int:
    """As asked for, or what keeps a model's activations well below its weights."""
    return args.batch_size if args.batch_size is not None else 4 if loaded.causal else 32


def tell_rows(args: argparse.Namespace, rows: Sequence[str], warnings: Sequence[str]) -> None:
    """Say which rows are looked at, before the work, and on stderr what speaks against trusting them."""
    console = Console(quiet=args.quiet)
    for sentence in rows:
        console.print(f"• {sentence}", highlight=False, markup=False)
    for sentence in warnings:
        Console(stderr=True, quiet=args.quiet).print(f"warning: {sentence}", highlight=False, markup=False)


def data_choices(args: argparse.Namespace) -> dict[str, Any]:
    """What the command line says of the data."""
    return {name: getattr(args, name) for name in DATA_CHOICES}


def identity_of(
    choices: Mapping[str, Any], data: auditing.Data, models: Mapping[str, auditing.Loaded], revision: int
) -> dict[str, Any]:
    """What the result depends on: choices, what the data and the models hold, and the producer's revision."""
    digests = {f"data {name}": digest for name, digest in content_digests(data.files).items()}
    for name, loaded in models.items():
        digests |= {f"{name} {part}": digest for part, digest in content_digests(loaded.files).items()}
    folders = {name: loaded.folder for name, loaded in models.items()}
    return identity({**choices, **folders}, revision=revision, data=digests)


def shown_name(folder: str) -> str:
    """The folder's name, or its parent's where it is just called model."""
    path = Path(os.path.abspath(folder))  # a link keeps its own name
    return path.parent.name if path.name == "model" else path.name


def data_of(args: argparse.Namespace, models: Sequence[auditing.Loaded]) -> auditing.Data:
    """The data of the command line, of which the models have not seen what they may be judged by."""
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


def audit_loaded(
    batches: auditing.Batches,
    data: auditing.Data,
    options: auditing.AuditOptions,
    args: argparse.Namespace,
    meter: Meter,
    client: Any = None,
    held_out: auditing.Batches | None = None,
) -> auditing.Audit:
    """Audit one loaded model, and note what was done to the data."""
    loaded = batches.loaded
    result = auditing.audit(
        loaded.model,
        batches,
        options,
        vocabulary=loaded.vocabulary,
        held_out=held_out,
        client=client,
        progress=lambda stage, done, total: meter.show(stage, done, total or len(batches)),
    )
    extra = {"folder": loaded.folder, **data_choices(args), "command": command_line()}
    notes = [data.note, *data.caveats, *batches.warnings, *batches.shortened, *result.notes]
    return replace(result, config={**result.config, **extra}, notes=notes)


def command_line() -> str:
    """As it was typed, for the page."""
    return shlex.join(["mirrormax", *sys.argv[1:]]) if Path(sys.argv[0]).stem in ("mirrormax", "__main__") else ""
