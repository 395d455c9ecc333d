"""The step of :mod:`~mirrormax.optim.update` in one pass over memory: a CPU's default, with numba (extra ``fast``).

It takes ℓp potentials, and weights of float32, float64 or bfloat16. The compiled kernels are given addresses, so this
module makes them in one place only, :meth:`Rows.addresses`, which looks at type, device, size, layout and storage of
every tensor; the addresses of weights and state are used again as long as
:class:`~mirrormax.optim.preparation.Held` finds them there, those of gradients never.
"""

from __future__ import annotations

import copy
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
from mirrormax.optim.kernels import PLAIN, check_gradient, is_dense
from mirrormax.optim.update import ALL, Numbers, Places, Rule, Tensors, at

# How weights and gradients are seen by numpy, which has no bfloat16.
SEEN_AS = {torch.float32: np.float32, torch.float64: np.float64, torch.bfloat16: np.int16}
BLOCK = 2048  # entries that stay in the first cache
PIECE = 131_072  # entries that are worth a thread

DTYPE, SHAPE, IS_CPU, LAYOUT = map(attrgetter, ("dtype", "shape", "is_cpu", "layout"))


@functools.cache
def is_installed() -> bool:
    """Whether there is a numba to compile the kernel with."""
    return find_spec("numba") is not None


def takes(w: Tensor) -> bool:
    """Whether a weight is memory of the processor that the kernel can read: whole, and of a type that it knows."""
    plain = type(w) in PLAIN and w.is_cpu and w.layout == torch.strided and not w.is_neg()
    return plain and w.dtype in SEEN_AS and is_dense(w)


class Rows:
    """For each parameter the addresses of w, u, g, m, v and their size.

    Weights have one type, gradients that or the one of dual variables and moments, and all have the strides of the
    weight.
    """

    def __init__(self, columns: Tensors) -> None:
        self.weights, self.of_w, self.of_u = columns.w, columns.w[0].dtype, columns.u[0].dtype
        self.of_g = self.of_w
        self.shapes = list(map(SHAPE, columns.w))
        self.strides = [None if w.is_contiguous() else w.stride() for w in columns.w]
        self.table = np.zeros((len(columns.w), 6), np.int64)
        self.table[:, 5] = list(map(Tensor.numel, columns.w))
        types = (self.of_w, self.of_u, self.of_g, self.of_u, self.of_u)
        for k, (column, dtype) in enumerate(zip(columns, types, strict=True)):
            if column is not None:
                places = self.addresses(column, dtype)
                assert places is not None, "weights and state were fitted to each other before"
                self.table[:, k] = places

    def those(self, places: Places) -> Rows:
        """The rows of the parameters at these places."""
        part = copy.copy(self)
        part.weights, part.shapes, part.strides = (
            at(each, places) for each in (self.weights, self.shapes, self.strides)
        )
        part.table = self.table[places]
        return part

    def receive(self, grads: list[Tensor]) -> list[Tensor]:
        """Enter the gradients; they, or copies of those that do not lie in memory as their weights do."""
        self.of_g = self.of_w if set(map(DTYPE, grads)) == {self.of_w} else self.of_u
        places = self.addresses(grads, self.of_g)
        if places is None:
            grads = list(grads)
            for k, (g, w) in enumerate(zip(grads, self.weights, strict=True)):
                if self.addresses([g], self.of_g, [k]) is None:
                    check_gradient(g, w)
                    alike = torch.empty_like(w, dtype=self.of_g, requires_grad=False)
                    grads[k] = alike.copy_(g.to_dense() if g.is_sparse else g)
            places = self.addresses(grads, self.of_g)
        assert places is not None
        self.table[:, 2] = places
        return grads

    def addresses(self, tensors: Sequence[Tensor], dtype: torch.dtype, places: Places = ALL) -> list[int] | None:
        """Where tensors begin in memory; None unless all are plain, of this type, and laid out as their weights are.

        Nothing else makes addresses.
        """
        if not (all(map(PLAIN.__contains__, map(type, tensors))) and all(map(IS_CPU, tensors))):
            return None
        if set(map(LAYOUT, tensors)) != {torch.strided} or set(map(DTYPE, tensors)) != {dtype}:
            return None
        if list(map(SHAPE, tensors)) != at(self.shapes, places) or any(map(Tensor.is_neg, tensors)):
            return None
        if [None if t.is_contiguous() else t.stride() for t in tensors] != at(self.strides, places):
            return None
        ends = self.table[places, 5] + list(map(Tensor.storage_offset, tensors))
        if (ends * dtype.itemsize > [t.untyped_storage().nbytes() for t in tensors]).any():
            return None
        return list(map(Tensor.data_ptr, tensors))


