"""``mirrormax prune MODEL --share 0.8 --data FILE``: what pruning costs and saves, and the smaller checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from mirrormax import auditing, nets, pruning, report
from mirrormax._checks import number
from mirrormax.commands._models import Kept, add_model_arguments, data_of, shown_name, tell_place, tell_rows
from mirrormax.commands._shared import numbers, progress, table

CHOICES = ("share", "shares", "params", "scope", "structured", "by", "calibration", "seed")
CALIBRATION = 64
TABLES = (".csv", ".parquet")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, {"model": "MODEL"}, "pruned")
    parser.set_defaults(text_column=None)  # as the model was trained, or else text
    parser.add_argument("--share", type=float, required=True, help="of the weights to prune, in [0, 1)")
    parser.add_argument("--shares", type=numbers, metavar="S,S,…", help="to draw quality over (default: 0 … 0.95)")
    parser.add_argument(
        "--by",
        choices=("magnitude", "wanda", "sparsegpt", "taylor", "margin"),
        help="the score (default: magnitude; with --calibration sparsegpt, or taylor for rows and heads)",
    )
    parser.add_argument(
        "--scope",
        choices=("global", "matrix", "row"),
        help="what is compared: all weights, those of a matrix, those of a row (default: what is usual for the score)",
    )
    parser.add_argument("--structured", metavar="row|head|N:M", help="prune rows, heads, or all but N of every M")
    parser.add_argument(
        "--params",
        choices=("matrices", "attention"),
        default="matrices",
        help="which weights: all matrices but embeddings and heads, or queries, keys and values",
    )
    parser.add_argument(
        "--calibration",
        type=int,
        metavar="ROWS",
        help=f"rows that weights are scored on; quality is measured on the others (default: none by magnitude, else "
        f"{CALIBRATION}, a quarter at most)",
    )
    parser.add_argument("--export", type=Path, metavar="FOLDER", help="a new folder for a plain Hugging Face model")


def run(args: argparse.Namespace) -> int:
    args.shares = auditing.SHARES if args.shares is None else args.shares
    for name, share in [("--share", args.share), *(("--shares", share) for share in args.shares)]:
        number(name, share, at_least=0, below=1)
    if args.calibration is not None and args.by == "magnitude":
        raise ValueError(
            f"--calibration {args.calibration} is not for --by magnitude, which needs no data; leave it out."
        )
    on_data = args.calibration is not None or args.by not in (None, "magnitude")
    args.by, args.scope = pruning.check_choices(args.share, args.by, args.scope, args.structured, on_data)
    if ":" in str(args.structured):
        args.shares = ()  # a pattern has one share
    loaded = auditing.load_for_audit(args.model, allow_pickle=args.allow_pickle)
    if args.export is not None:
        auditing.check_export(args.export, loaded)
    measure = auditing.measure_of(loaded)
    if args.by == "taylor" and not (loaded.classes or loaded.causal):
        raise ValueError(f"--by taylor needs a loss, and {args.model} is an encoder without one; use --by wanda.")
    _name_columns(args, loaded)
    data = data_of(args, [loaded])
    batches = auditing.make_batches(loaded, data, args.max_length, args.batch_size, with_labels=measure == "accuracy")
    calibration, measured, rows = None, batches, [data.note, *data.caveats, *batches.shortened]
    if on_data:
        args.calibration = min(CALIBRATION, len(batches) // 4) if args.calibration is None else args.calibration
        calibration, measured = auditing.apart(batches, args.calibration)
        rows.append(
            f"Weights are scored on {len(calibration)} rows, and quality is measured on the other {len(measured)}."
        )
    choices = {name: getattr(args, name) for name in CHOICES}
    kept = Kept(args, report.PRUNED_KIND, choices, data, {"model": loaded}, pruning.REVISION)
    tell_rows(args, rows, batches.warnings)
    if not kept.current:
        options = {"by": args.by, "scope": args.scope, "structured": args.structured, "params": args.params}
        with progress("prune", args.quiet) as show:
            measurement = auditing.measure_pruning(
                loaded, measured, args.share, args.shares, show, calibration, **options
            )
        with kept.writing() as folder:
            report.write_pruned(folder, measurement, loaded, shown_name(args.model))
    if args.export is not None:
        auditing.export_pruned(args.export, auditing.load_for_audit(args.out))
    _tell(args)
    kept.tell(nets.SPARSE_WEIGHTS)
    if args.export is not None:
        tell_place(args, args.export, "exported")
    return 0


def _name_columns(args: argparse.Namespace, loaded: auditing.Loaded) -> None:
    """The columns of a table that were not named are those that the model was trained on, or else those of train."""
    trained = loaded.training
    args.text_column = args.text_column or trained.get("text_column", "text")
    if args.label_column is None and loaded.classes and Path(args.data or "").suffix.lower() in TABLES:
        args.label_column = trained.get("label_column", "label")


def _tell(args: argparse.Namespace) -> None:
    """Print the table and the sentences of the folder."""
    result = json.loads((args.out / "pruning.json").read_text("utf-8"))
    console = Console(quiet=args.quiet)
    columns = {f"{result['measure']}, by {result['by']}": result["quality"]}
    if result["by_magnitude"]:
        columns["by magnitude"] = result["by_magnitude"]
    rows = [
        (f"{points[0]['share']:.0%}", *(f"{at['quality']:.4f} ({at['low']:.4f} to {at['high']:.4f})" for at in points))
        for points in zip(*columns.values(), strict=True)
    ]
    console.print(table("", ("pruned", *columns), rows))
    for sentence in result["sentences"]:
        console.print(f"• {sentence}", highlight=False, markup=False)
