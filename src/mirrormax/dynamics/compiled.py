"""The engine whose steps run in the compiled kernel, trials shared out among threads."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any, ClassVar

import numpy as np
import torch

from mirrormax.attention.losses import Loss
from mirrormax.dynamics import kernel
from mirrormax.dynamics.engine import Engine
from mirrormax.dynamics.setup import Setup
from mirrormax.geometry import Lp, dual_exponent

LOSS_CODES = {"logistic": kernel.LOGISTIC, "exponential": kernel.EXPONENTIAL, "correlation": kernel.CORRELATION}

# More pieces than threads, so that none waits long for another; fewer calls than trials.
PIECES_PER_THREAD = 4


class CompiledEngine(Engine):
    """An engine for ℓp potentials on the CPU, about a thousandth of a millisecond a trial and step.

    The kernel releases the interpreter, so plain threads run it: as many as torch may use
    (``torch.set_num_threads``). Unlike a parallel loop inside the kernel, that is safe to do from
    several threads at once, and in a process that was forked.
    """

    name: ClassVar[str] = "numba"

    def __init__(self, setup: Setup, loss: Loss, normalize: bool) -> None:
        super().__init__(setup, loss, normalize)
        size = len(setup.X)
        mask = setup.mask if setup.mask is not None else torch.ones(setup.X.shape[:-1], dtype=torch.bool)
        self._problem = tuple(_own(t) for t in (setup.X, setup.y, setup.z, mask))
        train_head = "v" in self.primal
        if not train_head:
            self._head = (_own(setup.v), _own(setup.v))
        exponents = [p.p for p in setup.mirror.potentials if isinstance(p, Lp)]
        rate = setup.rates["W"].reshape(size)
        rate_v = setup.rates["v"].reshape(size) if train_head else rate
        self._rates = (
            np.array([1 / (p - 1) for p in exponents]),
            np.array([dual_exponent(p) for p in exponents]),
            _own(rate),
            _own(rate_v),
        )
        self._switches = (LOSS_CODES[loss.name], bool(normalize), train_head)
        self.primal = {name: w.contiguous() for name, w in self.primal.items()}
        self.dual = {name: u.contiguous().clone() for name, u in self.dual.items()}

    def advance(self, steps: int) -> None:
        """Let every running trial take so many steps, or stop on the way."""
        size, d = len(self._problem[0]), self._problem[0].shape[-1]
        W, U = (t["W"].numpy().reshape(size, d * d) for t in (self.primal, self.dual))
        head = (self.primal["v"].numpy(), self.dual["v"].numpy()) if "v" in self.primal else self._head
        updates, status = self.updates.numpy(), self.status.numpy()

        def run(part: slice) -> None:
            def cut(arrays: Any) -> Any:
                return tuple(array[part] for array in arrays)

            kernel.run_trials(
                cut(self._problem), cut((W, U)), cut(head), cut(self._rates), self._switches,
                steps, updates[part], status[part],
            )  # fmt: skip

        threads = min(torch.get_num_threads(), size)
        if threads == 1:
            run(slice(0, size))
            return
        bounds = np.linspace(0, size, min(size, PIECES_PER_THREAD * threads) + 1).astype(int)
        with ThreadPoolExecutor(threads) as pool:
            list(pool.map(run, [slice(a, b) for a, b in zip(bounds[:-1], bounds[1:], strict=True)]))


def _own(tensor: torch.Tensor) -> Any:
    return tensor.contiguous().numpy()
