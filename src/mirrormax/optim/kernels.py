"""One mirror-descent step on dense or sparse gradients, in the forms that different machines like.

All of them do, for every entry, with dual variable u, gradient g and momentum m,

    d = c·g + λu                   c = ±1/‖g‖_* folds sign and normalisation into one factor
    m ← μm + d                     (only with momentum; then d ← m, or d ← d + μm with Nesterov)
    u ← u − ηd
    w ← ∇ψ*(u)

and all of them write ``u``, ``m`` and ``w`` in place. Where the mirror map is the identity the weights
are their own dual variables, and ``u`` is ``w``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from mirrormax.geometry import Potential

# A chain of eager operations over pieces of this many entries stays in the cache.
CHUNK = 262_144


@dataclass(frozen=True)
class Rule:
    """The hyperparameters of one step of one parameter group."""

    potential: Potential
    lr: float | Tensor
    momentum: float
    nesterov: bool
    weight_decay: float
    sign: float
    foreach: bool | None
    compile: bool


@dataclass
class Slot:
    """What one parameter brings to a step: weights, dual variables, gradient, momentum, factor c."""

    w: Tensor
    u: Tensor
    g: Tensor
    m: Tensor | None
    c: float


def step_in_chunks(rule: Rule, slot: Slot) -> None:
    """Eager, piece by piece: the default on a CPU."""
    for w, u, g, m in _chunks(rule, slot):
        _move_dual(rule, slot.c, u, g, m)
        if u is not w:
            rule.potential.write_weights(u, w)


def _move_dual(rule: Rule, c: float, u: Tensor, g: Tensor, m: Tensor | None) -> None:
    lr, decay = float(rule.lr), rule.weight_decay
    if m is not None:
        m.mul_(rule.momentum).add_(g, alpha=c)
        if decay:
            m.add_(u, alpha=decay)
        if not rule.nesterov:
            u.add_(m, alpha=-lr)
            return
    if decay:
        u.add_(u, alpha=-lr * decay)  # 1 − ηλ as a factor would be rounded the same way at every step
    u.add_(g, alpha=-lr * c)
    if m is not None:
        u.add_(m, alpha=-lr * rule.momentum)


def _chunks(rule: Rule, slot: Slot) -> Iterator[tuple[Tensor, Tensor, Tensor, Tensor | None]]:
    w, u, g, m = slot.w, slot.u, slot.g, slot.m
    if w.numel() <= CHUNK or u is w or not rule.potential.separable or not in_one_order(slot):
        yield w, u, g, m
        return
    count = -(-w.numel() // CHUNK)
    pieces = [flat(t).chunk(count) for t in (w, u, g)]
    momenta = [None] * len(pieces[0]) if m is None else flat(m).chunk(count)
    yield from zip(*pieces, momenta, strict=True)


def in_one_order(slot: Slot) -> bool:
    """Whether all tensors lie in memory alike, without holes."""
    w, momentum = slot.w, slot.w if slot.m is None else slot.m
    if not w.stride() == slot.u.stride() == slot.g.stride() == momentum.stride():
        return False
    span = 1 + sum((size - 1) * stride for size, stride in zip(w.shape, w.stride(), strict=True))
    return w.is_contiguous() or span == w.numel()


def flat(t: Tensor) -> Tensor:
    """A 1-D view of a dense tensor, in memory order."""
    return t.view(-1) if t.is_contiguous() else t.as_strided((t.numel(),), (1,))


def step_foreach(rule: Rule, slots: Sequence[Slot]) -> None:
    """A few multi-tensor kernels for all parameters: the default on a GPU."""
    us, lr, decay = [s.u for s in slots], float(rule.lr), rule.weight_decay
    grads = torch._foreach_mul([s.g.to(s.u.dtype) for s in slots], [s.c for s in slots])
    momenta = [s.m for s in slots if s.m is not None]
    if decay:
        torch._foreach_add_(grads, us, alpha=decay)
    if momenta:
        torch._foreach_mul_(momenta, rule.momentum)
        torch._foreach_add_(momenta, grads)
        grads = torch._foreach_add(grads, momenta, alpha=rule.momentum) if rule.nesterov else tuple(momenta)
    torch._foreach_add_(us, grads, alpha=-lr)
    if any(s.u is not s.w for s in slots):
        torch._foreach_copy_([s.w for s in slots], list(rule.potential.inverse_map_foreach(us)))


def step_sparse(rule: Rule, slot: Slot) -> None:
    """Only the rows that a sparse gradient names; the others do not move, so they need no work."""
    g = slot.g.coalesce()
    rows = tuple(g.indices())
    moved = slot.u[rows].add_(g.values(), alpha=-float(rule.lr) * slot.c)
    slot.u[rows] = moved
    if slot.u is not slot.w:
        slot.w[rows] = rule.potential.inverse_map(moved).to(slot.w.dtype)
