"""The paper's update in its plainest form: slow, float64, and what every fast path must equal."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

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


def reference_threshold(duals: Sequence[Tensor], share: float, scope: str = "global") -> list[Tensor]:
    """The weights of a target: each |u| behind the firm threshold at its quantile, group by group of what is compared.

    ``scope`` is that of the optimizers, or ``"n:m"``, where ``share`` is the part of the final threshold.
    """
    kept, of = map(int, scope.split(":")) if ":" in scope else (0, 0)
    if scope == "global":
        parts = [list(duals)]
    elif scope == "matrix":
        parts = [[u] for u in duals]
    else:
        parts = [[part] for u in duals for row in u for part in row.flatten().split(of or row.numel())]
    flat = []
    for part in parts:
        sizes = sorted(abs(float(x)) for u in part for x in u.flatten())
        count = of - kept if of else round(share * len(sizes))
        lam = (sizes[count - 1] if count else 0.0) * (share if of else 1.0)
        flat += [_firm(float(x), lam) for u in part for x in u.flatten()]
    sizes_of = [u.numel() for u in duals]
    pieces = torch.tensor(flat, dtype=torch.float64).split(sizes_of)
    return [piece.view(u.shape) for piece, u in zip(pieces, duals, strict=True)]


def _firm(u: float, lam: float) -> float:
    if abs(u) <= lam:
        return 0.0
    return u if abs(u) > 3 * lam else math.copysign(1.5 * (abs(u) - lam), u)


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


class ReferenceTensor:
    """One tensor under either optimizer with ψ = (1/p)‖w‖_p^p, in float64, with whatever options a step is given.

    It is what a test drives beside an optimizer: ``w``, ``u``, ``m`` and ``v`` may be compared after every step, and
    ``rounding`` says of each entry how large the numbers were that made u, so how much of it rounding may have moved.
    """

    def __init__(self, w: Tensor) -> None:
        self.w = w.to(torch.float64).clone()
        self.u: Tensor | None = None
        self.p: float | None = None
        self.m, self.v = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.t = 0
        self.size: float | None = None
        self.lam: Tensor | None = None  # the threshold behind which w is u, under a target
        self.rounding = torch.zeros_like(self.w)

    def written(self, w: Tensor) -> None:
        """Somebody else wrote the weights: entries that are no longer those of their u get u = ∇ψ(w)."""
        new = w.to(torch.float64, copy=True)
        if self.u is not None and self.p is not None:
            given = _power(self.u, 1 / (self.p - 1)) if self.lam is None else _behind(self.u, self.lam)
            given = given.to(w.dtype).to(torch.float64)
            near = (given == new) | ((given - new).abs() <= 4 * torch.finfo(w.dtype).eps * new.abs())
            back = _power(new, self.p - 1) if self.lam is None else _before(new, self.lam)
            self.u = torch.where(near, self.u, back)
        self.w = new

    def measured(self, typical: float) -> None:
        """Take the size at the first step; ``typical`` is that of the others, for a tensor of zeros."""
        if self.size is None:
            self.size = float(self.w.square().mean().sqrt()) or typical

    def descend(self, g: Tensor, p: float, options: Mapping[str, Any]) -> None:
        """A step of MirrorDescent with the gradient after sign, clipping and normalisation."""
        d = g.to(torch.float64)
        if options["scale"]:
            assert self.size is not None
            d = d * (p - 1) * self.size ** (p - 2)
        u = self._dual(p)
        d = d + options["weight_decay"] * u
        if options["momentum"]:
            self.m = options["momentum"] * self.m + d
            d = d + options["momentum"] * self.m if options["nesterov"] else self.m
        self._move(u, u - options["lr"] * d, options["lr"] * d, p, options)

    def adapt(self, g: Tensor, p: float, options: Mapping[str, Any]) -> None:
        """A step of MirrorAdamW with the gradient after sign and clipping."""
        g, (first, second) = g.to(torch.float64), options["betas"]
        self.t += 1
        before = self.m
        self.m = first * self.m + (1 - first) * g
        square = g**2 if options["moments"] == "entry" else (g**2).mean().expand_as(g)
        self.v = second * self.v + (1 - second) * square
        root = (self.v / (1 - second**self.t)).sqrt() + options["eps"]
        factor = options["lr"] / (1 - first**self.t)
        if options["scale"]:
            assert self.size is not None
            factor *= (p - 1) * self.size ** (p - 2)
        u, keep = self._dual(p), 1 - options["lr"] * options["weight_decay"]
        shrunk = _power(torch.tensor(keep, dtype=torch.float64), p - 1) * u
        self._move(u, shrunk - factor * self.m / root, factor * (before.abs() + g.abs()) / root, p, options)

    def _dual(self, p: float) -> Tensor:
        if self.u is None or p != self.p:
            self.u, self.p = _power(self.w, p - 1), p
        return self.u

    def _move(self, before: Tensor, u: Tensor, change: Tensor, p: float, options: Mapping[str, Any]) -> None:
        self.rounding = before.abs() + change.abs()
        if options["trust"] is not None:
            assert self.size is not None
            limit = (self.w.abs() + options["trust"] * self.size) ** (p - 1)
            u = torch.minimum(torch.maximum(u, -limit), limit)
        self.w = torch.where(u == before, self.w, _power(u, 1 / (p - 1)))
        self.u = u


def _behind(u: Tensor, lam: Tensor) -> Tensor:
    lams = lam.expand_as(u).flatten().tolist()
    found = [_firm(float(x), float(each)) for x, each in zip(u.flatten(), lams, strict=True)]
    return torch.tensor(found, dtype=torch.float64).view(u.shape)


def _before(w: Tensor, lam: Tensor) -> Tensor:
    """A u whose weight is w."""
    return torch.where(w == 0, 0.0, torch.where(w.abs() > 3 * lam, w, w.sign() * (lam + w.abs() / 1.5)))


def _power(x: Tensor, exponent: float) -> Tensor:
    return x.sign() * x.abs() ** exponent
