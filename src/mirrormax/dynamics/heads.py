"""``simulate_heads``: training runs of attention with several heads and classes, a whole batch of them at once."""

from __future__ import annotations

import json
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import (
    LOGISTIC,
    ClassState,
    ScaledGradient,
    class_state,
    class_value_gradient,
    class_weight_gradient,
    labelled,
    outputs_of,
)
from mirrormax.dynamics.engine import STATUS, Engine, Noise
from mirrormax.dynamics.recording import Recorder, record_steps
from mirrormax.dynamics.setup import Mirror, Setup, grouping, per_trial, potentials_of, rate_of, to_tensor, trials_of
from mirrormax.dynamics.simulation import (
    BACKENDS,
    WORTH_COMPILING,
    as_plain,
    count_of_steps,
    drive,
    what_the_kernel_lacks,
)
from mirrormax.dynamics.trajectory import Trajectory
from mirrormax.geometry import Lp
from mirrormax.problem import blank_padding, broadcast, check_classes

CORE = {"X": 3, "y": 1, "z": 2, "V": 3, "W": 3, "mask": 2}
Normalize = Literal["tensor", "global", False]


class HeadsEngine(Engine):
    """The :class:`Engine` for W (B, H, d, d) and V (B, H, C, d); ``over`` says what a gradient's norm is taken over."""

    def __init__(self, setup: Setup, over: Normalize) -> None:
        super().__init__(setup, LOGISTIC, over is not False)
        self.over = over
        heads = setup.v.shape[1]
        self.of_heads = Mirror([potential for potential in setup.mirror.potentials for _ in range(heads)])
        self._state: ClassState | None = None

    @property
    def V(self) -> Tensor:
        """The readouts, (B, H, C, d), trained or not."""
        return self.primal.get("V", self.setup.v)

    def attention(self) -> ClassState:
        """The attention of every head at the current weights."""
        s = self.setup
        self._state = class_state(s.X, s.z, self.W, s.mask, self._state)
        return self._state

    def gradients(self) -> dict[str, ScaledGradient]:
        """∇L in W, and in V if it is trained, each with its scale taken out, one per head."""
        state = self.attention()
        labels = labelled(outputs_of(state, self.V), self.setup.y)
        grads = {"W": ScaledGradient(*class_weight_gradient(state, labels, self.setup.z, self.V))}
        if "V" in self.primal:
            G, scale = class_value_gradient(state, labels)
            grads["V"] = ScaledGradient(G, scale.unsqueeze(-1).expand(G.shape[:2]))
        return grads

    def _move(self, name: str, grad: ScaledGradient) -> Tensor:
        """η g/‖g‖_*, the norm of each head's g or of all together; or η g."""
        g, log_scale = grad.scaled, grad.log_scale
        if self.over == "tensor":
            norm = self.norm_of(self.of_heads.dual_norm, g)
            factor = torch.where(norm == 0, 0.0, 1 / norm)
        elif self.over == "global":
            shares = torch.exp(log_scale - log_scale.amax(-1, keepdim=True))
            norm = self.setup.mirror.dual_norm(shares[..., None, None] * g).unsqueeze(-1)
            factor = torch.where(norm == 0, 0.0, shares / norm)
        else:
            factor = log_scale.exp()
        return self.setup.rates[name] * factor[..., None, None] * g

    def norm_of(self, norm: Any, w: Tensor) -> Tensor:
        """A norm of every head's tensor, (B, H), of w (B, H, ...)."""
        found: Tensor = norm(w.flatten(0, 1)).reshape(w.shape[:2])
        return found


class HeadsRecorder(Recorder):
    """What is written down of a run with heads: all of :class:`Recorder`, with the axis of heads."""

    engine: HeadsEngine

    def record(self, step: int) -> None:
        """Write down the current state as that after ``step`` updates."""
        self.steps.append(step)
        engine, mirror = self.engine, self.engine.of_heads
        state = engine.attention()
        labels = labelled(outputs_of(state, engine.V), engine.setup.y)
        size, heads, n = state.alpha.shape
        log_rest = state.log_s.logsumexp(-1)
        self._keep("loss", labels.loss.mean(-1, keepdim=True).expand(size, heads))
        self._keep("norm", engine.norm_of(mirror.norm, engine.W))
        self._keep("mass", -torch.expm1(log_rest).mean(-1))
        self._keep("log_rest", log_rest)
        self._keep("margins", labels.margins.unsqueeze(1).expand(size, heads, n))
        self._keep("selected", state.alpha)
        for name, reference in self.references.items():
            found = mirror.divergence(reference.flatten(0, 1), engine.W.flatten(0, 1))
            self._keep(f"divergence/{name}", found.reshape(size, heads))
        if "V" in engine.primal:
            self._keep("head_norm", engine.norm_of(mirror.norm, engine.V))
        for name, w in engine.primal.items():
            self._keep(name, w.clone(), every=self.every_weight)


