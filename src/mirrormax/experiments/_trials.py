"""Batches of random problems of the paper's size, and the max-margin weights their runs are measured against."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.attention import is_locally_optimal
from mirrormax.data import class_problem, sphere_problem
from mirrormax.dynamics import SimulationOptions
from mirrormax.experiments._measurements import Arrays
from mirrormax.problem import Problem
from mirrormax.svm import att_svm

Floats = npt.NDArray[np.float64]
PARTS = ("X", "y", "z", "v")
# For few trials of many steps: other experiments have the kernel compiled.
KERNEL = SimulationOptions(backend="numba" if find_spec("numba") else "auto")
LAST = SimulationOptions(weights="last")  # for runs of which only the end is looked at
SETTLED = np.log(1e-6)  # of the attention that unselected tokens may keep in a run that has settled


@dataclass(frozen=True)
class Size:
    """The part of a configuration that says how large random problems are, by default as the paper's."""

    n: int = 6
    T: int = 8
    d: int = 10
    seed: int = 0

    def drawn(self, which: Sequence[int]) -> Problem[Floats]:
        """These problems, counted from the seed."""
        made = [sphere_problem(self.seed + k, self.n, self.T, self.d) for k in which]
        return Problem(**{name: np.stack([getattr(problem, name) for problem in made]) for name in PARTS})


@dataclass(frozen=True)
class Problems(Size):
    """The same for as many problems."""

    problems: int = 20

    def batch(self) -> Problem[Floats]:
        """All of them."""
        return self.drawn(range(self.problems))


def some(problem: Problem[Floats], which: Any) -> Problem[Floats]:
    """Those of a batch at these places."""
    return Problem(**{name: getattr(problem, name)[which] for name in PARTS})


def class_problems(config: Problems, classes: int, heads: int = 1) -> tuple[Any, Any, Any, Any, Any]:
    """X, y, z, V (2B, H, C, d) and starts W0: zero, and for the same problems again N(0, 1)."""
    seeds = range(config.seed, config.seed + config.problems)
    made = [class_problem(seed, config.n, config.T, config.d, classes=classes, heads=heads) for seed in seeds]
    X, y, z, V = (np.concatenate([np.stack(part)] * 2) for part in zip(*made, strict=True))
    normal = np.random.default_rng(config.seed).standard_normal((config.problems, heads, config.d, config.d))
    return X, y, z, V, np.concatenate([np.zeros_like(normal), normal])


def max_margin(problem: Problem[Floats], alpha: Any, p: float | None = None, **norm: Any) -> Floats:
    """The attention SVM's weights (B, d, d) for these tokens (B, n); NaN where none separate them."""
    return solved(att_svm(problem, alpha, p=p, throw=False, **norm))


def solved(solution: Any) -> Floats:
    """The weights of a solution, NaN where there is none."""
    weights: Floats = np.where(np.asarray(solution.optimal)[..., None, None], solution.W, np.nan)
    return weights


def locally_optimal(problem: Problem[Floats], alpha: Any, W: Floats) -> npt.NDArray[np.bool_]:
    """Whether these tokens (B, n) are locally optimal, given their max-margin weights (B, d, d)."""
    known: Any = np.isfinite(W).all(axis=(-1, -2))
    weights: Any = np.where(known[:, None, None], W, 1.0)
    return np.asarray(is_locally_optimal(problem, alpha=alpha, W=weights).optimal & known)


def stacked(parts: Sequence[Arrays], *shape: int, prefix: str = "") -> Arrays:
    """The arrays of all parts by their names, along a first axis, or along as many as ``shape`` has."""
    each = {f"{prefix}{name}": np.stack([part[name] for part in parts]) for name in parts[0]}
    return {name: whole.reshape(*(shape or (len(parts),)), *whole.shape[1:]) for name, whole in each.items()}


def by_p(ps: Sequence[float], parts: Sequence[Arrays]) -> Arrays:
    """The arrays of a part for each p, under ``name/p``."""
    return {f"{name}/{p:g}": array for p, part in zip(ps, parts, strict=True) for name, array in part.items()}


def blocks(count: int, size: int) -> list[tuple[int, ...]]:
    """0, …, count − 1 in pieces of ``size``, the same ones whoever works on them."""
    return [tuple(range(start, min(start + size, count))) for start in range(0, count, size)]


def log_grid(steps: int, points: int, *marks: int) -> npt.NDArray[np.int64]:
    """Steps from 0 to ``steps`` at about equal ratios, with the ``marks`` that are in reach among them."""
    grid = np.rint(np.geomspace(1, max(steps, 1), points)).astype(np.int64)
    kept = [0, steps, *(mark for mark in marks if mark <= steps)]
    return np.unique(np.concatenate([grid.clip(max=steps), np.array(kept, dtype=np.int64)]))
