"""The step of :mod:`~mirrormax.optim.update` in one pass over memory: a CPU's default, with numba (extra ``fast``).

It takes ℓp potentials, and weights of float32, float64 or bfloat16. The compiled kernels are given addresses, so this
module makes them in one place only: :func:`row_of`, which looks at type, device, size and layout of every tensor,
at every step.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.geometry import Lp
from mirrormax.optim.kernels import is_dense
from mirrormax.optim.update import Numbers, Rule, Tensors

# How weights and gradients are seen by numpy, which has no bfloat16.
SEEN_AS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.int16}
BLOCK = 2048  # entries that stay in the first cache
PIECE = 131_072  # entries that are worth a thread

Row = tuple[int, int, int, int, int, int]


@functools.cache
def is_installed() -> bool:
    """Whether there is a numba to compile the kernel with."""
    return find_spec("numba") is not None


def row_of(tensors: Tensors) -> Row | None:
    """The addresses of w, u, g, m, v and their size; None unless all of them can be read as plain memory."""
    w, u, g, m, v = tensors
    size = w.numel()
    if w.dtype not in SEEN_AS or g.dtype is not w.dtype or g.layout is not torch.strided or g.is_neg():
        return None
    state = [t for t in (u, m, v) if t is not None]
    strides = None if w.is_contiguous() else w.stride()
    if strides is not None and not is_dense(w):
        return None
    wide = u.dtype
    for t in (w, g, *state):
        if type(t) not in (Tensor, torch.nn.Parameter) or not t.is_cpu or t.numel() != size:
            return None
        if (t.storage_offset() + size) * t.dtype.itemsize > t.untyped_storage().nbytes():
            return None
        if not (t.is_contiguous() if strides is None else t.stride() == strides):
            return None
    if wide not in (torch.float32, torch.float64) or any(t.dtype is not wide for t in state):
        return None
    addresses = [0 if t is None else t.data_ptr() for t in tensors]
    return addresses[0], addresses[1], addresses[2], addresses[3], addresses[4], size


class Step:
    """The fused step of some parameters of one kind: made before anything moves, and then run."""

    def __init__(
        self, rule: Rule, numbers: Numbers, rows: Sequence[Row], tensors: Sequence[Tensors], block: int = BLOCK
    ) -> None:
        kernels, first = _kernels(), tensors[0]
        assert isinstance(rule.potential, Lp)
        exponent = 1 / (rule.potential.p - 1)
        if rule.adam:
            kind = kernels.TENSOR if first.v is None else kernels.ENTRY
        else:
            kind = kernels.NESTEROV if rule.nesterov else kernels.HEAVY if rule.heavy else kernels.PLAIN
        code = kernels.OWN if first.own else _code(exponent)
        self.tensors, self.rows = tensors, np.array(rows, dtype=np.int64)
        self.likes = _like(first.w.dtype), _like(first.u.dtype)
        self.kernel = kernels.step_kernel(kind, code, *(like.dtype.name for like in self.likes))
        room = np.inf if numbers.room is None else numbers.room
        self.numbers = np.empty((len(rows), 5))
        for k, column in enumerate((numbers.c, numbers.a, numbers.drop, numbers.least, room)):
            self.numbers[:, k] = column
        self.common = (float(numbers.momentum), float(numbers.beta2), float(numbers.decay), exponent)
        self.block = block
        self._work(self.rows[:0], self.numbers[:0])  # compiles, while nothing has moved

    def run(self, piece: int = PIECE) -> None:
        """Take the step."""
        _share_out(self._work, self.rows, self.numbers, [like.itemsize for like in self.likes], piece)
        torch.autograd.graph.increment_version([tensors.w for tensors in self.tensors])

    def _work(self, rows: Any, numbers: Any) -> None:
        self.kernel(rows, numbers, self.common, *self.likes, self.block)


def _share_out(work: Callable[[Any, Any], None], rows: Any, numbers: Any, widths: Sequence[int], piece: int) -> None:
    """All at once, or piece by piece by as many threads as torch uses."""
    threads = min(torch.get_num_threads(), int(rows[:, 5].sum()) // piece)
    if threads < 2:
        work(rows, numbers)
        return
    counts = np.maximum(1, -(-rows[:, 5] // piece))
    owner = np.repeat(np.arange(len(counts)), counts)
    begin = (np.arange(len(owner)) - (np.cumsum(counts) - counts)[owner]) * piece
    pieces = rows[owner]
    w, u = widths
    pieces[:, :5] += begin[:, None] * np.array([w, u, w, u, u])
    pieces[:, 5] = np.minimum(piece, pieces[:, 5] - begin)
    shares = np.array_split(np.arange(len(pieces)), threads)
    list(_pool().map(lambda share: work(pieces[share], numbers[owner[share]]), shares))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="mirrormax-step")


def write_dual(p: float, w: Tensor, u: Tensor, block: int = BLOCK, piece: int = PIECE) -> bool:
    """u ← ∇ψ(w) for ℓp, if both can be read as plain memory; says whether it was done."""
    row = row_of(Tensors(w, u, w, None, None)) if is_installed() else None
    if row is None:
        return False
    likes = _like(w.dtype), _like(u.dtype)
    kernel = _kernels().map_kernel(*(like.dtype.name for like in likes))

    def work(rows: Any, numbers: Any) -> None:
        kernel(np.ascontiguousarray(rows[:, (0, 1, 5)]), p - 1, *likes, block)

    _share_out(work, np.array([row], dtype=np.int64), np.empty((1, 0)), [like.itemsize for like in likes], piece)
    return True


def norms(grads: Sequence[Tensor], p: float = 2.0, block: int = BLOCK) -> list[float] | None:
    """‖g‖_q of each gradient, q = p/(p − 1); None unless they are of one type and can be read as plain memory."""
    if not grads or not is_installed() or len({g.dtype for g in grads}) > 1:
        return None
    wide = torch.float64 if grads[0].dtype == torch.float64 else torch.float32
    rows = []
    for g in grads:
        if g.dtype not in SEEN_AS or g.layout is not torch.strided or g.is_neg() or not g.is_cpu:
            return None
        if type(g) is not Tensor or not (g.is_contiguous() or is_dense(g)):
            return None
        rows.append((g.data_ptr(), g.numel()))
    table, likes, exponent = np.array(rows, dtype=np.int64), (_like(grads[0].dtype), _like(wide)), 1 / (p - 1)
    of_g = likes[0].dtype.name
    if p == 2:
        found = np.sqrt(_kernels().square_kernel(of_g)(table, *likes, block))
    else:
        found = _kernels().norm_kernel(_code(exponent), of_g)(table, exponent, *likes, block)
    return [float(length) for length in found]


def _like(dtype: torch.dtype) -> Any:
    return np.empty(0, SEEN_AS[dtype])


def _code(exponent: float) -> int:
    """The power's name among the kernels, if it is multiplied out."""
    whole = round(exponent)
    kernels = _kernels()
    return whole if whole in kernels.WHOLE and abs(exponent - whole) < 1e-14 * exponent else kernels.GENERAL


@functools.cache
def _kernels() -> ModuleType:
    from mirrormax.optim import fused_kernels

    return fused_kernels
