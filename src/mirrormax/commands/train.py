"""``mirrormax train sentiment|vision|lm``: one run into one folder, with a flag for every choice."""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_type_hints

from mirrormax._files import load_object
from mirrormax.commands._shared import counted
from mirrormax.training import (
    CHOICES,
    MIRROR_P,
    PROFILES,
    TARGET_LR,
    TrainConfig,
    with_choices,
    with_published_step,
)

ABOUT = {
    "data": {
        "sentiment": "reviews, imdb, or a .csv or .parquet file of your own",
        "vision": "digits, cifar10 or cifar100",
        "lm": "reviews, imdb, a .txt, .csv or .parquet file of your own, or a folder of .txt files",
    },
    "optimizer": "MirrorAdamW, the same under a threshold, plain mirror descent (md, or paper), SGD or AdamW",
    "p": "exponent of the potential, above 1; with mirror 1.5 if not given",
    "potential": "of mirror descent",
    "beta": "scale of Hypentropy",
    "lam": "threshold of adabreg",
    "density": "share of the matrices' first weights that adabreg begins with",
    "sparsity": "with mirror: the share of the matrices' weights that are zero at the end, in [0, 1)",
    "moments": "with mirror: Adam's per entry or per tensor, or orthogonalised matrices (Muon)",
    "lr": "step size; None: one that suits the optimizer and p; 0.006 with --sparsity, 0.024 with --moments matrix too",
    "rest_lr": "step size of the rest with --attention-only; None: 0.3",
    "attention_only": "with md: mirror descent for queries, keys and values, SGD for the rest",
    "momentum": "of md and sgd, in [0, 1)",
    "weight_decay": "at least 0",
    "normalize": "divide gradients by their dual norm: each by its own, or all by one",
    "schedule": "of the step size after warm-up",
    "warmup": {
        "sentiment": "epochs in which the step size rises; None: a twelfth of them",
        "vision": "epochs in which the step size rises; None: a twentieth of them",
        "lm": "epochs in which the step size rises; None: a tenth of them",
    },
    "epochs": "at most so many",
    "batch_size": "examples per step, on each device",
    "reduction": "of the loss over a batch",
    "stop_accuracy": "training accuracy at which to stop; above 1: never",
    "train_limit": "use so many training examples only (lm: texts, and a text file is one)",
    "validation": "share of the training split to choose the epoch by; 0: none, and the last epoch is taken",
    "test": "share to test on where the data has no test split",
    "split_seed": "decides which examples these are",
    "seed": "decides first weights, batches and dropout",
    "precision": "of the arithmetic",
    "text_column": "of a file of your own",
    "label_column": "of a file of your own",
    "vocab": "a BERT vocab.txt; None: learnt from the training split",
    "vocab_size": {"sentiment": "tokens to learn without --vocab", "lm": "tokens to learn with --tokens bpe"},
    "tokens": "byte, char or bpe",
    "context": "tokens of a window, which is a row",
    "max_length": "tokens of a text; longer ones are cut",
    "image_size": "pixels to which images are scaled",
    "patch": "pixels along an edge of a patch",
    "dim": "of a token's vector",
    "hidden": "of the perceptrons",
    "blocks": "of the transformer",
    "heads": "of each attention",
    "head_dim": "of a head's queries, keys and values",
    "dropout": "share of activations dropped, in [0, 1)",
    "embedding_std": "spread of the first embeddings",
    "augment": "crop and flip training images at random",
    "by_length": "make batches of texts of similar length, which is faster",
}


