"""The step of :mod:`~mirrormax.optim.kernels` as one expression: for ``torch.compile``, and for graph capture."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.kernels import Number, Rule, Slot, flat, in_one_order, match_dual, packed, with_tensors

# Kernels that have been compiled for any size already.
_called: set[Callable[..., Any]] = set()


def step_compiled(rule: Rule, slots: Sequence[Slot]) -> None:
    """One fused kernel for each large tensor and each pack of small ones, the same for all sizes and numbers."""
    packs, alone = packed(rule, slots)
    for pack in packs:
        _run(rule, pack.slot)
        pack.unpack()
    for slot in alone:
        if rule.potential.separable and in_one_order(slot):
            slot = with_tensors(slot, [flat(t) for t in slot.tensors])
        _run(rule, slot)


def step_traced(rule: Rule, slot: Slot) -> None:
    """Without asking for any number: inside somebody else's ``torch.compile``, or while a graph is captured."""
    u = None if slot.own else slot.u
    _step(
        rule.potential,
        rule.adam,
        rule.nesterov,
        _decays(rule, slot),
        True,
        slot.w,
        u,
        slot.g,
        slot.m,
        slot.v,
        _numbers(rule, slot),
    )


def _numbers(rule: Rule, slot: Slot) -> tuple[Number | None, ...]:
    # 1 − β is taken before it is rounded to the type of the weights.
    first, second = (rule.momentum, 1 - rule.momentum), (rule.beta2, 1 - rule.beta2)
    return *first, rule.weight_decay, *second, rule.eps, slot.c, slot.a, slot.keep, slot.b, slot.room


def _decays(rule: Rule, slot: Slot) -> bool:
    if rule.adam:
        return isinstance(slot.keep, Tensor) or slot.keep != 1
    return rule.weight_decay != 0


def _run(rule: Rule, slot: Slot) -> None:
    numbers = _as_tensors(rule, slot)
    statics = rule.adam, rule.nesterov, _decays(rule, slot)
    tensors = (slot.w, None if slot.own else slot.u, slot.g, slot.m, slot.v)
    kinds = tuple(None if t is None else (t.dtype, t.ndim) for t in (*tensors, *numbers))
    kernel = _kernel(rule.potential, statics, kinds)
    if kernel not in _called:
        for t in (*tensors, *numbers):
            for dim in range(0 if t is None else t.ndim):
                torch._dynamo.maybe_mark_dynamic(t, dim)  # one kernel for all sizes
        _called.add(kernel)
    excess = kernel(*tensors, numbers)
    if excess is not None and not bool(excess <= 0):
        match_dual(rule.potential, slot.w, slot.u)


def _as_tensors(rule: Rule, slot: Slot) -> tuple[Tensor | None, ...]:
    """Numbers travel as tensors: a changed value is then no reason to compile again."""
    values = _numbers(rule, slot)
    known = [0.0 if v is None or isinstance(v, Tensor) else v for v in values]
    packed_numbers = torch.tensor(known, dtype=slot.u.dtype, device=slot.u.device).unbind()
    return tuple(
        None if v is None else v.to(slot.u.dtype) if isinstance(v, Tensor) else n
        for v, n in zip(values, packed_numbers, strict=True)
    )


@functools.lru_cache(maxsize=64)
def _kernel(potential: Potential, statics: tuple[bool, bool, bool], kinds: Any) -> Callable[..., Tensor | None]:
    adam, nesterov, decays = statics

    def kernel(
        w: Tensor, u: Tensor | None, g: Tensor, m: Tensor | None, v: Tensor | None, numbers: tuple[Any, ...]
    ) -> Tensor | None:
        # Weights rounded to a narrower type cannot say which of them were held.
        at_once = u is not None and u.dtype != w.dtype
        return _step(potential, adam, nesterov, decays, at_once, w, u, g, m, v, numbers)

    # A code object of its own: torch.compile keeps its cache with the code, and would take the p of a
    # second potential for a variable, or run into its limit of recompilations.
    kernel.__code__ = kernel.__code__.replace(co_name=f"{potential!r} {statics} {kinds}")
    return torch.compile(kernel, fullgraph=True)


def _step(
    potential: Potential,
    adam: bool,
    nesterov: bool,
    decays: bool,
    at_once: bool,
    w: Tensor,
    u: Tensor | None,
    g: Tensor,
    m: Tensor | None,
    v: Tensor | None,
    numbers: tuple[Any, ...],
) -> Tensor | None:
    """``u`` is None where the weights are their own dual variables.

    Where weights must be held back, their dual variables need another power. ``at_once`` takes it for all
    entries; else only the weights are held, and the excess is returned by which the largest would have grown too
    much: if it is positive, the caller sets the dual variables right.
    """
    if w.ndim == 0:  # torch 2.13 compiles away the writes into a 0-dim tensor
        w, g = w.view(1), g.view(1)
        u, m, v = (t if t is None else t.view(1) for t in (u, m, v))
    mu, new_mu, weight_decay, beta2, new_beta2, eps, c, a, keep, b, room = numbers
    dual, dims = w if u is None else u, tuple(range(w.ndim))
    d = c * g.to(dual.dtype)
    moved = dual
    if adam:
        assert m is not None
        momentum = m + new_mu * (d - m)
        if decays:
            moved = _decayed(potential, moved, w, keep, dims)
        if v is None:
            moved = moved - a * momentum
        else:
            second = beta2 * v + new_beta2 * d * d
            moved = moved - a * momentum / (second.sqrt() / b + eps)
            v.copy_(second)
        m.copy_(momentum)
    else:
        if decays:
            d = d + weight_decay * dual
        if m is not None:
            momentum = mu * m + d
            d = d + mu * momentum if nesterov else momentum
            m.copy_(momentum)
        moved = moved - a * d
    return _write(potential, at_once, w, u, moved, room, dims)


def _decayed(potential: Potential, dual: Tensor, w: Tensor, keep: Number, dims: tuple[int, ...]) -> Tensor:
    if potential.degree is not None:
        return dual * keep ** (potential.degree - 1)
    wide = w.to(dual.dtype)
    return dual + (potential.mirror_map(wide * keep, dims) - potential.mirror_map(wide, dims))


def _write(
    potential: Potential,
    at_once: bool,
    w: Tensor,
    u: Tensor | None,
    moved: Tensor,
    room: Number | None,
    dims: tuple[int, ...],
) -> Tensor | None:
    if u is None:
        if room is not None:
            limit = w.abs() + room
            moved = torch.minimum(torch.maximum(moved, -limit), limit)
        w.copy_(moved)
        return None
    weights = potential.inverse_map(moved, dims)
    excess = None
    if room is not None:
        # The old weights need not be read: they follow from the old dual variables, which are.
        limit = (potential.inverse_map(u, dims) if potential.separable else w.to(u.dtype)).abs() + room
        held = torch.minimum(torch.maximum(weights, -limit), limit)
        if at_once:
            over = weights.abs() > limit
            moved = torch.where(over if potential.separable else over.any(), potential.mirror_map(held, dims), moved)
        elif w.numel():
            excess = (weights.abs() - limit).amax()
        weights = held
    u.copy_(moved)
    w.copy_(weights)
    return excess
