"""The paper's update in its plainest form: slow, float64, and what every fast path must equal."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def reference_step(w: Tensor, g: Tensor, lr: float, p: float) -> Tensor:
    """One ℓp-AttGD step: raise the entries to the power p−1, subtract ηg, raise back to 1/(p−1)."""
    w, g = w.to(torch.float64), g.to(torch.float64)
    u = w.sign() * w.abs() ** (p - 1)
    u = u - lr * g
    return u.sign() * u.abs() ** (1 / (p - 1))


def reference_dual_norm(g: Tensor, p: float) -> float:
    """‖g‖_q, q = p/(p−1), by which the normalised step divides g (plus 2.2e-16)."""
    q = p / (p - 1)
    return float((g.to(torch.float64).abs() ** q).sum() ** (1 / q))


class ReferenceAdamW:
    """:class:`~mirrormax.MirrorAdamW` with ψ = (1/p)‖w‖_p^p, formula by formula in float64."""

    def __init__(
        self,
        weights: Sequence[Tensor],
        lr: float,
        p: float,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        moments: str = "entry",
        scale: str | None = "tensor",
        trust: float | None = 0.5,
        clip: float | None = 1.0,
    ) -> None:
        self.lr, self.p, self.betas, self.eps, self.weight_decay = lr, p, betas, eps, weight_decay
        self.moments, self.scale, self.trust, self.clip = moments, scale, trust, clip
        self.weights = [w.to(torch.float64).clone() for w in weights]
        self.sizes = [float((w**2).mean().sqrt()) for w in self.weights]
        self.m = [torch.zeros_like(w) for w in self.weights]
        self.v = [torch.zeros_like(w) for w in self.weights]
        self.t = 0

    def step(self, gradients: Sequence[Tensor]) -> None:
        self.t += 1
        first, second = self.betas
        gradients = [g.to(torch.float64) for g in gradients]
        if self.clip is not None:
            length = float(torch.cat([g.flatten() for g in gradients]).norm())
            gradients = [g * min(1.0, self.clip / (length + 1e-6)) for g in gradients]
        for k, g in enumerate(gradients):
            w, s = self.weights[k], self.sizes[k]
            self.m[k] = first * self.m[k] + (1 - first) * g
            square = g**2 if self.moments == "entry" else (g**2).mean().expand_as(g)
            self.v[k] = second * self.v[k] + (1 - second) * square
            direction = (self.m[k] / (1 - first**self.t)) / ((self.v[k] / (1 - second**self.t)).sqrt() + self.eps)
            shrunk = (1 - self.lr * self.weight_decay) * w
            factor = (self.p - 1) * s ** (self.p - 2) if self.scale else 1.0
            u = shrunk.sign() * shrunk.abs() ** (self.p - 1) - self.lr * factor * direction
            new = u.sign() * u.abs() ** (1 / (self.p - 1))
            if self.trust is not None:
                new = new.sign() * torch.minimum(new.abs(), w.abs() + self.trust * s)
            self.weights[k] = new
