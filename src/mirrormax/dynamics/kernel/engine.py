"""The engine whose steps run in the compiled kernel, blocks of trials shared out among threads.

The memory of a block is rows of WIDTH numbers, one per trial; :class:`Layout` says where each array begins.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, NamedTuple, TypeVar

import numpy as np
import torch

from mirrormax._parallel import allowed_threads, on_all_cores, single_threaded_tensors
from mirrormax.attention import Loss
from mirrormax.dynamics.engine import Engine
from mirrormax.dynamics.kernel import loop as kernel
from mirrormax.dynamics.kernel.lanes import WIDTH
from mirrormax.dynamics.setup import Setup
from mirrormax.geometry import Lp, dual_exponent
from mirrormax.problem import relative_to

Array = Any
Made = TypeVar("Made")
LOSS_CODES = {"logistic": kernel.LOGISTIC, "exponential": kernel.EXPONENTIAL, "correlation": kernel.CORRELATION}


class Layout(NamedTuple):
    """The sizes of a problem, and the first row of each of its arrays."""

    n: int
    T: int
    d: int
    X: int  # (n, T, d)
    y: int  # (n,)
    z: int  # (n, d)
    padding: int  # (n, T)     −inf where there is no token, 0 elsewhere
    chosen: int  # (n, d)      x_α
    offsets: int  # (n, T, d)  x_t − x_α
    absent: int  # (n, T)      −inf at α and at padding, 0 elsewhere
    gains: int  # (n, T)       D_t
    own: int  # (n,)           y vᵀx_α
    weightless: int  # (n,)    1 where some D_t is zero for a t ≠ α
    e: int  # (n, T)           e_t
    unmoved: int  # (n, T)     e^{r_t} where D_t = 0
    drive: int  # (n,)         Σ_t e_t D_t
    boost: int  # (n,)         s_t / e_t
    share: int  # (n,)         1 / (1 + rest)
    c: int  # (n,)
    slopes: int  # (n,)        log(−l')
    tokens: int  # (T,)        scratch
    query: int  # (d,)         Wz
    pulls: int  # (n, d)       Σ_t pulls_t (x_t − x_α)
    scale: int  # ()           of the gradient
    largest: int  # ()         |entry| of the gradient
    moved: int  # ()           0 where no weight moved
    breaks: int  # ()          not 0 where a weight is not finite
    lr: int  # ()
    lr_v: int  # ()
    W: int  # (2, d, d)        weights, and their dual variables
    new_W: int  # (2, d, d)
    G: int  # (d, d)           gradient
    v: int  # (2, d)           head, and its dual variables
    new_v: int  # (2, d)
    g: int  # (d,)
    rows: int


def layout_of(n: int, T: int, d: int) -> Layout:
    """One array after the other."""
    shapes = {
        **dict.fromkeys(("X", "offsets"), n * T * d),
        **dict.fromkeys(("z", "chosen", "pulls"), n * d),
        **dict.fromkeys(("padding", "absent", "gains", "e", "unmoved"), n * T),
        **dict.fromkeys(("y", "own", "weightless", "drive", "boost", "share", "c", "slopes"), n),
        **dict.fromkeys(("W", "new_W"), 2 * d * d),
        **dict.fromkeys(("v", "new_v"), 2 * d),
        **dict.fromkeys(("scale", "largest", "moved", "breaks", "lr", "lr_v"), 1),
        **dict.fromkeys(("query", "g"), d),
        "tokens": T,
        "G": d * d,
    }
    starts, rows = first_rows(Layout._fields[3:-1], shapes)
    return Layout(n, T, d, **starts, rows=rows)


def first_rows(names: Sequence[str], sizes: Mapping[str, int]) -> tuple[dict[str, int], int]:
    """The first row of each array when they stand one after the other, and how many rows there are."""
    starts, rows = {}, 0
    for name in names:
        starts[name], rows = rows, rows + sizes[name]
    return starts, rows


class Memory:
    """Blocks for the trials X (B, n, T, d), z (B, n, d), mask (B, n, T): their rows, and how to find them.

    The last block is filled up with copies of its last trial. ``rows`` (blocks, layout.rows, WIDTH) are those to use.
    """

    def __init__(self, X: Array, z: Array, mask: Array, layout: Any, rows: Array | None = None) -> None:
        self.trials, self.layout = len(X), layout
        self.rows = np.zeros((-(-self.trials // WIDTH), layout.rows, WIDTH)) if rows is None else rows
        first = mask.argmax(-1)  # a start: the first step selects what leads it
        chosen, offsets, rivals = (
            t.numpy() for t in relative_to(*(torch.from_numpy(np.ascontiguousarray(a)) for a in (X, first, mask)))
        )
        self.write("X", X)
        self.write("z", z)
        self.write("padding", np.where(mask, 0.0, -np.inf))
        self.write("chosen", chosen)
        self.write("offsets", offsets)
        self.write("absent", np.where(rivals, 0.0, -np.inf))

    def write(self, name: str, values: Array, part: int = 0) -> None:
        """Set an array, or the second of its two, from its values for each trial (B, ...)."""
        blocks = len(self.rows)
        filled = self.fill(values).reshape(blocks, WIDTH, -1).swapaxes(1, 2)
        start = getattr(self.layout, name) + part * filled.shape[1]
        self.rows[:, start : start + filled.shape[1]] = filled

    def read(self, name: str, like: Array, part: int = 0) -> Array:
        """The array again, in the shape (B, ...) of ``like``."""
        size = like[0].size
        start = getattr(self.layout, name) + part * size
        values = self.rows[:, start : start + size].swapaxes(1, 2)
        return values.reshape(-1, size)[: self.trials].reshape(like.shape)

    def fill(self, values: Array) -> Array:
        """The values for each trial, the last repeated until blocks are full."""
        return np.concatenate([values, np.repeat(values[-1:], len(self.rows) * WIDTH - len(values), 0)])


class SharedOut:
    """What compiled engines have in common: whole blocks of trials of one p, shared out among threads.

    An engine sets ``shares`` to ``list(share_out(setup, make))`` when all else of it is there.
    """

    name: ClassVar[str] = "numba"
    shares: Sequence[Any]

    def session(self) -> AbstractContextManager[None]:
        """Around all of a run: what is left for tensors to do is small."""
        return single_threaded_tensors()

    def advance(self, steps: int) -> None:
        """Let every running trial take so many steps, or stop on the way."""
        if allowed_threads() == 1 or len(self.shares) == 1:
            for share in self.shares:
                share.advance(steps, self)
            return
        for _ in on_all_cores(lambda share: share.advance(steps, self), self.shares):
            pass


def share_out(setup: Setup, make: Callable[[slice, float], Made]) -> Iterator[Made]:
    """``make(part, p)`` of the trials of each p in whole blocks, as many as there are to a thread."""
    threads = allowed_threads()
    for part, potential in setup.mirror.groups:
        assert isinstance(potential, Lp)
        blocks = -(-(part.stop - part.start) // WIDTH)
        width = -(-blocks // threads) * WIDTH
        for start in range(part.start, part.stop, width):
            yield make(slice(start, min(start + width, part.stop)), potential.p)


def run_counted(memory: Memory, engine: Any, part: slice, run: Callable[..., None]) -> None:
    """``run(status, updates)`` on those of the engine's trials in ``part``, filled up to whole blocks."""
    status, updates = (t.numpy()[part] for t in (engine.status, engine.updates))
    counts = [memory.fill(a).reshape(-1, WIDTH) for a in (status, updates)]
    run(*counts)
    status[:], updates[:] = (count.reshape(-1)[: memory.trials] for count in counts)


