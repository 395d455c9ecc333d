"""One step of mirror descent on dense or sparse gradients, in the forms that different machines like.

All of them do, for every entry, with weight w, dual variable u and gradient g,

    d = c·g + λu                   c holds sign, clipping, normalisation and the scale of the tensor
    m ← μm + d                     (only with momentum; then d ← m, or d ← d + μm with Nesterov)
    u ← u − ad
    w ← ∇ψ*(u)                     with |w| at most what it was plus ``room``, and u = ∇ψ(w) where that binds

or, where there are Adam's moments,

    m ← m + (1 − β₁)(c·g − m)
    v ← β₂v + (1 − β₂)(c·g)²       per entry; a moment per tensor is a number, and part of a
    u ← ∇ψ(kw) + (u − ∇ψ(w))       decoupled weight decay: w shrinks by the factor k = ``keep``
    u ← u − a·m/(√v/b + ε)         or u − am

and all of them write ``u``, ``m``, ``v`` and ``w`` in place. Where the mirror map is the identity the
weights are their own dual variables, and ``u`` is ``w``.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential

# A chain of eager operations over pieces of this many entries stays in the cache.
CHUNK = 262_144
# Tensors up to this size are laid end to end, as starting an operation costs more than doing it.
SMALL = 1_024
# Multi-tensor kernels take tensors of this many entries together.
BUCKET = 4_194_304

Number = float | Tensor
"""A number, a tensor that holds one, or one for each entry."""


@dataclass(frozen=True)
class Rule:
    """What all tensors of one step have in common."""

    potential: Potential
    momentum: float = 0.0
    nesterov: bool = False
    weight_decay: float = 0.0
    adam: bool = False
    beta2: float = 0.0
    eps: float = 0.0
    foreach: bool | None = None
    fused: bool | None = None
    compile: bool = False
    capturable: bool = False


@dataclass(slots=True)
class Slot:
    """What one parameter brings to a step: its tensors and its numbers."""

    w: Tensor
    u: Tensor
    g: Tensor
    m: Tensor | None = None
    v: Tensor | None = None
    c: Number = 1.0
    a: Number = 0.0
    keep: Number = 1.0
    b: Number = 1.0
    room: Number | None = None

    @property
    def own(self) -> bool:
        """Whether the weights are their own dual variables."""
        return self.u is self.w

    @property
    def tensors(self) -> list[Tensor]:
        return [t for t in (self.w, None if self.own else self.u, self.g, self.m, self.v) if t is not None]


def step_in_chunks(rule: Rule, slot: Slot) -> None:
    """Eager, piece by piece: the default on a CPU."""
    for piece in _chunks(rule, slot):
        room, before = piece.room, piece.w.abs() if piece.room is not None else None
        _move_dual(rule, piece)
        if room is None or before is None:
            if not piece.own:
                rule.potential.write_weights(piece.u, piece.w)
        elif piece.own:
            limit = before.add_(room)
            torch.clamp(piece.w, -limit, limit, out=piece.w)
        else:
            rule.potential.write_weights(piece.u, piece.w)
            _hold_back(rule.potential, piece, before)


def _hold_back(potential: Potential, slot: Slot, before: Tensor) -> None:
    """Where |w| has grown by more than ``room``, let it grow by that; rarely, so it is first asked whether."""
    assert slot.room is not None
    growth = slot.w.abs().sub_(before)
    if isinstance(slot.room, Tensor):
        growth.sub_(slot.room)
        within = not growth.numel() or bool(growth.amax() <= 0)
    else:
        within = not growth.numel() or float(growth.amax()) <= slot.room
    if not within:
        limit = before.to(slot.u.dtype) + slot.room
        if potential.separable:
            bound = potential.mirror_map(limit)
            torch.clamp(slot.u, -bound, bound, out=slot.u)
        else:
            dims = tuple(range(slot.w.ndim))
            weights = potential.inverse_map(slot.u, dims)
            slot.u.copy_(potential.mirror_map(torch.clamp(weights, -limit, limit), dims))
        potential.write_weights(slot.u, slot.w)


def match_dual(potential: Potential, w: Tensor, u: Tensor) -> None:
    """u ← ∇ψ(w) where |w| was held below |∇ψ*(u)|; everywhere, if each entry of u is in the map of all."""
    dims = tuple(range(w.ndim))
    if not potential.separable:
        u.copy_(potential.mirror_map(w.to(u.dtype), dims))
        return
    held = potential.inverse_map(u, dims).abs() > w.abs()
    u.copy_(torch.where(held, potential.mirror_map(w, dims), u))


def _move_dual(rule: Rule, slot: Slot) -> None:
    if rule.adam:
        _move_by_moments(rule, slot)
        return
    u, g, m, decay = slot.u, slot.g, slot.m, rule.weight_decay
    if m is not None:
        _add(m.mul_(rule.momentum), g, slot.c)
        if decay:
            m.add_(u, alpha=decay)
        if not rule.nesterov:
            _add(u, m, -slot.a)
            return
    if decay:
        _add(u, u, -slot.a * decay)  # 1 − ηλ as a factor would be rounded the same way at every step
    _add(u, g, -slot.a * slot.c)
    if m is not None:
        _add(u, m, -slot.a * rule.momentum)


def _move_by_moments(rule: Rule, slot: Slot) -> None:
    u, g, m = slot.u, slot.g, slot.m
    assert m is not None
    if isinstance(slot.c, Tensor) or slot.c != 1 or g.dtype != m.dtype:
        g = g.to(m.dtype) * slot.c
    m.lerp_(g, 1 - rule.momentum)
    decay_dual(rule.potential, slot)
    if slot.v is None:
        _add(u, m, -slot.a)
        return
    v = slot.v.mul_(rule.beta2).addcmul_(g, g, value=1 - rule.beta2)
    root = (v.sqrt() / slot.b).add_(rule.eps)
    if isinstance(slot.a, Tensor):
        u.addcmul_(m / root, slot.a, value=-1)
    else:
        u.addcdiv_(m, root, value=-slot.a)


def decay_dual(potential: Potential, slot: Slot) -> None:
    """Shrink w by the factor ``keep``, in its dual variable."""
    if not isinstance(slot.keep, Tensor) and slot.keep == 1:
        return
    if potential.degree is not None:  # ∇ψ(kw) = k^{degree − 1} ∇ψ(w)
        slot.u.mul_(slot.keep ** (potential.degree - 1))
    else:
        dims, w = tuple(range(slot.w.ndim)), slot.w.to(slot.u.dtype)
        slot.u.add_(potential.mirror_map(w * slot.keep, dims)).sub_(potential.mirror_map(w, dims))


def _add(x: Tensor, y: Tensor, factor: Number) -> None:
    """x ← x + factor·y."""
    if isinstance(factor, Tensor):
        x.addcmul_(y.to(x.dtype), factor)
    else:
        x.add_(y, alpha=factor)


def _chunks(rule: Rule, slot: Slot) -> Iterator[Slot]:
    plain = slot.own and slot.room is None and not rule.adam  # two operations, with nothing in between to keep
    if slot.w.numel() <= CHUNK or plain or not rule.potential.separable or not in_one_order(slot):
        yield slot
        return
    count = -(-slot.w.numel() // CHUNK)
    for pieces in zip(*(flat(t).chunk(count) for t in slot.tensors), strict=True):
        yield with_tensors(slot, pieces)


def with_tensors(slot: Slot, tensors: Sequence[Tensor]) -> Slot:
    """The slot with other tensors, in the order of ``Slot.tensors``."""
    rest = list(tensors)
    w = rest.pop(0)
    u = w if slot.own else rest.pop(0)
    g = rest.pop(0)
    m = None if slot.m is None else rest.pop(0)
    return replace(slot, w=w, u=u, g=g, m=m, v=None if slot.v is None else rest.pop(0))


def in_one_order(slot: Slot) -> bool:
    """Whether all tensors lie in memory alike, without holes."""
    w, *others = slot.tensors
    if any(t.stride() != w.stride() for t in others):
        return False
    if w.is_contiguous():
        return True
    return 1 + sum((size - 1) * stride for size, stride in zip(w.shape, w.stride(), strict=True)) == w.numel()


def flat(t: Tensor) -> Tensor:
    """A 1-D view of a dense tensor, in memory order."""
    return t.view(-1) if t.is_contiguous() else t.as_strided((t.numel(),), (1,))


class Pack:
    """Small tensors laid end to end, so that one operation serves all of them."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        first = slots[0]
        self.sizes = [slot.w.numel() for slot in slots]
        names = [name for name in ("w", "u", "g", "m", "v") if getattr(first, name) is not None]
        if first.own:
            names.remove("u")
        self.lists = [[getattr(slot, name).view(-1) for slot in slots] for name in names]
        self.slot = with_tensors(first, [torch.cat(ts) for ts in self.lists])
        self._owner: Tensor | None = None
        for name in ("c", "a", "keep", "b", "room"):
            setattr(self.slot, name, self._per_entry([getattr(slot, name) for slot in slots]))

    def _per_entry(self, values: list[Any]) -> Any:
        """One number if all have the same, else one for each entry."""
        if values.count(values[0]) == len(values):
            return values[0]
        if self._owner is None:
            self._owner = torch.repeat_interleave(torch.tensor(self.sizes))
        return torch.tensor(values, dtype=self.slot.u.dtype).index_select(0, self._owner)

    def unpack(self) -> None:
        """Write what has changed back to where it came from; the gradients have not."""
        place = 1 if self.slot.own else 2
        for index, (ts, whole) in enumerate(zip(self.lists, self.slot.tensors, strict=True)):
            if index != place:
                torch._foreach_copy_(ts, list(whole.split(self.sizes)))


