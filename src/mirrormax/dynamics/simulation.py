"""``simulate``: training runs of one-layer attention under mirror descent, a whole batch of them at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from types import MappingProxyType
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._checks import number
from mirrormax.attention import LOSSES, Loss, as_loss
from mirrormax.dynamics.engine import DIVERGENCE, LOSS, STATUS, STEPS, Engine, Noise
from mirrormax.dynamics.recording import Recorder, record_steps
from mirrormax.dynamics.setup import Setup, prepare
from mirrormax.dynamics.trajectory import PER_STEP, PER_STEP_MAPS, Trajectory
from mirrormax.geometry import Lp, Potential
from mirrormax.problem import takes_problem

BACKENDS = ("auto", "tensor", "numba")

# Below so many steps of one trial, loading the compiled kernel takes longer than doing without it.
WORTH_COMPILING = 20_000


def make_engine(backend: str, setup: Setup, loss: Loss, normalize: bool, steps: int, noise: Noise) -> Engine:
    """The engine asked for, or a refusal that says what it lacks."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    if backend == "tensor":
        return Engine(setup, loss, normalize, noise)
    lacking = what_the_kernel_lacks(setup, loss, noise)
    if backend == "auto" and (lacking is not None or steps * len(setup.X) < WORTH_COMPILING):
        return Engine(setup, loss, normalize, noise)
    if lacking is not None:
        raise ValueError(f"backend='numba' {lacking}; use backend='tensor'.")
    from mirrormax.dynamics.kernel.engine import CompiledEngine

    return CompiledEngine(setup, loss, normalize)


def what_the_kernel_lacks(setup: Setup, loss: Loss, noise: Noise) -> str | None:
    """Why the compiled kernel cannot do this run, or None if it can."""
    if noise.batch is not None or noise.momentum or noise.running:
        return "does full batches without momentum or running scale"
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


