"""The step of :mod:`~mirrormax.optim.kernels` in one pass over memory: a CPU's default, with numba (extra ``fast``).

It takes tensors of float32 or float64 that lie in memory alike, and ℓp potentials whose powers 1/(p − 1) are whole:
made of multiplications alone, its weights have the bits that the other kernels write.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.geometry import Lp, power_plan
from mirrormax.optim.kernels import Rule, Slot, in_one_order

TYPES = {torch.float32: np.float32, torch.float64: np.float64}
# Threads get pieces of this many entries; fewer are not worth a thread.
PIECE = 131_072
# Gradients of this many bytes are still in a processor's last cache when their step follows their norms.
NEAR = 8_388_608


@functools.cache
def is_installed() -> bool:
    """Whether there is a numba to compile the kernel with."""
    return find_spec("numba") is not None


def is_wanted(rule: Rule) -> bool:
    """Whether these options let the kernel in."""
    if rule.fused is False or (rule.fused is None and rule.foreach is not None):
        return False
    if rule.fused is None and rule.compile and not rule.adam:  # torch.compile makes as fast a step of so little
        return False
    return not rule.capturable and not torch.compiler.is_compiling() and is_installed()


def suits(rule: Rule) -> bool:
    """Whether a step with these options and this potential may go through the kernel."""
    if rule.potential.is_identity and not rule.adam:  # one or two operations, which torch has
        return False
    return isinstance(rule.potential, Lp) and _plan(1 / (rule.potential.p - 1)) is not None and is_wanted(rule)


def takes(slot: Slot) -> bool:
    """Whether a parameter's tensors can be read and written as plain memory."""
    w, u, g, m, v = slot.w, slot.u, slot.g, slot.m, slot.v
    if not (w.dtype in TYPES and _is_plain(w) and _is_plain(g)):
        return False
    dtype = w.dtype
    if u.dtype != dtype or g.dtype != dtype or isinstance(slot.c, Tensor) or isinstance(slot.a, Tensor):
        return False
    if w.is_contiguous() and u.is_contiguous() and g.is_contiguous() and (m is None or m.is_contiguous()):
        return v is None or v.is_contiguous()
    return in_one_order(slot)


def takes_all(slots: Sequence[Slot]) -> bool:
    """Whether they can be taken together."""
    return len({(slot.w.dtype, slot.own) for slot in slots}) == 1 and all(map(takes, slots))


def _is_plain(g: Tensor) -> bool:
    return g.layout is torch.strided and g.is_cpu and not g.is_neg() and type(g) in (Tensor, torch.nn.Parameter)


def step(rule: Rule, slots: Sequence[Slot]) -> None:
    """One step of all these parameters."""
    for dtype in TYPES:
        for own in (False, True):
            part = [slot for slot in slots if slot.w.dtype == dtype and slot.own is own]
            if part:
                trusts = part[0].room is not None
                rows = [(s.c, s.a, s.keep, s.b, s.room if trusts else 0.0) for s in part]
                run(rule, Layout(part), np.array(rows, dtype=np.float64), trusts)


class Layout:
    """Where the tensors of some parameters lie: rows of the addresses of w, u, g, m, v, and the number of entries."""

    def __init__(self, slots: Sequence[Slot]) -> None:
        first = slots[0]
        self.rows = np.array([(*(0 if t is None else t.data_ptr() for t in (s.w, s.u, s.g, s.m, s.v)), s.w.numel())
                              for s in slots], dtype=np.int64)  # fmt: skip
        self.params = [slot.w for slot in slots]
        self.like = np.empty(0, TYPES[first.w.dtype])
        self.own, self.moves, self.seconds = first.own, first.m is not None, first.v is not None


def run(rule: Rule, layout: Layout, numbers: Any, trusts: bool) -> None:
    """The kernel on tensors in memory; rows of ``numbers`` are c, a, keep, b and room."""
    assert isinstance(rule.potential, Lp)
    plan = _plan(1 / (rule.potential.p - 1))
    assert plan is not None
    numbers[:, 2] **= rule.potential.p - 1  # ∇ψ(kw) = k^{p − 1} ∇ψ(w)
    common = rule.momentum, rule.beta2, rule.eps, rule.weight_decay, rule.potential.p - 1
    switches = rule.adam, layout.moves, layout.seconds, rule.nesterov, layout.own, trusts
    kernel, like = _kernels().step, layout.like

    def work(rows: Any, numbers: Any) -> None:
        kernel(rows, numbers, common, switches, *plan, like)

    _share_out(work, layout.rows, numbers, like.itemsize)
    torch.autograd.graph.increment_version(layout.params)


