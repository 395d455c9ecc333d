"""Problems that the tests of the dynamics share."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import numpy as np

from mirrormax.data import sphere_problem
from mirrormax.dynamics import SimulationOptions


def sphere_batch(trials: int, **sizes: int) -> tuple[Any, Any, Any, Any]:
    """X, y, z, v of the paper's synthetic data, seeds 0, 1, ..."""
    problems = [sphere_problem(seed, **sizes) for seed in range(trials)]
    X, y, z, v = (np.stack([getattr(problem, name) for problem in problems]) for name in ("X", "y", "z", "v"))
    return X, y, z, v


def ragged_mask(*shape: int, seed: int = 0) -> Any:
    """True for at least one of the last tokens of every sequence, never only for the first ones."""
    lengths = np.random.default_rng(seed).integers(1, shape[-1] + 1, shape[:-1])
    return np.arange(shape[-1])[::-1] < lengths[..., None]


def settings(**given: Any) -> dict[str, Any]:
    """Arguments of ``simulate``, those that are options among them put where they belong."""
    names = {field.name for field in fields(SimulationOptions)}
    options = {name: value for name, value in given.items() if name in names}
    return {name: value for name, value in given.items() if name not in names} | {
        "options": SimulationOptions(**options)
    }
