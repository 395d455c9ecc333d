"""The command line. Exit codes: 0 done, 2 bad input (one sentence on stderr), 3 no solution."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import NoReturn

from mirrormax import __version__

EXPERIMENTS = (
    *("fig1", "fig2", "fig3", "fig4", "fig5", "fig6", "fig7", "table1", "fig8", "fig9", "vit"),
    *("thm1", "thm4", "thm5", "sparsity", "step_size"),
)
BENCHES = ("optimizer", "svm", "dynamics", "training", "explorer")
BENCHES_ON_DATA = ("training",)
MODULES = {
    "svm": ("mirrormax.svm.command", "solve the attention SVM of a problem file, with a proof of optimality"),
    "simulate": ("mirrormax.dynamics.command", "train attention on a problem file by mirror descent"),
    "train": ("mirrormax.training.command", "train a transformer on text or images by mirror descent"),
    "tune": ("mirrormax.tuning.command", "choose p and the step size for a task, by validation"),
    "audit": ("mirrormax.report.audit.command", "say what each attention head of a model selects, and how well"),
    "compare": ("mirrormax.report.audit.compare_command", "put two checkpoints side by side"),
    "doctor": ("mirrormax.doctor", "say what is installed and found, and try a solve, a step and a plot"),
    "explore": ("mirrormax.app.command", "open a local page that shows what attention selects"),
}
EXTRAS: dict[str, str | None] = dict.fromkeys(("reproduce", "train", "tune", "audit", "explore", "bench")) | {
    "compare": "audit"
}
"""What a command needs beyond the core; None where the extra has its name."""


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses with one sentence and no usage text."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"mirrormax: {message}; see '{self.prog} --help'.\n")
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    try:
        args = build_parser(arguments).parse_args(arguments)
        code: int = args.run(args)
    except OSError as error:
        sys.stderr.write(f"mirrormax: {_reason(error)}\n")
        return 2
    except ValueError as error:
        sys.stderr.write(f"mirrormax: {error}\n")
        return 2
    except MemoryError as error:
        reason = " ".join(str(error).split()).rstrip(".") or "out of memory"
        sys.stderr.write(f"mirrormax: this needs more memory than there is ({reason}); choose smaller sizes.\n")
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mirrormax"):
            raise
        extra = next((EXTRAS[word] or word for word in arguments if word in EXTRAS), "reproduce")
        sys.stderr.write(f"mirrormax: this command needs {error.name!r}; pip install 'mirrormax[{extra}]'.\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("mirrormax: interrupted; what was finished is kept.\n")
        return 130
    return code


def _reason(error: OSError) -> str:
    """One sentence: our own, or the system's with the file and what to do."""
    if not error.strerror:
        return str(error)
    where = "" if error.filename is None else f": {error.filename}"
    full = error.errno in (errno.ENOSPC, errno.EFBIG, errno.EDQUOT)
    remedy = "make room on the disk, and start again" if full else "check the path and its permissions"
    return f"{error.strerror}{where}; {remedy}."


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """A parser for this command line: a command's own module is imported only where it is called."""
    parser = Parser(prog="mirrormax", description="Mirror descent for attention.")
    parser.add_argument("--version", action="version", version=f"mirrormax {__version__}", help="show the version")
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    reproduce = commands.add_parser("reproduce", help="make the paper's figures again, with a report")
    _add_reproduce(reproduce)
    reproduce.set_defaults(run=run_reproduce)

    for name, (module, about) in MODULES.items():
        command = commands.add_parser(name, help=about, description=about)
        if name in arguments:
            home = import_module(module)
            home.add_arguments(command)
            command.set_defaults(run=home.run)

    bench = commands.add_parser("bench", help="measure speed, as ratios within one run")
    bench.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)}, or all (default)")
    bench.add_argument("--data-dir", type=Path, default=None, help="folder with data files (default: $MIRRORMAX_DATA)")
    bench.set_defaults(run=run_bench)
    return parser


def _add_reproduce(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(EXPERIMENTS)}, or all (default)")
    parser.add_argument(
        "--profile",
        choices=("quick", "small", "paper"),
        default="quick",
        help="minutes; hours, for the trained models; or as long as the paper's",
    )
    parser.add_argument("--out", type=Path, default=Path("results"), help="folder for results (default: results)")
    parser.add_argument("--data-dir", type=Path, default=None, help="folder with data files, for experiments with any")
    parser.add_argument("--force", action="store_true", help="run again what is finished")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="processes to use (default: one a core)")
    parser.add_argument(
        "--backend", choices=("loky", "dask"), default="loky", help="local processes, or a dask cluster"
    )
    parser.add_argument("--scheduler", default=None, metavar="ADDRESS", help="of the dask cluster, tcp://host:port")
    parser.add_argument("--quiet", action="store_true", help="print nothing but errors")


def chosen(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named ones in their usual order; all of them for no name or ``all``."""
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"{name!r} is not one of {', '.join(known)} or all; choose from these.")
    return list(known) if not names or "all" in names else [name for name in known if name in names]


def run_reproduce(args: argparse.Namespace) -> int:
    names = chosen(args.names, EXPERIMENTS)
    from mirrormax.report.command import run

    return run(names, args)


def run_bench(args: argparse.Namespace) -> int:
    names = chosen(args.names, BENCHES)
    if args.data_dir is not None and not args.data_dir.is_dir():
        raise ValueError(f"--data-dir {args.data_dir} is not a folder; give one that exists.")
    for name in names:
        options = {"data_dir": args.data_dir} if name in BENCHES_ON_DATA else {}
        import_module(f"mirrormax.bench.{name}").main(**options)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
