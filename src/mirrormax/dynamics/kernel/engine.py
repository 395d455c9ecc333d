"""The engine whose steps run in the compiled kernel, blocks of trials shared out among threads.

The memory of a block is rows of WIDTH numbers, one per trial; :class:`Layout` says where each array begins.
"""

from __future__ import annotations

import math
from collections import namedtuple
from contextlib import AbstractContextManager
from typing import Any, ClassVar

import numpy as np
import torch

from mirrormax._parallel import allowed_threads, on_all_cores, single_threaded_tensors
from mirrormax.attention import Loss
from mirrormax.dynamics.engine import Engine
from mirrormax.dynamics.kernel import loop as kernel
from mirrormax.dynamics.kernel.lanes import WIDTH
from mirrormax.dynamics.rules import MirrorDescent
from mirrormax.dynamics.setup import Setup
from mirrormax.geometry import Lp, dual_exponent
from mirrormax.problem import relative_to

Array = Any
LOSS_CODES = {"logistic": kernel.LOGISTIC, "exponential": kernel.EXPONENTIAL, "correlation": kernel.CORRELATION}

ARRAYS = {  # of a head, and their shapes
    "X": "nTd",
    "z": "nd",
    "padding": "nT",  # −inf where there is no token, 0 elsewhere
    "chosen": "nd",  # x_α
    "offsets": "nTd",  # x_t − x_α
    "absent": "nT",  # −inf at α and at padding, 0 elsewhere
    "own": "nR",  # V x_α
    "scores": "nTR",  # V(x_t − x_α)
    "r": "nT",  # (x_t − x_α)ᵀWz
    "e": "nT",  # e^{r_t − top}
    "top": "n",  # the largest r_t
    "boost": "n",  # s_t / e_t
    "c": "n",  # −log(1 + Σ e^r), and then the log of what a sample weighs
    "gains": "T",  # D_t
    "tokens": "T",  # scratch
    "query": "d",  # Wz
    "pulls": "nd",  # Σ_t pulls_t (x_t − x_α)
    "scale": "",  # of the gradient
    "largest": "",  # |entry| of the gradient
    "lr": "",
    "lr_v": "",
    "W": "2dd",  # weights, and their dual variables
    "new_W": "2dd",
    "G": "dd",  # gradient
    "V": "2Rd",  # readout, and its dual variables
    "new_V": "2Rd",
    "g": "Rd",
    "labels": "nR",  # y, or 1 at the label's class: of the first head, as all that follows
    "f": "nR",  # outputs, and then y or e_y − q
    "slopes": "n",  # log(−l')
    "moved": "",  # 0 where no weight moved
    "breaks": "",  # not 0 where a weight is not finite
    "going": "",  # 1 where the trial goes on
}
tuple_type: Any = namedtuple  # the type checker would have its names written out
Layout = tuple_type("Layout", ["n", "T", "d", "R", *ARRAYS, "rows"])
"""Sizes of a problem, R = 1 for labels ±1 and else one per class; the first row of each array; and all rows."""


def layout_of(n: int, T: int, d: int, R: int) -> Any:
    """One array after the other."""
    sizes = {"n": n, "T": T, "d": d, "R": R, "2": 2}
    starts, rows = {}, 0
    for name, shape in ARRAYS.items():
        starts[name], rows = rows, rows + math.prod(sizes[letter] for letter in shape)
    return Layout(n, T, d, R, **starts, rows=rows)


