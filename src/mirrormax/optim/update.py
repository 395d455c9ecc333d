"""One step of mirror descent: the formulas, once, as a pure function.

For a weight w with dual variable u and gradient g the direction x is

    d = c·g                              c holds sign, clipping, normalisation and the scale of the tensor
    d = c·g + λu,  m ← μm + d            MirrorDescent: x = d, or m with momentum, or d + μm with Nesterov's
    m ← m + (1 − β₁)(d − m)              MirrorAdamW: x = m, where a moment per tensor is a number, and part of a
    v ← β₂v + (1 − β₂)d²                 and x = m/(√v + least) with a moment per entry
    x = .2 √max(rows, columns) UVᵀ       of β₁m + (1 − β₁)d = USVᵀ, where moments are of matrices (Muon)

and then

    u ← u − (decay(u, w) + a·x)          decay = u − ∇ψ(kw) − (u − ∇ψ(w)) shrinks w by the factor k; it is drop·u,
                                         drop = 1 − sign(k)|k|^(degree − 1), if ψ is homogeneous
    u ← clamp(u, ±∇ψ(|w| + room))        if there is a bound to the growth of a weight
    w ← ∇ψ*(u)                           and where u has not moved, neither does w, to the last bit

Where the mirror map is the identity, weights may be their own dual variables: u is w.

:func:`update` is what :mod:`~mirrormax.optim.kernels` runs, eagerly piece by piece or through ``torch.compile``;
:mod:`~mirrormax.optim.fused_kernels` is the same in one pass over memory.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrormax.geometry import Potential, as_potential

Number = Any
"""A float, a 0-dim tensor, or a vector with one number for each of several parameters."""


@dataclass(frozen=True)
class Rule:
    """What decides which formulas are taken."""

    potential: Potential
    adam: bool
    heavy: bool  # MirrorDescent with momentum
    nesterov: bool
    decays: bool
    by_tensor: bool  # MirrorAdamW with one second moment for a whole tensor
    by_matrix: bool  # MirrorAdamW whose first moment is orthogonalised, which takes the place of the second
    target: bool  # weights are made of u when all u have moved, by mirrormax.optim.target

    @classmethod
    def of(cls, group: Mapping[str, Any]) -> Rule:
        """The rule that a group's options make; only MirrorAdamW has betas."""
        return cls(
            potential=as_potential(group["p"]),
            adam="betas" in group,
            heavy=group.get("momentum", 0.0) > 0,
            nesterov=group.get("nesterov", False),
            decays=group["weight_decay"] > 0,
            by_tensor=group.get("moments") == "tensor",
            by_matrix=group.get("moments") == "matrix",
            target=group["sparsity"] is not None,
        )

    @property
    def moments(self) -> tuple[str | None, str | None]:
        """What m and v are called in the state, None if there are none for each entry."""
        if self.adam:
            return "exp_avg", None if self.by_tensor or self.by_matrix else "exp_avg_sq"
        return "momentum_buffer" if self.heavy else None, None

    @property
    def in_pieces(self) -> bool:
        """Whether the entries of a tensor do not need each other."""
        return self.potential.separable and not self.by_matrix

    @property
    def takes_rows(self) -> bool:
        """Whether entries without a gradient stay where they are."""
        return self.potential.separable and not (self.adam or self.heavy or self.decays)


class Numbers(NamedTuple):
    """The numbers in the formulas."""

    c: Number
    a: Number
    room: Number  # None if there is no bound
    momentum: Number  # μ or β₁, and 1 − β₁, which would lose digits if it were taken in the type of the weights
    new: Number
    keep: Number = 1.0
    drop: Number = 0.0
    least: Number = 0.0
    beta2: Number = 0.0
    new2: Number = 0.0
    decay: Number = 0.0  # λ of MirrorDescent; MirrorAdamW's is in keep and drop

    def each(self, count: int) -> list[Numbers]:
        """Those of each of several parameters: floats, unless that would mean to wait for a device."""
        vectors = [isinstance(n, Tensor) and n.ndim > 0 for n in self]
        columns = [
            [n] * count if not is_vector else n.tolist() if n.is_cpu else n.unbind()
            for n, is_vector in zip(self, vectors, strict=True)
        ]
        return [Numbers(*row) for row in zip(*columns, strict=True)]


class Tensors(NamedTuple):
    """What a parameter brings to a step, in the order in which kernels take it; or lists of what several bring."""

    w: Any
    u: Any  # the same object as w where weights are their own dual variables
    g: Any
    m: Any = None
    v: Any = None

    @property
    def own(self) -> bool:
        """Whether what moves are the dual variables themselves."""
        return self.u is self.w

    def each(self, act: Callable[[Any], Any]) -> Tensors:
        """What ``act`` makes of each that there is."""
        w = act(self.w)
        g, m, v = (None if t is None else act(t) for t in self[2:])
        return Tensors(w, w if self.own else act(self.u), g, m, v)