def packed(rule: Rule, slots: Sequence[Slot]) -> tuple[list[Pack], list[Slot]]:
    """Small neighbours of one kind together, and what stays alone.

    A weight must have the same bits wherever it is computed again, else it would look like somebody else's work; so
    only what rounds alike everywhere is laid end to end.
    """
    packs: list[Pack] = []
    alone: list[Slot] = []
    waiting: dict[Any, list[Slot]] = {}
    counts: dict[Any, int] = {}
    if not rule.potential.separable or not (rule.potential.is_identity or rule.potential.rounds_alike):
        return [], list(slots)
    for slot in slots:
        if slot.w.numel() > SMALL or not _may_be_packed(slot):
            alone.append(slot)
            continue
        kind = slot.w.dtype, slot.g.dtype, slot.own
        waiting.setdefault(kind, []).append(slot)
        counts[kind] = counts.get(kind, 0) + slot.w.numel()
        if counts[kind] > CHUNK - SMALL:
            packs.append(Pack(waiting.pop(kind)))
            del counts[kind]
    for rest in waiting.values():
        if len(rest) > 1:
            packs.append(Pack(rest))
        else:
            alone.extend(rest)
    return packs, alone


def _may_be_packed(slot: Slot) -> bool:
    w, u, g, m, v = slot.w, slot.u, slot.g, slot.m, slot.v
    return (
        g.dtype == u.dtype
        and w.is_cpu
        and w.is_contiguous()
        and g.is_contiguous()
        and (u is w or u.is_contiguous())
        and (m is None or m.is_contiguous())
        and (v is None or v.is_contiguous())
    )


