"""The step of :mod:`~mirrormax.optim.kernels` as one expression that ``torch.compile`` fuses."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.kernels import Rule, Slot, flat, in_one_order

# Kernels that have been compiled for any size already.
_called: set[Callable[..., Any]] = set()


def step_compiled(rule: Rule, slots: Sequence[Slot]) -> None:
    """One fused kernel a tensor, the same for every size and step size."""
    numbers: dict[tuple[float, torch.dtype, torch.device], tuple[Tensor, ...]] = {}
    for slot in slots:
        w, u, g, m = slot.w, slot.u, slot.g, slot.m
        key = slot.c, u.dtype, u.device
        if key not in numbers:
            numbers[key] = _as_tensors(rule, *key)
        if rule.potential.separable and in_one_order(slot):
            w, u, g, m = flat(w), flat(u), flat(g), None if m is None else flat(m)
        traits = u.dtype, w.dtype, w.ndim, slot.u is slot.w, m is not None, rule.nesterov, rule.weight_decay != 0
        kernel = _kernel(rule.potential, *traits)
        if kernel not in _called:
            for t in (w, u, g, *(() if m is None else (m,))):
                for dim in range(t.ndim):
                    torch._dynamo.maybe_mark_dynamic(t, dim)  # one kernel for all sizes
            _called.add(kernel)
        kernel(w, u, g, m, *numbers[key])


def step_traced(rule: Rule, slot: Slot) -> None:
    """The step inside somebody else's ``torch.compile``, which fuses it with what is around it."""
    u = None if slot.u is slot.w else slot.u
    decay = rule.weight_decay or None
    _step(rule.potential, slot.w, u, slot.g, slot.m, rule.lr, slot.c, rule.momentum, rule.nesterov, decay)


def _as_tensors(rule: Rule, c: float, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, ...]:
    """Numbers travel as tensors: a changed value is then no reason to compile again."""
    packed = torch.tensor([c, rule.momentum, rule.weight_decay], dtype=dtype, device=device)
    return torch.as_tensor(rule.lr, dtype=dtype, device=device), *packed.unbind()


@functools.lru_cache(maxsize=64)
def _kernel(potential: Potential, *traits: Any) -> Callable[..., Any]:
    *_, identity, _, nesterov, decay = traits

    def kernel(
        w: Tensor, u: Tensor, g: Tensor, m: Tensor | None, lr: Tensor, c: Tensor, mu: Tensor, weight_decay: Tensor
    ) -> None:
        _step(potential, w, None if identity else u, g, m, lr, c, mu, nesterov, weight_decay if decay else None)

    # A code object of its own: torch.compile keeps its cache with the code, and would take the p of a
    # second potential for a variable, or run into its limit of recompilations.
    kernel.__code__ = kernel.__code__.replace(co_name=f"{potential!r} {traits}")
    return torch.compile(kernel, fullgraph=True)


def _step(
    potential: Potential,
    w: Tensor,
    u: Tensor | None,
    g: Tensor,
    m: Tensor | None,
    lr: float | Tensor,
    c: float | Tensor,
    mu: float | Tensor,
    nesterov: bool,
    decay: float | Tensor | None,
) -> None:
    """``u`` is None where the weights are their own dual variables."""
    if w.ndim == 0:  # torch 2.13 compiles away the writes into a 0-dim tensor
        w, u, g, m = w.view(1), u if u is None else u.view(1), g.view(1), m if m is None else m.view(1)
    dual = w if u is None else u
    d = c * g.to(dual.dtype)
    if decay is not None:
        d = d + decay * dual
    if m is not None:
        momentum = mu * m + d
        d = d + mu * momentum if nesterov else momentum
        m.copy_(momentum)
    moved = dual - lr * d
    dual.copy_(moved)
    if u is not None:
        w.copy_(potential.inverse_map(moved, tuple(range(moved.ndim))))
