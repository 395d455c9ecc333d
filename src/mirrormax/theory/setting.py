"""What the theory reads: one problem as tensors, and one recorded run as the sequence W(k) of the paper."""

from __future__ import annotations

import json
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import Loss, Saturated, as_loss, saturated, weight_gradient
from mirrormax.dynamics import Trajectory
from mirrormax.geometry import Lp, Potential, as_potential
from mirrormax.problem import Problem

Array = npt.NDArray[np.float64]


@dataclass(frozen=True)
class Path:
    """The iterates of one ℓp-AttGD run that were recorded, the problem and the settings that made them."""

    data: Problem[Tensor]
    steps: Tensor  # (K,)
    W: Tensor  # (K, d, d)
    p: float
    lr: float
    normalize: bool
    loss: Loss

    @property
    def pairs(self) -> Tensor:
        """The records whose successor is the next update, not one further on."""
        return (self.steps.diff() == 1).nonzero()[:, 0]

    def gradient(self, W: Tensor) -> tuple[Saturated, Tensor, Tensor]:
        """The model at W (..., d, d), ∇L(W)/e^log_scale, and log_scale (...)."""
        data = self.data
        state = saturated(data.X, data.y, data.z, data.v, W, data.mask)
        return state, *weight_gradient(state, data.z, self.loss)

    def step_factor(self, gradient: Tensor, log_scale: Tensor) -> Tensor:
        """η e^log_scale, by which a scaled gradient becomes η∇L: for normalised steps the scale cancels."""
        if not self.normalize:
            return self.lr * log_scale.exp()
        size = Lp(self.p).dual_norm(gradient)
        return self.lr / torch.where(size > 0, size, 1.0)


def one_problem(problem: Problem) -> Problem:
    """The problem in float64 arrays; the theory speaks of one, not of a batch."""
    if problem.batch_shape:
        raise ValueError(f"the theory speaks of one problem, got a batch of shape {problem.batch_shape}.")
    return problem.numpy()


def chosen_tokens(problem: Problem, alpha: ArrayLike | Tensor | None) -> npt.NDArray[np.intp]:
    """alpha as given, or that of the problem: one token that is there for every sample, (n,)."""
    chosen = problem.require("alpha", "the theory") if alpha is None else problem.choosing(alpha).numpy().alpha
    if chosen.ndim > 1:
        raise ValueError(f"alpha must have the shape (n,), one choice of tokens, got {chosen.shape}.")
    return np.asarray(chosen)


def exponent(p: float | Potential) -> float:
    """The number p of the paper's ψ = (1/p)‖·‖_p^p; the theory knows no other potential."""
    potential = as_potential(p)
    if not isinstance(potential, Lp):
        raise ValueError(f"the theory is stated for ψ = (1/p)‖·‖_p^p, got {potential!r}; give a number p > 1.")
    return float(potential.p)


def read_run(problem: Problem, run: Trajectory) -> Path:
    """The W(k) of a single run with a fixed readout, up to where it stopped; what the lemmas do not speak of raises."""
    data = one_problem(problem).tensors()
    if run.batch_shape:
        raise ValueError(f"the lemmas speak of one run, got a batch of shape {run.batch_shape}; pass run[i].")
    config = run.config
    if config.get("train_readout") or config.get("factored"):
        raise ValueError(
            "the lemmas speak of ℓp-AttGD in W with a fixed readout; simulate without train_readout and factors."
        )
    if not isinstance(config.get("lr"), (int, float)):
        raise ValueError(
            f"the run's config must hold one step size lr, got {config.get('lr')!r}; simulate with one lr."
        )
    if config.get("rule", "mirror") != "mirror":
        raise ValueError(f"the lemmas are about mirror descent, and the run has rule={config['rule']!r}.")
    if config.get("batch") is not None or config.get("momentum") or config.get("normalize") == "running":
        raise ValueError(
            "the lemmas are about full batches without momentum, and the run has batches, momentum or a running scale; "
            "simulate without these."
        )
    run = run.numpy()
    if len(run.W) != len(run.steps):
        raise ValueError("the run kept its last weights only; simulate with weights='all'.")
    # Rows after a trial stopped repeat its last iterate under the steps of other trials.
    alive = np.asarray(run.steps) <= int(run.updates)
    return Path(
        data=data,
        steps=torch.from_numpy(np.asarray(run.steps, dtype=np.int64)[alive]),
        W=torch.from_numpy(np.array(run.W[alive], dtype=np.float64)),
        p=exponent(json.loads(str(run.potential))),
        lr=float(config["lr"]),
        normalize=bool(config["normalize"]),
        loss=as_loss(config["loss"]),
    )
