"""What a simulation starts from: checked input as one flat batch of trials, each with its potential."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax._arrays import as_tensor
from mirrormax.geometry import Potential, as_potential, directional_divergence
from mirrormax.problem import HEAD_SHAPES, SHAPES, Problem, blank_padding, broadcast, check, check_classes


class Mirror:
    """Maps and norms of matrices (B, ..., a, b) in a batch in which every trial has a potential of its own.

    ``groups`` are the potentials, each with the indices of its trials.
    """

    def __init__(self, potentials: Sequence[Potential]) -> None:
        self.potentials = list(potentials)
        trials: dict[Potential, list[int]] = {}
        for trial, potential in enumerate(self.potentials):
            trials.setdefault(potential, []).append(trial)
        self.groups = [(potential, torch.tensor(indices)) for potential, indices in trials.items()]
        self._order = torch.cat([indices for _, indices in self.groups]).argsort()

    def mirror_map(self, w: Tensor) -> Tensor:
        """u = ∇ψ(w), trial by trial."""
        return self._each(lambda potential, w: potential.mirror_map(w, (-2, -1)), w)

    def inverse_map(self, u: Tensor) -> Tensor:
        """w = ∇ψ*(u), trial by trial."""
        return self._each(lambda potential, u: potential.inverse_map(u, (-2, -1)), u)

    def norm(self, w: Tensor) -> Tensor:
        """‖w‖ of each matrix of w (B, ..., a, b)."""
        return self._each(lambda potential, w: potential.norm(w, (-2, -1)), w)

    def dual_norm(self, g: Tensor, core: int = 2) -> Tensor:
        """The dual norm of each matrix of g (B, ..., a, b), or over its ``core`` last dimensions."""
        return self._each(lambda potential, g: potential.dual_norm(g, tuple(range(-core, 0))), g)

    def divergence(self, reference: Tensor, w: Tensor) -> Tensor:
        """D_ψ(reference/‖reference‖, w/‖w‖) of each matrix of w (B, ..., a, b); NaN where either is zero."""
        return self._each(lambda potential, *pair: directional_divergence(*pair, potential, (-2, -1)), reference, w)

    def _each(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        """``function`` of a potential and its trials, all in one call where there is one potential."""
        if len(self.groups) == 1:
            return function(self.groups[0][0], *tensors)
        parts = [function(potential, *(tensor[trials] for tensor in tensors)) for potential, trials in self.groups]
        return torch.cat(parts)[self._order]


def potentials_of(p: Any) -> np.ndarray[Any, Any]:
    """``p`` as an object array of potentials: 0-d for a number or a potential, else one entry per trial."""
    if isinstance(p, Tensor):
        p = p.detach().cpu().numpy()
    given = np.array(p, dtype=object)
    if not given.size:
        raise ValueError(f"p must be an exponent, or one for each trial, got {p!r}.")
    potentials: np.ndarray[Any, Any] = np.vectorize(as_potential, otypes=[object])(given)
    return potentials


@dataclass(frozen=True)
class Setup:
    """B trials, the caller's in order.

    f(X, z) = Σ_h V_h Xᵀσ(X W_h z) has H heads and R outputs: R = 1 for labels ±1, else one per class. The binary model
    is H = R = 1, and its caller sees neither axis.
    """

    X: Tensor  # (B, n, T, d), blank at padding
    y: Tensor  # (B, n), ±1 or 0, …, R − 1
    z: Tensor  # (B, n, d)
    V: Tensor  # (B, H, R, d)
    mask: Tensor | None  # (B, n, T)
    start: dict[str, Tensor]  # W (B, H, d, d), or K and Q (B, H, d, m); and V if it is trained
    rates: dict[str, Tensor]  # a step size for each of these, (B, 1, 1, 1)
    mirror: Mirror
    batch: tuple[int, ...]
    binary: bool

    def reference(self, name: str, value: Any) -> Tensor:
        """Weights of the caller (..., d, d), or (..., H, d, d), for every trial: (B, H, d, d)."""
        tensor = to_tensor(f"references[{name!r}]", value).to(self.X.device)
        heads, d = self.V.shape[1], self.X.shape[-1]
        core = (d, d) if self.binary else (heads, d, d)
        return per_trial(f"references[{name!r}]", tensor, self.batch, core).reshape(-1, heads, d, d)

    def unflat(self, tensor: Tensor, axis: int = 0) -> Tensor:
        """(..., B, H, ...), B at ``axis``, in the caller's batch shape; heads are a batch's last axis."""
        batch = self.batch if self.binary else (*self.batch, tensor.shape[axis + 1])
        return tensor.reshape((*tensor.shape[:axis], *batch, *tensor.shape[axis + 2 :]))

    def of_heads(self, tensor: Tensor) -> Tensor:
        """What all heads of a trial share, (B, ...), for each of them in the caller's batch shape."""
        return self.unflat(tensor.unsqueeze(1).expand(-1, self.V.shape[1], *tensor.shape[1:]))

    def problem(self) -> Problem:
        """What the trials are trained on; of heads and classes without labels and readouts."""
        parts = {"X": self.X, "z": self.z, "mask": self.mask}
        parts |= {"y": self.y, "v": self.V[:, 0, 0]} if self.binary else {}
        return Problem(**{name: self.of_heads(part) for name, part in parts.items() if part is not None})