@takes_problem
def simulate(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    v: ArrayLike | Tensor | None = None,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    lr: ArrayLike | Tensor = 0.1,
    steps: int = 1500,
    normalize: bool | Literal["running"] = True,
    batch: int | None = None,
    momentum: float = 0.0,
    seed: int = 0,
    W0: ArrayLike | Tensor | None = None,
    factors: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None,
    train_head: bool = False,
    lr_v: ArrayLike | Tensor | None = None,
    v0: ArrayLike | Tensor | None = None,
    loss: str | Loss = "logistic",
    mask: ArrayLike | Tensor | None = None,
    record: Literal["log", "all"] | int | ArrayLike | None = None,
    weights: Literal["all", "last"] = "all",
    references: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor] | None = None,
    head_references: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor] | None = None,
    divergence_tol: float | None = None,
    loss_tol: float | None = None,
    backend: Literal["auto", "tensor", "numba"] = "auto",
    progress: Callable[[int], None] | None = None,
) -> Trajectory:
    """Train f(X, z) = vᵀXᵀσ(X W z) by ℓp-AttGD, or (W, v) by ℓp-JointGD, and record the way there.

        ∇ψ(W⁺) = ∇ψ(W) − η ∇L(W)/‖∇L(W)‖_*        ψ = (1/p)‖·‖_p^p, ‖·‖_* the dual norm ‖·‖_q

    per tensor, in float64. The paper's code adds 2.2e-16 to ‖∇L‖, which changes nothing at the start and
    stalls a run once the gradient is smaller, as it is soon: it falls like the attention on unselected
    tokens. Here the gradient is carried apart from its scale and the division is exact, so every normalised
    step has length η, at any ‖W‖; only a gradient that is exactly zero gives no step.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are trials, and broadcast. A
            :class:`~mirrormax.problem.Problem` may take the place of X, y, z, v and mask.
        y: labels ±1, ``(..., n)``.
        z: queries ``(..., n, d)``.
        v: readout ``(..., d)``; where a trained one starts, if ``v0`` does not say otherwise.
        p: a number above 1, a :class:`~mirrormax.geometry.Potential`, or an array with one of these per trial.
        lr: the step size η, or one per trial.
        steps: how many updates to make.
        normalize: divide each gradient by its dual norm; False for the plain step η∇L; ``"running"`` to divide by an
            average of the dual norms over about three epochs, at most to a step of length 3η.
        batch: how many samples a step sees, in epochs that are shuffled anew per trial; all of them if not given.
            Plain steps and the running scale still turn W to the attention SVM. ``normalize=True`` does not: it gives
            every batch the same push however well it is separated, and W turns to the max of the *mean* margin of
            batches (b = 1: a divergence of about .03 at n = 6; ``mirrormax reproduce batches``).
        momentum: β of m ← βm + ∇L, whose step is then normalised; it is of use while the logits move by less than
            about 1 over its window.
        seed: of the batches.
        W0: the start ``(..., d, d)``; zero if not given.
        factors: starts ``(K, Q)``, each ``(..., d, m)``, to train these in W = K Qᵀ instead of W.
        train_head: train v too, by the same rule with its own step size (ℓp-JointGD).
        lr_v: the step size of the head; ``lr`` if not given.
        v0: the start of the trained readout, ``(..., d)``.
        loss: ``"logistic"``, ``"exponential"``, ``"correlation"``, or a :class:`~mirrormax.attention.Loss`.
        mask: booleans ``(..., n, T)``, True where a token is present.
        record: the steps to record: ``"log"`` (default), a number of points on that grid, ``"all"``, or an array.
        weights: ``"all"`` keeps W at every recorded step, ``"last"`` only the last one.
        references: weights ``(..., d, d)``, or a mapping of names to such, whose directional divergence is recorded.
        head_references: the same for a trained readout, ``(..., d)``.
        divergence_tol: stop a trial when its divergence to some reference falls below this.
        loss_tol: stop a trial when its loss falls below this. Both are looked at where the run is recorded.
        backend: ``"tensor"`` does every run on any device; ``"numba"``, a compiled kernel (extra ``fast``), those on a
            CPU with ℓp potentials, a named loss and no factors; ``"auto"`` takes the kernel where it can do the run
            and the run is long enough to be worth loading it.
        progress: called with the number of updates done, after each record.

    Numpy arrays and tensors are both taken, and the answer comes back in kind. Memory grows with the
    number of records and not with ``steps``.

    >>> import numpy as np
    >>> X, y = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]]), np.array([1.0, -1.0])
    >>> run = simulate(X, y, X[:, 0], v=np.array([1.0, 0.0]), p=2, lr=0.1, steps=50)
    >>> run.alpha, run.status
    (array([0, 0]), np.str_('steps'))
    >>> (run.W[-1] / run.W[-1, 0, 0]).round(3) + 0.0
    array([[ 1. ,  0. ],
           [-0.2,  0. ]])
    """
    _check(W0, factors, train_head, lr_v, v0, head_references, weights)
    steps = count_of_steps(steps)
    grid = record_steps(record, steps)
    start = {"W": W0} if factors is None else dict(zip(("K", "Q"), factors, strict=True))
    if v is None and v0 is None:
        raise ValueError("simulate needs the readout v (..., d); give v, or v0 for a trained one.")
    problem = {"X": X, "y": y, "z": z, "v": v if v0 is None else v0, "mask": mask}
    rates = {"lr": lr, "lr_v": lr if lr_v is None else lr_v}
    setup = prepare(problem, p, start, rates, train_head)
    noise = _noise(normalize, batch, momentum, seed, setup.y.shape[-1])
    engine = make_engine(backend, setup, as_loss(loss), normalize is True, steps, noise)
    named, head_named = (
        _references(setup, "references", references),
        _references(setup, "head_references", head_references),
    )
    tolerances = _tolerances(divergence_tol, loss_tol, named)
    recorder = Recorder(engine, named, head_named, weights == "all")
    with engine.session():
        drive(engine, recorder, grid, tolerances, progress)
    config = {
        "lr": as_plain(lr),
        "lr_v": as_plain(rates["lr_v"]) if train_head else None,
        "steps": steps,
        "normalize": normalize if normalize == "running" else bool(normalize),
        "batch": noise.batch,
        "momentum": noise.momentum,
        "seed": noise.seed,
        "loss": as_loss(loss).name,
        "train_head": bool(train_head),
        "factored": factors is not None,
        "divergence_tol": divergence_tol,
        "loss_tol": loss_tol,
        "backend": engine.name,
    }
    tensors = any(isinstance(a, Tensor) for a in (X, y, z, v, v0, W0, *(factors or ())))
    return _package(engine, recorder, config, tensors)