def step_eager(rule: Rule, slots: Sequence[Slot]) -> None:
    """The default on a CPU: small tensors together, large ones piece by piece."""
    packs, alone = packed(rule, slots)
    for pack in packs:
        step_in_chunks(rule, pack.slot)
        pack.unpack()
    for slot in alone:
        step_in_chunks(rule, slot)


def step_foreach(rule: Rule, slots: Sequence[Slot]) -> None:
    """A few multi-tensor kernels for many parameters: the default on a GPU.

    Temporaries are as large as the parameters at most, and of large models as large as a part of them.
    """
    part: list[Slot] = []
    for slot in slots:
        if part and (sum(s.w.numel() for s in part) + slot.w.numel() > BUCKET or part[0].own != slot.own):
            _foreach_part(rule, part)
            part = []
        part.append(slot)
    if part:
        _foreach_part(rule, part)


def _foreach_part(rule: Rule, slots: Sequence[Slot]) -> None:
    own, trusts = slots[0].own, slots[0].room is not None
    us, ms = [s.u for s in slots], [s.m for s in slots if s.m is not None]
    limits = _limits(rule, slots) if trusts and own else []
    cs = [s.c for s in slots]
    plain = all(not isinstance(c, Tensor) and c == 1 for c in cs) and all(s.g.dtype == s.u.dtype for s in slots)
    if plain and (rule.adam or not rule.weight_decay):
        gs = [s.g for s in slots]
    else:
        gs = list(_foreach_times([s.g.to(s.u.dtype) for s in slots], cs))
        if rule.weight_decay and not rule.adam:
            torch._foreach_add_(gs, us, alpha=rule.weight_decay)
    if rule.adam:
        torch._foreach_lerp_(ms, gs, 1 - rule.momentum)
        for slot in slots:
            decay_dual(rule.potential, slot)
    elif ms:
        torch._foreach_mul_(ms, rule.momentum)
        torch._foreach_add_(ms, gs)
    if rule.adam and slots[0].v is not None:
        vs = [s.v for s in slots if s.v is not None]
        torch._foreach_mul_(vs, rule.beta2)
        torch._foreach_addcmul_(vs, gs, gs, 1 - rule.beta2)
        del gs
        roots = list(torch._foreach_sqrt(vs))
        _foreach_divide_(roots, [s.b for s in slots])
        torch._foreach_add_(roots, rule.eps)
        torch._foreach_reciprocal_(roots)
        torch._foreach_mul_(roots, ms)
        _foreach_subtract_(us, roots, [s.a for s in slots], reuse=True)
    elif ms and rule.nesterov:
        _foreach_subtract_(us, gs, [s.a for s in slots], reuse=not plain)
        _foreach_subtract_(us, ms, [s.a * rule.momentum for s in slots])
    else:
        _foreach_subtract_(us, ms or gs, [s.a for s in slots], reuse=not ms and gs[0] is not slots[0].g)
    if trusts and not own:
        limits = _limits(rule, slots)  # of weights that are still to be written
    if limits:
        torch._foreach_minimum_(us, limits)
        torch._foreach_neg_(limits)
        torch._foreach_maximum_(us, limits)
    if not own:
        rule.potential.write_weights_foreach(us, [s.w for s in slots])


