"""``mirrormax tune sentiment|vision``: a study in one folder, its numbers and its picture."""

from __future__ import annotations

import argparse
import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from mirrormax._files import locked
from mirrormax.commands._shared import Meter, progress
from mirrormax.commands.train import add_choices, configuration
from mirrormax.training.config import OPTIMIZERS, PROFILES
from mirrormax.tuning import CHOSEN

LOCK = ".lock"
OURS = (LOCK, "trials", "study.db", "trials.csv", "best.json", "tune.svg", "tune.png")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax tune``; those of a task follow its name."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=type(parser))
    for task, profiles in PROFILES.items():
        about = {"sentiment": "a text classifier", "vision": "an image classifier"}[task]
        command = tasks.add_parser(task, help=about, description=f"Tune {about}.", allow_abbrev=False)
        _add_common(command, task)
        add_choices(command, profiles["small"], without=CHOSEN)


def _add_common(parser: argparse.ArgumentParser, task: str) -> None:
    parser.add_argument("--out", type=Path, default=None, help=f"folder of the study (default: tuning/{task}-KEY)")
    parser.add_argument("--trials", type=int, default=20, help="how many in all (default: 20); more go on from fewer")
    parser.add_argument(
        "--optimizers", nargs="+", choices=OPTIMIZERS, default=["md"], help="to choose from (default: md)"
    )
    parser.add_argument(
        "--profile", choices=("small", "paper"), default="small", help="minutes a trial on two cores, or the paper's"
    )
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE.json", help="choices from a file; flags outrank it"
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data files (default: $MIRRORMAX_DATA)")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to use (default: one a core)")
    parser.add_argument("--accelerator", default="auto", help="Lightning's: cpu, gpu, mps … (default: auto)")
    parser.add_argument("--force", action="store_true", help="begin anew, whatever the study holds")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def run(args: argparse.Namespace) -> int:
    """Tune; bad input raises ValueError, TypeError or OSError with one sentence before anything is written."""
    from mirrormax.experiments import open_work
    from mirrormax.training.prepare import prepare
    from mirrormax.tuning.figure import draw
    from mirrormax.tuning.results import rows_of, write_results
    from mirrormax.tuning.study import Plan, run_study

    base = replace(configuration(args), optimizer="md", p=1.1, lr=None)
    optimizers = tuple(name for name in OPTIMIZERS if name in args.optimizers)
    plan = Plan(base, optimizers, args.trials, args.accelerator)
    folder = args.out or Path("tuning") / f"{args.task}-{base.key()}"
    _refuse_other_files(folder)
    model = prepare(base, args.data_dir).model
    with open_work(args.jobs, data_dir=args.data_dir) as work, locked(folder / LOCK):
        _clean(folder, args.force)
        with progress("tune", args.quiet) as meter:
            meter.show("trials", 0.0, 1.0)
            work.advance = _ticker(meter)
            trials = run_study(plan, folder, work, model)
        best = write_results(plan, folder, trials, args.data_dir)
        draw(rows_of(trials), folder)
    if not args.quiet:
        _tell(best, folder)
    return 0


def _refuse_other_files(folder: Path) -> None:
    if folder.exists() and not folder.is_dir():
        raise NotADirectoryError(f"{folder} is a file; give a folder for the study.")
    others = [path.name for path in folder.glob("*") if path.name not in OURS and not path.name.startswith(".")]
    if others:
        raise ValueError(f"{folder} holds files that are not of a study ({min(others)}); give an empty or new folder.")


def _clean(folder: Path, force: bool) -> None:
    """Remove what killed writers left half-written, and with ``force`` all that the study holds."""
    for path in folder.iterdir():
        if path.name != LOCK and (force or path.name.startswith(".")):
            shutil.rmtree(path) if path.is_dir() else path.unlink()


def _ticker(meter: Meter) -> Callable[[float], None]:
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done += share
        meter.show("trials", done, 1.0)

    return advance


def _tell(best: dict[str, Any], folder: Path) -> None:
    p = "" if best["p"] is None else f", p = {best['p']:g}"
    print(
        f"{best['trials']} trials, {best['pruned']} of them given up early; the best is trial {best['trial']}: "
        f"{best['optimizer']}{p}, lr = {best['lr']:g} ({best['multiple']:.2g} times the rule's), validation accuracy "
        f"{best['validation_accuracy']:.4f}, test accuracy {best['test_accuracy']:.4f}.\n"
        f"{best['command']}\n{folder / 'tune.png'}"
    )
