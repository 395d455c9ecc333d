"""Starts inside the cones of Definition 5: so far from a direction, at such a norm."""

from __future__ import annotations

from typing import Any

import numpy as np

from mirrormax.experiments.trials import Batch, Floats
from mirrormax.geometry import directional_divergence

BISECTIONS = 60


def best_tokens(problem: Batch) -> np.ndarray[Any, Any]:
    """The globally optimal tokens (B, n): those of the highest score."""
    scores = problem["y"][..., None] * np.einsum("bntd,bd->bnt", problem["X"], problem["v"])
    return np.asarray(scores.argmax(-1))


def norm(W: Floats, p: float) -> Floats:
    """‖W‖_p of (..., d, d), as (..., 1, 1)."""
    return np.asarray((np.abs(W) ** p).sum((-1, -2), keepdims=True) ** (1 / p))


def at_divergence(reference: Floats, p: float, divergence: float, radius: float, rng: np.random.Generator) -> Floats:
    """Random weights (B, d, d) of norm ``radius`` whose directional divergence to the reference is just this.

    On the way from the reference to a random direction the divergence grows from 0 to about 1; bisection finds
    where it passes ``divergence``.
    """
    axis = reference / norm(reference, p)
    aside = rng.standard_normal(axis.shape)
    aside /= norm(aside, p)
    low, high = np.zeros((len(axis), 1, 1)), np.ones((len(axis), 1, 1))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        far = _divergence(axis, (1 - middle) * axis + middle * aside, p) > divergence
        low, high = np.where(far, low, middle), np.where(far, middle, high)
    W = (1 - low) * axis + low * aside
    return np.asarray(radius * W / norm(W, p))


def _divergence(reference: Floats, W: Floats, p: float) -> Floats:
    return np.asarray(directional_divergence(reference, W, p))[:, None, None]  # type: ignore[arg-type]
