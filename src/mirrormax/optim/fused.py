"""The step of :mod:`~mirrormax.optim.update` in one pass over memory: a CPU's default, with numba (extra ``fast``).

It takes ℓp potentials, and weights of float32, float64 or bfloat16. The compiled kernels are given addresses, so this
module makes them in one place only, :func:`addresses`, which looks at type, device, size, layout and storage of every
tensor; the addresses of weights and state are used again as long as :class:`~mirrormax.optim.batch.Held` finds them
there, those of gradients never.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from importlib.util import find_spec
from operator import attrgetter
from types import ModuleType
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.geometry import Lp
from mirrormax.optim.batch import DTYPE, PLAIN, SIZE, Columns
from mirrormax.optim.kernels import is_dense
from mirrormax.optim.update import Numbers, Rule

# How weights and gradients are seen by numpy, which has no bfloat16.
SEEN_AS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.int16}
BLOCK = 2048  # entries that stay in the first cache
PIECE = 131_072  # entries that are worth a thread

IS_CPU, LAYOUT = attrgetter("is_cpu"), attrgetter("layout")


@functools.cache
def is_installed() -> bool:
    """Whether there is a numba to compile the kernel with."""
    return find_spec("numba") is not None


class Rows:
    """For each parameter the addresses of w, u, g, m, v and their size.

    A parameter has a row if all its tensors can be read as plain memory: memory of the processor, whole and of one
    order, with weights and gradients of one type, and dual variables and moments of another one.
    """

    def __init__(self, columns: Columns) -> None:
        w, u, count = columns.w, columns.u, len(columns.w)
        dtype, wide = w[0].dtype, u[0].dtype
        self.table = np.zeros((count, 6), np.int64)
        self.places: list[int] = []  # that have a row
        self._dtype, self._sizes = dtype, list(map(Tensor.numel, w))
        self._strides = [None if t.is_contiguous() else t.stride() if is_dense(t) else "holes" for t in w]

        def enter(part: slice) -> bool:
            for k, (column, kind) in enumerate(zip(columns, (dtype, wide, None, wide, wide), strict=True)):
                if column is not None and kind is not None:
                    found = addresses(column[part], kind, self._sizes[part], self._strides[part])
                    if found is None:
                        return False
                    self.table[part, k] = found
            return True

        if dtype in SEEN_AS and wide in (torch.float32, torch.float64):
            self.places = _in_halves(enter, count)
        self.table[:, 5] = self._sizes
        self._sizes = [self._sizes[place] for place in self.places]
        self._strides = [self._strides[place] for place in self.places]

    def receive(self, grads: Sequence[Tensor]) -> list[int]:
        """Enter the gradients; the places whose rows are now complete."""
        whole = len(self.places) == len(grads)
        ours = grads if whole else [grads[place] for place in self.places]

        def enter(part: slice) -> bool:
            found = addresses(ours[part], self._dtype, self._sizes[part], self._strides[part])
            if found is not None:
                self.table[part if whole else self.places[part], 2] = found
            return found is not None

        return [self.places[k] for k in _in_halves(enter, len(ours))]


def _in_halves(enter: Callable[[slice], bool], count: int) -> list[int]:
    """The places that ``enter`` takes, all at once or, where it refuses, in halves."""
    taken: list[int] = []
    waiting = [range(count)]
    while waiting:
        part = waiting.pop()
        if part and enter(slice(part.start, part.stop)):
            taken += part
        elif len(part) > 1:
            middle = len(part) // 2
            waiting += [part[middle:], part[:middle]]
    return taken


def addresses(
    tensors: Sequence[Tensor], dtype: torch.dtype, sizes: Sequence[int], strides: Sequence[Any]
) -> list[int] | None:
    """Where the tensors begin in memory; None unless all of them are plain, of this type, these sizes and strides.

    Strides of None mean that a tensor is contiguous. Nothing else makes addresses.
    """
    if not (all(map(PLAIN.__contains__, map(type, tensors))) and all(map(IS_CPU, tensors))):
        return None
    if set(map(LAYOUT, tensors)) != {torch.strided} or set(map(DTYPE, tensors)) != {dtype}:
        return None
    if list(map(Tensor.numel, tensors)) != sizes or any(map(Tensor.is_neg, tensors)):
        return None
    if strides.count(None) == len(tensors):
        if not all(map(Tensor.is_contiguous, tensors)):
            return None
    elif list(map(Tensor.stride, tensors)) != strides:
        return None
    ends = np.array(sizes) + list(map(Tensor.storage_offset, tensors))
    if (ends * dtype.itemsize > list(map(SIZE, map(Tensor.untyped_storage, tensors)))).any():
        return None
    return list(map(Tensor.data_ptr, tensors))


class Step:
    """The fused step of some parameters of one kind: made before anything moves, and then run."""

    def __init__(
        self,
        rule: Rule,
        numbers: Numbers,
        rows: Any,
        w: list[Tensor],
        u: list[Tensor],
        own: bool,
        block: int = BLOCK,
    ) -> None:
        kernels = _kernels()
        assert isinstance(rule.potential, Lp)
        exponent = 1 / (rule.potential.p - 1)
        if rule.adam:
            kind = kernels.TENSOR if rule.by_tensor else kernels.ENTRY
        else:
            kind = kernels.NESTEROV if rule.nesterov else kernels.HEAVY if rule.heavy else kernels.PLAIN
        code = kernels.OWN if own else _code(exponent)
        self.params, self.rows = w, rows
        self.likes = _like(w[0].dtype), _like(u[0].dtype)
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
        torch.autograd.graph.increment_version(self.params)

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
    rows = Rows(Columns([w], [u], [w], None, None)) if is_installed() else None
    if rows is None or not rows.places:
        return False
    likes = _like(w.dtype), _like(u.dtype)
    kernel = _kernels().map_kernel(*(like.dtype.name for like in likes))

    def work(rows: Any, numbers: Any) -> None:
        kernel(np.ascontiguousarray(rows[:, (0, 1, 5)]), p - 1, *likes, block)

    _share_out(work, rows.table, np.empty((1, 0)), [like.itemsize for like in likes], piece)
    return True


def norms(rows: Any, dtype: torch.dtype, p: float = 2.0, block: int = BLOCK) -> Any:
    """‖g‖_q of the gradients in these rows, which are of type ``dtype``; q = p/(p − 1)."""
    wide = torch.float64 if dtype == torch.float64 else torch.float32
    table, likes, exponent = np.ascontiguousarray(rows[:, (2, 5)]), (_like(dtype), _like(wide)), 1 / (p - 1)
    of_g = likes[0].dtype.name
    if p == 2:
        return np.sqrt(_kernels().square_kernel(of_g)(table, *likes, block))
    return _kernels().norm_kernel(_code(exponent), of_g)(table, exponent, *likes, block)


def _like(dtype: torch.dtype) -> Any:
    return np.empty(0, SEEN_AS[dtype])


def _code(exponent: float) -> int:
    """The power's name among the kernels, if it is multiplied out."""
    whole = round(exponent)
    kernels = _kernels()
    if abs(exponent - 0.5) < 1e-15:
        return int(kernels.ROOT)
    return whole if whole in kernels.WHOLE and abs(exponent - whole) < 1e-14 * exponent else kernels.GENERAL


@functools.cache
def _kernels() -> ModuleType:
    from mirrormax.optim import fused_kernels

    return fused_kernels
