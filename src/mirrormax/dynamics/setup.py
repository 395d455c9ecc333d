"""What a simulation starts from: checked input as one flat batch of trials, each with its potential."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax._checks import as_tensor
from mirrormax.geometry import Potential, as_potential, directional_divergence
from mirrormax.problem import blank_padding, broadcast, check


class Mirror:
    """Maps and norms of a batch (B, ...) in which every trial has a potential of its own.

    Trials of one potential stand side by side (see :func:`grouping`), so that a batch is a few slices
    and each slice one call.
    """

    def __init__(self, potentials: Sequence[Potential]) -> None:
        self.potentials = list(potentials)
        starts = [k for k, p in enumerate(self.potentials) if k == 0 or p != self.potentials[k - 1]]
        ends = [*starts[1:], len(self.potentials)]
        self.groups = [(slice(a, b), self.potentials[a]) for a, b in zip(starts, ends, strict=True)]

    def mirror_map(self, w: Tensor) -> Tensor:
        """u = ∇ψ(w), trial by trial."""
        return self._each(lambda potential, dims, t: potential.mirror_map(t, dims), w)

    def inverse_map(self, u: Tensor) -> Tensor:
        """w = ∇ψ*(u), trial by trial."""
        return self._each(lambda potential, dims, t: potential.inverse_map(t, dims), u)

    def norm(self, w: Tensor, core: int | None = None) -> Tensor:
        """‖w‖ of each trial, (B,); with ``core`` over so many last dimensions only, of w (B, K, ...): (B, K)."""
        return self._each(lambda potential, dims, t: potential.norm(t, dims), w, core=core)

    def dual_norm(self, g: Tensor) -> Tensor:
        """The dual norm of each trial's gradient, (B,)."""
        return self._each(lambda potential, dims, t: potential.dual_norm(t, dims), g)

    def divergence(self, reference: Tensor, w: Tensor, core: int | None = None) -> Tensor:
        """D_ψ(reference/‖reference‖, w/‖w‖) of each trial, (B,), or (B, K) as above; NaN where either is zero."""

        def of(potential: Potential, dims: tuple[int, ...], r: Tensor, t: Tensor) -> Tensor:
            return directional_divergence(r, t, potential, dims)

        return self._each(of, reference, w, core=core)

    def _each(self, function: Callable[..., Tensor], *tensors: Tensor, core: int | None = None) -> Tensor:
        dims = tuple(range(-(tensors[0].ndim - 1 if core is None else core), 0))
        parts = [function(potential, dims, *(t[part] for t in tensors)) for part, potential in self.groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def potentials_of(p: Any) -> np.ndarray[Any, Any]:
    """``p`` as an object array of potentials: 0-d for a number or a potential, else one entry per trial."""
    if isinstance(p, Tensor):
        p = p.detach().cpu().numpy()
    given = np.array(p, dtype=object)
    entries = [as_potential(entry.item() if isinstance(entry, np.generic) else entry) for entry in given.ravel()]
    result = np.empty(given.size, dtype=object)
    result[:] = entries
    return result.reshape(given.shape)


def trials_of(potentials: np.ndarray[Any, Any], batch: tuple[int, ...]) -> tuple[int, ...]:
    """The shape of the trials that arrays with these batch axes and these potentials make; ValueError if none."""
    try:
        return tuple(broadcast(batch, potentials.shape))
    except RuntimeError:
        raise ValueError(
            f"p has the shape {potentials.shape}, which does not broadcast with the trials {batch}; "
            "give one number, or one per trial."
        ) from None


def grouping(potentials: Sequence[Potential]) -> Tensor:
    """An order of the trials in which those of one potential stand side by side."""
    ranks = {potential: rank for rank, potential in enumerate(dict.fromkeys(potentials))}
    return torch.argsort(torch.tensor([ranks[potential] for potential in potentials]), stable=True)


# How many trailing dimensions make one entry of the batch.
CORE = {"X": 3, "y": 1, "z": 2, "v": 1, "mask": 2, "W": 2, "K": 2, "Q": 2}


@dataclass(frozen=True)
class Setup:
    """B trials, those of one potential side by side; ``order`` says which trial of the caller each one is."""

    X: Tensor  # (B, n, T, d), blank at padding
    y: Tensor  # (B, n)
    z: Tensor  # (B, n, d)
    v: Tensor  # (B, d)
    mask: Tensor | None  # (B, n, T)
    start: dict[str, Tensor]  # W (B, d, d), or K and Q (B, d, m); and v (B, d) if it is trained
    rates: dict[str, Tensor]  # a step size for each of these, (B, 1, ...)
    mirror: Mirror
    batch: tuple[int, ...]
    order: Tensor  # (B,)

    def flat(self, name: str, value: Any, core: int) -> Tensor:
        """An array of the caller, broadcast to all trials, in the order of the setup: (B, ...)."""
        tensor = to_tensor(name, value).to(self.X.device)
        leading = tuple(tensor.shape[: tensor.ndim - core])
        if tensor.ndim < core or not _fits(leading, self.batch):
            raise ValueError(
                f"{name} has the shape {tuple(tensor.shape)}, which does not broadcast to the trials {self.batch}; "
                "give one entry, or one per trial."
            )
        return per_trial(tensor, self.batch, core)[self.order]

    def unflat(self, tensor: Tensor) -> Tensor:
        """(B, ...) back in the caller's order and batch shape."""
        return tensor[torch.argsort(self.order)].reshape((*self.batch, *tensor.shape[1:]))


def prepare(
    problem: Mapping[str, Any], p: Any, start: Mapping[str, Any], rates: Mapping[str, Any], train_head: bool
) -> Setup:
    """Check the arrays of a problem (X, y, z, v, mask) and of a start (W, or K and Q), and flatten them."""
    given = {
        name: to_tensor(name, value)
        for name, value in {**problem, **start}.items()
        if value is not None or name == "X"  # which is missed by name
    }
    device = given["X"].device
    given = {name: value.to(device) for name, value in given.items()}
    check(**given)
    d = given["X"].shape[-1]
    if "K" not in given and "W" not in given:
        given["W"] = torch.zeros(d, d, dtype=torch.float64, device=device)
    if "v" not in given:  # the head of a joint path is looked for
        given["v"] = torch.ones(d, dtype=torch.float64, device=device)
    potentials = potentials_of(p)
    batch = trials_of(potentials, broadcast(*(tuple(t.shape[: t.ndim - CORE[name]]) for name, t in given.items())))
    flat_potentials = np.broadcast_to(potentials, batch).ravel().tolist()
    order = grouping(flat_potentials).to(device)
    flat = {name: per_trial(t, batch, CORE[name])[order] for name, t in given.items()}
    names = (["K", "Q"] if "K" in flat else ["W"]) + (["v"] if train_head else [])
    argument = {name: "lr_v" if name == "v" else "lr" for name in names}
    return Setup(
        X=blank_padding(flat["X"], flat.get("mask")).contiguous(),
        y=flat["y"],
        z=flat["z"],
        v=flat["v"],
        mask=flat.get("mask"),
        start={name: flat[name] for name in names},
        rates={name: rate_of(argument[name], rates[argument[name]], batch, order, CORE[name]) for name in names},
        mirror=Mirror([flat_potentials[k] for k in order.tolist()]),
        batch=batch,
        order=order,
    )


def to_tensor(name: str, value: Any) -> Tensor:
    """A copy in float64 (booleans stay booleans), wherever a tensor lives."""
    tensor = as_tensor(name, value).detach()
    if tensor.dtype == torch.bool:  # a mask, or what the check of the problem refuses
        return tensor.clone()
    return tensor.to(torch.float64, copy=True)


def rate_of(argument: str, given: Any, batch: tuple[int, ...], order: Tensor, core: int) -> Tensor:
    """A step size, or one per trial, as (B, 1, ...)."""
    rate = to_tensor(argument, np.array(given) if np.isscalar(given) else given)
    if not _fits(tuple(rate.shape), batch):
        raise ValueError(f"{argument} has the shape {tuple(rate.shape)}, but the trials are {batch}; give one number.")
    if not ((rate > 0) & (rate < math.inf)).all():
        raise ValueError(f"{argument} must be a finite number greater than 0, got {given!r}.")
    return per_trial(rate.to(order.device), batch, 0)[order].reshape(-1, *[1] * core)


def _fits(leading: tuple[int, ...], batch: tuple[int, ...]) -> bool:
    try:
        return broadcast(leading, batch) == batch
    except RuntimeError:
        return False


def per_trial(tensor: Tensor, batch: tuple[int, ...], core: int) -> Tensor:
    """A tensor whose last ``core`` dimensions are one entry, for every trial of the batch: (B, ...)."""
    shape = tuple(tensor.shape[tensor.ndim - core :])
    return tensor.expand((*batch, *shape)).reshape(-1, *shape)
