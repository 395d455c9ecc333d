"""``mirrormax compare A B --data FILE``: two checkpoints side by side, as a page and JSON."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mirrormax._files import replacing, save_json
from mirrormax.auditing.comparison import Side, comparison, measure_side
from mirrormax.auditing.data import Data, make_batches
from mirrormax.auditing.models import Loaded, load_for_audit
from mirrormax.auditing.pivots import METRICS
from mirrormax.commands.audit import (
    add_data_arguments,
    audit_loaded,
    check_folder,
    command_line,
    data_of,
    shown_name,
)
from mirrormax.report.audit import figures
from mirrormax.report.audit.compare_page import compare_page
from mirrormax.report.audit.writing import COMPARISON, writing
from mirrormax.report.style import house_style, save


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax compare``."""
    parser.add_argument("first", metavar="A", help="a checkpoint or a run of mirrormax train")
    parser.add_argument("second", metavar="B", help="another")
    add_data_arguments(parser)
    parser.add_argument("--p", type=float, default=2.0, help="the geometry of the margins, p > 1 (default 2)")
    parser.add_argument("--samples", type=int, default=24, help="rows in each margin problem (default 24)")
    parser.add_argument("--rivals", type=int, default=12, help="strongest rivals kept in a row (default 12)")
    parser.add_argument("--controls", type=int, default=2, help="heads of shuffled weights a layer (default 2)")
    parser.add_argument("--maps", type=int, default=6, help="reviews shown as attention maps (default 6)")
    parser.add_argument("--out", type=Path, default=Path("compare"), help="folder for the results (default: compare)")


def run(args: argparse.Namespace) -> int:
    """Run the command; bad input raises ValueError or OSError with one sentence before anything is written."""
    check_folder(args.out)
    if args.maps < 0:
        raise ValueError(f"--maps must be at least 0, got {args.maps}.")
    data = data_of(args)
    fixed = {"query": "first", "scan": (), "quantile": 0.1, "C": 10.0, "target": "prediction", "examples": 0}
    settings = argparse.Namespace(**{**vars(args), **fixed})
    names = _names(args.first, args.second)
    if data.labels is None:
        raise ValueError(f"--data {args.data} has no labels to judge the answers by; name them with --label-column.")
    loaded = {folder: _load(folder, args.allow_pickle) for folder in (args.first, args.second)}  # both, before any work
    sides = [
        _measure(name, folder, loaded[folder], data, settings)
        for name, folder in zip(names, (args.first, args.second), strict=True)
    ]
    told = comparison(sides[0], sides[1], args.seed)
    told["notes"] = sides[0].audit.notes
    told["config"] = {name: sides[0].audit.config[name] for name in ("p", "samples", "rivals", "controls", "seed")}
    told["config"] |= {"data": args.data, "limit": args.limit, "max_length": args.max_length, "command": command_line()}
    _write(args.out, sides, told, args.maps)
    console = Console(quiet=args.quiet)
    console.print(_table(told))
    console.print((args.out / "compare.html").resolve().as_uri(), soft_wrap=True)
    return 0


def _names(first: str, second: str) -> list[str]:
    """Short names that tell the two apart."""
    names = [shown_name(first), shown_name(second)]
    return names if names[0] != names[1] else [f"A: {names[0]}", f"B: {names[1]}"]


def _load(folder: str, allow_pickle: bool) -> Loaded:
    loaded = load_for_audit(folder, allow_pickle=allow_pickle)
    if loaded.make != "mirrormax":
        raise ValueError(f"{folder} is not one of our checkpoints; compare reads those of 'mirrormax train'.")
    return loaded


def _measure(name: str, folder: str, loaded: Loaded, data: Data, args: argparse.Namespace) -> Side:
    batches = make_batches(loaded, data, args.max_length, args.batch_size, with_labels=True)
    found = audit_loaded(loaded, data, args, folder, with_labels=True)
    return measure_side(name, loaded, batches, found)


def _write(out: Path, sides: list[Side], told: dict[str, Any], maps: int) -> None:
    pictures = []
    with writing(out, COMPARISON), house_style():
        save_json(out / "compare.json", told)
        for k, side in enumerate(sides):
            side.audit.save(out / "ab"[k])
            save(figures.heat_maps(side.audit), out, f"heads-{'ab'[k]}")
            pictures.append((f"Layers and heads of {side.name}", out / f"heads-{'ab'[k]}.png"))
        with replacing(out / "compare.html") as temporary:
            temporary.write_text(compare_page(sides, told, pictures, maps), encoding="utf-8")


def _table(told: dict[str, Any]) -> Table:
    table = Table("", *(model["name"] for model in told["models"]))
    table.add_row("accuracy", *(f"{model['accuracy']['mean']:.1%}" for model in told["models"]))
    for role in told["models"][0]["sparsity"]:
        table.add_row(f"{role}: Hoyer", *(f"{model['sparsity'][role]['hoyer']:.3f}" for model in told["models"]))
    if told["models"][0]["pivots"]:
        for metric in METRICS:
            table.add_row(f"pivot {metric}", *(f"{model['pivots'][metric]['mean']:.3f}" for model in told["models"]))
    for name in ("ratio", "divergence", "mass"):
        table.add_row(f"heads: {name}", *(f"{model['margins'][name]:.3g}" for model in told["models"]))
    return table
