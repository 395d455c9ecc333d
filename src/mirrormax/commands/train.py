"""``mirrormax train sentiment|vision|lm``: one run into one folder, with a flag for every choice."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields, replace
from pathlib import Path
from typing import Any

from mirrormax import training
from mirrormax._files import load_object
from mirrormax.commands._shared import add_flags, counted

CHOICES = "choices that the result depends on"
MODELS = {"sentiment": "a text classifier", "vision": "an image classifier", "lm": "a language model"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=type(parser))
    for task, profiles in training.PROFILES.items():
        about = MODELS[task]
        usage = f"mirrormax train {task} [--out FOLDER] [--profile PROFILE] [CHOICES]"
        command = tasks.add_parser(task, help=about, description=f"Train {about}.", usage=usage, allow_abbrev=False)
        add_shared(command, task, "folder of the run", "runs")
        command.add_argument("--logger", choices=("tensorboard",), help="also write its event files")
        command.add_argument("--devices", type=int, default=1, help="how many of them")
        command.add_argument("--num-nodes", type=int, default=1, help="machines")
        command.add_argument("--strategy", default="auto", help="Lightning's, such as ddp")
        add_flags(command.add_argument_group(CHOICES), profiles["small"])


def add_shared(parser: argparse.ArgumentParser, task: str, out: str, place: str) -> None:
    """What ``train`` and ``tune`` have in common; ``out`` is written to ``place/TASK-KEY`` by default."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"{out} (default: {place}/{task}-KEY)")
    about = "minutes a run on two cores" + (", or the paper's" if "paper" in training.PROFILES[task] else "")
    parser.add_argument("--profile", choices=tuple(training.PROFILES[task]), default="small", help=f"{about}")
    about = "choices from a file; flags outrank it"
    parser.add_argument("--config", type=Path, metavar="FILE.json", help=about)
    parser.add_argument("--data-dir", type=Path, help="folder with data files (default: $MIRRORMAX_DATA)")
    parser.add_argument("--force", action="store_true", help="begin anew in place of what the folder holds")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--accelerator", default="auto", help="Lightning's: cpu, gpu, mps …")


def configuration(args: argparse.Namespace, **first: Any) -> training.TrainConfig:
    """The profile's choices, with those of ``first`` in their place, then the file's, then the flags'."""
    config, choices = training.with_choices(training.PROFILES[args.task][args.profile], first), {}
    if args.config is not None:
        choices = _read_choices(args.config, args.task)
        try:
            config = training.with_choices(config, choices)
        except TypeError as error:  # the wrong type is the caller's error in Python, but the file's here
            raise ValueError(f"--config {args.config}: {error}") from error
    names = {field.name for field in fields(config)}
    given = {name: value for name, value in vars(args).items() if name in names}
    config = training.with_choices(config, given)
    config.refuse_ignored(given)
    if "warmup" in given and config.warmup_epochs >= config.epochs:
        raise ValueError(
            f"--warmup must be less than the run's {counted(config.epochs, 'epoch')}, got {config.warmup:g}; give "
            "fewer, or more --epochs."
        )
    if config.optimizer == "mirror" and "p" not in (*choices, *given, *config.ignored()):
        config = replace(config, p=training.MIRROR_P)
    if config.sparsity and "lr" not in (*choices, *given) and config.lr is None:
        config = replace(config, lr=training.TARGET_LR[config.moments])
    if args.profile == "paper" and "lr" not in given and config.lr == training.PROFILES[args.task]["paper"].lr:
        config = training.with_published_step(config)
    return config


def _read_choices(path: Path, task: str) -> dict[str, Any]:
    content = load_object(path, 'write an object of choices, such as {"p": 1.5}', f"--config {path}")
    if content.get("task", task) != task:
        raise ValueError(f"--config {path} is of a {content['task']!r} run, not {task}; name that task.")
    return {name: value for name, value in content.items() if name not in ("task", "format", "version", "lr_taken")}


def run(args: argparse.Namespace) -> int:
    config = configuration(args)
    for name in ("devices", "num_nodes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}.")
    folder = args.out or Path("runs") / f"{args.task}-{training.run_key(config, args.data_dir)}"
    places = {name: getattr(args, name) for name in ("accelerator", "devices", "num_nodes", "strategy")}
    machine = training.Machine(**places, tensorboard=args.logger is not None, quiet=args.quiet)
    training.train(config, folder, args.data_dir, machine=machine, force=args.force)
    if not args.quiet and training.writes_files():
        _tell(folder)
    return 0


def _tell(folder: Path) -> None:
    ended = json.loads((folder / "summary.json").read_text("utf-8"))
    epoch = f"epoch {ended['chosen_epoch']} of {ended['epochs']}"
    if "test_bits_per_byte" in ended:
        print(
            f"Best {epoch} (validation loss {ended['validation_loss']:.4f}): test loss {ended['test_loss']:.4f} per "
            f"token, {ended['test_bits_per_byte']:.4f} bits per byte.\n"
            f"A sample: {(folder / 'sample.txt').read_text('utf-8')[:200]!r}"
        )
    else:
        validation = ended["validation_accuracy"]
        best = f"Last {epoch}" if validation is None else f"Best {epoch} (validation {_percent(validation)})"
        test, chance, fitted = map(
            _percent, (ended["test_accuracy"], ended["majority_share"]["test"], ended["last_train_accuracy"])
        )
        print(f"{best}: test {test}, chance {chance}; training {fitted} at the end.")
    if "zeros" in ended:
        print(f"{_percent(ended['zeros'])} of the matrices' weights are zero.")
    if ended["diverged"]:
        print("The training diverged: its loss is no longer a number; try a smaller --lr.")
    elif ended["no_better_than_majority"]:
        print(training.majority_sentence(ended))
    print(folder / "model")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
