"""``mirrormax reproduce``: run experiments, draw their figures, write the report."""

from __future__ import annotations

import argparse
import os
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from mirrormax.commands._shared import Meter, check_data_dir, check_out_folder, chosen, progress, table
from mirrormax.data import resolve_data_dir
from mirrormax.experiments import (
    Result,
    Results,
    Work,
    config_of,
    experiment_names,
    in_order,
    load_experiment,
    open_work,
)
from mirrormax.report import reproduction_page


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax reproduce``."""
    known = ", ".join(experiment_names())
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {known}, or all (default)")
    parser.add_argument(
        "--profile",
        choices=("quick", "small", "paper"),
        default="quick",
        help="minutes; hours, for the trained models; or as long as the paper's",
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results (default: results)")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data files, for experiments with any")
    parser.add_argument("--force", action="store_true", help="run again what is finished")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    parser.add_argument(
        "--backend", choices=("loky", "dask"), default="loky", help="local processes, or a dask cluster"
    )
    parser.add_argument("--scheduler", default=None, metavar="ADDRESS", help="of the dask cluster, tcp://host:port")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Run the named experiments; bad input raises ValueError with one sentence before anything is written."""
    names = chosen(args.names, experiment_names())
    check_out_folder(args.out)
    check_data_dir(args.data_dir)
    data_dir = resolve_data_dir(args.data_dir)
    configs = {name: config_of(name, args.profile, data_dir) for name in in_order(experiment_names())}
    kept = Results(args.out, data_dir)
    console = Console(quiet=args.quiet)
    runs = (args.out / "runs").absolute()
    with open_work(args.jobs, args.backend, args.scheduler, data_dir, runs, args.force) as work, kept.open():
        results = _run_all([name for name in configs if name in names], args, configs, kept, work)
        kept.write_report(reproduction_page(_with_others(results, configs, kept), args.profile, args.data_dir))
    for result in results:
        console.print(_table(result))
    console.print((args.out / "report.html").resolve().as_uri(), soft_wrap=True)
    return 0


def _run_all(
    names: Sequence[str], args: argparse.Namespace, configs: Mapping[str, Any], kept: Results, work: Work
) -> list[Result]:
    results = []
    seconds = {name: load_experiment(name).SECONDS for name in names}
    total, finished = sum(seconds.values()), 0.0
    with progress("reproduce", args.quiet) as meter:
        for name in names:
            work.advance = _ticker(meter, name, finished, seconds[name], total)
            work.advance(0.0)
            results.append(kept.run(name, configs[name], work, args.force))
            finished += seconds[name]
            meter.show(name, finished, total)
    return results


def _ticker(meter: Meter, name: str, finished: float, weight: float, total: float) -> Callable[[float], None]:
    """Shows how far all experiments are, told by shares of this one."""
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done = min(1.0, done + share)
        meter.show(name, finished + done * weight, total)

    return advance


def _with_others(results: Sequence[Result], configs: Mapping[str, Any], kept: Results) -> list[Result]:
    """These, and whatever else of the same profile, data and code is finished, in the order of the report."""
    found = {result.name: result for result in results}
    every = [found.get(name) or kept.load(name, config) for name, config in configs.items()]
    return [result for result in every if result is not None]


def _table(result: Result) -> Table:
    rows = ((row.name, row.beside, row.ours, row.verdict) for row in result.comparisons)
    return table(result.name, ("quantity", "beside", "ours", "verdict"), rows)
