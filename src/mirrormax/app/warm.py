"""Which engine answers: the compiled kernel as soon as it is compiled, plain tensors until then.

Compiling takes half a minute the first time, and holds the interpreter while it does. So another process does
it, and leaves the kernel in numba's cache on disk, from where it is loaded in a second.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from importlib.util import find_spec

from mirrormax.data import example1
from mirrormax.dynamics import simulate


class Backend:
    """``name`` is the backend of :func:`mirrormax.simulate` to use now."""

    def __init__(self) -> None:
        self.name = "tensor"
        self._compiler: subprocess.Popen[bytes] | None = None

    def warm_up(self) -> None:
        """Start getting the kernel ready, if there can be one, and return at once."""
        if find_spec("numba") is None:
            return
        code = f"from {__name__} import run_kernel, step_back; step_back(); run_kernel()"
        self._compiler = subprocess.Popen([sys.executable, "-c", code], stderr=subprocess.DEVNULL)
        threading.Thread(target=self._load, args=(self._compiler,), daemon=True).start()

    def close(self) -> None:
        """Leave nothing running."""
        if self._compiler is not None:
            self._compiler.kill()
            self._compiler.wait()

    def _load(self, compiler: subprocess.Popen[bytes]) -> None:
        if compiler.wait() == 0:
            run_kernel()
            self.name = "numba"


def step_back() -> None:
    """Leave the processor to the process that answers."""
    if hasattr(os, "nice"):
        os.nice(10)


def run_kernel() -> None:
    """A tiny run, for the sake of what it compiles or loads."""
    problem = example1()
    simulate(problem.X, problem.y, problem.z, problem.v, p=1.5, steps=2, backend="numba")
