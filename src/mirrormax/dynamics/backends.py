"""Which engine runs a simulation."""

from __future__ import annotations

from importlib.util import find_spec

from mirrormax.attention.losses import LOSSES, Loss
from mirrormax.dynamics.engine import Engine
from mirrormax.dynamics.setup import Setup
from mirrormax.geometry import Lp

BACKENDS = ("auto", "tensor", "numba")

# Below so many steps of one trial, loading the compiled kernel takes longer than doing without it.
WORTH_COMPILING = 20_000


def make_engine(backend: str, setup: Setup, loss: Loss, normalize: bool, steps: int) -> Engine:
    """The engine asked for, or a refusal that says what it lacks."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if backend == "tensor":
        return Engine(setup, loss, normalize)
    lacking = what_the_kernel_lacks(setup, loss)
    if backend == "auto" and (lacking is not None or steps * len(setup.X) < WORTH_COMPILING):
        return Engine(setup, loss, normalize)
    if lacking is not None:
        raise ValueError(f"backend='numba' {lacking}; use backend='tensor'.")
    from mirrormax.dynamics.compiled import CompiledEngine

    return CompiledEngine(setup, loss, normalize)


def what_the_kernel_lacks(setup: Setup, loss: Loss) -> str | None:
    """Why the compiled kernel cannot do this run, or None if it can."""
    if find_spec("numba") is None:
        return "needs numba, which is not installed (pip install 'mirrormax[fast]')"
    if setup.X.device.type != "cpu":
        return f"runs on the CPU only, and X is on {setup.X.device}"
    if "K" in setup.start:
        return "does not train factors"
    if LOSSES.get(loss.name) is not loss:
        return f"does not know the loss {loss.name!r}"
    other = next((p for p in setup.mirror.potentials if not isinstance(p, Lp)), None)
    return None if other is None else f"knows the potentials Lp only, not {other!r}"
