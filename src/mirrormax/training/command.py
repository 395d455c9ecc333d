"""``mirrormax train sentiment|vision``: one run into one folder, with a flag for every choice."""

from __future__ import annotations

import argparse
import json
from dataclasses import fields
from pathlib import Path
from typing import Any, get_type_hints

from mirrormax.training.config import CHOICES, PROFILES, TrainConfig, with_choices

LOGGERS = ("csv", "tensorboard")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax train``; those of a task follow its name."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=type(parser))
    for task, profiles in PROFILES.items():
        about = {"sentiment": "a text classifier", "vision": "an image classifier"}[task]
        command = tasks.add_parser(task, help=about, description=f"Train {about}.", allow_abbrev=False)
        _add_common(command, task)
        _add_choices(command, profiles["small"])


def _add_common(parser: argparse.ArgumentParser, task: str) -> None:
    parser.add_argument("--out", type=Path, default=None, help=f"folder of the run (default: runs/{task}-KEY)")
    parser.add_argument(
        "--profile", choices=("small", "paper"), default="small", help="minutes on two cores, or the paper's"
    )
    parser.add_argument(
        "--config", type=Path, default=None, metavar="FILE.json", help="choices from a file; flags outrank it"
    )
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data files (default: $MIRRORMAX_DATA)")
    parser.add_argument("--force", action="store_true", help="begin anew, whatever the folder holds")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--logger", action="append", choices=LOGGERS, default=[], help="also log for these; repeatable")
    parser.add_argument("--accelerator", default="auto", help="Lightning's: cpu, gpu, mps … (default: auto)")
    parser.add_argument("--devices", type=int, default=1, help="how many of them (default: 1)")
    parser.add_argument("--num-nodes", type=int, default=1, help="machines (default: 1)")
    parser.add_argument("--strategy", default="auto", help="Lightning's: ddp, fsdp … (default: auto)")


def _add_choices(parser: argparse.ArgumentParser, config: TrainConfig) -> None:
    """A flag for each field; absent ones leave the profile's choice."""
    group = parser.add_argument_group("choices that the result depends on")
    types = get_type_hints(type(config))
    for field in fields(config):
        flag, default = f"--{field.name.replace('_', '-')}", getattr(config, field.name)
        told = f"(small: {default})"
        if isinstance(default, bool):
            action = argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, default=argparse.SUPPRESS, help=told)
        else:
            kind = next(kind for kind in (int, float, str) if kind in _alternatives(types[field.name]))
            choices = CHOICES.get(field.name)
            group.add_argument(flag, type=kind, choices=choices, default=argparse.SUPPRESS, help=told)


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of ``int | None`` and the like."""
    return getattr(hint, "__args__", (hint,))


def configuration(args: argparse.Namespace) -> TrainConfig:
    """The profile's choices, then the file's, then the flags'."""
    config = PROFILES[args.task][args.profile]
    if args.config is not None:
        config = with_choices(config, _read_choices(args.config, args.task))
    names = {field.name for field in fields(config)}
    return with_choices(config, {name: value for name, value in vars(args).items() if name in names})


def _read_choices(path: Path, task: str) -> dict[str, Any]:
    try:
        found = json.loads(path.read_text("utf-8"))
    except ValueError as error:
        raise ValueError(f'--config {path} is not JSON; write an object of choices, such as {{"p": 1.5}}.') from error
    if not isinstance(found, dict):
        raise ValueError(f'--config {path} holds no JSON object; write one, such as {{"p": 1.5}}.')
    if found.get("task", task) != task:
        raise ValueError(f"--config {path} is of a {found['task']!r} run, not {task}; name that task.")
    return {name: value for name, value in found.items() if name not in ("task", "format", "version")}


def run(args: argparse.Namespace) -> int:
    """Train; bad input raises ValueError, TypeError or OSError with one sentence before anything is written."""
    config = configuration(args)
    for name in ("devices", "num_nodes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}.")
    folder = args.out or Path("runs") / f"{args.task}-{config.key()}"
    from mirrormax.training.run import Machine, train

    places = {name: getattr(args, name) for name in ("accelerator", "devices", "num_nodes", "strategy")}
    machine = Machine(**places, loggers=tuple(args.logger), quiet=args.quiet)
    train(config, folder, args.data_dir, machine=machine, force=args.force)
    if not args.quiet:
        _tell(folder)
    return 0


def _tell(folder: Path) -> None:
    told = json.loads((folder / "summary.json").read_text("utf-8"))
    print(
        f"{told['epochs']} epochs; test accuracy {told['test_accuracy']:.4f} at epoch {told['chosen_epoch']}, which "
        f"validation chose ({told['validation_accuracy']:.4f}); training accuracy {told['last_train_accuracy']:.4f}.\n"
        f"{folder / 'model'}"
    )