MODELS = {"sentiment": "a text classifier", "vision": "an image classifier", "lm": "a language model"}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The arguments of ``mirrormax train``; those of a task follow its name."""
    tasks = parser.add_subparsers(dest="task", required=True, metavar="TASK", parser_class=type(parser))
    for task, profiles in PROFILES.items():
        about = MODELS[task]
        usage = f"mirrormax train {task} [--out FOLDER] [--profile PROFILE] [CHOICES]"
        command = tasks.add_parser(task, help=about, description=f"Train {about}.", usage=usage, allow_abbrev=False)
        add_shared(command, task, "folder of the run", "runs")
        command.add_argument("--logger", choices=("tensorboard",), help="also write its event files")
        command.add_argument("--devices", type=int, default=1, help="how many of them")
        command.add_argument("--num-nodes", type=int, default=1, help="machines")
        command.add_argument("--strategy", default="auto", help="Lightning's, such as ddp")
        add_choices(command, profiles["small"])


def add_shared(parser: argparse.ArgumentParser, task: str, out: str, place: str) -> None:
    """What ``train`` and ``tune`` have in common; ``out`` is written to ``place/TASK-KEY`` by default."""
    parser.add_argument("--out", type=Path, metavar="FOLDER", help=f"{out} (default: {place}/{task}-KEY)")
    about = "minutes a run on two cores" + (", or the paper's" if "paper" in PROFILES[task] else "")
    parser.add_argument("--profile", choices=tuple(PROFILES[task]), default="small", help=f"{about}")
    about = "choices from a file; flags outrank it"
    parser.add_argument("--config", type=Path, metavar="FILE.json", help=about)
    parser.add_argument("--data-dir", type=Path, help="folder with data files (default: $MIRRORMAX_DATA)")
    parser.add_argument("--force", action="store_true", help="begin anew in place of what the folder holds")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")
    parser.add_argument("--accelerator", default="auto", help="Lightning's: cpu, gpu, mps …")


def add_choices(parser: argparse.ArgumentParser, config: TrainConfig, without: Sequence[str] = ()) -> None:
    """A flag for each field but those ``without``; absent ones leave the profile's choice."""
    group = parser.add_argument_group("choices that the result depends on")
    types = get_type_hints(type(config))
    for field in fields(config):
        if field.name in without:
            continue
        flag, default = f"--{field.name.replace('_', '-')}", getattr(config, field.name)
        about: Any = ABOUT[field.name]
        meaning = f"{about[config.task] if isinstance(about, dict) else about} (default: {default})"
        if isinstance(default, bool):
            action = argparse.BooleanOptionalAction
            group.add_argument(flag, action=action, default=argparse.SUPPRESS, help=meaning)
        else:
            kind = next(kind for kind in (int, float, str) if kind in _alternatives(types[field.name]))
            choices = CHOICES.get(field.name)
            metavar = None if choices else kind.__name__.upper()
            group.add_argument(
                flag, type=kind, choices=choices, default=argparse.SUPPRESS, metavar=metavar, help=meaning
            )


def _alternatives(hint: Any) -> tuple[Any, ...]:
    """The types of ``int | None`` and the like."""
    return getattr(hint, "__args__", (hint,))


def configuration(args: argparse.Namespace, **first: Any) -> TrainConfig:
    """The profile's choices, with those of ``first`` in their place, then the file's, then the flags'."""
    config, choices = with_choices(PROFILES[args.task][args.profile], first), {}
    if args.config is not None:
        choices = _read_choices(args.config, args.task)
        try:
            config = with_choices(config, choices)
        except TypeError as error:  # the wrong type is the caller's error in Python, but the file's here
            raise ValueError(f"--config {args.config}: {error}") from error
    names = {field.name for field in fields(config)}
    given = {name: value for name, value in vars(args).items() if name in names}
    config = with_choices(config, given)
    config.refuse_ignored(given)
    if "warmup" in given and config.warmup_epochs >= config.epochs:
        raise ValueError(
            f"--warmup must be less than the run's {counted(config.epochs, 'epoch')}, got {config.warmup:g}; give "
            "fewer, or more --epochs."
        )
    if config.optimizer == "mirror" and "p" not in (*choices, *given, *config.ignored()):
        config = replace(config, p=MIRROR_P)
    if config.sparsity and "lr" not in (*choices, *given) and config.lr is None:
        config = replace(config, lr=TARGET_LR[config.moments])
    if args.profile == "paper" and "lr" not in given and config.lr == PROFILES[args.task]["paper"].lr:
        config = with_published_step(config)
    return config


def _read_choices(path: Path, task: str) -> dict[str, Any]:
    content = load_object(path, 'write an object of choices, such as {"p": 1.5}', f"--config {path}")
    if content.get("task", task) != task:
        raise ValueError(f"--config {path} is of a {content['task']!r} run, not {task}; name that task.")
    return {name: value for name, value in content.items() if name not in ("task", "format", "version", "lr_taken")}


def run(args: argparse.Namespace) -> int:
    """Train; bad input raises ValueError or OSError with one sentence before anything is written."""
    config = configuration(args)
    for name in ("devices", "num_nodes"):
        if getattr(args, name) < 1:
            raise ValueError(f"--{name.replace('_', '-')} must be at least 1, got {getattr(args, name)}.")
    from mirrormax.training import Machine, run_key, train, writes_files

    folder = args.out or Path("runs") / f"{args.task}-{run_key(config, args.data_dir)}"
    places = {name: getattr(args, name) for name in ("accelerator", "devices", "num_nodes", "strategy")}
    machine = Machine(**places, tensorboard=args.logger is not None, quiet=args.quiet)
    train(config, folder, args.data_dir, machine=machine, force=args.force)
    if not args.quiet and writes_files():
        _tell(folder)
    return 0


def _tell(folder: Path) -> None:
    from mirrormax.training import majority_sentence

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
        print(majority_sentence(ended))
    print(folder / "model")


def _percent(share: float) -> str:
    return f"{100 * share:.1f} %"