def _share_out(run: Callable[[Any, Any], None], pointers: Any, numbers: Any, width: int) -> None:
    """All at once, or by as many threads as torch uses."""
    threads = min(torch.get_num_threads(), int(pointers[:, 5].sum()) // PIECE)
    if threads < 2:
        run(pointers, numbers)
        return
    counts = np.maximum(1, -(-pointers[:, 5] // PIECE))
    owner = np.repeat(np.arange(len(counts)), counts)
    begin = (np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]) * PIECE
    pieces = pointers[owner]
    pieces[:, :5] += begin[:, None] * width
    pieces[:, 5] = np.minimum(PIECE, pieces[:, 5] - begin)
    shares = np.array_split(np.arange(len(pieces)), threads)
    list(_pool(threads).map(lambda share: run(pieces[share], numbers[owner[share]]), shares))


@functools.lru_cache(maxsize=1)
def _pool(threads: int) -> ThreadPoolExecutor:
    return ThreadPoolExecutor(threads, thread_name_prefix="mirrormax-step")


def euclidean_norms(addresses: Any, like: Any) -> list[float]:
    """‖g‖₂ of each gradient, summed in float64; rows of ``addresses`` are an address and a size."""
    found: list[float] = np.sqrt(_kernels().squares(addresses, like)).tolist()
    return found


def dual_norms(potential: Lp, addresses: Any, like: Any) -> list[float] | None:
    """‖g‖_q of each, q = p/(p − 1) = 1 + 1/(p − 1); None if the kernel does not take such powers."""
    plan = _plan(1 / (potential.p - 1))
    if plan is None:
        return None
    kind = np.int32 if like.itemsize == 4 else np.int64
    bits = np.array([np.iinfo(kind).max], dtype=kind)
    found: list[float] = _kernels().power_norms(addresses, *plan, like, bits).tolist()
    return found


def addresses_of(grads: Sequence[Tensor]) -> tuple[Any, Any] | None:
    """What the norms ask for; None if these gradients cannot be read as plain memory."""
    if not grads:
        return None
    dtype = grads[0].dtype
    if dtype not in TYPES or any(g.dtype != dtype or not _is_plain(g) or not g.is_contiguous() for g in grads):
        return None
    return np.array([(g.data_ptr(), g.numel()) for g in grads], dtype=np.int64), np.empty(0, TYPES[dtype])


class Plan:
    """A batch that the kernel took, with all that need not be asked again at its next step.

    Numbers of the state (``step``, a tensor's second moment) become views of one vector each.
    """

    def __init__(self, slots: Sequence[Slot], params: list[Tensor], states: list[dict[str, Any]]) -> None:
        self.layout = Layout(slots)
        self.params, self.states = params, states
        self.dtype = params[0].dtype
        self.strides = [param.stride() for param in params]
        self.sizes = self.layout.rows[:, 5].clip(1)
        self.vectors: dict[str, Any] = {}
        for name in ("step", "exp_avg_sq"):
            values = [state[name] for state in states if name in state]
            if values and all(value.ndim == 0 for value in values) and (name == "step" or not self.layout.seconds):
                vector = torch.stack(values)
                for state, value in zip(states, vector.unbind(), strict=True):
                    state[name] = value
                self.vectors[name] = vector.numpy()
        self.fixed = {
            name: np.array([float(state[name]) for state in states])
            for name in ("scale", "size")
            if all(name in state for state in states)
        }
        self.tensors = {name: [state[name] for state in states] for name in states[0]}
        self.parts = [(which, self._part(which)) for which in _near(self.layout.rows[:, 5] * self.layout.like.itemsize)]

    def _part(self, which: slice) -> Plan:
        """The plan of some of its tensors; what changes is seen by both, as their arrays are views."""
        part = copy.copy(self)
        part.layout = copy.copy(self.layout)
        part.layout.rows, part.layout.params = self.layout.rows[which], self.layout.params[which]
        part.params, part.states, part.sizes = self.params[which], self.states[which], self.sizes[which]
        part.vectors = {name: vector[which] for name, vector in self.vectors.items()}
        part.fixed = {name: vector[which] for name, vector in self.fixed.items()}
        return part

    def holds(self, grads: Sequence[Any]) -> bool:
        """Whether the tensors lie where they did, and the gradients are such that the kernel takes them."""
        count, rows = len(grads), self.layout.rows
        if [p.data_ptr() for p in self.params] != rows[:, 0].tolist():
            return False
        if [g.dtype for g in grads].count(self.dtype) < count or not all(map(_is_plain, grads)):
            return False
        if [g.stride() for g in grads] != self.strides:
            return False
        for name, known in self.tensors.items():
            if not all(state.get(name) is tensor for state, tensor in zip(self.states, known, strict=True)):
                return False
        rows[:, 2] = [g.data_ptr() for g in grads]
        return True

    def scale(self, group: dict[str, Any]) -> Any:
        """ψ''(s) of each tensor, or 1."""
        return 1.0 if group["scale"] is None else self.fixed["scale"]

    def room(self, group: dict[str, Any]) -> Any:
        """By how much the weights of each tensor may grow; it is not asked for without ``trust``."""
        return 0.0 if group["trust"] is None else group["trust"] * self.fixed["size"]

    @property
    def addresses(self) -> tuple[Any, Any]:
        """Of the gradients, for their norms."""
        return np.ascontiguousarray(self.layout.rows[:, (2, 5)]), self.layout.like


def _near(sizes: Any) -> list[slice]:
    """Neighbours of at most ``NEAR`` bytes together; what is larger stays alone."""
    found, start, total = [], 0, 0
    for k, size in enumerate(sizes.tolist()):
        if k > start and total + size > NEAR:
            found.append(slice(start, k))
            start, total = k, 0
        total += size
    return [*found, slice(start, len(sizes))]


@functools.lru_cache(maxsize=64)
def _plan(exponent: float) -> tuple[int, Any] | None:
    plan = power_plan(exponent)
    if plan is None or plan.quarters:  # a root's last bit depends on who takes it
        return None
    return plan.whole, np.array(plan.steps, dtype=np.int64)


@functools.cache
def _kernels() -> ModuleType:
    from mirrormax.optim import fused_kernels

    return fused_kernels
