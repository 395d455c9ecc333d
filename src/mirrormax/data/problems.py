"""Token-selection problems: as files, and made up.

A problem file holds tokens X (n, T, d), labels y (n,) of ±1, queries z (n, d), a readout v (d,), and optionally the
chosen tokens alpha (n,) and a mask (n, T) that is True where a token is present.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from mirrormax._checks import as_path, integer, number
from mirrormax._files import save_arrays
from mirrormax.data.files import read_npz
from mirrormax.problem import Problem

Array = npt.NDArray[np.float64]

REQUIRED = ("X", "y", "z", "v")
OPTIONAL = ("alpha", "mask")


def load_problem(path: str | Path) -> Problem:
    """Read a problem from an ``.npz`` file with arrays X, y, z, v and optionally alpha and mask."""
    arrays, known = read_npz(path), {name.lower(): name for name in (*REQUIRED, *OPTIONAL)}
    for name in REQUIRED:
        if name not in arrays:
            raise ValueError(f"the problem file {path} has no array {name!r}; it must hold X, y, z and v.")
    for name in arrays:
        # A misspelt alpha that nobody reads would change the problem without a word.
        meant = known.get(name.lower(), name)
        if name != meant:
            raise ValueError(f"the problem file {path} has an array {name!r}; did you mean {meant!r}?")
    try:
        problem = Problem(**{name: arrays[name] for name in known.values() if name in arrays})
    except (TypeError, ValueError) as error:
        raise ValueError(f"the problem file {path} is not a problem: {error}") from error
    if problem.batch_shape:
        raise ValueError(
            f"the problem file {path} is not a problem: it holds a batch of shape {problem.batch_shape}; save each "
            "problem to a file of its own."
        )
    return problem


def save_problem(path: str | Path, problem: Problem) -> None:
    """Write a problem, as an ``.npz`` file, so that :func:`load_problem` reads it back bit for bit."""
    if not isinstance(problem, Problem):
        raise TypeError(f"problem must be a Problem, got {type(problem).__name__}; call save_problem(path, problem).")
    if as_path("path", path).suffix != ".npz":
        raise ValueError(f"path must end in .npz, got {str(path)!r}: load_problem reads such files alone.")
    for name in REQUIRED:
        problem.require(name, "save_problem")
    if problem.batch_shape:
        raise ValueError(f"save_problem writes one problem, got a batch of shape {problem.batch_shape}.")
    fields = {name: getattr(problem.numpy(), name) for name in (*REQUIRED, *OPTIONAL)}
    save_arrays(Path(path), **{name: value for name, value in fields.items() if value is not None})


def sphere_problem(seed: int = 0, n: int = 6, T: int = 8, d: int = 10) -> Problem:
    """The paper's synthetic data: tokens, queries and head uniform on the unit sphere, labels uniform ±1."""
    rng = np.random.default_rng(integer("seed", seed, at_least=0))
    n, T, d = _sizes(n=n, T=T, d=d)
    X, z, v = _on_sphere(rng, n, T, d), _on_sphere(rng, n, d), _on_sphere(rng, d)
    return Problem(X=X, z=z, v=v, y=rng.choice([-1.0, 1.0], n))


def _sizes(**sizes: int) -> list[int]:
    return [integer(name, size, at_least=1) for name, size in sizes.items()]


def _on_sphere(rng: np.random.Generator, *shape: int) -> Array:
    """Points uniform on the unit sphere."""
    points = rng.standard_normal(shape)
    unit: Array = points / np.linalg.norm(points, axis=-1, keepdims=True)
    return unit


class ClassProblem(NamedTuple):
    """Samples of several classes, and a readout for each head: the first arguments of ``simulate_heads``."""

    X: Array  # (n, T, d)
    y: npt.NDArray[np.int64]  # (n,) in 0, …, C − 1
    z: Array  # (n, d)
    V: Array  # (H, C, d)


def class_problem(
    seed: int = 0, n: int = 6, T: int = 8, d: int = 10, *, classes: int = 3, heads: int = 1, size: float = 1.0
) -> ClassProblem:
    """Tokens, queries and the rows of readouts uniform on the sphere, those rows of norm ``size``; labels uniform."""
    rng = np.random.default_rng(integer("seed", seed, at_least=0))
    size = number("size", size, above=0)
    n, T, d, classes, heads = _sizes(n=n, T=T, d=d, classes=classes, heads=heads)
    X, y, z = _on_sphere(rng, n, T, d), rng.integers(0, classes, n), _on_sphere(rng, n, d)
    return ClassProblem(X, y, z, size * _on_sphere(rng, heads, classes, d))


def example1() -> Problem:
    """Example 1 of the paper: n = T = d = 2, the first tokens chosen, z_i = x_i1.

    The paper prints its p = 2 solution (25, −5)/650 as that of p = 3, which is (.03672, −.01642). It gives no
    head; v = (1, 0) makes the first tokens the best ones.
    """
    X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]])
    return Problem(X=X, y=np.array([1.0, -1.0]), z=X[:, 0], v=np.array([1.0, 0.0]), alpha=np.array([0, 0]))


def example2() -> Problem:
    """Example 2 of the paper as printed: n = 2, T = 3, d = 2, z_i = x_i1, v trained from zero.

    The authors' own runs used these tokens divided by 2, which changes no selected token.
    """
    X = np.array([[[-5.4, 2.4], [2.8, 4.2], [2.6, -0.2]], [[0.8, -4.4], [-2.2, -0.8], [1.8, 0.2]]])
    return Problem(X=X, y=np.array([1.0, -1.0]), z=X[:, 0], v=np.zeros(2))