def _limits(rule: Rule, slots: Sequence[Slot]) -> list[Tensor]:
    """∇ψ(|w| + room) of each: what |u| may not exceed."""
    limits = []
    for slot in slots:
        assert slot.room is not None
        limits.append(rule.potential.mirror_map(slot.w.to(slot.u.dtype).abs() + slot.room, tuple(range(slot.w.ndim))))
    return limits


def _foreach_times(xs: list[Tensor], numbers: list[Number]) -> Sequence[Tensor]:
    if any(isinstance(n, Tensor) for n in numbers):
        return [x * n for x, n in zip(xs, numbers, strict=True)]
    return torch._foreach_mul(xs, [float(n) for n in numbers])


def _foreach_divide_(xs: list[Tensor], numbers: list[Number]) -> None:
    if any(isinstance(n, Tensor) for n in numbers):
        for x, n in zip(xs, numbers, strict=True):
            x.div_(n)
    else:
        torch._foreach_div_(xs, [float(n) for n in numbers])


def _foreach_subtract_(xs: list[Tensor], ys: list[Tensor], numbers: list[Number], reuse: bool = False) -> None:
    """x ← x − n·y; ``reuse`` says that the ys are temporaries."""
    if any(isinstance(n, Tensor) for n in numbers):
        for x, y, n in zip(xs, ys, numbers, strict=True):
            x.addcmul_(y, torch.as_tensor(n, dtype=x.dtype, device=x.device), value=-1)
    elif all(n == numbers[0] for n in numbers):
        torch._foreach_sub_(xs, ys, alpha=float(numbers[0]))
    else:
        scalars = [float(n) for n in numbers]
        if reuse:
            torch._foreach_mul_(ys, scalars)
        else:
            ys = list(torch._foreach_mul(ys, scalars))
        torch._foreach_sub_(xs, ys)


def step_sparse(rule: Rule, slot: Slot) -> None:
    """Only the rows that a sparse gradient names; the others do not move, so they need no work."""
    g = slot.g.coalesce()
    rows = tuple(g.indices())
    part = Slot(slot.w[rows], slot.u[rows], g.values(), c=slot.c, a=slot.a, room=slot.room)
    if slot.own:
        part.u = part.w
    step_in_chunks(rule, part)
    slot.u[rows] = part.u
    if not slot.own:
        slot.w[rows] = part.w
