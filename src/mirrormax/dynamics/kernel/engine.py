"""The engine whose steps run in the compiled kernel, blocks of trials shared out among threads."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from typing import Any, ClassVar, TypeVar

import torch

from mirrormax._parallel import allowed_threads, on_all_cores, single_threaded_tensors
from mirrormax.attention import Loss
from mirrormax.dynamics.engine import Engine
from mirrormax.dynamics.kernel import loop as kernel
from mirrormax.dynamics.kernel.block import Memory, layout_of
from mirrormax.dynamics.kernel.lanes import WIDTH
from mirrormax.dynamics.setup import Setup
from mirrormax.geometry import Lp, dual_exponent

Made = TypeVar("Made")
LOSS_CODES = {"logistic": kernel.LOGISTIC, "exponential": kernel.EXPONENTIAL, "correlation": kernel.CORRELATION}


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
        status, updates = (t.numpy()[part] for t in (engine.status, engine.updates))
        counts = [memory.fill(a).reshape(-1, WIDTH) for a in (status, updates)]
        kernel.run_blocks(memory.rows, memory.layout, self.rule, engine._switches, steps, *counts)
        status[:], updates[:] = (count.reshape(-1)[: memory.trials] for count in counts)
        for name in engine.primal:
            for place, kept in enumerate((engine.primal[name], engine.dual[name])):
                kept[part] = torch.from_numpy(memory.read(name, kept[part].numpy(), place))