def simulate_heads(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    V: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Lp = 2,
    lr: ArrayLike | Tensor = 0.1,
    steps: int = 1500,
    normalize: Normalize = "tensor",
    W0: ArrayLike | Tensor | None = None,
    train_values: bool = False,
    lr_V: ArrayLike | Tensor | None = None,
    mask: ArrayLike | Tensor | None = None,
    record: Literal["log", "all"] | int | ArrayLike | None = None,
    weights: Literal["all", "last"] = "all",
    references: ArrayLike | Tensor | None = None,
    backend: Literal["auto", "tensor", "numba"] = "auto",
) -> Trajectory:
    """Train f(X, z) = Σ_h V_h Xᵀσ(X W_h z) ∈ R^C under cross-entropy by ℓp mirror descent, and record the way there.

    One head is H = 1; labels ±1 with readouts v_h are C = 2, V_h = (−v_h/2, v_h/2), y → (y + 1)/2. It is a function of
    its own beside :func:`simulate`: labels, readouts and weights have other shapes here, and normalised steps two
    meanings,

        "tensor"   ∇ψ(W_h⁺) = ∇ψ(W_h) − η ∇_h/‖∇_h‖_*             steps of length η for each, equal norms in the end
        "global"   ∇ψ(W_h⁺) = ∇ψ(W_h) − η ∇_h/‖(∇_1, …, ∇_H)‖_*   one step for all, norms as 1/(the head's margin)

    and False for the plain step, whose norms are those of "global". All of it is in log scale, exact at any ‖W‖. Each
    W_h turns to the attention SVM of the tokens it selects, or of those that share its attention (``att_svm(keep=)``):
    with C > 2 that can be several, whose logits then keep finite distances. Normalised steps approach that case slowly:
    ``log_rest`` stays above log 1e-6 in such samples.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are trials, and broadcast.
        y: classes 0, …, C − 1, ``(..., n)``.
        z: queries ``(..., n, d)``.
        V: the readout of every head, ``(..., H, C, d)``; where it starts if it is trained.
        p: a number above 1, an :class:`~mirrormax.geometry.Lp`, or an array with one of these per trial.
        lr: the step size η, or one per trial.
        steps: how many updates to make.
        normalize: ``"tensor"``, ``"global"`` or False, as above; all W_h are one group, all V_h another.
        W0: the start ``(..., H, d, d)``; zero if not given.
        train_values: train V too, by the same rule with its own step size.
        lr_V: the step size of V; ``lr`` if not given.
        mask: booleans ``(..., n, T)``, True where a token is present.
        record: as for :func:`simulate`.
        weights: ``"all"`` keeps W and V at every recorded step, ``"last"`` only the last ones.
        references: weights ``(..., H, d, d)`` whose directional divergence is recorded, head by head.
        backend: ``"tensor"`` runs on any device, ``"numba"`` is a compiled kernel for the CPU (extra ``fast``);
            ``"auto"`` takes the kernel where there is one and the run is long enough to be worth loading it.

    Heads are the last axis of the trials of the :class:`Trajectory`: ``run.norm`` is (K, ..., H), ``run.alpha``
    (..., H, n), ``run[..., 0]`` the run of the first head; loss and margins f_y − max_{c≠y} f_c are those of all heads
    together. Trained readouts are ``run.V`` (K, ..., H, C, d), their norms ``head_norm``.

    >>> import numpy as np
    >>> X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]], [[0.0, 1.0], [5.0, 0.0]]])
    >>> V = np.array([[[1.0, 0.0], [-1.0, 0.0], [0.0, 1.0]]])  # one head, three classes
    >>> run = simulate_heads(X, [0, 1, 2], X[:, 0], V, steps=50)
    >>> run.alpha, run.norm[-1].round(2)
    (array([[0, 0, 0]]), array([4.98]))
    """
    if normalize not in ("tensor", "global", False):
        raise ValueError(f'normalize must be "tensor", "global" or False, got {normalize!r}.')
    if weights not in ("all", "last"):
        raise ValueError(f"weights must be 'all' or 'last', got {weights!r}.")
    if lr_V is not None and not train_values:
        raise ValueError("lr_V is for trained readouts; pass train_values=True, or leave it out.")
    steps = count_of_steps(steps)
    grid = record_steps(record, steps)
    problem = {"X": X, "y": y, "z": z, "V": V, "W": W0, "mask": mask}
    setup = _prepare(problem, p, {"W": lr, "V": lr if lr_V is None else lr_V}, train_values)
    engine = _engine(backend, setup, normalize, steps)
    named = {}
    if references is not None:
        named = {"reference": setup.flat("references", references, 3)}
        if named["reference"].shape != engine.W.shape:
            shape = tuple(engine.W.shape[1:])
            raise ValueError(f"references must have the shape (..., H, d, d) with (H, d, d) = {shape}.")
    recorder = HeadsRecorder(engine, named, {}, weights == "all")
    with engine.session():
        drive(engine, recorder, grid)
    config = {
        "lr": as_plain(lr),
        "lr_V": as_plain(lr if lr_V is None else lr_V) if train_values else None,
        "steps": steps,
        "normalize": normalize,
        "train_values": bool(train_values),
        "loss": "cross-entropy",
        "backend": engine.name,
    }
    run = _package(engine, recorder, config)
    return run if any(isinstance(a, Tensor) for a in (X, y, z, V, W0)) else run.numpy()