class CompiledEngine(Engine):
    """An engine for ℓp mirror descent on the CPU, about half a microsecond a trial and step at the paper's size.

    The kernel releases the interpreter, so plain threads run it: as many as torch may use
    (``torch.set_num_threads``). Unlike a parallel loop inside the kernel, that is safe to do from
    several threads at once, and in a process that was forked.
    """

    name: ClassVar[str] = "numba"

    def __init__(self, setup: Setup, loss: Loss | None, rule: MirrorDescent) -> None:
        super().__init__(setup, loss, rule)
        self.together = {None: 0, "tensor": 1, "global": setup.V.shape[1]}[rule.normalize]
        self.switches = (kernel.CROSS_ENTROPY if loss is None else LOSS_CODES[loss.name], "V" in self.primal)
        self.shares: list[_Share] = []
        for potential, trials in setup.mirror.groups:  # of each p in whole blocks, as many as there are to a thread
            assert isinstance(potential, Lp)
            blocks = -(-len(trials) // WIDTH)
            parts = trials.split(-(-blocks // allowed_threads()) * WIDTH)
            self.shares += [_Share(self, part, potential.p) for part in parts]

    def session(self) -> AbstractContextManager[None]:
        """Around all of a run: what is left for tensors to do is small."""
        return single_threaded_tensors()

    def advance(self, steps: int) -> None:
        """Let every running trial take so many steps, or stop on the way."""
        if allowed_threads() == 1 or len(self.shares) == 1:
            for share in self.shares:
                share.advance(steps)
            return
        for _ in on_all_cores(lambda share: share.advance(steps), self.shares):
            pass


class _Share:
    """Some trials of one p, in the memory of the kernel: ``rows`` (blocks, H, layout.rows, WIDTH).

    The last block is filled up with copies of its last trial.
    """

    def __init__(self, engine: CompiledEngine, part: torch.Tensor, p: float) -> None:
        setup = engine.setup
        self.engine, self.part = engine, part
        heads, outputs = setup.V.shape[1:3]
        X = setup.X[part]
        n, T, d = X.shape[1:]
        self.layout = layout_of(n, T, d, outputs)
        self.rule = (1 / (p - 1), dual_exponent(p), engine.together)
        self.rows = np.zeros((-(-len(X) // WIDTH), heads, self.layout.rows, WIDTH))
        mask = torch.ones(X.shape[:-1], dtype=torch.bool) if setup.mask is None else setup.mask[part]
        # A start: the first step selects what leads the first token that is there.
        tokens = relative_to(X, mask.int().argmax(-1), mask)
        y = setup.y[part].unsqueeze(-1)
        labels = y if setup.binary else (y == torch.arange(outputs)).double()
        shared = {
            "X": X,
            "z": setup.z[part],
            "padding": torch.where(mask, 0.0, -torch.inf),
            "chosen": tokens.chosen,
            "offsets": tokens.offsets,
            "absent": torch.where(tokens.others, 0.0, -torch.inf),
            "labels": labels,
        }
        for name, values in shared.items():
            self.write(name, values.unsqueeze(1))
        self.write("V", setup.V[part])
        for name, w in engine.primal.items():
            self.write("lr_v" if name == "V" else "lr", setup.rates[name][part])
            self.write(name, w[part])
            self.write(name, engine.dual[name][part], second=True)

    def write(self, name: str, values: torch.Tensor, second: bool = False) -> None:
        """Set an array, or the second of its two, from its values (B, H, ...), or (B, 1, ...) for all heads."""
        filled = self.fill(values.double().numpy()).reshape(len(self.rows), WIDTH, values.shape[1], -1)
        filled = filled.transpose(0, 2, 3, 1)
        start = getattr(self.layout, name) + second * filled.shape[2]
        self.rows[:, :, start : start + filled.shape[2]] = filled

    def read(self, name: str, like: torch.Tensor) -> torch.Tensor:
        """The array of all heads again, in the shape (B, H, ...) of ``like``."""
        size, start = like[0, 0].numel(), getattr(self.layout, name)
        values = self.rows[:, :, start : start + size].transpose(0, 3, 1, 2)
        return torch.from_numpy(values.reshape(-1, *values.shape[2:])[: len(like)].reshape(like.shape))

    def fill(self, values: Array) -> Array:
        """The values for each trial, the last repeated until blocks are full."""
        return np.concatenate([values, np.repeat(values[-1:], len(self.rows) * WIDTH - len(values), 0)])

    def advance(self, steps: int) -> None:
        """Run the kernel, and show the engine the weights it came to."""
        engine, part = self.engine, self.part
        given = (engine.status, engine.updates)
        counts = [self.fill(count[part].numpy()).reshape(-1, WIDTH) for count in given]
        kernel.run_blocks(self.rows, self.layout, self.rule, engine.switches, steps, *counts)
        for count, kept in zip(counts, given, strict=True):
            kept[part] = torch.from_numpy(count.reshape(-1)[: len(part)])
        for name, w in engine.primal.items():  # the dual variables stay in the kernel's memory
            w[part] = self.read(name, w[part])
