"""The loop of ℓp-AttGD and ℓp-JointGD on tensors: every trial of the batch at once, on any device.

    u ← u − η g/‖g‖_*   (or u − η g, plain),      w ← ∇ψ*(u)

for each trained w among W, or K and Q with W = K Qᵀ, and the head v. The state is the dual variable u,
so no step makes a round trip. Gradients come divided by e^log_scale, with log_scale beside them: a
normalised step never multiplies by it, and so is exact however far the attention has saturated.

With :class:`Noise`, g is the gradient of a mini-batch; with momentum m ← βm + g is in its place, normalised after
that; and the running scale divides by an average of ‖g‖_* over about three epochs, kept as a logarithm.
"""

from __future__ import annotations

import functools
import math
import operator
from collections.abc import Iterable, Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
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


EPOCHS = 3  # that the running scale is an average over
LONGEST = 3.0  # times η: the step that the running scale allows at most


@dataclass(frozen=True)
class Noise:
    """Mini-batches of ``batch`` samples (None: all of them) in shuffled epochs, momentum β, and the running scale."""

    batch: int | None = None
    seed: int = 0
    momentum: float = 0.0
    running: bool = False


class Batches:
    """Booleans (B, n) for step after step: every trial goes through its own shuffle of the samples, then another."""

    def __init__(self, trials: int, n: int, size: int, seed: int, device: torch.device) -> None:
        self.shape, self.size, self.device = (trials, n), size, device
        self.generator = torch.Generator().manual_seed(seed)
        self.place, self.ranks = n, torch.empty(0)

    def next(self) -> Tensor:
        if self.place >= self.shape[1]:
            shuffled = torch.rand(self.shape, generator=self.generator, dtype=torch.float64).argsort(-1)
            self.place, self.ranks = 0, shuffled.argsort(-1).to(self.device)
        chosen = (self.ranks >= self.place) & (self.ranks < self.place + self.size)
        self.place += self.size
        return chosen


class Engine:
    """The state of a run: dual variables, the weights they map to, and why a trial has stopped.

    A trial whose next iterate would leave the finite numbers keeps the last one it had; a trial whose
    step is exactly zero would repeat itself for ever. Both stop, and the others go on.
    """

    name: ClassVar[str] = "tensor"

    def __init__(self, setup: Setup, loss: Loss, normalize: bool, noise: Noise | None = None) -> None:
        self.setup, self.loss, self.normalize = setup, loss, normalize
        self.noise = Noise() if noise is None else noise
        size, n = setup.y.shape
        batch = self.noise.batch
        self._batches = None if batch is None else Batches(size, n, batch, self.noise.seed, setup.X.device)
        self._decay = 1 - min(batch or n, n) / (EPOCHS * n)
        self._momenta: dict[str, ScaledGradient] = {}
        self._scales: dict[str, Tensor] = {}
        self._seen = 0
        self.primal = {name: w.clone() for name, w in setup.start.items()}
        self.dual = {name: setup.mirror.mirror_map(w) for name, w in self.primal.items()}
        size, device = len(setup.X), setup.X.device
        self.status = torch.full((size,), RUNNING, dtype=torch.int8, device=device)
        self.updates = torch.zeros(size, dtype=torch.int64, device=device)

    @property
    def W(self) -> Tensor:
        """The attention weights, (B, d, d)."""
        return weights_of(self.primal)

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
        batch = None if self._batches is None else self._batches.next()
        G, log_scale = weight_gradient(state, self.setup.z, self.loss, batch)
        if "W" in self.primal:
            grads = {"W": ScaledGradient(G, log_scale)}
        else:
            K, Q = self.primal["K"], self.primal["Q"]
            grads = {"K": ScaledGradient(G @ Q, log_scale), "Q": ScaledGradient(G.mT @ K, log_scale)}
        if "v" in self.primal:
            grads["v"] = head_gradient_of(state, self.setup.y, self.loss, batch)
        return grads

    def _step(self) -> None:
        mirror = self.setup.mirror
        self._seen += 1
        moves = {name: self._move(name, self._with_momentum(name, grad)) for name, grad in self.gradients().items()}
        dual = {name: self.dual[name] - move for name, move in moves.items()}
        primal = {name: mirror.inverse_map(u) for name, u in dual.items()}
        finite = _every(torch.isfinite(w) for w in primal.values())
        moved = ~_every(move == 0 for move in moves.values())
        if self._batches is not None:  # a batch without a gradient says nothing of the next one
            moved = torch.ones_like(moved)
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
        if self.noise.running:
            norm = self.setup.mirror.dual_norm(g)
            length = torch.exp(norm.log() + grad.log_scale - self._running_scale(name, norm.log() + grad.log_scale))
            factor = torch.where(norm == 0, 0.0, length.clamp(max=LONGEST) / norm)
        elif self.normalize:
            norm = self.setup.mirror.dual_norm(g)
            factor = torch.where(norm == 0, 0.0, 1 / norm)
        else:
            factor = grad.log_scale.exp()
        return self.setup.rates[name] * factor.reshape(shape) * g

    def _with_momentum(self, name: str, grad: ScaledGradient) -> ScaledGradient:
        """m ← βm + g, with the larger scale of the two taken out."""
        beta = self.noise.momentum
        if beta == 0:
            return grad
        if name in self._momenta:
            old = self._momenta[name]
            before = old.log_scale + math.log(beta)
            scale = torch.maximum(before, grad.log_scale)
            shape = [-1, *[1] * (grad.scaled.ndim - 1)]
            grad = ScaledGradient(
                (before - scale).exp().reshape(shape) * old.scaled
                + (grad.log_scale - scale).exp().reshape(shape) * grad.scaled,
                scale,
            )
        self._momenta[name] = grad
        return grad

    def _running_scale(self, name: str, log_norm: Tensor) -> Tensor:
        """The logarithm of the average of ‖g‖_* so far, recent ones weighing more, (B,)."""
        log_norm = log_norm + math.log(1 - self._decay)
        if name in self._scales:
            log_norm = torch.logaddexp(self._scales[name] + math.log(self._decay), log_norm)
        self._scales[name] = log_norm
        return log_norm - math.log1p(-(self._decay**self._seen))


def weights_of(primal: Mapping[str, Tensor]) -> Tensor:
    """W, or K Qᵀ where it is factored."""
    return primal["W"] if "W" in primal else primal["K"] @ primal["Q"].mT


def _every(flags: Iterable[Tensor]) -> Tensor:
    """Whether all flags of a trial are set, in all of these (B, ...): (B,)."""
    return functools.reduce(operator.and_, (flag.flatten(1).all(1) for flag in flags))


def _where(trials: Tensor, new: dict[str, Tensor], old: dict[str, Tensor]) -> dict[str, Tensor]:
    return {name: torch.where(trials.reshape(-1, *[1] * (w.ndim - 1)), w, old[name]) for name, w in new.items()}
