"""``mirrormax compare A B --data FILE``: two models side by side, as a page and JSON."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mirrormax import auditing, report
from mirrormax._results import ResultFolder
from mirrormax.commands._shared import progress, table
from mirrormax.commands.audit import (
    WRITTEN,
    add_data_arguments,
    add_options,
    audit_loaded,
    batch_size,
    command_line,
    data_choices,
    data_of,
    identity_of,
    options_from,
    shown_name,
    tell_rows,
)

OPTIONS = ("p", "samples", "rivals", "controls")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax compare``."""
    parser.add_argument(
        "first",
        type=str,
        metavar="A",
        help="a checkpoint, a run, a Hugging Face folder, a GGUF file or a package with one",
    )
    parser.add_argument("second", type=str, metavar="B", help="another")
    add_data_arguments(parser)
    add_options(parser, OPTIONS)
    parser.add_argument("--maps", type=int, default=6, help="reviews shown as attention maps")
    parser.add_argument("--out", type=Path, default=Path("compare"), help="folder for the results")
    parser.add_argument("--force", action="store_true", help="replace another comparison in the folder")


def run(args: argparse.Namespace) -> int:
    """Run the command; bad input raises ValueError or OSError with one sentence before anything is written."""
    if args.maps < 0:
        raise ValueError(f"--maps must be at least 0, got {args.maps}.")
    options = options_from(args, examples=0).sized()
    models = [auditing.load_for_audit(folder, allow_pickle=args.allow_pickle) for folder in (args.first, args.second)]
    args.batch_size = min(batch_size(args, loaded) for loaded in models)
    data = data_of(args, models)
    names = _names(args.first, args.second)
    auditing.check_comparable(names, models)
    judged = all(loaded.classes for loaded in models)
    if judged and data.labels is None:
        raise ValueError(f"--data {args.data} has no labels to judge the answers by; name them with --label-column.")
    batches = [
        auditing.make_batches(model, data, args.max_length, args.batch_size, with_labels=judged) for model in models
    ]
    warnings = [f"{name}: {text}" for name, part in zip(names, batches, strict=True) for text in part.warnings]
    folder = ResultFolder(args.out, "comparison")
    both = dict(zip(("first", "second"), models, strict=True))
    choices = {name: getattr(options, name) for name in (*OPTIONS, "seed")}
    choices |= {"maps": args.maps, **data_choices(args)}
    wanted = identity_of(choices, data, both, auditing.REVISION)
    current = not args.force and folder.is_current(wanted)
    if not current:
        folder.check(wanted, force=args.force)
    shortened = [note for part in batches for note in part.shortened]
    tell_rows(args, [data.note, *data.caveats, *dict.fromkeys(shortened)], warnings)
    if current:
        result = json.loads((args.out / "compare.json").read_text("utf-8"))
    else:
        with progress("compare", args.quiet) as meter:
            sides = [
                auditing.measure_side(name, part.loaded, part, audit_loaded(part, data, options, args, meter))
                for name, part in zip(names, batches, strict=True)
            ]
        result = {**auditing.comparison(sides[0], sides[1], args.seed), "notes": [*sides[0].audit.notes, *warnings]}
        result["notes"] += [note for side in sides for note in side.notes]
        result["config"] = {**choices, "command": command_line()}
        with folder.open(wanted, force=args.force):
            report.write_comparison(folder, sides, result, args.maps)
            folder.finish()
    console = Console(quiet=args.quiet)
    console.print(_table(result))
    for note in (note for model in result["models"] for note in model["notes"]):
        console.print(note, highlight=False)
    console.print(
        f"{(args.out / 'compare.html').resolve().as_uri()} ({WRITTEN[current]})", soft_wrap=True, highlight=False
    )
    return 0


def _names(first: str, second: str) -> list[str]:
    """Short names that tell the two apart."""
    names = [shown_name(first), shown_name(second)]
    return names if names[0] != names[1] else [f"A: {names[0]}", f"B: {names[1]}"]


def _table(result: dict[str, Any]) -> Table:
    models = result["models"]
    rows = []
    if all(model["accuracy"] for model in models):
        rows.append(("accuracy", *(f"{model['accuracy']['mean']:.1%}" for model in models)))
    for role in models[0]["sparsity"] if models[1]["sparsity"] else ():
        rows.append((f"{role}: Hoyer", *(f"{model['sparsity'][role]['hoyer']:.3f}" for model in models)))
    if all(model["pivots"] for model in models):
        for metric in auditing.METRICS:
            rows.append(
                (
                    f"decisive words: {report.SCORES[metric]}",
                    *(f"{model['pivots'][metric]['mean']:.3f}" for model in models),
                )
            )
    for name in ("ratio", "divergence", "mass"):
        rows.append((f"heads: {name}", *(f"{model['margins'][name]:.3g}" for model in models)))
    return table("", ("", *(model["name"] for model in models)), rows)
