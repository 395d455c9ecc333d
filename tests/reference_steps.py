"""Both optimizers in their plainest form: slow, float64, one tensor at a time."""

import torch

from mirrormax.optim.update import power


def reference_orthogonal(m):
    """.2 √max(rows, columns) U q(S) Vᵀ, q being five times s ↦ 3.4445 s − 4.775 s³ + 2.0315 s⁵ of S/‖m‖."""
    u, s, v = torch.linalg.svd(m.flatten(1), full_matrices=False)
    s = s / max(float(m.norm()), 1e-7)
    for _ in range(5):
        s = 3.4445 * s - 4.775 * s**3 + 2.0315 * s**5
    orthogonal = 0.2 * max(m.flatten(1).shape) ** 0.5 * (u * s) @ v
    return orthogonal.view(m.shape)


class ReferenceTensor:
    """One tensor under either optimizer with ψ = (1/p)‖w‖_p^p, in float64, with whatever options a step is given.

    It is what a test drives beside an optimizer: ``w``, ``u``, ``m`` and ``v`` may be compared after every step, and
    ``rounding`` and ``terms`` say of each entry how large the numbers were that made u and m, so how much of these
    rounding may have moved.
    """

    def __init__(self, w):
        self.w = w.to(torch.float64).clone()
        self.u = None
        self.p = None
        self.m, self.v = torch.zeros_like(self.w), torch.zeros_like(self.w)
        self.t = 0
        self.size = None
        self.rounding, self.terms = torch.zeros_like(self.w), torch.zeros_like(self.w)

    def measured(self, typical):
        """Take the size at the first step; ``typical`` is that of the others, for a tensor of zeros."""
        if self.size is None:
            self.size = float(self.w.square().mean().sqrt()) or typical

    def descend(self, g, p, options):
        """A step of MirrorDescent with the gradient after sign, clipping and normalisation."""
        d, u = g.to(torch.float64), self._dual(p)
        if options["scale"]:
            d = d * (p - 1) * self.size ** (p - 2)
        self.terms = d.abs() + options["weight_decay"] * u.abs()
        d = d + options["weight_decay"] * u
        mu = options["momentum"]
        if mu:
            self.terms = self.terms + mu * self.m.abs()
            self.m = mu * self.m + d
            d = d + mu * self.m if options["nesterov"] else self.m
        self._move(u, u - options["lr"] * d, options["lr"] * (1 + mu) * self.terms, p, options)

    def adapt(self, g, p, options):
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
            factor *= (p - 1) * self.size ** (p - 2)
        direction, rounding = self.m / root, self.terms / root
        if options["moments"] == "matrix":
            factor = factor * (1 - first**self.t)
            direction = reference_orthogonal(first * self.m + (1 - first) * g)
            rounding = torch.full_like(g, 3.4445**5 * 0.2 * max(g.flatten(1).shape) ** 0.5)  # the slope of q at 0
        u, keep = self._dual(p), 1 - options["lr"] * options["weight_decay"]
        shrunk = power(torch.tensor(keep, dtype=torch.float64), p - 1) * u
        self._move(u, shrunk - factor * direction, factor * rounding, p, options)

    def _dual(self, p):
        if self.u is None or p != self.p:
            self.u, self.p = power(self.w, p - 1), p
        return self.u

    def _move(self, before, u, change, p, options):
        self.rounding = before.abs() + change.abs()
        if options["trust"] is not None:
            limit = (self.w.abs() + options["trust"] * self.size) ** (p - 1)
            u = torch.where(u == before, u, torch.minimum(torch.maximum(u, -limit), limit))
        self.w = torch.where(u == before, self.w, power(u, 1 / (p - 1)))
        self.u = u