Places = list[int] | slice
ALL = slice(None)


def at(column: list[Any], places: Places) -> list[Any]:
    """What a column has at these places."""
    return column if isinstance(places, slice) else [column[place] for place in places]


def update(rule: Rule, numbers: Numbers, tensors: Tensors, ask: bool = True) -> Tensors:
    """The tensors after the step, as new ones; ``ask=False`` keeps from looking at any value on the way."""
    w, u, g, m, v = tensors
    x, m, v = _direction(rule, numbers, u, g, m, v)
    dims = tuple(range(w.ndim))
    change = x * numbers.a
    if rule.adam and rule.decays and rule.potential.degree is not None:
        change = _plus(change, u, numbers.drop)
    elif rule.adam and rule.decays:
        wide = w.to(u.dtype)
        change = change + (rule.potential.mirror_map(wide, dims) - rule.potential.mirror_map(wide * numbers.keep, dims))
    moved = u - change
    if tensors.own:
        if numbers.room is not None:
            limit = w.abs() + numbers.room
            moved = torch.minimum(torch.maximum(moved, -limit), limit)
        return Tensors(moved, moved, g, m, v)
    weights = rule.potential.inverse_map(moved, dims)
    # Rarely does a weight grow too much, so it is first asked whether any does.
    grows = numbers.room is not None
    if grows and ask and w.numel():
        grows = not bool(weights.abs().sub_(w.abs()).amax() <= numbers.room)
    if grows:
        limit = w.to(u.dtype).abs() + numbers.room
        held = (weights.abs() > limit) & (moved != u)
        if not ask or bool(held.any()):
            bounded = rule.potential.mirror_map(torch.minimum(torch.maximum(weights, -limit), limit), dims)
            moved = torch.where(held if rule.potential.separable else held.any(), bounded, moved)
            weights = rule.potential.inverse_map(moved, dims)
    still = moved == u
    if not rule.potential.separable:
        still = still.all()
    return Tensors(torch.where(still, w, weights.to(w.dtype)), moved, g, m, v)


def _direction(
    rule: Rule, numbers: Numbers, u: Tensor, g: Tensor, m: Tensor | None, v: Tensor | None
) -> tuple[Tensor, Tensor | None, Tensor | None]:
    """x, and the moments after this gradient."""
    d = g.to(u.dtype)
    if isinstance(numbers.c, Tensor) or numbers.c != 1:
        d = numbers.c * d
    if rule.adam:
        assert m is not None
        m = torch.lerp(m, d, numbers.new)
        if rule.by_matrix:
            return orthogonal(torch.lerp(m, d, numbers.new)), m, None
        if v is None:
            return m, m, None
        v = _plus(v * numbers.beta2, d * d, numbers.new2)
        return m / v.sqrt().add_(numbers.least), m, v
    if rule.decays:
        d = d + numbers.decay * u
    if m is None:
        return d, None, None
    m = numbers.momentum * m + d
    return d + numbers.momentum * m if rule.nesterov else m, m, None


def orthogonal(m: Tensor, steps: int = 5) -> Tensor:
    """.2 √max(rows, columns) UVᵀ of m = USVᵀ, entries of which are as large as those of AdamW's step.

    Steps x ← ax + (b xxᵀ + c (xxᵀ)²) x bring all singular values near to 1, to .7 to 1.2 with the coefficients of Muon
    (Jordan and others, 2024). Of more than two dimensions, all but the first are columns.
    """
    x = m.flatten(1).to(torch.bfloat16 if m.is_cuda else torch.promote_types(m.dtype, torch.float32))
    factor, tall = 0.2 * max(x.shape) ** 0.5, x.shape[0] > x.shape[1]
    x = x.T if tall else x
    wide = torch.float64 if x.is_cpu else torch.float32  # squares of large gradients leave float32's range
    x = x / torch.linalg.vector_norm(x, dtype=wide).clamp(min=1e-7).to(x.dtype)
    for _ in range(steps):
        gram = x @ x.T
        x = 3.4445 * x + (-4.775 * gram + 2.0315 * gram @ gram) @ x
    scaled: Tensor = factor * (x.T if tall else x)
    return scaled.to(m.dtype).view(m.shape)


def _plus(x: Tensor, y: Tensor, factor: Number) -> Tensor:
    """x + factor·y in one operation, where that can be; x is a temporary."""
    return x.add_(factor * y) if isinstance(factor, Tensor) else x.add_(y, alpha=factor)
