"""``mirrormax tune sentiment|vision|lm``: a study in one folder, its numbers and its picture."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mirrormax._identity import key
from mirrormax._results import ResultFolder
from mirrormax.commands._shared import Show, add_flags, counted, progress
from mirrormax.commands.train import CHOICES, MODELS, add_shared, configuration
from mirrormax.training import ALIASES, OPTIMIZERS, PROFILES
from mirrormax.tuning import CHOSEN


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax tune``; those of a task follow its name."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=type(parser))
    for task, profiles in PROFILES.items():
        about = MODELS[task]
        command = tasks.add_parser(task, help=about, description=f"Tune {about}.", allow_abbrev=False)
        add_shared(command, task, "folder of the study", "tuning")
        command.add_argument("--trials", type=int, default=20, help="how many in all; more go on from fewer")
        command.add_argument(
            "--optimizers",
            nargs="+",
            choices=(*OPTIMIZERS, *ALIASES),
            default=["mirror"],
            metavar="NAME",
            help=f"to choose from {', '.join(OPTIMIZERS)}; paper is md",
        )
        jobs = os.cpu_count() or 1
        command.add_argument("--jobs", type=int, default=jobs, help="processes to use (default: one per core)")
        add_flags(command.add_argument_group(CHOICES), profiles["small"], without=CHOSEN)


def run(args: argparse.Namespace) -> int:
    """Tune; bad input raises ValueError, TypeError or OSError with one sentence before anything is written."""
    from mirrormax.experiments import open_work
    from mirrormax.training import Machine, make_trainer, prepare
    from mirrormax.tuning import KIND, Plan, forget_runs, run_study, write_results

    optimizers = tuple(name for name in OPTIMIZERS if name in [ALIASES.get(given, given) for given in args.optimizers])
    # Choices that one of these has not are refused: here for the first, by the plan for all.
    base = replace(configuration(args, optimizer=optimizers[0], lr=None), optimizer=optimizers[0], p=1.1, lr=None)
    plan = Plan(base, optimizers, args.trials, args.accelerator)
    identity = plan.identity(args.data_dir)
    place = args.out or Path("tuning") / f"{args.task}-{key(identity)}"
    folder = ResultFolder(place, KIND)
    make_trainer(base, folder, Machine(accelerator=args.accelerator), [])  # refuses what Lightning has not
    model = prepare(base, args.data_dir).model
    with open_work(args.jobs, data_dir=args.data_dir) as work, folder.open(identity, force=args.force):
        if args.force:
            forget_runs(place)
        with progress("tune", args.quiet) as show:
            show("trials", 0.0, 1.0)
            work.advance = _ticker(show)
            tell = None if args.quiet else partial(_tell_trial, plan.trials, base.chosen_by)
            trials = run_study(plan, folder, work, model, tell)
        best = write_results(plan, folder, trials, args.data_dir)
    if not args.quiet:
        _tell(best, place, base.chosen_by)
    return 0


def _ticker(show: Show) -> Callable[[float], None]:
    done = 0.0

    def advance(share: float) -> None:
        nonlocal done
        done += share
        show("trials", done, 1.0)

    return advance


# What the most frequent answer is an answer of, and what whoever gives it has learnt.
MAJORITY = {"accuracy": ("class", "nothing was learnt"), "loss": ("token", "no more than frequencies were learnt")}


def _tell_trial(trials: int, chosen_by: str, trial: Any) -> None:
    """A line on stderr for a trial that has ended."""
    numbers = trial.user_attrs
    p = f", p = {numbers['p']:g}" if "p" in numbers else ""
    quality = f"{chosen_by} {abs(trial.value):.4f}"  # losses are maximised as what is below zero
    majority = f" (majority {MAJORITY[chosen_by][0]})" if numbers.get("majority") else ""
    ended = " (given up early)" if trial.state.name == "PRUNED" else majority
    sys.stderr.write(
        f"trial {trial.number + 1} of {trials}: {numbers['optimizer']}{p}, lr = {numbers['lr']:g}, validation "
        f"{quality}{ended}\n"
    )
    sys.stderr.flush()


def _tell(best: dict[str, Any], folder: Path, quality: str) -> None:
    p = "" if best["p"] is None else f", p = {best['p']:g}"
    print(
        f"{counted(best['trials'], 'trial')}, {best['pruned']} given up early; the best is trial {best['trial'] + 1}: "
        f"{best['optimizer']}{p}, lr = {best['lr']:g} ({best['multiple']:.2g} times the rule's), validation {quality} "
        f"{best[f'validation_{quality}']:.4f}, test {quality} {best[f'test_{quality}']:.4f}."
    )
    if best["no_better_than_majority"]:
        answer, learnt = MAJORITY[quality]
        print(
            f"No trial is better than always answering the most frequent {answer}, so {learnt} and nothing can be "
            "chosen; try more --epochs."
        )
    print(f"{best['command']} --out runs/best\n{folder / 'tune.png'}")
