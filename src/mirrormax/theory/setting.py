"""What the theory reads: one problem as tensors, and one recorded run as the sequence W(k) of the paper."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.attention import Loss, as_loss
from mirrormax.attention.problem import blank_padding
from mirrormax.data import Problem
from mirrormax.data.problems import check_alpha
from mirrormax.dynamics import Trajectory
from mirrormax.geometry import Lp, as_potential

Array = npt.NDArray[np.float64]

ProblemLike = Problem | tuple[Any, Any, Any, Any]


class Tensors(NamedTuple):
    """A problem in float64 with blank padding, in the shapes of :mod:`mirrormax.attention.model`."""

    X: Tensor
    y: Tensor
    z: Tensor
    v: Tensor
    mask: Tensor | None


@dataclass(frozen=True)
class Path:
    """The iterates of one ℓp-AttGD run that were recorded, and the settings that made them."""

    steps: npt.NDArray[np.int64]  # (K,)
    W: Tensor  # (K, d, d)
    p: float
    lr: float
    normalize: bool
    loss: Loss

    def pairs(self) -> npt.NDArray[np.intp]:
        """The records whose successor is the next update, not one further on."""
        return np.flatnonzero(np.diff(self.steps) == 1)


def as_problem(problem: ProblemLike) -> Problem:
    """A problem as it is, or the tuple ``(X, y, z, v)`` of arrays or tensors as one."""
    if isinstance(problem, Problem):
        return problem
    if not isinstance(problem, tuple) or len(problem) != 4:
        raise TypeError(f"problem must be a Problem or the tuple (X, y, z, v), got {type(problem).__name__}.")
    X, y, z, v = (_array(part) for part in problem)
    return Problem(X=X, y=y, z=z, v=v)


def chosen_tokens(problem: Problem, alpha: Any) -> npt.NDArray[np.intp]:
    """alpha as given, or that of the problem: one token that is there for every sample, (n,)."""
    if alpha is None and problem.alpha is None:
        raise ValueError("alpha is in neither the call nor the problem; pass the chosen token of every sample.")
    given = problem.alpha if alpha is None else _array(alpha)
    n, T, _ = problem.X.shape
    return check_alpha(given, n, T, problem.mask)


def as_tensors(problem: Problem) -> Tensors:
    """The problem as float64 tensors; what stands at masked tokens is blanked."""
    X, y, z, v = (torch.from_numpy(np.array(part)) for part in (problem.X, problem.y, problem.z, problem.v))
    mask = None if problem.mask is None else torch.from_numpy(np.array(problem.mask))
    return Tensors(blank_padding(X, mask), y, z, v, mask)


def exponent(p: Any) -> float:
    """The number p of the paper's ψ = (1/p)‖·‖_p^p; the theory knows no other potential."""
    potential = as_potential(p)
    if not isinstance(potential, Lp):
        raise ValueError(f"the theory is stated for ψ = (1/p)‖·‖_p^p, got {potential!r}; give a number p > 1.")
    return float(potential.p)


def read_run(run: Trajectory) -> Path:
    """The W(k) of a single run with fixed head, up to where it stopped; refuses what the lemmas do not speak of."""
    if run.batch_shape:
        raise ValueError(f"the lemmas speak of one run, got a batch of shape {run.batch_shape}; pass run[i].")
    config = run.config
    if config.get("train_head") or config.get("factored"):
        raise ValueError(
            "the lemmas speak of ℓp-AttGD in W with a fixed head; simulate without train_head and factors."
        )
    if not isinstance(config.get("lr"), (int, float)):
        raise ValueError(
            f"the run's config must hold one step size lr, got {config.get('lr')!r}; simulate with one lr."
        )
    run = run.numpy()
    if len(run.W) != len(run.steps):
        raise ValueError("the run kept its last weights only; simulate with weights='all'.")
    # Rows after a trial stopped repeat its last iterate under the steps of other trials.
    alive = np.asarray(run.steps) <= int(run.updates)
    return Path(
        steps=np.asarray(run.steps)[alive],
        W=torch.from_numpy(np.array(run.W[alive], dtype=np.float64)),
        p=exponent(json.loads(str(run.potential))),
        lr=float(config["lr"]),
        normalize=bool(config["normalize"]),
        loss=as_loss(config["loss"]),
    )


def _array(value: Any) -> Any:
    return value.detach().cpu().numpy() if isinstance(value, Tensor) else np.asarray(value)
