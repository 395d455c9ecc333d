"""``mirrormax prune MODEL --share 0.8 --data FILE``: what a cut costs and what it saves, and the smaller checkpoint."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from rich.console import Console

from mirrormax._checks import number
from mirrormax._results import ResultFolder
from mirrormax.auditing import SHARES, apart, load_for_audit, make_batches, measure_cut, measure_of
from mirrormax.commands._shared import check_out_folder, numbers, progress
from mirrormax.commands.audit import (
    DATA_CHOICES,
    WRITTEN,
    add_data_arguments,
    batch_size,
    data_of,
    identity_of,
    shown_name,
    tell_rows,
)
from mirrormax.nets import SPARSE_WEIGHTS
from mirrormax.report import CUT_KIND, write_cut

CHOICES = ("share", "shares", "scope", "structured", "by", "calibration", "seed")
CALIBRATION = 64


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax prune``."""
    parser.add_argument("model", metavar="MODEL", help="a checkpoint, a run, or a Hugging Face folder")
    add_data_arguments(parser)
    parser.add_argument("--share", type=float, required=True, help="of the weights in scope to cut, in [0, 1)")
    parser.add_argument(
        "--shares", type=numbers, default=SHARES, metavar="S,S,…", help="to draw quality over (default 0 … 0.95)"
    )
    parser.add_argument(
        "--scope",
        choices=("matrices", "attention"),
        default="matrices",
        help="which weights: all matrices but embeddings and heads, or queries, keys and values (default matrices)",
    )
    parser.add_argument("--structured", choices=("row", "head"), default=None, help="cut whole rows, or whole heads")
    parser.add_argument(
        "--by",
        choices=("magnitude", "margin"),
        default="magnitude",
        help="the smallest weights go, or those that bring least to the heads' margins (default magnitude)",
    )
    parser.add_argument(
        "--calibration",
        type=int,
        default=None,
        metavar="ROWS",
        help=f"with --by margin, how many rows the weights are scored on; quality is measured on the others "
        f"(default {CALIBRATION}, a quarter at most)",
    )
    parser.add_argument("--out", type=Path, default=Path("pruned"), help="folder for the results (default: pruned)")
    parser.add_argument("--force", action="store_true", help="replace another pruned model in the folder")


def run(args: argparse.Namespace) -> int:
    """Run the command; bad input raises ValueError or OSError with one sentence before anything is written."""
    for name, share in [("--share", args.share), *(("--shares", one) for one in args.shares)]:
        number(name, share, at_least=0, below=1)
    if args.calibration is not None and args.by != "margin":
        raise ValueError(f"--calibration {args.calibration} is for --by margin, got --by {args.by}; leave it out.")
    check_out_folder(args.out)
    loaded = load_for_audit(args.model, allow_pickle=args.allow_pickle)
    measure = measure_of(loaded)
    args.data = args.data or ("reviews" if loaded.reads == "words" else "digits")
    args.batch_size = batch_size(args, loaded)
    data = data_of(args, [loaded])
    batches = make_batches(loaded, data, args.max_length, args.batch_size, with_labels=measure == "accuracy")
    calibration, measured, rows = None, batches, [data.note, *data.caveats, *batches.shortened]
    if args.by == "margin":
        args.calibration = min(CALIBRATION, len(batches) // 4) if args.calibration is None else args.calibration
        calibration, measured = apart(batches, args.calibration)
        rows.append(
            f"Weights are scored on {len(calibration)} rows, and quality is measured on the other {len(measured)}."
        )
    folder = ResultFolder(args.out, CUT_KIND)
    asked = identity_of(args, (*CHOICES, *DATA_CHOICES), data, {"model": loaded}, "mirrormax.report.cuts")
    current = not args.force and folder.is_current(asked)
    if not current:
        folder.check(asked, force=args.force)
    tell_rows(args, rows, batches.warnings)
    if current:
        told = json.loads((args.out / "pruning.json").read_text("utf-8"))
        curve, beside, sentences = told["quality"], told["by_magnitude"], told["sentences"]
    else:
        options = {"scope": args.scope, "structured": args.structured}
        with progress("prune", args.quiet) as meter:
            found = measure_cut(loaded, measured, args.share, args.shares, meter.show, calibration, **options)
        with folder.open(asked, force=args.force):
            sentences = write_cut(folder, found, loaded, shown_name(args.model))
            folder.finish()
        curve, beside = ([{"share": one, "quality": value} for one, value in c] for c in (found.quality, found.beside))
    console = Console(quiet=args.quiet)
    for k, point in enumerate(curve):
        other = f" by margin, {beside[k]['quality']:.4f} by magnitude" if beside else ""
        console.print(f"{point['share']:>6.0%} cut: {measure} {point['quality']:.4f}{other}", highlight=False)
    for sentence in sentences:
        console.print(f"• {sentence}", highlight=False, markup=False)
    place = (args.out / SPARSE_WEIGHTS).resolve().as_uri()
    console.print(f"{place} ({WRITTEN[current]})", soft_wrap=True, highlight=False)
    return 0
