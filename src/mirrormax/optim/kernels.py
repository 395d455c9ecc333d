"""Ways to take the step of :mod:`~mirrormax.optim.update` in place: piece by piece, compiled, traced, or in rows.

And what these ask of a tensor: whether all of it is here (FSDP2's DTensor is not), and how it lies in memory.
"""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from mirrormax.optim.update import Numbers, Rule, Tensors, update

# Temporaries of pieces of this many entries stay in a processor's cache, and are no burden to an accelerator's memory.
CHUNK = {"cpu": 131_072, "other": 16_777_216}
PLAIN = frozenset((Tensor, nn.Parameter))  # subclasses may be anything


def step_eagerly(rule: Rule, numbers: Numbers, tensors: Tensors, chunk: int | None = None) -> None:
    """Piece by piece, where the potential lets tensors be taken in pieces."""
    for piece in pieces(tensors, chunk) if rule.in_pieces else [tensors]:
        _write(piece, update(rule, numbers, piece))


def step_traced(rule: Rule, numbers: Numbers, tensors: Tensors) -> None:
    """Without looking at any value: inside somebody else's ``torch.compile``, or while a graph is captured."""
    if tensors.w.ndim == 0:  # torch 2.13 compiles away the writes into a 0-dim tensor
        tensors = tensors.each(lambda t: t.view(1))
    _write(tensors, update(rule, numbers, tensors, ask=False))


def compiled(rule: Rule, numbers: Numbers, tensors: Tensors) -> Callable[[], None]:
    """The step by one kernel for each kind of tensor, the same for all sizes and numbers; ready to be taken.

    Tensors of one entry or none are worth no kernel; torch would compile another for them.
    """
    tensors = tensors.each(Tensor.detach)  # torch would also compile another for what needs a gradient
    if rule.in_pieces and in_one_order(tensors):
        tensors = tensors.each(in_a_row)
    eagerly = functools.partial(step_eagerly, rule, numbers, tensors)
    if tensors.w.numel() < 2:
        return eagerly
    # Numbers travel as tensors: a changed value is then no reason to compile again.
    u = tensors.u
    known = torch.tensor(
        [0.0 if n is None or isinstance(n, Tensor) else n for n in numbers], dtype=u.dtype, device="cpu"
    )
    given = [
        n if n is None else n.to(u.device, u.dtype) if isinstance(n, Tensor) else k
        for n, k in zip(numbers, known.to(u.device).unbind(), strict=True)
    ]
    kinds = tuple(t if t is None else (t.dtype, t.ndim) for t in tensors)
    kernel, tried = _kernel(rule, numbers.room is not None, tensors.own, kinds, torch.get_num_threads())
    args = (tensors.w, None if tensors.own else u, *tensors[2:])
    if not tried:  # compiled by copies, so that nothing has moved if it cannot be
        copies = [t if t is None else t.clone() for t in args]
        for t in copies:
            for dim in range(0 if t is None else t.ndim):
                torch._dynamo.maybe_mark_dynamic(t, dim)  # one kernel for all sizes
        _run(kernel, (*copies, *given), lambda: None)
        tried.append(True)
    return functools.partial(_run, kernel, (*args, *given), eagerly)


def _run(kernel: Callable[..., None], args: tuple[Any, ...], eagerly: Callable[[], None]) -> None:
    """Run a compiled kernel, or take the step without it where torch compiles no more of them for further layouts."""
    errors: Any = torch._dynamo.exc
    limit = getattr(errors, "FailOnRecompileLimitHit", None) or errors.FailOnCacheLimitHit  # torch 2.6
    try:
        kernel(*args)
    except limit:  # which torch raises before it runs anything
        eagerly()


def step_rows(rule: Rule, numbers: Numbers, tensors: Tensors) -> None:
    """Only the rows that a sparse gradient names; the others do not move, so they need no work."""
    g = tensors.g.coalesce()
    rows = tuple(g.indices())
    w = tensors.w[rows]
    u = w if tensors.own else tensors.u[rows]
    new = update(rule, numbers, Tensors(w, u, g.values(), None, None))
    tensors.u[rows] = new.u
    if not tensors.own:
        tensors.w[rows] = new.w


