"""The engine whose steps run in the compiled kernel, blocks of trials shared out among threads."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from mirrormax.attention.losses import Loss
from mirrormax.dynamics import kernel
from mirrormax.dynamics.block import make_block
from mirrormax.dynamics.engine import Engine
from mirrormax.dynamics.setup import Setup
from mirrormax.dynamics.threads import allowed_threads, single_threaded_tensors
from mirrormax.geometry import Lp, dual_exponent

LOSS_CODES = {"logistic": kernel.LOGISTIC, "exponential": kernel.EXPONENTIAL, "correlation": kernel.CORRELATION}

# Wide blocks make long inner loops; beyond this they no longer fit the cache.
WIDEST = 64
REGISTER = 4


class CompiledEngine(Engine):
    """An engine for ℓp potentials on the CPU, about a microsecond a trial and step at the paper's size.

    The kernel releases the interpreter, so plain threads run it: as many as torch may use
    (``torch.set_num_threads``). Unlike a parallel loop inside the kernel, that is safe to do from
    several threads at once, and in a process that was forked.
    """

    name: ClassVar[str] = "numba"

    def __init__(self, setup: Setup, loss: Loss, normalize: bool) -> None:
        super().__init__(setup, loss, normalize)
        self._threads = allowed_threads()
        self._switches = (LOSS_CODES[loss.name], "v" in self.primal)
        self._blocks = [self._block(part, potential.p) for part, potential in self._parts()]

    def session(self) -> AbstractContextManager[None]:
        """Around all of a run: what is left for tensors to do is small."""
        return single_threaded_tensors()

    def advance(self, steps: int) -> None:
        """Let every running trial take so many steps, or stop on the way."""
        if self._threads == 1 or len(self._blocks) == 1:
            for block in self._blocks:
                block.advance(steps, self)
            return
        with ThreadPoolExecutor(self._threads) as pool:
            list(pool.map(lambda block: block.advance(steps, self), self._blocks))

    def _parts(self) -> Iterator[tuple[slice, Lp]]:
        """Blocks of one p each, as wide as the threads allow, and a multiple of a register where that divides."""
        for part, potential in self.setup.mirror.groups:
            assert isinstance(potential, Lp)
            size = part.stop - part.start
            pieces = max(-(-size // WIDEST), min(self._threads, -(-size // REGISTER)))
            bounds = np.rint(np.linspace(0, size / REGISTER, pieces + 1)) * REGISTER
            bounds[-1] = size
            for start, end in pairwise(bounds):
                if start < end:
                    yield slice(part.start + int(start), part.start + int(end)), potential

    def _block(self, part: slice, p: float) -> _Block:
        setup = self.setup
        mask = torch.ones(setup.X.shape[:-1], dtype=torch.bool) if setup.mask is None else setup.mask
        problem = make_block(*(t[part].numpy() for t in (setup.X, setup.y, setup.z, mask)))
        rate = setup.rates["W"].reshape(-1)
        rates = (rate, setup.rates["v"].reshape(-1) if "v" in self.primal else rate)
        rule = (1 / (p - 1), dual_exponent(p), bool(self.normalize))
        weights = (_lanes_last(self.primal["W"][part]), _lanes_last(self.dual["W"][part]))
        head = (_lanes_last(self.v[part]), _lanes_last(self.dual.get("v", self.v)[part]))
        return _Block(part, problem, weights, head, rule, tuple(r[part].numpy() for r in rates))


class _Block:
    """Some trials side by side, in the layout of the kernel."""

    def __init__(self, part: slice, problem: Any, weights: Any, head: Any, rule: Any, rates: Any) -> None:
        self.part, self.problem, self.weights, self.head = part, problem, weights, head
        self.rule, self.rates = rule, rates

    def advance(self, steps: int, engine: CompiledEngine) -> None:
        """Run the kernel, and show the engine the weights it came to."""
        status, updates = engine.status.numpy()[self.part], engine.updates.numpy()[self.part]
        kernel.run_block(
            self.problem, self.weights, self.head, self.rule, engine._switches, self.rates, steps, status, updates
        )
        pairs = [("W", self.weights)] + ([("v", self.head)] if "v" in engine.primal else [])
        for name, (w, u) in pairs:
            for array, kept in ((w, engine.primal[name]), (u, engine.dual[name])):
                kept[self.part] = torch.from_numpy(array.T.reshape(kept[self.part].shape))


def _lanes_last(tensor: Tensor) -> Any:
    """(L, ...) as (N, L)."""
    return np.ascontiguousarray(tensor.reshape(len(tensor), -1).numpy().T)
