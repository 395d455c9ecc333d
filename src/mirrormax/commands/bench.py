"""``mirrormax bench [--json] [--compare FILE] [--append FILE] [NAME ...]``: measured ratios."""

from __future__ import annotations

import argparse
import json
import sys
from contextlib import redirect_stdout
from importlib import import_module
from pathlib import Path

from mirrormax.bench import append_run, check_appendable, comparison, describe, read_history
from mirrormax.commands._shared import check_data_dir, chosen, progress

BENCHES = ("optimizer", "svm", "dynamics", "training", "explorer")
BENCHES_ON_DATA = ("training",)
PEERS = {"svm": "cvxpy"}
"""What is measured against and is not installed with the package; missed before anything is measured."""


def add_arguments(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)}, or all (default)")
    add("--data-dir", type=Path, help="folder with data files (default: $MIRRORMAX_DATA)")
    add("--json", action="store_true", help="print the ratios as JSON; tables go to stderr")
    add("--compare", type=Path, metavar="FILE", help="print each ratio beside the newest run in a history")
    add("--append", type=Path, metavar="FILE", help="add the run to a history, as a line")


def run(args: argparse.Namespace) -> int:
    names = chosen(args.names, BENCHES)
    check_data_dir(args.data_dir)
    history = None if args.compare is None else read_history(args.compare)
    if args.append is not None:
        check_appendable(args.append)
    benches = {name: import_module(f"mirrormax.bench.{name}") for name in names}
    for name in names:
        if name in PEERS:
            import_module(PEERS[name])
    ratios = {}
    # Without a bar: it would take what is printed on stdout to stderr, away from the file that stdout may be.
    with redirect_stdout(sys.stderr if args.json else sys.stdout), progress("bench", quiet=False, bar=False) as show:
        for k, name in enumerate(names, start=1):
            sys.stderr.write(f"mirrormax bench: {name}, {k} of {len(names)}\n")
            options = {"data_dir": args.data_dir} if name in BENCHES_ON_DATA else {}
            ratios[name] = benches[name].main(show=show, **options)
        measured = describe(ratios)
        if history is not None:
            print(f"\n{comparison(measured, history)}")
    if args.json:
        print(json.dumps(measured, indent=2, ensure_ascii=False, allow_nan=False), flush=True)
    if args.append is not None:
        append_run(args.append, measured)
    return 0
