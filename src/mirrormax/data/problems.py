"""Token-selection problems: as files, and made up.

A problem is tokens X (n, T, d), labels y (n,) of ±1, queries z (n, d), a head v (d,), and optionally the
chosen tokens alpha (n,) and a mask (n, T) that is True where a token is present.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.data.npz import read_npz, write_npz

Array = npt.NDArray[np.float64]

REQUIRED = ("X", "y", "z", "v")
OPTIONAL = ("alpha", "mask")


@dataclass(frozen=True, eq=False)
class Problem:
    """One token-selection problem; see the module's description for shapes. Checked when made."""

    X: Array
    y: Array
    z: Array
    v: Array
    alpha: npt.NDArray[np.intp] | None = None
    mask: npt.NDArray[np.bool_] | None = None

    def __post_init__(self) -> None:
        for name in REQUIRED:
            object.__setattr__(self, name, _numbers(getattr(self, name), name))
        _check_shapes(self.X, self.y, self.z, self.v)
        n, T, _ = self.X.shape
        if self.mask is not None:
            object.__setattr__(self, "mask", _mask(self.mask, n, T))
        if self.alpha is not None:
            object.__setattr__(self, "alpha", check_alpha(self.alpha, n, T, self.mask))

    def scores(self) -> Array:
        """Token scores γ_it = y_i vᵀx_it, (n, T); −inf where the mask leaves a token out."""
        scores: Array = self.y[:, None] * (self.X @ self.v)
        return scores if self.mask is None else np.where(self.mask, scores, -np.inf)

    def best_tokens(self) -> npt.NDArray[np.intp]:
        """The token of each sample with the highest score, (n,); ties are refused, naming the sample."""
        scores = self.scores()
        best = scores.argmax(axis=1)
        tied = (scores == scores.max(axis=1, keepdims=True)).sum(axis=1) > 1
        if tied.any():
            sample = int(np.flatnonzero(tied)[0])
            raise ValueError(f"sample {sample} has more than one token with the highest score; give alpha instead.")
        return np.asarray(best)


def load_problem(path: str | Path) -> Problem:
    """Read a problem from an ``.npz`` file with arrays X, y, z, v and optionally alpha and mask."""
    arrays = read_npz(path)
    known = (*REQUIRED, *OPTIONAL)
    for name in REQUIRED:
        if name not in arrays:
            raise ValueError(f"the problem file {path} has no array {name!r}; it must hold X, y, z and v.")
    for name in arrays:
        # A misspelt alpha that nobody reads would change the problem without a word.
        if name not in known and name.lower() in {k.lower() for k in known}:
            meant = next(k for k in known if k.lower() == name.lower())
            raise ValueError(f"the problem file {path} has an array {name!r}; did you mean {meant!r}?")
    try:
        return Problem(**{name: arrays[name] for name in known if name in arrays})
    except ValueError as error:
        raise ValueError(f"the problem file {path} is not a problem: {error}") from error


def save_problem(path: str | Path, problem: Problem) -> None:
    """Write a problem so that :func:`load_problem` reads it back bit for bit."""
    fields = {name: getattr(problem, name) for name in (*REQUIRED, *OPTIONAL)}
    write_npz(path, {name: value for name, value in fields.items() if value is not None})


def sphere_problem(seed: int, n: int = 6, T: int = 8, d: int = 10) -> Problem:
    """The paper's synthetic data: tokens, queries and head uniform on the unit sphere, labels uniform ±1."""
    rng = np.random.default_rng(seed)

    def sphere(*shape: int) -> Array:
        points = rng.standard_normal((*shape, d))
        unit: Array = points / np.linalg.norm(points, axis=-1, keepdims=True)
        return unit

    return Problem(X=sphere(n, T), z=sphere(n), v=sphere(), y=rng.choice([-1.0, 1.0], n))


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


def _check_shapes(X: Array, y: Array, z: Array, v: Array) -> None:
    if X.ndim != 3 or 0 in X.shape:
        raise ValueError(f"X must have shape (n, T, d) with something in it, got {X.shape}.")
    n, _, d = X.shape
    for name, array, shape in (("y", y, (n,)), ("z", z, (n, d)), ("v", v, (d,))):
        if array.shape != shape:
            raise ValueError(f"{name} must have shape {shape} to go with X {X.shape}, got {array.shape}.")
    if (np.abs(y) != 1).any():
        raise ValueError(f"y must hold labels -1 and 1, got {y[np.abs(y) != 1][0]:g}.")


def _numbers(value: Any, name: str) -> Array:
    array = np.asarray(value)
    if array.dtype.kind not in "fiu":
        raise ValueError(f"{name} must hold real numbers, got dtype {array.dtype}.")
    array = array.astype(np.float64)
    if not np.isfinite(array).all():
        raise ValueError(f"{name} holds {array[~np.isfinite(array)][0]}; every number must be finite.")
    return array


def _mask(value: Any, n: int, T: int) -> npt.NDArray[np.bool_]:
    mask = np.asarray(value)
    if mask.dtype != np.bool_ or mask.shape != (n, T):
        raise ValueError(f"mask must be booleans of shape {(n, T)}, got {mask.dtype} of shape {mask.shape}.")
    if not mask.any(axis=1).all():
        raise ValueError(f"mask leaves sample {int(np.flatnonzero(~mask.any(axis=1))[0])} without a token.")
    return mask


def check_alpha(value: Any, n: int, T: int, mask: npt.NDArray[np.bool_] | None) -> npt.NDArray[np.intp]:
    """One integer a sample, each a token that is there."""
    alpha = np.asarray(value)
    if alpha.dtype.kind not in "iu" or alpha.shape != (n,):
        raise ValueError(f"alpha must be integers of shape {(n,)}, got {alpha.dtype} of shape {alpha.shape}.")
    alpha = alpha.astype(np.intp)
    if ((alpha < 0) | (alpha >= T)).any():
        wrong = int(np.flatnonzero((alpha < 0) | (alpha >= T))[0])
        raise ValueError(f"alpha is {alpha[wrong]} at sample {wrong}, but X has T = {T} tokens; use 0 to {T - 1}.")
    if mask is not None and not mask[np.arange(n), alpha].all():
        wrong = int(np.flatnonzero(~mask[np.arange(n), alpha])[0])
        raise ValueError(f"alpha is {alpha[wrong]} at sample {wrong}, a token that mask leaves out.")
    return alpha
