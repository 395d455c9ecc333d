"""``mirrormax reproduce``: run experiments, draw their figures, write the report."""

from __future__ import annotations

import argparse
import os
import threading
from collections.abc import Sequence
from concurrent.futures import FIRST_EXCEPTION, ThreadPoolExecutor, wait
from dataclasses import replace
from functools import partial
from pathlib import Path

from rich.console import Console

from mirrormax import data, experiments, report
from mirrormax.commands._shared import Show, progress, table

GROUPS = ("paper", "beyond", "all")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    known = ", ".join(experiments.experiment_names())
    add = parser.add_argument
    add(
        "names",
        nargs="*",
        metavar="NAME",
        help=f"paper (default: its figures, table and theorems), beyond (our own studies), all, or some of {known}",
    )
    add(
        "--profile",
        choices=("quick", "small", "paper"),
        default="quick",
        help="minutes; hours, for the trained models; or as long as the paper's",
    )
    add("--out", type=Path, default=Path("results"), help="folder for results")
    add("--data-dir", type=Path, help="folder with data files (default: $MIRRORMAX_DATA)")
    add("--force", action="store_true", help="run again what is finished")
    add("--jobs", type=int, default=os.cpu_count() or 1, help="processes (default: one per core)")
    add("--backend", choices=("loky", "dask"), default="loky", help="local processes, or a dask cluster")
    add("--scheduler", metavar="ADDRESS", help="of the dask cluster, tcp://host:port")
    add("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    names = _selected(args.names or ["paper"])
    data_dir = data.resolve_data_dir(args.data_dir)
    console = Console(quiet=args.quiet)
    page = (args.out / "report.html").resolve().as_uri()
    runs = (args.out / "runs").absolute()
    with experiments.open_work(args.jobs, args.backend, args.scheduler, data_dir, runs, args.force) as work:
        reproduction = Reproduction(args, names, data_dir)
        with reproduction.kept.open(), progress("reproduce", args.quiet) as show:
            console.print(f"{page} fills up as experiments finish", soft_wrap=True)
            results = reproduction.run_all(work, show)
    if claims := report.claims_table(results, args.profile):
        console.print(table("Claims of the paper", ("in", "claim", "measured", "verdict"), claims))
    for result in [result for result in results if not result.claims]:
        # What is compared with something, or all if nothing is; the report has all.
        compared = [row for row in result.measurements if row.verdict != experiments.NOT_PUBLISHED]
        rows = [(row.name, row.compared, row.ours, row.verdict) for row in compared or result.measurements]
        console.print(table(result.name, ("quantity", "compared with", "ours", "verdict"), rows))
    console.print(f"Every number, with the figures: {page}", soft_wrap=True)
    return 0


def _selected(names: Sequence[str]) -> list[str]:
    """The experiments of these names and groups, in the order of the report."""
    known = experiments.experiment_names()
    for name in names:
        if name not in (*known, *GROUPS):
            raise ValueError(f"{name!r} is not one of {', '.join((*GROUPS, *known))}; choose from these.")
    selected = []
    for name in experiments.in_order(known):
        group = "beyond" if experiments.load_experiment(name).ABOUT.place >= experiments.BEYOND else "paper"
        if {name, group, "all"} & {*names}:
            selected.append(name)
    return selected


class Reproduction:
    """Experiments that run side by side, and the report that has those which are finished."""

    def __init__(self, args: argparse.Namespace, names: Sequence[str], data_dir: Path | None) -> None:
        self.args, self.names = args, names
        self.configs = {
            name: experiments.config_of(name, args.profile, data_dir)
            for name in experiments.in_order(experiments.experiment_names())
        }
        self.kept = experiments.Results(args.out, data_dir)
        self._results: dict[str, experiments.Result] = {}
        self._seconds = {name: experiments.load_experiment(name).ABOUT.seconds for name in names}
        self._shares = dict.fromkeys(names, 0.0)
        self._lock = threading.RLock()

    def run_all(self, work: experiments.Work, show: Show) -> list[experiments.Result]:
        """Every experiment, the shortest first so that there is a report at once, then the longest first."""
        earlier = {name: self.kept.load(name, self.configs[name]) for name in self.configs if name not in self.names}
        self._results = {name: result for name, result in earlier.items() if result is not None}
        chains = self._chains()
        if work.pool is None and work.client is None:  # tasks go to no other process
            for chain in chains:
                self._run_chain(chain, work, show)
        else:
            with ThreadPoolExecutor(max(work.jobs, 2)) as threads:
                futures = [threads.submit(self._run_chain, chain, work, show) for chain in chains]
                try:
                    for future in wait(futures, return_when=FIRST_EXCEPTION).done:
                        future.result()
                except BaseException:
                    threads.shutdown(wait=False, cancel_futures=True)
                    if work.pool is not None:  # whose tasks the other threads wait for
                        work.pool.shutdown(wait=False, kill_workers=True)
                    raise
        return [self._results[name] for name in self.names]

    def _chains(self) -> list[list[str]]:
        """Experiments that must follow each other, as they share training runs, in the order in which they begin."""
        chains: dict[str, list[str]] = {}
        for name in self.names:
            first = experiments.load_experiment(name).ABOUT.after or name
            chains.setdefault(first if first in self.names else name, []).append(name)
        shortest, *others = sorted(chains.values(), key=lambda chain: sum(self._seconds[name] for name in chain))
        return [shortest, *reversed(others)]

    def _run_chain(self, chain: Sequence[str], work: experiments.Work, show: Show) -> None:
        for name in chain:
            advance = partial(self._advance, show, name)
            result = self.kept.run(name, self.configs[name], replace(work, advance=advance), self.args.force)
            advance(1.0)
            with self._lock:
                self._results[name] = result
                ready = [self._results[name] for name in self.configs if name in self._results]
                missing = [name for name in self.names if name not in self._results]
                page = report.reproduction_page(ready, self.args.profile, self.args.data_dir, missing=len(missing))
                self.kept.write_report(page)

    def _advance(self, show: Show, name: str, share: float) -> None:
        """A further share of one experiment is done: show how far all are."""
        with self._lock:
            self._shares[name] = min(1.0, self._shares[name] + share)
            done = sum(self._shares[each] * seconds for each, seconds in self._seconds.items())
            show(name, done, sum(self._seconds.values()))
