"""``mirrormax doctor``: what is installed and found here, and whether a solve, a step and a plot work."""

from __future__ import annotations

import argparse
import importlib.metadata
import os
import platform
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import mirrormax
from mirrormax._drawing import house_style, row_of_axes, save
from mirrormax._extras import install

MISSING = "—"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--data-dir", type=Path, help="folder with data files (default: $MIRRORMAX_DATA)")


def run(args: argparse.Namespace) -> int:
    """Print the findings; 0 if every check went well, else 1."""
    folder = mirrormax.data.resolve_data_dir(args.data_dir)
    for title, lines in (("versions", versions()), ("devices", devices()), ("data", data(folder))):
        print(title)
        for name, finding in lines:
            print(f"  {name:<22} {finding}")
    print("checks")
    well = True
    for name, check in CHECKS.items():
        try:
            outcome = f"ok, {check()}"
        except ModuleNotFoundError as error:
            outcome = f"{MISSING} needs {error.name}"
        except Exception as error:  # whatever goes wrong here is the finding
            well, outcome = False, f"FAILED: {type(error).__name__}: {' '.join(str(error).split())}"
        print(f"  {name:<22} {outcome}")
    return 0 if well else 1


def versions() -> Iterator[tuple[str, str]]:
    """Python, mirrormax, and every package that this one or an extra for users needs, or the extra that brings it."""
    yield "python", f"{platform.python_version()} on {platform.system()} {platform.machine()}"
    yield "mirrormax", mirrormax.__version__
    extras: dict[str, str] = {}
    for requirement in importlib.metadata.requires("mirrormax") or ():
        package, marker = re.match(r"[\w.-]+", requirement), re.search(r"extra == .(\w+)", requirement)
        extra = marker[1] if marker else "core"
        if package and package[0] != "mirrormax" and extra not in ("dev", "docs"):
            extras.setdefault(package[0], extra)
    for package_name, extra in extras.items():
        try:
            yield package_name, importlib.metadata.version(package_name)
        except importlib.metadata.PackageNotFoundError:
            yield package_name, f"{MISSING} {install(extra)}"


def devices() -> Iterator[tuple[str, str]]:
    """What torch can compute on."""
    import torch

    yield "cores", f"{os.cpu_count()}, torch uses {torch.get_num_threads()}"
    accelerator = torch.accelerator.current_accelerator() if hasattr(torch, "accelerator") else None
    yield "accelerator", f"{accelerator}, {torch.accelerator.device_count()} of them" if accelerator else MISSING


def data(folder: Path | None) -> Iterator[tuple[str, str]]:
    """Which data sets are found."""
    yield "data folder", str(folder) if folder is not None else f"{MISSING} give --data-dir or set MIRRORMAX_DATA"
    known = {"IMDb": ("imdb", "aclImdb"), "CIFAR-10": ("cifar-10-batches-bin",), "CIFAR-100": ("cifar-100-binary",)}
    for name, places in known.items():
        there = [place for place in places if folder is not None and (folder / place).is_dir()]
        yield name, there[0] if there else MISSING
    try:
        yield "packaged reviews", str(mirrormax.data.reviews_file())
    except FileNotFoundError as error:
        yield "packaged reviews", f"{MISSING} {error}"


def solve() -> str:
    """An attention SVM with its certificate."""
    problem = mirrormax.data.sphere_problem(seed=0)
    solution = mirrormax.att_svm(problem, problem.best_tokens(), p=1.75)
    return f"margin {float(solution.margin):.4f}, gap {float(solution.gap):.1e}"


def step() -> str:
    """A step of the optimizer against the formula."""
    import torch

    w = torch.nn.Parameter(torch.tensor([0.5, -0.25]))
    w.grad = torch.tensor([1.0, 1.0])
    mirrormax.MirrorDescent([w], lr=0.1, p=1.5).step()
    expected = torch.tensor([0.5**0.5 - 0.1, -(0.25**0.5) - 0.1])
    torch.testing.assert_close(w.detach(), expected * expected.abs(), rtol=0, atol=1e-6)
    return "as the formula has it"


def plot() -> str:
    """A figure in the house style."""
    with tempfile.TemporaryDirectory() as folder, house_style():
        fig, (ax,) = row_of_axes(1)
        ax.plot([0, 1], [0, 1])
        return f"{save(fig, Path(folder), 'plot')[1].stat().st_size} bytes of PNG"


CHECKS: dict[str, Callable[[], str]] = {"a solve": solve, "a step": step, "a plot": plot}
