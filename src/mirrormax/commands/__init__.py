"""The command line, a module per command with ``add_arguments(parser)`` and ``run(args)``, which gives the exit code.

The first word names the command, and only the module of that command is imported. Bad input raises ValueError or
OSError with one sentence before anything is written, measured or served. Exit codes: 0 done, 2 bad input (that
sentence on stderr), 3 no solution, 130 interrupted, 143 terminated.
"""

from __future__ import annotations

import argparse
import errno
import os
import re
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

from mirrormax import __version__
from mirrormax._extras import COMMANDS as EXTRAS
from mirrormax._extras import MissingExtraError, extra
from mirrormax._interrupts import Terminated, terminable

COMMANDS = {
    "reproduce": "make the paper's figures again, with a report",
    "svm": "solve the attention SVM of a problem file, with a proof of optimality",
    "simulate": "train attention on a problem file by mirror descent",
    "train": "train a transformer on text or images by mirror descent",
    "tune": "choose p and the step size for a task, by validation",
    "audit": "say what each attention head of a model selects, and how well",
    "compare": "put two checkpoints side by side",
    "prune": "set weights of a model to zero, and say what that costs and saves",
    "doctor": "say what is installed and found, and try a solve, a step and a plot",
    "explore": "open a local page that shows what attention selects",
    "bench": "measure speed, as ratios within one run",
}

LASTING = ("reproduce", "train", "tune")
"""Commands that keep what is finished when they are interrupted, and go on from there."""
SILENCE = 0.7
"""Seconds after which a terminal is told that a command is at work."""


class Help(argparse.HelpFormatter):
    """Help that says the default of every option, and in which no word and no default is broken over two lines."""

    def _get_help_string(self, action: argparse.Action) -> str:
        text = action.help or ""
        if not action.option_strings or action.nargs == 0 or action.required or "default: " in text:
            return text
        default = " ".join(map(str, action.default)) if isinstance(action.default, (list, tuple)) else action.default
        return f"{text} (default: {'none' if default in ('', None) else default})"

    def _split_lines(self, text: str, width: int) -> list[str]:
        text = re.sub(r"\(default: ([^() ]{1,12})\)", "(default:\N{NO-BREAK SPACE}\\1)", text)
        return textwrap.wrap(text, width, break_on_hyphens=False, break_long_words=False)


class Parser(argparse.ArgumentParser):
    """An argument parser that ends with one sentence and no usage text."""

    def __init__(self, **options: Any) -> None:
        super().__init__(**{"formatter_class": Help, **options})
        for kind in (str, Path):
            self.register("type", kind, partial(_given, kind))

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"mirrormax: {message.rstrip('.')}; see '{self.prog} --help'.\n")
        raise SystemExit(2)

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> Any:
        """What a command does not know is refused by that command, whose help has its options."""
        known, rest = super().parse_known_args(args, namespace)
        if rest:
            self.error(f"unrecognized arguments: {' '.join(rest)}")
        if not hasattr(known, "parser"):  # the innermost is the first to come here
            known.parser = self
        return known, rest


def _given(kind: Callable[[str], Any], text: str) -> Any:
    """A word or a path of the command line; an empty one, which would be the current folder, is refused."""
    if not text.strip():
        raise argparse.ArgumentTypeError(f"give a name, not {text!r}")
    return kind(text)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    command, args = arguments[0] if arguments else "", None
    wanted = command in COMMANDS and not {"--quiet", "--help", "-h"} & {*arguments}
    try:
        with sign_of_life(command, wanted), terminable(), extra(EXTRAS.get(command)):
            args = build_parser(arguments).parse_args(arguments)
            code: int = args.run(args)
            sys.stdout.flush()
    except BrokenPipeError:  # who reads has seen enough, as head has; Python would flush once more at the end
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 141
    except (OSError, ValueError, MissingExtraError) as error:
        sentence = _reason(error) if isinstance(error, OSError) else str(error)
        sys.stderr.write(f"mirrormax: {sentence if args is None else _in_flags(sentence, args.parser)}\n")
        return 2
    except MemoryError as error:
        reason = " ".join(str(error).split()).rstrip(".") or "out of memory"
        sys.stderr.write(f"mirrormax: this needs more memory than there is ({reason}); choose smaller sizes.\n")
        return 2
    except KeyboardInterrupt as stop:
        how, code = ("terminated", 143) if isinstance(stop, Terminated) else ("interrupted", 130)
        remedy = "give the same command again to start anew"
        if command in LASTING:
            remedy = "what was finished is kept, and the same command goes on from there"
        sys.stderr.write(f"mirrormax: {how}; {remedy}.\n")
    return code


@contextmanager
def sign_of_life(command: str, wanted: bool) -> Iterator[None]:
    """A line on a terminal where a block takes longer than a moment: to load torch takes seconds."""

    def say() -> None:
        sys.stderr.write(f"mirrormax {command}: at work …\n")

    timer = threading.Timer(SILENCE, say)
    timer.daemon = True
    if wanted and sys.stderr.isatty():
        timer.start()
    try:
        yield
    finally:
        timer.cancel()


def _in_flags(sentence: str, parser: argparse.ArgumentParser) -> str:
    """A sentence about arguments of a function as one about the options that were typed: ``lr_v=1`` as ``--lr-v=1``."""
    flags = set(re.findall(r"(?<![\w-])--([\w-]+)", parser.format_help()))

    def flag(match: re.Match[str]) -> str:
        name = match[1].replace("_", "-")
        return f"--{name}{match[2].removesuffix('=True')}" if name in flags else match[0]

    sentence = re.sub(r"^(\w+)((?= must\b| is\b))", flag, sentence)
    return re.sub(r"(?<![\w-])(\w+)(=True\b|=(?=\S))", flag, sentence)


def _reason(error: OSError) -> str:
    """One sentence: our own, or the system's with the file and what to do."""
    if not error.strerror:
        return str(error)
    where = "" if error.filename is None else f": {error.filename}"
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    remedy = "make room on the disk, and start again" if full else "check the path and its permissions"
    return f"{error.strerror}{where}; {remedy}."


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """A parser for this command line: the arguments of the command that its first word names."""
    parser = Parser(prog="mirrormax", description="Mirror descent for attention.")
    parser.add_argument("--version", action="version", version=f"mirrormax {__version__}", help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)
    for name, about in COMMANDS.items():
        command = commands.add_parser(name, help=about, description=about)
        if arguments and arguments[0] == name:
            home = import_module(f"{__name__}.{name}")
            home.add_arguments(command)
            command.set_defaults(run=home.run)
    return parser
