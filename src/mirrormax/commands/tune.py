"""``mirrormax tune sentiment|vision|lm``: a study in one folder, its numbers and its picture."""

from __future__ import annotations

import argparse
import os
import sys
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

from mirrormax import experiments, training, tuning
from mirrormax._identity import key
from mirrormax._results import ResultFolder
from mirrormax.commands._shared import add_flags, counted, progress
from mirrormax.commands.train import CHOICES, MODELS, add_shared, configuration


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=type(parser))
    for task, profiles in training.PROFILES.items():
        about = MODELS[task]
        command = tasks.add_parser(task, help=about, description=f"Tune {about}.", allow_abbrev=False)
        add_shared(command, task, "folder of the study", "tuning")
        command.add_argument("--trials", type=int, default=20, help="how many in all; more go on from fewer")
        command.add_argument(
            "--optimizers",
            nargs="+",
            choices=(*training.OPTIMIZERS, *training.ALIASES),
            default=["mirror"],
            metavar="NAME",
            help=f"to choose from {', '.join(training.OPTIMIZERS)}; paper is md",
        )
        jobs = os.cpu_count() or 1
        command.add_argument("--jobs", type=int, default=jobs, help="processes to use (default: one per core)")
        add_flags(command.add_argument_group(CHOICES), profiles["small"], without=tuning.CHOSEN)


def run(args: argparse.Namespace) -> int:
    given = {training.ALIASES.get(name, name) for name in args.optimizers}
    optimizers = tuple(name for name in training.OPTIMIZERS if name in given)
    # Choices that one of these has not are refused: here for the first, by the plan for all.
    base = replace(configuration(args, optimizer=optimizers[0], lr=None), optimizer=optimizers[0], p=1.1, lr=None)
    plan = tuning.Plan(base, optimizers, args.trials, args.accelerator)
    identity = plan.identity(args.data_dir)
    place = args.out or Path("tuning") / f"{args.task}-{key(identity)}"
    folder = ResultFolder(place, tuning.KIND)
    machine = training.Machine(accelerator=args.accelerator)
    training.make_trainer(base, folder, machine, [])  # refuses what Lightning has not
    model = training.prepare(base, args.data_dir).model
    with experiments.open_work(args.jobs, data_dir=args.data_dir) as work, folder.open(identity, force=args.force):
        if args.force:
            tuning.forget_runs(place)
        with progress("tune", args.quiet) as show:
            done = 0.0

            def advance(share: float) -> None:
                nonlocal done
                done += share
                show("trials", done, 1.0)

            advance(0.0)
            work.advance = advance
            tell = None if args.quiet else partial(_tell_trial, plan.trials, base.chosen_by)
            trials = tuning.run_study(plan, folder, work, model, tell)
        best = tuning.write_results(plan, folder, trials, args.data_dir)
    if not args.quiet:
        _tell(best, place, base.chosen_by)
    return 0


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
