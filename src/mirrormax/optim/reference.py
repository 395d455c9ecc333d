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
    return power(power(w, p - 1) - lr * g, 1 / (p - 1))


def power(x: Tensor, exponent: float) -> Tensor:
    return x.sign() * x.abs() ** exponent


def reference_dual_norm(g: Tensor, p: float) -> float:
    """‖g‖_q, q = p/(p−1), by which the normalised step divides g (plus 2.2e-16)."""
    q = p / (p - 1)
    return float((g.to(torch.float64).abs() ** q).sum() ** (1 / q))


def reference_orthogonal(m: Tensor) -> Tensor:
    """.2 √max(rows, columns) U q(S) Vᵀ, q being five times s ↦ 3.4445 s − 4.775 s³ + 2.0315 s⁵ of S/‖m‖."""
    u, s, v = torch.linalg.svd(m.flatten(1), full_matrices=False)
    s = s / max(float(m.norm()), 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    orthogonal: Tensor = 0.2 * max(m.flatten(1).shape) ** 0.5 * (u * s) @ v
    return orthogonal.view(m.shape)


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
        flat += [firm(float(x), lam) for u in part for x in u.flatten()]
    sizes_of = [u.numel() for u in duals]
    pieces = torch.tensor(flat, dtype=torch.float64).split(sizes_of)
    return [piece.view(u.shape) for piece, u in zip(pieces, duals, strict=True)]


def firm(u: float, lam: float) -> float:
    if abs(u) <= lam:
        return 0.0
    return u if abs(u) > 3 * lam else math.copysign(1.5 * (abs(u) - lam), u)


class ReferenceTensor:
    """One tensor under either optimizer with ψ = (1/p)‖w‖_p^p, in float64, with whatever options a step is given.

    It is what a test drives beside an optimizer: ``w``, ``u``, ``m`` and ``v`` may be compared after every step, and
    ``rounding`` and ``terms`` say of each entry how large the numbers were that made u and m, so how much of these
    rounding may have moved.
    """

    def __init__(self, w: Tensor) -> None:
        self.w = w.to(torch.float64).clone()
        self.u: Tensor | None = None
        self.p: float | None = None
        self.m, self.v = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.t = 0
        self.size: float | None = None
        self.rounding, self.terms = torch.zeros_like(self.w), torch.zeros_like(self.w)

    def measured(self, typical: float) -> None:
        """Take the size at the first step; ``typical`` is that of the others, for a tensor of zeros."""
        if self.size is None:
            self.size = float(self.w.square().mean().sqrt()) or typical

    def descend(self, g: Tensor, p: float, options: Mapping[str, Any]) -> None:
        """A step of MirrorDescent with the gradient after sign, clipping and normalisation."""
        d, u = g.to(torch.float64), self._dual(p)
        if options["scale"]:
            assert self.size is not None
            d = d * (p - 1) * self.size ** (p - 2)
        self.terms = d.abs() + options["weight_decay"] * u.abs()
        d = d + options["weight_decay"] * u
        mu = options["momentum"]
        if mu:
            self.terms = self.terms + mu * self.m.abs()
            self.m = mu * self.m + d
            d = d + mu * self.m if options["nesterov"] else self.m
        self._move(u, u - options["lr"] * d, options["lr"] * (1 + mu) * self.terms, p, options)

    def adapt(self, g: Tensor, p: float, options: Mapping[str, Any]) -> None:
        """A step of MirrorAdamW with the gradient after sign and clipping."""
        g, (first, second) = g.to(torch.float64), options["betas"]
        self.t += 1
        self.terms = self.m.abs() + g.abs()
        self.m = first * self.m + (1 - first) * g
        square = g**2 if options["moments"] == "entry" else (g**2).mean().expand_as(g)
        self.v = second * self.v + (1 - second) * square
        root = (self.v / (1 - second**self.t)).sqrt() + options["eps"]
        factor = options["lr"] / (1 - first**self.t)
        if options["scale"]:
            assert self.size is not None
            factor *= (p - 1) * self.size ** (p - 2)
        direction, rounding = self.m / root, self.terms / root
        if options["moments"] == "matrix":
            factor = factor * (1 - first**self.t)
            direction = reference_orthogonal(first * self.m + (1 - first) * g)
            rounding = torch.full_like(g, 3.4445**5 * 0.2 * max(g.flatten(1).shape) ** 0.5)  # the slope of q at 0
        u, keep = self._dual(p), 1 - options["lr"] * options["weight_decay"]
        shrunk = power(torch.tensor(keep, dtype=torch.float64), p - 1) * u
        self._move(u, shrunk - factor * direction, factor * rounding, p, options)

    def _dual(self, p: float) -> Tensor:
        if self.u is None or p != self.p:
            self.u, self.p = power(self.w, p - 1), p
        return self.u

    def _move(self, before: Tensor, u: Tensor, change: Tensor, p: float, options: Mapping[str, Any]) -> None:
        self.rounding = before.abs() + change.abs()
        if options["trust"] is not None:
            assert self.size is not None
            limit = (self.w.abs() + options["trust"] * self.size) ** (p - 1)
            u = torch.where(u == before, u, torch.minimum(torch.maximum(u, -limit), limit))
        self.w = torch.where(u == before, self.w, power(u, 1 / (p - 1)))
        self.u = u