def shard(t: Tensor) -> Tensor:
    """The part of a distributed tensor that lives here; an ordinary tensor is its own shard."""
    return t if type(t) in PLAIN or not hasattr(t, "to_local") else t.to_local()


def whole(t: Tensor) -> Tensor:
    """All of a distributed tensor, the same on every process; an ordinary tensor as it is."""
    return t if type(t) in PLAIN or not hasattr(t, "full_tensor") else t.full_tensor()


def in_one_order(tensors: Tensors) -> bool:
    """Whether all tensors lie in memory alike, without holes."""
    w, *others = tensors
    return is_dense(w) and all(t is None or t.stride() == w.stride() for t in others)


def is_dense(t: Tensor) -> bool:
    """Whether a tensor fills a stretch of memory, each entry once, in whatever order of its dimensions."""
    if t.is_contiguous():
        return True
    filled = 1
    for stride, size in sorted(zip(t.stride(), t.shape, strict=True)):
        if size > 1 and stride != filled:
            return False
        filled *= size
    return True


def check_memory(t: Tensor, what: str) -> None:
    """Raise if a tensor reaches beyond its memory, as one does whose storage was resized: torch would read on."""
    if type(t) not in PLAIN or not t.is_cpu or t.layout != torch.strided or not t.numel():
        return
    last = t.storage_offset() + sum((size - 1) * stride for size, stride in zip(t.shape, t.stride(), strict=True))
    if (last + 1) * t.itemsize > t.untyped_storage().nbytes():
        raise ValueError(f"{what} of shape {tuple(t.shape)} has lost its memory; load a checkpoint, or start anew.")


def check_gradient(grad: Tensor, w: Tensor) -> None:
    """Raise if a gradient is not that of the weight, as after somebody has changed the weight."""
    check_memory(grad, "a gradient")
    if grad.shape != w.shape or grad.device != w.device:
        raise ValueError(
            f"a parameter of shape {tuple(w.shape)} on {w.device} has a gradient of shape {tuple(grad.shape)} on "
            f"{grad.device}; call zero_grad() after changing a parameter."
        )


def in_a_row(t: Tensor) -> Tensor:
    """The entries of a tensor, as a view in the order of memory where it has no holes."""
    return t.view(-1) if t.is_contiguous() else t.as_strided((t.numel(),), (1,)) if is_dense(t) else t.flatten()


def pieces(tensors: Tensors, chunk: int | None = None) -> Iterator[Tensors]:
    """Stretches of memory of so many entries, where the tensors lie in it alike and are longer than that."""
    if chunk is None:
        chunk = CHUNK["cpu" if tensors.w.is_cpu else "other"]
    if tensors.w.numel() <= chunk or not in_one_order(tensors):
        yield tensors
        return
    whole = tensors.each(in_a_row)
    for start in range(0, tensors.w.numel(), chunk):
        yield whole.each(lambda t, start=start: t[start : start + chunk])  # type: ignore[misc]


def _write(tensors: Tensors, new: Tensors) -> None:
    for name in ("w", "m", "v") if tensors.own else ("w", "u", "m", "v"):
        if getattr(tensors, name) is not None:
            getattr(tensors, name).copy_(getattr(new, name))


@functools.lru_cache(maxsize=64)
def _kernel(rule: Rule, bounded: bool, own: bool, kinds: Any, threads: int) -> tuple[Callable[..., None], list[bool]]:
    """A compiled step for such tensors; the list is empty until it was tried.

    Each has a cache of its own, where torch lets it: one for all would run into torch's limit of recompilations, which
    it also does for another number of ``threads``.
    """

    def kernel(w: Tensor, u: Tensor | None, g: Tensor, m: Tensor | None, v: Tensor | None, *numbers: Any) -> None:
        step_traced(rule, Numbers(*numbers), Tensors(w, w if u is None else u, g, m, v))

    options: dict[str, Any] = {}
    if "isolate_recompiles" in inspect.signature(torch.compile).parameters:  # torch 2.13
        options["isolate_recompiles"] = True
    # Where p differed from another kernel's, torch would make it a tensor.
    constant = torch._dynamo.config.patch(specialize_float=True)
    return constant(torch.compile(kernel, fullgraph=True, **options)), []