def prepare(
    problem: Mapping[str, Any], p: Any, start: Mapping[str, Any], rates: Mapping[str, Any], train_readout: bool
) -> Setup:
    """Check the arrays of a problem (X, y, z, mask; v, or V of heads and classes) and of a start (W, or K and Q)."""
    given = {
        name: to_tensor(name, value)
        for name, value in {**problem, **start}.items()
        if value is not None or (name in problem and name != "mask")  # which is missed by name
    }
    device = given["X"].device
    given = {name: value.to(device) for name, value in given.items()}
    binary = "V" not in problem
    if binary:
        check(**given)
    else:
        check_classes(heads=True, **given)
    core = {name: len(letters) for name, letters in (SHAPES if binary else HEAD_SHAPES).items()}
    d = given["X"].shape[-1]
    if "K" not in given and "W" not in given:
        heads = () if binary else given["V"].shape[-3:-2]
        given["W"] = torch.zeros(*heads, d, d, dtype=torch.float64, device=device)
    potentials = potentials_of(p)
    batch = broadcast(*(tuple(t.shape[: t.ndim - core[name]]) for name, t in given.items()))
    try:
        batch = tuple(broadcast(batch, potentials.shape))
    except RuntimeError:
        raise ValueError(
            f"p has the shape {potentials.shape}, which does not broadcast with the trials {batch}; "
            "give one number, or one per trial."
        ) from None
    flat = {name: per_trial(name, t, batch, tuple(t.shape[t.ndim - core[name] :])) for name, t in given.items()}
    if binary:
        flat["V"] = flat.pop("v")[:, None, None]
        flat |= {name: flat[name].unsqueeze(1) for name in ("W", "K", "Q") if name in flat}
    trained: dict[str, str] = {name: "lr" for name in ("W", "K", "Q") if name in flat}
    trained |= {"V": "lr_v"} if train_readout else {}
    steps: dict[str, Tensor] = {}
    for name, argument in trained.items():
        size = rates[argument]
        rate = to_tensor(argument, np.array(size) if np.isscalar(size) else size)
        if not ((rate > 0) & (rate < math.inf)).all():
            raise ValueError(f"{argument} must be a finite number greater than 0, got {size!r}.")
        steps[name] = per_trial(argument, rate.to(device), batch).reshape(-1, 1, 1, 1)
    return Setup(
        X=blank_padding(flat["X"], flat.get("mask")).contiguous(),
        y=flat["y"],
        z=flat["z"],
        V=flat["V"],
        mask=flat.get("mask"),
        start={name: flat[name] for name in trained},
        rates=steps,
        mirror=Mirror(np.broadcast_to(potentials, batch).ravel().tolist()),
        batch=batch,
        binary=binary,
    )


def to_tensor(name: str, value: Any) -> Tensor:
    """A copy in float64 (booleans stay booleans), wherever a tensor lives."""
    tensor = as_tensor(name, value).detach()
    if tensor.dtype == torch.bool:  # a mask, or what the check of the problem refuses
        return tensor.clone()
    return tensor.to(torch.float64, copy=True)


def per_trial(name: str, tensor: Tensor, batch: tuple[int, ...], core: tuple[int, ...] = ()) -> Tensor:
    """A tensor (..., *core) for every trial of the batch: (B, *core); ValueError where it does not fit."""
    shape = tuple(tensor.shape)
    try:
        fits = broadcast(shape, (*batch, *core)) == (*batch, *core) and shape[len(shape) - len(core) :] == core
    except RuntimeError:
        fits = False
    if not fits:
        raise ValueError(
            f"{name} has the shape {shape}, which does not broadcast to that of the trials, {(*batch, *core)}; "
            "give one entry, or one per trial."
        )
    return tensor.expand((*batch, *core)).reshape(-1, *core)
