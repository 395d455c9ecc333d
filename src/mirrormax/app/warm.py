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

    def warm_up(self) -> None:
        """Start getting the kernel ready, if there can be one, and return at once."""
        if find_spec("numba") is not None:
            threading.Thread(target=self._compile, daemon=True).start()

    def _compile(self) -> None:
        code = f"from {__name__} import step_back, run_kernel; step_back(); run_kernel()"
        done = subprocess.run([sys.executable, "-c", code], capture_output=True, check=False)
        if done.returncode == 0:
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
