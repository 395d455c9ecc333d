"""One potential a trial, behind the same few methods as one potential for all."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.geometry import Potential, as_potential, directional_divergence


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

    def norm(self, w: Tensor) -> Tensor:
        """‖w‖ of each trial, (B,)."""
        return self._each(lambda potential, dims, t: potential.norm(t, dims), w)

    def dual_norm(self, g: Tensor) -> Tensor:
        """The dual norm of each trial's gradient, (B,)."""
        return self._each(lambda potential, dims, t: potential.dual_norm(t, dims), g)

    def divergence(self, reference: Tensor, w: Tensor) -> Tensor:
        """D_ψ(reference/‖reference‖, w/‖w‖) of each trial, (B,); NaN where either is zero."""
        return self._each(lambda potential, dims, r, t: directional_divergence(r, t, potential, dims), reference, w)

    def _each(self, function: Callable[..., Tensor], *tensors: Tensor) -> Tensor:
        dims = tuple(range(1 - tensors[0].ndim, 0))
        parts = [function(potential, dims, *(t[part] for t in tensors)) for part, potential in self.groups]
        return parts[0] if len(parts) == 1 else torch.cat(parts)


def potentials_of(p: Any) -> np.ndarray[Any, Any]:
    """``p`` as an object array of potentials: 0-d for a number or a potential, else one entry a trial."""
    if isinstance(p, Tensor):
        p = p.detach().cpu().numpy()
    given = np.array(p, dtype=object)
    entries = [as_potential(entry.item() if isinstance(entry, np.generic) else entry) for entry in given.ravel()]
    result = np.empty(given.size, dtype=object)
    result[:] = entries
    return result.reshape(given.shape)


def grouping(potentials: Sequence[Potential]) -> Tensor:
    """An order of the trials in which those of one potential stand side by side."""
    ranks = {potential: rank for rank, potential in enumerate(dict.fromkeys(potentials))}
    return torch.argsort(torch.tensor([ranks[potential] for potential in potentials]), stable=True)
