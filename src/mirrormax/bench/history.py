"""Measured ratios as plain data: what machine they were measured on, and the file that keeps one run per line.

A ratio means something only beside the processor and the instruction set that was dispatched to: general powers cost
half as much under AVX-512 as under AVX2, beside the same sums.
"""

from __future__ import annotations

import importlib.metadata
import json
import math
import os
import platform
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime, timezone
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from mirrormax._files import locked, refuse_irregular, replacing

KIND = "mirrormax bench"
FIELDS = {"kind": str, "date": str, "processor": str, "cores": int, "dispatch": dict, "versions": dict, "ratios": dict}
PACKAGES = ("torch", "numpy", "scipy")

Ratios = dict[str, float]
Run = dict[str, Any]


def describe(ratios: Mapping[str, Mapping[str, float]]) -> Run:
    """A run of benchmarks with all that its ratios depend on; a ratio that is not finite becomes None."""
    from mirrormax import __version__

    plain = {name: {key: _plain(ratio) for key, ratio in each.items()} for name, each in ratios.items()}
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
    try:
        lines = cpuinfo.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        lines = []
    names = (line.partition(":")[2].strip() for line in lines if line.startswith("model name"))
    return next(filter(None, names), platform.processor() or platform.machine() or "unknown")


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
    return list(_runs(_text(path), path))


def check_appendable(path: Path) -> None:
    """Raise ValueError or OSError, before anything is measured, for a file that a run must not be appended to."""
    refuse_irregular(path)
    if not path.parent.is_dir():
        raise FileNotFoundError(f"cannot write {path}: the directory {path.parent} does not exist; create it first.")
    if path.exists():
        read_history(path)


def append_run(path: Path, run: Run) -> None:
    """Add a run as the last line of a history, all of it or nothing, after whatever others have added meanwhile."""
    with locked(path.with_name(f".{path.name}.lock"), wait=True):
        check_appendable(path)
        before = _text(path) if path.exists() else ""
        if before and not before.endswith("\n"):
            before += "\n"
        with replacing(path) as temporary:
            temporary.write_text(before + json.dumps(run, ensure_ascii=False, allow_nan=False) + "\n", encoding="utf-8")


def comparison(run: Run, history: Sequence[Run]) -> str:
    """Each ratio of a run beside that of the newest one that measured the same, of this processor if there is one."""
    comparable = [old for old in history if run["ratios"].keys() & old["ratios"].keys()]
    if not comparable:
        return "The history has no run of these benchmarks."
    ours = [old for old in comparable if _kind(old) == _kind(run)]
    old = max(ours or comparable, key=lambda each: each["date"])
    whose = "of this processor" if ours else "OF ANOTHER PROCESSOR, since there is none of this one"
    lines = [
        f"Beside the newest run {whose}: {old['date']}, mirrormax {old['versions'].get('mirrormax', 'unknown')}",
        *(f"  {when} {each['processor']}, {_levels(each)}" for when, each in (("then", old), ("now ", run))),
        f"\n{'ratio':48s} {'now':>9s} {'then':>9s} {'now/then':>9s}",
    ]
    for name, ratios in run["ratios"].items():
        before = old["ratios"].get(name, {})
        for key, now in ratios.items():
            then = before.get(key)
            change = None if not now or not then else now / then
            lines.append(f"{f'{name}: {key}':48s} {_cell(now)} {_cell(then)} {_cell(change)}")
    return "\n".join(lines)


def _text(path: Path) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path} is no history of 'mirrormax bench' (it is not UTF-8); give another file.") from error


def _runs(text: str, path: Path) -> Iterator[Run]:
    for number, line in enumerate(text.splitlines(), start=1):
        try:
            run = json.loads(line)
        except (ValueError, RecursionError):
            run = None
        if not _is_run(run):
            raise ValueError(f"line {number} of {path} is no run of 'mirrormax bench'; give a file that --append made.")
        yield run


def _is_run(run: Any) -> bool:
    if not isinstance(run, dict) or run.get("kind") != KIND:
        return False
    if not all(isinstance(run.get(name), kind) for name, kind in FIELDS.items()):
        return False
    tables = run["ratios"].values()
    return all(isinstance(table, dict) and all(map(_is_ratio, table.values())) for table in tables)


def _is_ratio(value: Any) -> bool:
    return value is None or (isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value))


def _plain(ratio: float) -> float | None:
    return float(ratio) if math.isfinite(ratio) else None


def _kind(run: Run) -> tuple[str, dict[str, Any]]:
    return run["processor"], run["dispatch"]


def _levels(run: Run) -> str:
    return ", ".join(f"{name} {level}" for name, level in run["dispatch"].items() if level)


def _cell(value: float | None) -> str:
    return f"{'—' if value is None else f'{value:.3g}':>9s}"
