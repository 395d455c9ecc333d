"""``simulate``: training runs of one-layer attention, a whole batch of them at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._checks import integer, number, one_of
from mirrormax._extras import install
from mirrormax.attention import LOSSES, Loss, as_loss
from mirrormax.dynamics.engine import LOSS, STATUS, STEPS, Engine
from mirrormax.dynamics.recording import Recorder, record_steps
from mirrormax.dynamics.rules import EPOCHS, MirrorDescent, Normalize, Rule, rule_of
from mirrormax.dynamics.setup import Setup, prepare
from mirrormax.dynamics.trajectory import Trajectory
from mirrormax.geometry import Lp, Potential
from mirrormax.problem import takes_problem

# Below so many steps of one trial, loading the compiled kernel takes longer than doing without it.
WORTH_COMPILING = 20_000


@dataclass(frozen=True, kw_only=True)
class SimulationOptions:
    """What :func:`simulate` and :func:`simulate_heads` take beside the problem, the steps and their rule.

    Attributes:
        batch: how many samples a step sees, in epochs that are shuffled anew per trial; all of them if not given.
            Plain steps and the running scale still turn W to the attention SVM. ``normalize="tensor"`` does not: it
            gives every batch the same push however well it is separated, and W turns to the max of the *mean* margin of
            batches (b = 1: a divergence of about .03 at n = 6; ``mirrormax reproduce batches``).
        momentum: β of m ← βm + ∇L, whose step is then normalised; it is of use while the logits move by less than
            about 1 over its window.
        seed: of the batches.
        factors: starts ``(K, Q)``, each ``(..., d, m)``, to train these in W = K Qᵀ instead of W.
        lr_v: the step size of a trained readout; that of W if not given.
        weights: ``"all"`` keeps W at every recorded step, ``"last"`` only the last one.
        references: weights ``(..., d, d)``, or a mapping of names to such, whose directional divergence is recorded.
        loss_tol: stop a trial when its loss falls below this, which is looked at where the run is recorded.
        backend: ``"tensor"`` does every run on any device; ``"numba"``, a compiled kernel (extra ``fast``), those on a
            CPU with ℓp potentials, a named loss and no factors; ``"auto"`` takes the kernel where it can do the run
            and the run is long enough to be worth loading it.
        progress: called with the number of updates done, after each record.
    """

    batch: int | None = None
    momentum: float = 0.0
    seed: int = 0
    factors: tuple[ArrayLike | Tensor, ArrayLike | Tensor] | None = None
    lr_v: ArrayLike | Tensor | None = None
    weights: Literal["all", "last"] = "all"
    references: ArrayLike | Tensor | Mapping[str, ArrayLike | Tensor] | None = None
    loss_tol: float | None = None
    backend: str = "auto"
    progress: Callable[[int], None] | None = None

    def __post_init__(self) -> None:
        if self.batch is not None:
            integer("batch", self.batch, at_least=1)
        number("momentum", self.momentum, at_least=0.0, below=1.0)
        integer("seed", self.seed, at_least=0)
        if self.factors is not None and (not isinstance(self.factors, (tuple, list)) or len(self.factors) != 2):
            raise ValueError(f"factors must be the pair (K, Q), got {self.factors!r}.")
        if self.weights not in ("all", "last"):
            raise ValueError(f"weights must be 'all' or 'last', got {self.weights!r}.")
        if self.loss_tol is not None:
            number("loss_tol", self.loss_tol)
        one_of("backend", self.backend, ("auto", "tensor", "numba"))


@takes_problem
def simulate(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    v: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    lr: ArrayLike | Tensor = 0.1,
    steps: int = 1500,
    rule: str | Rule | Callable[[Tensor, Tensor], Tensor] = "mirror",
    normalize: Normalize = "tensor",
    W0: ArrayLike | Tensor | None = None,
    train_readout: bool = False,
    loss: str | Loss = "logistic",
    mask: ArrayLike | Tensor | None = None,
    record: Literal["log", "all"] | int | ArrayLike | None = None,
    options: SimulationOptions | None = None,
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
        v: readout ``(..., d)``; where a trained one starts.
        p: a number above 1, a :class:`~mirrormax.geometry.Potential`, or an array with one of these per trial.
        lr: the step size η, or one per trial.
        steps: how many updates to make.
        rule: how a gradient becomes a step. ``"mirror"``, the step above; ``"sign"``, ``"spectral"``, ``"coordinate"``,
            steepest descent in ℓ∞, the spectral norm and ℓ1; ``"adam"``, ``"adamw"``, ``"muon"`` (with the exact U Vᵀ),
            ``"muon-newton-schulz"``, ``"lion"`` as torch has them; ``"mirror-adamw"`` with a p; one of
            :mod:`mirrormax.dynamics.rules` with other settings; or a function of the direction g/‖g‖₂ and of
            log ‖g‖₂. All take their steps in the dual variable of p, which for p = 2 is W.
        normalize: what to divide gradients by, as the optimizers have it: ``"tensor"`` or ``"global"`` the dual norm
            (the same for one head), ``"running"`` an average of the dual norms over about three epochs, at most to a
            step of length 3η, None for the plain step η∇L.
        W0: the start ``(..., d, d)``; zero if not given.
        train_readout: train v too, by the same rule with its own step size (ℓp-JointGD).
        loss: ``"logistic"``, ``"exponential"``, ``"correlation"``, or a :class:`~mirrormax.attention.Loss`.
        mask: booleans ``(..., n, T)``, True where a token is present.
        record: the steps to record: ``"log"`` (default), a number of points on that grid, ``"all"``, or an array.
        options: the rest, a :class:`SimulationOptions`.

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
    problem = {"X": X, "y": y, "z": z, "v": v, "mask": mask}
    return _run(problem, as_loss(loss), p, lr, steps, rule, normalize, W0, train_readout, record, options)


def simulate_heads(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    V: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    lr: ArrayLike | Tensor = 0.1,
    steps: int = 1500,
    rule: str | Rule | Callable[[Tensor, Tensor], Tensor] = "mirror",
    normalize: Normalize = "tensor",
    W0: ArrayLike | Tensor | None = None,
    train_readout: bool = False,
    mask: ArrayLike | Tensor | None = None,
    record: Literal["log", "all"] | int | ArrayLike | None = None,
    options: SimulationOptions | None = None,
) -> Trajectory:
    """Train f(X, z) = Σ_h V_h Xᵀσ(X W_h z) ∈ R^C under cross-entropy by ℓp mirror descent, and record the way there.

    One head is H = 1; labels ±1 with readouts v_h are C = 2, V_h = (−v_h/2, v_h/2), y → (y + 1)/2. It is a function of
    its own beside :func:`simulate`: labels, readouts and weights have other shapes here, and normalised steps two
    meanings,

        "tensor"   ∇ψ(W_h⁺) = ∇ψ(W_h) − η ∇_h/‖∇_h‖_*             steps of length η for each, equal norms in the end
        "global"   ∇ψ(W_h⁺) = ∇ψ(W_h) − η ∇_h/‖(∇_1, …, ∇_H)‖_*   one step for all, norms as 1/(the head's margin)

    and None for the plain step, whose norms are those of "global". All of it is in log scale, exact at any ‖W‖. Each
    W_h turns to the attention SVM of the tokens it selects, or of those that share its attention (``att_svm(keep=)``):
    with C > 2 that can be several, whose logits then keep finite distances. Normalised steps approach that case slowly:
    ``log_rest`` stays above log 1e-6 in such samples.

    Arguments are those of :func:`simulate`, but ``y (..., n)`` are classes 0, …, C − 1, ``V (..., H, C, d)`` are the
    readouts of all heads, ``W0`` and references have the shape ``(..., H, d, d)``, and ``normalize`` is ``"tensor"``,
    ``"global"`` or None, as above, where all W_h are one group and all V_h another.

    Heads are the last axis of the trials of the :class:`Trajectory`: ``run.norm`` is (K, ..., H), ``run.alpha``
    (..., H, n), ``run[..., 0]`` the run of the first head; loss and margins f_y − max_{c≠y} f_c are those of all heads
    together. Trained readouts are ``run.V`` (K, ..., H, C, d), their norms ``readout_norm``.

    >>> import numpy as np
    >>> X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [5.0, 0.0]]])
    >>> V = np.array([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]])  # one head, three classes
    >>> run = simulate_heads(X, [0, 1, 2], X[:, 0], V, steps=50)
    >>> run.alpha, run.norm[-1].round(2)
    (array([[0, 0, 0]]), array([4.98]))
    """
    problem = {"X": X, "y": y, "z": z, "V": V, "mask": mask}
    return _run(problem, None, p, lr, steps, rule, normalize, W0, train_readout, record, options)


def _run(
    problem: dict[str, Any],
    loss: Loss | None,
    p: Any,
    lr: Any,
    steps: int,
    rule: Any,
    normalize: Normalize,
    W0: Any,
    train_readout: bool,
    record: Any,
    options: SimulationOptions | None,
) -> Trajectory:
    """The run of labels ±1 with a loss, or of classes without one (cross-entropy)."""
    options = SimulationOptions() if options is None else options
    if not isinstance(options, SimulationOptions):
        raise TypeError(f"options must be SimulationOptions(...), got {options!r}.")
    if options.factors is not None and W0 is not None:
        raise ValueError("factors take the place of W0; give one of the two.")
    if options.lr_v is not None and not train_readout:
        raise ValueError("lr_v is for a trained readout; pass train_readout=True, or leave it out.")
    steps = integer("steps", steps, at_least=0)
    grid = record_steps(record, steps)
    start = {"W": W0} if options.factors is None else dict(zip(("K", "Q"), options.factors, strict=True))
    rates = {"lr": lr, "lr_v": lr if options.lr_v is None else options.lr_v}
    setup = prepare(problem, p, start, rates, train_readout)
    n, batch = setup.y.shape[-1], options.batch
    if batch is not None and batch > n:
        raise ValueError(f"batch must be at most n = {n}, got {batch!r}; leave it out for all samples.")
    mirror = isinstance(rule, str) and rule == "mirror"
    if not mirror and (normalize != "tensor" or options.momentum):
        raise ValueError(f"normalize and momentum are of rule='mirror', and rule is {rule!r}; leave them out.")
    chosen: Rule = MirrorDescent(normalize, options.momentum, decay=1 - (batch or n) / (EPOCHS * n))
    chosen = chosen if mirror else rule_of(rule)
    engine = _engine(setup, loss, chosen, steps, options)
    named = options.references if isinstance(options.references, Mapping) else {"reference": options.references}
    references = {str(name): setup.reference(name, W) for name, W in named.items() if W is not None}
    recorder = Recorder(engine, references, options.weights == "all")
    with engine.session():
        _drive(engine, recorder, grid, options)
    config = {
        "lr": _plain(lr),
        "lr_v": _plain(rates["lr_v"]) if train_readout else None,
        "steps": steps,
        "rule": rule if isinstance(rule, str) else repr(chosen),
        "normalize": normalize if mirror else None,
        "batch": batch,
        "momentum": options.momentum,
        "seed": options.seed,
        "loss": "cross-entropy" if loss is None else loss.name,
        "train_readout": bool(train_readout),
        "factored": options.factors is not None,
        "loss_tol": options.loss_tol,
        "backend": engine.name,
    }
    tensors = any(isinstance(a, Tensor) for a in (*problem.values(), *start.values()))
    per_step = recorder.stacked()
    specs = np.array([json.dumps(potential.spec(), sort_keys=True) for potential in setup.mirror.potentials])
    run: Trajectory = Trajectory(
        steps=torch.tensor(recorder.steps),
        divergence={name: per_step.pop(f"divergence/{name}") for name in references},
        alpha=per_step["selected"][-1],
        status=np.array(STATUS)[setup.of_heads(engine.status).cpu().numpy()],
        updates=setup.of_heads(engine.updates).clone(),
        potential=specs[setup.of_heads(torch.arange(len(specs))).numpy()],
        config=config,
        problem=setup.problem(),
        **per_step,
    )
    return run if tensors else run.numpy()


def _engine(setup: Setup, loss: Loss | None, rule: Rule, steps: int, options: SimulationOptions) -> Engine:
    """The engine asked for, or a refusal that says what it lacks."""
    lacking = _kernel_lacks(setup, loss, rule, options)
    short = steps * setup.V[..., 0, 0].numel() < WORTH_COMPILING
    if options.backend == "numba" and lacking is not None:
        raise ValueError(f"backend='numba' {lacking}; use backend='tensor'.")
    if options.backend == "tensor" or (options.backend == "auto" and (lacking is not None or short)):
        return Engine(setup, loss, rule, options.batch, options.seed)
    from mirrormax.dynamics.kernel.engine import CompiledEngine

    assert isinstance(rule, MirrorDescent)
    return CompiledEngine(setup, loss, rule)


def _kernel_lacks(setup: Setup, loss: Loss | None, rule: Rule, options: SimulationOptions) -> str | None:
    """Why the compiled kernel cannot do this run, or None if it can."""
    if not isinstance(rule, MirrorDescent):
        return f"does mirror descent only, not {rule!r}"
    if options.batch is not None or rule.momentum or rule.normalize == "running":
        return "does full batches without momentum or running scale"
    if find_spec("numba") is None:
        return f"needs numba, which is not installed ({install('fast')})"
    if setup.X.device.type != "cpu":
        return f"runs on the CPU only, and X is on {setup.X.device}"
    if "K" in setup.start:
        return "does not train factors"
    if loss is not None and LOSSES.get(loss.name) is not loss:
        return f"does not know the loss {loss.name!r}"
    other = next((p for p in setup.mirror.potentials if not isinstance(p, Lp)), None)
    return None if other is None else f"knows the potentials Lp only, not {other!r}"


def _drive(engine: Engine, recorder: Recorder, grid: list[int], options: SimulationOptions) -> None:
    """From record to record, until the last one or until no trial is left."""
    done = 0
    for target in grid:
        engine.advance(target - done)
        done = int(engine.updates.max()) if engine.done and target else target
        if recorder.steps and done == recorder.steps[-1]:  # no trial took another step, and none will
            return
        recorder.record(done)
        if options.loss_tol is not None:
            engine.stop(recorder.loss() < options.loss_tol, LOSS)
        if options.progress is not None:
            options.progress(done)
        if engine.done:
            return
    engine.stop(torch.ones_like(engine.status, dtype=torch.bool), STEPS)


def _plain(value: Any) -> Any:
    return value.tolist() if isinstance(value, (Tensor, np.ndarray, np.generic)) else value