def drive(
    engine: Engine,
    recorder: Recorder,
    grid: list[int],
    tolerances: Mapping[str, float] = MappingProxyType({}),
    progress: Callable[[int], None] | None = None,
) -> None:
    """From record to record, until the last one or until no trial is left."""
    done = 0
    for target in grid:
        engine.advance(target - done)
        done = int(engine.updates.max()) if engine.done and target else target
        if recorder.steps and done == recorder.steps[-1]:  # no trial took another step, and none will
            return
        recorder.record(done)
        if "loss" in tolerances:
            engine.stop(recorder.last("loss") < tolerances["loss"], LOSS)
        if "divergence" in tolerances:
            engine.stop(recorder.closest() < tolerances["divergence"], DIVERGENCE)
        if progress is not None:
            progress(done)
        if engine.done:
            return
    engine.stop(torch.ones_like(engine.status, dtype=torch.bool), STEPS)


def _package(engine: Engine, recorder: Recorder, config: dict[str, Any], tensors: bool) -> Trajectory:
    setup = engine.setup
    stacked = recorder.stacked()
    selected = stacked["selected"]
    maps: dict[str, dict[str, Any]] = {group: {} for group in PER_STEP_MAPS}
    for key, value in stacked.items():
        group, _, name = key.partition("/")
        if name:
            maps[group][name] = value
    codes = setup.unflat(engine.status).cpu().numpy()
    specs = [json.dumps(potential.spec(), sort_keys=True) for potential in setup.mirror.potentials]
    texts = np.array(specs)[torch.argsort(setup.order).cpu().numpy()].reshape(setup.batch)
    per_step: dict[str, Any] = {name: stacked[name] for name in PER_STEP if name in stacked}
    run = Trajectory(
        steps=torch.tensor(recorder.steps),
        **per_step,
        **maps,
        alpha=selected[-1],
        status=np.array([STATUS[code] for code in range(len(STATUS))])[codes],
        updates=setup.unflat(engine.updates),
        potential=texts[()],
        config=config,
    )
    return run if tensors else run.numpy()


def _references(setup: Setup, name: str, given: Any) -> dict[str, Tensor]:
    if given is None:
        return {}
    named = given if isinstance(given, Mapping) else {"reference": given}
    core = 2 if name == "references" else 1
    d = setup.X.shape[-1]
    flat = {str(key): setup.flat(f"{name}[{key!r}]", value, core) for key, value in named.items()}
    for key, value in flat.items():
        if value.shape[1:] != (d,) * core:
            raise ValueError(f"{name}[{key!r}] must have the shape (..., {', '.join('d' * core)}) with d = {d}.")
    return flat


def _tolerances(divergence_tol: float | None, loss_tol: float | None, references: Any) -> dict[str, float]:
    given = {"divergence": divergence_tol, "loss": loss_tol}
    if divergence_tol is not None and not references:
        raise ValueError(f"divergence_tol={divergence_tol!r} needs something to diverge from; pass references.")
    return {name: number(f"{name}_tol", value) for name, value in given.items() if value is not None}


def _check(W0: Any, factors: Any, train_head: bool, lr_v: Any, v0: Any, head_references: Any, weights: str) -> None:
    if factors is not None and (W0 is not None or not isinstance(factors, (tuple, list)) or len(factors) != 2):
        raise ValueError("factors must be the pair (K, Q) and takes the place of W0; give one of the two.")
    for name, value in (("lr_v", lr_v), ("v0", v0), ("head_references", head_references)):
        if value is not None and not train_head:
            raise ValueError(f"{name} is for a trained readout; pass train_head=True, or leave it out.")
    if weights not in ("all", "last"):
        raise ValueError(f"weights must be 'all' or 'last', got {weights!r}.")


def _noise(normalize: Any, batch: Any, momentum: float, seed: int, n: int) -> Noise:
    if normalize not in (True, False, "running"):
        raise ValueError(f'normalize must be True, False or "running", got {normalize!r}.')
    if batch is not None and (
        isinstance(batch, bool) or not isinstance(batch, (int, np.integer)) or not 1 <= batch <= n
    ):
        raise ValueError(
            f"batch must be a whole number from 1 to n = {n}, got {batch!r}; leave it out for all samples."
        )
    if isinstance(seed, bool) or not isinstance(seed, (int, np.integer)) or seed < 0:
        raise ValueError(f"seed must be a whole number of at least 0, got {seed!r}.")
    beta = float(momentum)
    if not 0 <= beta < 1:
        raise ValueError(f"momentum must be at least 0 and less than 1, got {momentum!r}.")
    return Noise(None if batch is None else int(batch), int(seed), beta, normalize == "running")


def count_of_steps(steps: Any) -> int:
    if isinstance(steps, bool) or not isinstance(steps, (int, np.integer)) or steps < 0:
        raise ValueError(f"steps must be a whole number of at least 0, got {steps!r}.")
    return int(steps)


def as_plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value
