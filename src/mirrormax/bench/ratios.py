"""Ratios: measured on a noisy machine, beside what they depend on, and kept one run per line of a file.

Contestants take turns, and only ratios within a round are believed. A ratio means something only beside the processor
and the instruction set that was dispatched to: general powers cost half as much under AVX-512 as under AVX2, beside the
same sums.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
import re
import statistics
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mirrormax._files import locked, refuse_irregular, refuse_unwritable, replacing

KIND = "mirrormax bench"
FIELDS = {"kind": str, "date": str, "processor": str, "cores": int, "dispatch": dict, "versions": dict, "ratios": dict}
PACKAGES = ("torch", "numpy", "scipy")

Run = dict[str, Any]
Ratios = dict[str, float]
Show = Callable[[str, float, float | None], None]
"""How far a benchmark is: the name of the part, how much of it is done, and of how much."""


def say_nothing(part: str, done: float, total: float | None) -> None:
    """The ``show`` of whoever does not want to know."""


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 2,
    show: Show = say_nothing,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every round runs all of them, one after another.

    For contestants of one thread, ``clock=time.thread_time`` leaves out the time in which others had the processor.
    """
    turns = (warmup + rounds) * len(contestants)
    for k in range(warmup):
        for j, run in enumerate(contestants.values()):
            show("warming up", k * len(contestants) + j, turns)
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for k in range(rounds):
        show("rounds", (warmup + k) * len(contestants), turns)
        for name, run in contestants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def median_ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of how many times as long ``name`` took as ``base``."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def print_ratios(title: str, ratios: Ratios, goals: Mapping[str, float | None] | None = None) -> Ratios:
    """Print a table with the goals where there are some, and return its ratios."""
    print(f"\n{title}\n")
    for name, ratio in ratios.items():
        goal = (goals or {}).get(name)
        print(f"{name:48s} {ratio:9.2f} {'' if goal is None else f'<= {goal:g}':>7s}", flush=True)
    return ratios


def describe(ratios: Mapping[str, Mapping[str, float]]) -> Run:
    """A run of benchmarks with all that its ratios depend on; a ratio that is not finite becomes None."""
    from mirrormax import __version__

    plain = {
        name: {key: float(ratio) if math.isfinite(ratio) else None for key, ratio in each.items()}
        for name, each in ratios.items()
    }
    versions = {"mirrormax": __version__, "python": platform.python_version()}
    return {
        "kind": KIND,
        "date": datetime.now(timezone.utc).isoformat(timespec="seconds"),
        "processor": processor(),
        "cores": os.cpu_count() or 1,
        "dispatch": dispatch(),
        "versions": versions | {package: importlib.metadata.version(package) for package in PACKAGES},
        "ratios": plain,
    }


def processor(cpuinfo: Path = Path("/proc/cpuinfo")) -> str:
    """The model name of the processor, as the system tells it."""
    processor = cpuinfo.read_text("utf-8", "replace") if cpuinfo.is_file() else ""
    name = re.search(r"^model name\s*:\s*(.+)", processor, re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine() or "unknown"


def dispatch() -> dict[str, str | None]:
    """Which code each library chose for this processor; None for a library that is not installed or does not tell."""
    import numpy as np
    import torch

    simd: Any = np.show_config(mode="dicts")
    blas = numba = None
    if find_spec("threadpoolctl") is not None:
        from threadpoolctl import threadpool_info

        blas = next((pool["architecture"] for pool in threadpool_info() if pool.get("architecture")), None)
    if find_spec("llvmlite") is not None:
        from llvmlite.binding import get_host_cpu_name

        numba = get_host_cpu_name()
    return {
        "torch": torch.backends.cpu.get_cpu_capability(),
        "numpy": " ".join((simd or {}).get("SIMD Extensions", {}).get("found", [])) or None,
        "blas": blas,
        "numba": numba,
    }


def read_history(path: Path) -> list[Run]:
    """The runs of a history file, oldest first; ValueError names the first line that is none."""
    if not path.is_file():
        raise FileNotFoundError(f"the history {path} is no file; make one with 'mirrormax bench --append {path}'.")
    try:
        lines = path.read_text("utf-8").splitlines()
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no history of 'mirrormax bench' (it is not UTF-8); give another file.") from error
    runs = []
    for number, line in enumerate(lines, start=1):
        try:
            runs.append(json.loads(line))
        except (ValueError, RecursionError):
            runs.append(None)
        if not _is_run(runs[-1]):
            raise ValueError(f"line {number} of {path} is no run of 'mirrormax bench'; give a file that --append made.")
    return runs


def check_appendable(path: Path) -> None:
    """Raise ValueError or OSError, before anything is measured, for a file that a run must not be appended to."""
    refuse_irregular(path)
    refuse_unwritable(path)
    if path.exists():
        read_history(path)


def append_run(path: Path, run: Run) -> None:
    """Add a run as the last line of a history, all of it or nothing, after whatever others have added meanwhile."""
    with locked(path.with_name(f".{path.name}.lock"), wait=True):
        check_appendable(path)
        before = path.read_text("utf-8").splitlines() if path.exists() else []
        lines = [*before, json.dumps(run, ensure_ascii=False, allow_nan=False)]
        with replacing(path) as temporary:
            temporary.write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")


def comparison(run: Run, history: Sequence[Run]) -> str:
    """Each ratio of a run beside that of the newest one that measured the same, of this processor if there is one."""
    comparable = [old for old in history if run["ratios"].keys() & old["ratios"].keys()]
    if not comparable:
        return "The history has no run of these benchmarks."
    ours = [old for old in comparable if all(old[name] == run[name] for name in ("processor", "dispatch"))]
    old = max(ours or comparable, key=lambda each: each["date"])
    whose = "of this processor" if ours else "OF ANOTHER PROCESSOR, since there is none of this one"
    lines = [
        f"Beside the newest run {whose}: {old['date']}, mirrormax {old['versions'].get('mirrormax', 'unknown')}",
        *(_machine(when, each) for when, each in (("then", old), ("now ", run))),
        f"\n{'ratio':48s} {'now':>9s} {'then':>9s} {'now/then':>9s}",
    ]
    for name, ratios in run["ratios"].items():
        before = old["ratios"].get(name, {})
        for key, now in ratios.items():
            then = before.get(key)
            change = None if not now or not then else now / then
            lines.append(f"{f'{name}: {key}':48s} {_cell(now)} {_cell(then)} {_cell(change)}")
    return "\n".join(lines)


def _is_run(run: Any) -> bool:
    if not isinstance(run, dict) or not all(isinstance(run.get(name), kind) for name, kind in FIELDS.items()):
        return False
    tables = run["ratios"].values()
    ratios = [ratio for table in tables if isinstance(table, dict) for ratio in table.values() if ratio is not None]
    are_finite = all(isinstance(ratio, int | float) and math.isfinite(ratio) for ratio in ratios)
    return run["kind"] == KIND and all(isinstance(table, dict) for table in tables) and are_finite


def _machine(when: str, run: Run) -> str:
    levels = [f"{name} {level}" for name, level in run["dispatch"].items() if level]
    return f"  {when} {', '.join([run['processor'], *levels])}"


def _cell(value: float | None) -> str:
    return f"{'—' if value is None else f'{value:.3g}':>9s}"
