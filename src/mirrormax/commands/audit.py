"""``mirrormax audit MODEL --data FILE``: what a model selects, as a page, tables and JSON."""

from __future__ import annotations

import argparse
from dataclasses import asdict

from rich.console import Console

from mirrormax import auditing, report
from mirrormax.commands._models import (
    Kept,
    add_model_arguments,
    audit_loaded,
    data_of,
    options_from,
    shown_name,
    tell_rows,
)
from mirrormax.commands._shared import add_flags, progress, table


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, {"model": "MODEL"}, "audit")
    add_flags(parser, auditing.AuditOptions(), without=("seed",))
    parser.add_argument(
        "--held-out", type=int, default=0, metavar="TEXTS", help="keep so many out, to measure --robustness on them"
    )
    parser.add_argument(
        "--scheduler", metavar="ADDRESS", help="spread the heads over this dask cluster, tcp://host:port"
    )


def run(args: argparse.Namespace) -> int:
    from mirrormax._parallel import dask_client

    options = options_from(args).sized()  # before the model is read, which takes a while
    loaded = auditing.load_for_audit(args.model, allow_pickle=args.allow_pickle)
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
    choices = {**asdict(options), "held_out": args.held_out}
    kept = Kept(args, auditing.KIND, choices, data, {"model": loaded}, auditing.REVISION)
    scheduler = None if kept.current else args.scheduler
    with dask_client(1, "loky" if scheduler is None else "dask", scheduler) as client:
        tell_rows(args, [data.note, *data.caveats, *batches.shortened], batches.warnings)
        if kept.current:
            result = auditing.load_audit(args.out)
        else:
            result = audit_loaded(batches, data, options, args, client, held_out)
    if not kept.current:
        with kept.writing() as folder, progress("audit", args.quiet) as show:
            report.write_audit(folder, result, f"Audit of {shown_name(args.model)}", show)
    _tell(result, options, Console(quiet=args.quiet))
    kept.tell("audit.html")
    return 0


def _tell(result: auditing.Audit, options: auditing.AuditOptions, console: Console) -> None:
    lines, rows = report.summary(result)
    console.print(lines[0], highlight=False)
    console.print(table("", rows[0], rows[1:]))
    for sentence in [*lines[1:], *auditing.growth_notes(result.config["settle"], result.growth)]:
        console.print(sentence, highlight=False, markup=False)
    if options.heads:
        named = [
            (effect.name, effect.kind, f"{effect.mean:+.4f}", f"[{effect.low:+.4f}, {effect.high:+.4f}]")
            for effect in result.effects
            if effect.kind != auditing.MAX_MARGIN and effect.name in options.heads
        ]
        measure = "rise of the loss" if result.heads[0].importance is not None else "1 − cosine"
        console.print(table("", ("head", "change", measure, "over texts"), named))
