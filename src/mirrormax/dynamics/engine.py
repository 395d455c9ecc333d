"""The loop of simulated training on tensors: every trial of the batch at once, on any device.

    u ← u − η D,      w ← ∇ψ*(u)

for each trained w among W, or K and Q with W = K Qᵀ, and the readout V, with the direction D of a rule (ℓp-AttGD and
ℓp-JointGD: D = g/‖g‖_*). The state is the dual variable u, so no step makes a round trip. Gradients come divided by
e^log_scale, with log_scale beside them: a normalised step never multiplies by it, and so is exact however far the
attention has saturated.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import AbstractContextManager, nullcontext
from typing import ClassVar

import torch
from torch import Tensor

from mirrormax._parallel import single_threaded_tensors
from mirrormax.attention import (
    ClassState,
    Labelled,
    Loss,
    ScaledGradient,
    class_state,
    class_value_gradient,
    class_weight_gradient,
    labelled,
    outputs_of,
    signed,
)
from mirrormax.dynamics.rules import Rule, State
from mirrormax.dynamics.setup import Setup

SMALL = 2**17  # entries of X
STATUS = ("running", "steps", "loss", "nonfinite", "stationary")
RUNNING, STEPS, LOSS, NONFINITE, STATIONARY = range(5)


def batches(trials: int, n: int, size: int, seed: int) -> Iterator[Tensor]:
    """Booleans (B, n) for step after step: every trial goes through its own shuffle of the samples, then another."""
    generator = torch.Generator().manual_seed(seed)
    while True:
        ranks = torch.rand((trials, n), generator=generator, dtype=torch.float64).argsort(-1).argsort(-1)
        for place in range(0, n, size):
            yield (ranks >= place) & (ranks < place + size)


class Engine:
    """The state of a run: dual variables, the weights they map to, and why a trial has stopped.

    A trial whose next iterate would leave the finite numbers keeps the last one it had; a trial whose
    step is exactly zero would repeat itself for ever. Both stop, and the others go on. ``loss`` is of labels ±1, None
    for the cross-entropy of classes.
    """

    name: ClassVar[str] = "tensor"

    def __init__(self, setup: Setup, loss: Loss | None, rule: Rule, batch: int | None = None, seed: int = 0) -> None:
        self.setup, self.loss, self.rule = setup, loss, rule
        size, n = setup.y.shape
        self._batches = None if batch is None else batches(size, n, batch, seed)
        self._attention: ClassState | None = None
        self.primal = {name: w.clone() for name, w in setup.start.items()}
        self.dual = {name: setup.mirror.mirror_map(w) for name, w in self.primal.items()}
        self.memory: dict[str, State] = {name: {} for name in self.primal}
        self.status = torch.full((size,), RUNNING, dtype=torch.int8, device=setup.X.device)
        self.updates = torch.zeros(size, dtype=torch.int64, device=setup.X.device)

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

    def label(self, state: ClassState, V: Tensor) -> Labelled:
        """What the labels make of the outputs at this attention and these readouts (..., H, R, d)."""
        outputs = outputs_of(state, V)
        return labelled(outputs, self.setup.y) if self.loss is None else signed(outputs, self.setup.y, self.loss)

    def gradients(self) -> dict[str, ScaledGradient]:
        """∇L in every trained tensor, each with its scale taken out, one per head."""
        s, V = self.setup, self.primal.get("V", self.setup.V)
        self._attention = class_state(s.X, s.z, weights_of(self.primal), s.mask, self._attention)
        labels = self.label(self._attention, V)
        share = torch.ones(())
        if self._batches is not None:
            chosen = next(self._batches).to(s.X.device)
            labels = labels._replace(log_slope=torch.where(chosen, labels.log_slope, -torch.inf))
            share = (chosen.shape[-1] / chosen.sum(-1))[:, None, None, None]
        G, log_scale = class_weight_gradient(self._attention, labels, s.z, V)
        G = share * G
        if "W" in self.primal:
            grads = {"W": ScaledGradient(G, log_scale)}
        else:
            K, Q = self.primal["K"], self.primal["Q"]
            grads = {"K": ScaledGradient(G @ Q, log_scale), "Q": ScaledGradient(G.mT @ K, log_scale)}
        if "V" in self.primal:
            g, readout_scale = class_value_gradient(self._attention, labels)
            grads["V"] = ScaledGradient(share * g, readout_scale.unsqueeze(-1).expand(g.shape[:2]))
        return grads

    def _step(self) -> None:
        mirror, rates, decay, before = self.setup.mirror, self.setup.rates, self.rule.weight_decay, self.dual
        moves = {
            name: rates[name] * self.rule.direction(self.memory[name], grad, self.primal[name], mirror)
            for name, grad in self.gradients().items()
        }
        if decay:
            before = {name: mirror.mirror_map((1 - decay * rates[name]) * w) for name, w in self.primal.items()}
        dual = {name: before[name] - move for name, move in moves.items()}
        primal = {name: mirror.inverse_map(u) for name, u in dual.items()}
        finite = torch.stack([w.isfinite().flatten(1).all(1) for w in primal.values()]).all(0)
        moved = torch.stack([(move != 0).flatten(1).any(1) for move in moves.values()]).any(0)
        if self._batches is not None or decay:  # a batch without a gradient says nothing of the next
            moved = torch.ones_like(moved)
        running = self.status == RUNNING
        takes = running & finite & moved
        if bool(takes.all()):
            self.dual, self.primal = dual, primal
        else:
            self.status[running & ~finite] = NONFINITE
            self.status[running & finite & ~moved] = STATIONARY
            new = takes.reshape(-1, 1, 1, 1)
            self.dual = {name: torch.where(new, u, self.dual[name]) for name, u in dual.items()}
            self.primal = {name: torch.where(new, w, self.primal[name]) for name, w in primal.items()}
        self.updates += takes


def weights_of(primal: Mapping[str, Tensor]) -> Tensor:
    """W, or K Qᵀ where it is factored."""
    return primal["W"] if "W" in primal else primal["K"] @ primal["Q"].mT