class CompiledEngine(SharedOut, Engine):
    """An engine for ℓp potentials on the CPU, about half a microsecond a trial and step at the paper's size.

    The kernel releases the interpreter, so plain threads run it: as many as torch may use
    (``torch.set_num_threads``). Unlike a parallel loop inside the kernel, that is safe to do from
    several threads at once, and in a process that was forked.
    """

    def __init__(self, setup: Setup, loss: Loss, normalize: bool) -> None:
        super().__init__(setup, loss, normalize)
        self._switches = (LOSS_CODES[loss.name], "v" in self.primal)
        self.shares = list(share_out(setup, lambda part, p: _Share(self, part, p)))


class _Share:
    """Some trials of one p, in the memory of the kernel."""

    def __init__(self, engine: CompiledEngine, part: slice, p: float) -> None:
        setup = engine.setup
        mask = torch.ones(setup.X.shape[:-1], dtype=torch.bool) if setup.mask is None else setup.mask
        self.part = part
        X, z, present = (t[part].numpy() for t in (setup.X, setup.z, mask))
        self.memory = Memory(X, z, present, layout_of(*X.shape[1:]))
        self.memory.write("y", setup.y[part].numpy())
        self.rule = (1 / (p - 1), dual_exponent(p), bool(engine.normalize))
        for name, rate in (("lr", "W"), ("lr_v", "v")):
            if rate in engine.primal:
                self.memory.write(name, setup.rates[rate].reshape(-1)[part].numpy())
        self.memory.write("v", engine.v[part].numpy())
        for name, w in engine.primal.items():
            self.memory.write(name, w[part].numpy())
            self.memory.write(name, engine.dual[name][part].numpy(), part=1)

    def advance(self, steps: int, engine: CompiledEngine) -> None:
        """Run the kernel, and show the engine the weights it came to."""
        memory, part = self.memory, self.part
        given = (memory.rows, memory.layout, self.rule, engine._switches, steps)
        run_counted(memory, engine, part, lambda *counts: kernel.run_blocks(*given, *counts))
        for name in engine.primal:
            for place, kept in enumerate((engine.primal[name], engine.dual[name])):
                kept[part] = torch.from_numpy(memory.read(name, kept[part].numpy(), place))
