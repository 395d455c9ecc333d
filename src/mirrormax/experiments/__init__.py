"""Experiments: each module has a ``Config``, a ``run`` that makes arrays of it, and a ``summary``."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import asdict
from importlib import import_module
from pathlib import Path
from typing import Any

import mirrormax
from mirrormax._files import save_arrays, save_json

EXPERIMENTS = ("sparsity", "step_size")


def run_experiment(
    name: str, folder: Path, track: Callable[[Iterable[Any]], Iterable[Any]] = lambda items: items
) -> dict[str, Any]:
    """Run one experiment and leave ``data.npz``, ``summary.json`` and ``config.json`` in ``folder``."""
    module = import_module(f"mirrormax.experiments.{name}")
    config = module.Config()
    data = module.run(config, track)
    result: dict[str, Any] = module.summary(data)
    save_arrays(folder / "data.npz", **data)
    save_json(folder / "summary.json", result)
    save_json(folder / "config.json", {"experiment": name, "version": mirrormax.__version__, **asdict(config)})
    return result