def step(
    rule: Rule,
    numbers: Numbers,
    columns: Tensors,
    rows: Rows,
    threshold: float | None = None,
    block: int = BLOCK,
    piece: int = PIECE,
) -> Callable[[], None]:
    """The step of some parameters of one kind, ready to be taken; what it needs is compiled, while nothing has moved.

    With a ``threshold`` the weights are the dual variables behind it, written in the same pass.
    """
    kernels = load_kernels()
    assert isinstance(rule.potential, Lp)
    exponent = 1 / (rule.potential.p - 1)
    if rule.adam:
        kind = kernels.TENSOR if rule.by_tensor else kernels.ENTRY
    else:
        kind = kernels.NESTEROV if rule.nesterov else kernels.HEAVY if rule.heavy else kernels.PLAIN
    code = kernels.OWN if columns.own else _code(exponent)
    code = code if threshold is None else kernels.BEHIND
    likes = [_like(dtype) for dtype in (rows.of_w, rows.of_g, rows.of_u)]
    kernel = kernels.step_kernel(kind, code, *(like.dtype.name for like in likes))
    room = threshold if threshold is not None else np.inf if numbers.room is None else numbers.room
    of_each = np.empty((len(rows.table), 5))
    for k, column in enumerate((numbers.c, numbers.a, numbers.drop, numbers.least, room)):
        of_each[:, k] = column
    common = float(numbers.momentum), float(numbers.beta2), float(numbers.decay), exponent

    def work(table: Any, of_each: Any) -> None:
        kernel(table, of_each, common, *likes, block)

    def take() -> None:
        _share_out(work, rows.table, of_each, [like.itemsize for like in likes], piece)
        torch.autograd.graph.increment_version(columns.w)

    work(rows.table[:0], of_each[:0])
    return take


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
    w, g, u = widths
    pieces[:, :5] += begin[:, None] * np.array([w, u, g, u, u])
    pieces[:, 5] = np.minimum(piece, pieces[:, 5] - begin)
    shares = np.array_split(np.arange(len(pieces)), threads)
    list(_pool().map(lambda share: work(pieces[share], numbers[owner[share]]), shares))


@functools.cache
def _pool() -> ThreadPoolExecutor:
    return ThreadPoolExecutor(thread_name_prefix="mirrormax-step")


def norms(rows: Rows, p: float) -> Any:
    """‖g‖_q of the gradients in these rows, worked out in the type of dual variables, or in float64; q = p/(p − 1)."""
    table, kernels = np.ascontiguousarray(rows.table[:, (2, 5)]), load_kernels()
    if p == 2:
        own = torch.float32 if rows.of_g == torch.bfloat16 else rows.of_g
        likes = _like(rows.of_g), _like(own)
        return np.sqrt(kernels.square_kernel(likes[0].dtype.name)(table, *likes, BLOCK))
    likes = _like(rows.of_g), _like(rows.of_u)
    of_g, of_u = (like.dtype.name for like in likes)
    return kernels.norm_kernel(_code(1 / (p - 1)), of_g, of_u)(table, 1 / (p - 1), *likes, BLOCK)


def _like(dtype: torch.dtype) -> Any:
    return np.empty(0, SEEN_AS[dtype])


def _code(exponent: float) -> int:
    """The power's name among the kernels, if it is multiplied out."""
    whole, kernels = round(exponent), load_kernels()
    if abs(exponent - 0.5) < 1e-15:
        return int(kernels.ROOT)
    return whole if whole in kernels.WHOLE and abs(exponent - whole) < 1e-14 * exponent else kernels.GENERAL


def load_kernels() -> ModuleType:
    from mirrormax.optim import fused_kernels

    return fused_kernels
