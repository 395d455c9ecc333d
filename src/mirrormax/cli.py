"""The command line. Exit codes: 0 done, 2 bad input (one sentence on stderr), 3 no solution."""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NoReturn

EXPERIMENTS = ("sparsity", "step_size")
BENCHES = ("optimizer", "svm", "dynamics")
MODULES = {
    "simulate": ("mirrormax.dynamics.command", "train attention on a problem file by mirror descent"),
    "svm": ("mirrormax.svm.command", "solve the attention SVM of a problem file, with a proof of optimality"),
}


class Parser(argparse.ArgumentParser):
    """An argument parser that refuses with one sentence and no usage text."""

    def error(self, message: str) -> NoReturn:
        sys.stderr.write(f"mirrormax: {message}; see '{self.prog} --help'.\n")
        raise SystemExit(2)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run a command and return its exit code."""
    arguments = sys.argv[1:] if arguments is None else list(arguments)
    args = build_parser(arguments).parse_args(arguments)
    try:
        code: int = args.run(args)
    except OSError as error:
        reason = f"{error.strerror}: {error.filename}; check the path and its permissions." if error.strerror else error
        sys.stderr.write(f"mirrormax: {reason}\n")
        return 2
    except ValueError as error:
        sys.stderr.write(f"mirrormax: {error}\n")
        return 2
    except ModuleNotFoundError as error:
        if error.name is None or error.name.startswith("mirrormax"):
            raise
        sys.stderr.write(f"mirrormax: this command needs {error.name!r}; pip install 'mirrormax[{args.extra}]'.\n")
        return 2
    except KeyboardInterrupt:
        sys.stderr.write("mirrormax: interrupted; what was finished is kept.\n")
        return 130
    return code


def build_parser(arguments: Sequence[str]) -> argparse.ArgumentParser:
    """A parser for this command line: a command's own module is imported only where it is called."""
    parser = Parser(prog="mirrormax", description="Mirror descent for attention.")
    parser.add_argument("--version", action=Version)
    commands = parser.add_subparsers(dest="command", required=True, metavar="COMMAND", parser_class=Parser)

    reproduce = commands.add_parser("reproduce", help="run experiments and draw their figures")
    reproduce.add_argument(
        "names", nargs="*", metavar="NAME", help=f"some of {', '.join(EXPERIMENTS)}, or all (default)"
    )
    reproduce.add_argument("--out", type=Path, default=Path("results"), help="folder for results (default: results)")
    reproduce.add_argument("--quiet", action="store_true", help="print nothing but errors")
    reproduce.set_defaults(run=run_reproduce, extra="reproduce")

    for name, (module, about) in MODULES.items():
        command = commands.add_parser(name, help=about, description=about)
        if name in arguments:
            home = import_module(module)
            home.add_arguments(command)
            command.set_defaults(run=home.run, extra="reproduce")

    bench = commands.add_parser("bench", help="measure speed, as ratios within one run")
    bench.add_argument("names", nargs="*", metavar="NAME", help=f"some of {', '.join(BENCHES)}, or all (default)")
    bench.set_defaults(run=run_bench, extra="bench")
    return parser


class Version(argparse.Action):
    """``--version``, without importing torch for any other command line."""

    def __init__(self, option_strings: Sequence[str], dest: str) -> None:
        super().__init__(option_strings, dest, nargs=0, help="show the version")

    def __call__(self, parser: argparse.ArgumentParser, *_: Any) -> None:
        from importlib.metadata import version

        print(f"mirrormax {version('mirrormax')}")
        parser.exit()


def chosen(names: Sequence[str], known: Sequence[str]) -> list[str]:
    """The named ones in their usual order; all of them for no name or ``all``."""
    for name in names:
        if name not in (*known, "all"):
            raise ValueError(f"{name!r} is not one of {', '.join(known)} or all; choose from these.")
    return list(known) if not names or "all" in names else [name for name in known if name in names]


def run_reproduce(args: argparse.Namespace) -> int:
    names = chosen(args.names, EXPERIMENTS)
    if args.out.exists() and not args.out.is_dir():
        raise ValueError(f"--out {args.out} is a file; give a folder.")
    from mirrormax.experiments import run_experiment
    from mirrormax.report.figures import draw

    for name in names:
        result = run_experiment(name, args.out / name, _tracker(name, args.quiet))
        paths = draw(name, args.out / name)
        if not args.quiet:
            _print_table(name, result)
            print(paths[-1])
    return 0


def _print_table(title: str, rows: Mapping[str, Mapping[str, float]]) -> None:
    from rich.console import Console
    from rich.table import Table

    table = Table("", *next(iter(rows.values())), title=title, title_justify="left")
    for name, row in rows.items():
        table.add_row(name, *(f"{value:.4g}" for value in row.values()))
    Console().print(table)


def _tracker(name: str, quiet: bool) -> Callable[[Iterable[Any]], Iterable[Any]]:
    from rich.console import Console
    from rich.progress import track

    console = Console(stderr=True, quiet=quiet)
    return lambda items: track(items, description=name, console=console)


def run_bench(args: argparse.Namespace) -> int:
    for name in chosen(args.names, BENCHES):
        import_module(f"mirrormax.bench.{name}").main()
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
