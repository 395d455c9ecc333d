"""The loop of ℓp-AttGD and ℓp-JointGD on tensors: every trial of the batch at once, on any device.

    u ← u − η g/‖g‖_*   (or u − η g, plain),      w ← ∇ψ*(u)

for each trained w among W, or K and Q with W = K Qᵀ, and the head v. The state is the dual variable u,
so no step makes a round trip. Gradients come divided by e^log_scale, with log_scale beside them: a
normalised step never multiplies by it, and so is exact however far the attention has saturated.
"""

from __future__ import annotations

import functools
import operator
from collections.abc import Iterable
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from mirrormax._parallel import single_threaded_tensors
from mirrormax.attention import Loss, Saturated, ScaledGradient, head_gradient_of, saturated, weight_gradient
from mirrormax.dynamics.setup import Setup

SMALL = 2**17  # entries of X
RUNNING, STEPS, DIVERGENCE, LOSS, NONFINITE, STATIONARY = range(6)

STATUS = {
    RUNNING: "running",
    STEPS: "steps",
    DIVERGENCE: "divergence",
    LOSS: "loss",
    NONFINITE: "nonfinite",
    STATIONARY: "stationary",
}


class Engine:
    """The state of a run: dual variables, the weights they map to, and why a trial has stopped.

    A trial whose next iterate would leave the finite numbers keeps the last one it had; a trial whose
    step is exactly zero would repeat itself for ever. Both stop, and the others go on.
    """

    name: ClassVar[str] = "tensor"

    def __init__(self, setup: Setup, loss: Loss, normalize: bool) -> None:
        self.setup, self.loss, self.normalize = setup, loss, normalize
        self.primal = {name: w.clone() for name, w in setup.start.items()}
        self.dual = {name: setup.mirror.mirror_map(w) for name, w in self.primal.items()}
        size, device = len(setup.X), setup.X.device
        self.status = torch.full((size,), RUNNING, dtype=torch.int8, device=device)
        self.updates = torch.zeros(size, dtype=torch.int64, device=device)

    @property
    def W(self) -> Tensor:
        """The attention weights, (B, d, d)."""
        return _weights(self.primal)

    @property
    def v(self) -> Tensor:
        """The head, (B, d), trained or not."""
        return self.primal.get("v", self.setup.v)

    def evaluate(self) -> Saturated:
        """The model at the current weights, relative to the tokens it selects."""
        s = self.setup
        return saturated(s.X, s.y, s.z, self.v, self.W, s.mask)

    def stop(self, trials: Tensor, reason: int) -> None:
        """End the running ones of these trials, a boolean (B,)."""
        self.status[trials & (self.status == RUNNING)] = reason

    @property
    def done(self) -> bool:
        return not bool((self.status == RUNNING).any())

    def session(self) -> AbstractContextManager[None]:
        """Around all of a run: threads cost small problems more than they save."""
        return single_threaded_tensors() if self.setup.X.numel() <= SMALL else nullcontext()

    def advance(self, steps: int) -> None:
        """Let every running trial take so many steps, or stop on the way."""
        for _ in range(steps):
            if self.done:
                return
            self._step()

    def gradients(self) -> dict[str, ScaledGradient]:
        """∇L in every trained tensor, each with its scale taken out."""
        state = self.evaluate()
        G, log_scale = weight_gradient(state, self.setup.z, self.loss)
        if "W" in self.primal:
            grads = {"W": ScaledGradient(G, log_scale)}
        else:
            K, Q = self.primal["K"], self.primal["Q"]
            grads = {"K": ScaledGradient(G @ Q, log_scale), "Q": ScaledGradient(G.mT @ K, log_scale)}
        if "v" in self.primal:
            grads["v"] = head_gradient_of(state, self.setup.y, self.loss)
        return grads

    def _step(self) -> None:
        mirror = self.setup.mirror
        moves = {name: self._move(name, grad) for name, grad in self.gradients().items()}
        dual = {name: self.dual[name] - move for name, move in moves.items()}
        primal = {name: mirror.inverse_map(u) for name, u in dual.items()}
        finite = _every(torch.isfinite(w) for w in primal.values())
        moved = ~_every(move == 0 for move in moves.values())
        running = self.status == RUNNING
        takes = running & finite & moved
        if bool(takes.all()):
            self.dual, self.primal = dual, primal
        else:
            self.status[running & ~finite] = NONFINITE
            self.status[running & finite & ~moved] = STATIONARY
            self.dual = _where(takes, dual, self.dual)
            self.primal = _where(takes, primal, self.primal)
        self.updates += takes

    def _move(self, name: str, grad: ScaledGradient) -> Tensor:
        """η g/‖g‖_*, zero where g is; or η g."""
        g = grad.scaled
        shape = [-1, *[1] * (g.ndim - 1)]
        if self.normalize:
            norm = self.setup.mirror.dual_norm(g)
            factor = torch.where(norm == 0, 0.0, 1 / norm)
        else:
            factor = grad.log_scale.exp()
        return self.setup.rates[name] * factor.reshape(shape) * g


def _weights(primal: dict[str, Tensor]) -> Tensor:
    return primal["W"] if "W" in primal else primal["K"] @ primal["Q"].mT


def _every(flags: Iterable[Tensor]) -> Tensor:
    """Whether all flags of a trial are set, in all of these (B, ...): (B,)."""
    return functools.reduce(operator.and_, (flag.flatten(1).all(1) for flag in flags))


def _where(trials: Tensor, new: dict[str, Tensor], old: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.where(trials.reshape(-1, *[1] * (w.ndim - 1)), w, old[name]) for name, w in new.items()}
