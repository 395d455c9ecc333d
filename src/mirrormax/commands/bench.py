"""``mirrormax bench``: measured ratios."""

from __future__ import annotations

import argparse
from importlib import import_module
from pathlib import Path

from mirrormax.commands._shared import check_data_dir, chosen

BENCHES = ("optimizer", "svm", "dynamics", "training", "explorer")
BENCHES_ON_DATA = ("training",)


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax bench``."""
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)}, or all (default)")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data files (default: $MIRRORMAX_DATA)")


def run(args: argparse.Namespace) -> int:
    """Run the named benchmarks; bad input raises ValueError with one sentence before anything is measured."""
    names = chosen(args.names, BENCHES)
    check_data_dir(args.data_dir)
    for name in names:
        options = {"data_dir": args.data_dir} if name in BENCHES_ON_DATA else {}
        import_module(f"mirrormax.bench.{name}").main(**options)
    return 0
