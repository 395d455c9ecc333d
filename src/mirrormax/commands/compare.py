"""``mirrormax compare A B --data FILE``: two models side by side, as a page and JSON."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields

from rich.console import Console

from mirrormax import auditing, report
from mirrormax.commands._models import (
    Kept,
    add_model_arguments,
    audit_loaded,
    command_line,
    data_choices,
    data_of,
    options_from,
    shown_name,
    tell_rows,
)
from mirrormax.commands._shared import add_flags, table

OPTIONS = ("p", "samples", "rivals", "controls")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add_model_arguments(parser, {"first": "A", "second": "B"}, "compare", usual_data=False)
    unused = {option.name for option in fields(auditing.AuditOptions)} - {*OPTIONS}
    add_flags(parser, auditing.AuditOptions(), without=unused)
    parser.add_argument("--maps", type=int, default=6, help="reviews shown as attention maps")


def run(args: argparse.Namespace) -> int:
    if args.maps < 0:
        raise ValueError(f"--maps must be at least 0, got {args.maps}.")
    options = options_from(args, examples=0).sized()
    models = [auditing.load_for_audit(folder, allow_pickle=args.allow_pickle) for folder in (args.first, args.second)]
    data = data_of(args, models)
    names = [shown_name(args.first), shown_name(args.second)]
    if names[0] == names[1]:
        names = [f"A: {names[0]}", f"B: {names[1]}"]
    auditing.check_comparable(names, models)
    judged = all(loaded.classes for loaded in models)
    if judged and data.labels is None:
        raise ValueError(f"--data {args.data} has no labels to judge the answers by; name them with --label-column.")
    batches = [
        auditing.make_batches(model, data, args.max_length, args.batch_size, with_labels=judged) for model in models
    ]
    warnings = [f"{name}: {text}" for name, part in zip(names, batches, strict=True) for text in part.warnings]
    choices = {name: getattr(options, name) for name in (*OPTIONS, "seed")} | {"maps": args.maps}
    both = dict(zip(("first", "second"), models, strict=True))
    kept = Kept(args, "comparison", choices, data, both, auditing.REVISION)
    shortened = [note for part in batches for note in part.shortened]
    tell_rows(args, [data.note, *data.caveats, *dict.fromkeys(shortened)], warnings)
    if kept.current:
        result = json.loads((args.out / "compare.json").read_text("utf-8"))
    else:
        sides = [
            auditing.measure_side(name, part.loaded, part, audit_loaded(part, data, options, args))
            for name, part in zip(names, batches, strict=True)
        ]
        result = {**auditing.comparison(sides[0], sides[1], args.seed), "notes": [*sides[0].audit.notes, *warnings]}
        result["notes"] += [note for side in sides for note in side.notes]
        result["config"] = {**choices, **data_choices(args), "command": command_line()}
        with kept.writing() as folder:
            report.write_comparison(folder, sides, result, args.maps)
    console = Console(quiet=args.quiet)
    rows = [row for group in report.comparison_groups(result) for row in group["rows"]]
    cells = [(row["name"], *(cell["value"] for cell in row["cells"])) for row in rows]  # without their intervals
    console.print(table("", ("", *(model["name"] for model in result["models"]), "difference"), cells))
    for model in result["models"]:
        for note in model["notes"]:
            console.print(note, highlight=False)
    kept.tell("compare.html")
    return 0