def _engine(backend: str, setup: Setup, over: Normalize, steps: int) -> HeadsEngine:
    """The engine asked for, or a refusal that says what it lacks."""
    if backend not in BACKENDS:
        raise ValueError(f"backend must be one of {', '.join(BACKENDS)}, got {backend!r}.")
    lacking = what_the_kernel_lacks(setup, LOGISTIC, Noise())
    if backend == "tensor" or (backend == "auto" and (lacking or steps * setup.v[..., 0, 0].numel() < WORTH_COMPILING)):
        return HeadsEngine(setup, over)
    if lacking is not None:
        raise ValueError(f"backend='numba' {lacking}; use backend='tensor'.")
    from mirrormax.dynamics.kernel.heads import CompiledHeadsEngine

    return CompiledHeadsEngine(setup, over)


def _prepare(given: dict[str, Any], p: Any, rates: dict[str, Any], train_values: bool) -> Setup:
    """Check the arrays, and flatten the trials."""
    tensors = {name: to_tensor(name, value) for name, value in given.items() if value is not None}
    tensors = {name: tensor.to(tensors["X"].device) for name, tensor in tensors.items()}
    check_classes(heads=True, **tensors)
    heads, _, d = tensors["V"].shape[-3:]
    tensors.setdefault("W", torch.zeros(heads, d, d, dtype=torch.float64, device=tensors["X"].device))
    potentials = potentials_of(p)
    if not all(isinstance(potential, Lp) for potential in potentials.ravel()):
        raise ValueError(f"p must be a number or Lp(p), or one per trial, got {p!r}.")
    batch = trials_of(potentials, broadcast(*(tuple(t.shape[: t.ndim - CORE[name]]) for name, t in tensors.items())))
    each = np.broadcast_to(potentials, batch).ravel().tolist()
    order = grouping(each).to(tensors["X"].device)
    of = {name: per_trial(tensor, batch, CORE[name])[order] for name, tensor in tensors.items()}
    trained = ("W", "V") if train_values else ("W",)
    return Setup(
        X=blank_padding(of["X"], of.get("mask")).contiguous(),
        y=of["y"].long(),
        z=of["z"],
        v=of["V"],
        mask=of.get("mask"),
        start={name: of[name] for name in trained},
        rates={name: rate_of("lr_V" if name == "V" else "lr", rates[name], batch, order, 3) for name in trained},
        mirror=Mirror([each[k] for k in order.tolist()]),
        batch=batch,
        order=order,
    )


def _package(engine: HeadsEngine, recorder: HeadsRecorder, config: dict[str, Any]) -> Trajectory:
    setup, stacked = engine.setup, recorder.stacked()
    shape = (*setup.batch, setup.v.shape[1])
    specs = np.array([json.dumps(potential.spec(), sort_keys=True) for potential in setup.mirror.potentials])
    potential = specs[torch.argsort(setup.order).cpu().numpy()].reshape(setup.batch)
    names = np.array([STATUS[code] for code in range(len(STATUS))])
    status = names[setup.unflat(engine.status).unsqueeze(-1).cpu().numpy()]
    divergence = {"reference": stacked.pop("divergence/reference")} if recorder.references else {}
    return Trajectory(
        steps=torch.tensor(recorder.steps),
        **stacked,  # type: ignore[arg-type]
        divergence=divergence,
        alpha=stacked["selected"][-1],
        status=np.broadcast_to(status, shape).copy(),
        updates=setup.unflat(engine.updates).unsqueeze(-1).expand(shape).clone(),
        potential=np.broadcast_to(potential[..., None], shape).copy(),
        config=config,
    )
