"""The risk as functions that keep their digits where it saturates, for minimisation at large radii.

With γ_i the best score of sample i, Δ_it = γ_i − γ_it ≥ 0 and δ_i = Σ_t s_it Δ_it, no W has a risk below
L* = (1/n) Σ l(γ_i), and

    L(W) − L* = (1/n) Σ_i l(γ_i − δ_i) − l(γ_i) > 0.

Minimisers of L are those of log(L − L*), which is as smooth and falls about linearly in ‖W‖, where L itself
is constant to the last digit. Every term is a product, and the scale of the largest one is carried apart.
For the head, given what attention attends to, log L itself does the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from mirrormax.attention.losses import Loss

Array = npt.NDArray[np.float64]
Objective = Callable[[Array], tuple[float, Array]]

# Below this, l(γ − δ) − l(γ) is better had from the slope at the midpoint: each is good to eleven digits here.
SMALL_DELTA = 1e-5


class Excess:
    """W ↦ log(L(W) − L*) and its gradient, for one problem: X (n, T, d), y (n,), z (n, d), v (d,), mask (n, T)."""

    def __init__(self, X: Array, y: Array, z: Array, v: Array, mask: Any, loss: Loss) -> None:
        self.X, self.z, self.loss = X, z, loss
        scores = np.where(mask, y[:, None] * (X @ v), -np.inf)
        self.alpha = scores.argmax(1)
        rows = np.arange(len(X))
        self.best: Array = scores[rows, self.alpha]
        self.offsets: Array = X - X[rows, self.alpha][:, None]
        # From the offsets, so that tokens far from the origin lose no digits.
        self.gaps: Array = np.where(mask, -y[:, None] * (self.offsets @ v), 0.0).clip(min=0.0)
        self.absent: Array = np.where(mask, 0.0, -np.inf)
        with np.errstate(divide="ignore"):
            self.log_gaps: Array = np.log(self.gaps)
        if not (self.gaps > 0).any():
            raise ValueError("every token of every sample scores the same, so the risk does not depend on W.")

    def __call__(self, W: Array) -> tuple[float, Array]:
        """log(L − L*) and its gradient (d, d)."""
        n = len(self.X)
        r = (self.offsets @ (self.z @ W.T)[:, :, None])[:, :, 0] + self.absent
        top = r.max(1, keepdims=True)
        log_s = r - top - np.log(np.exp(r - top).sum(1, keepdims=True))
        logs = log_s + self.log_gaps
        scale = float(logs.max())
        parts = np.exp(logs - scale)  # s Δ / e^scale
        scaled_delta, s = parts.sum(1), np.exp(log_s)
        delta = (s * self.gaps).sum(1)
        excess = float((self._slopes(delta) * scaled_delta).mean())
        slope = -_apply(self.loss.derivative, self.best - delta)
        weights = slope[:, None] * (parts - s * scaled_delta[:, None]) / (n * excess)
        pull = (weights[:, None, :] @ self.offsets)[:, 0]
        return scale + float(np.log(excess)), pull.T @ self.z

    def _slopes(self, delta: Array) -> Array:
        """(l(γ − δ) − l(γ))/δ."""
        value = self.loss.value
        direct = _apply(value, self.best - delta) - _apply(value, self.best)
        middle = -_apply(self.loss.derivative, self.best - delta / 2)
        return np.where(delta > SMALL_DELTA, direct / np.maximum(delta, SMALL_DELTA), middle)


class HeadLoss:
    """v ↦ log L and its gradient for attended tokens ξ (n, d): log (1/n) Σ l(y_i ξ_iᵀv), l logistic."""

    def __init__(self, attended: Array, y: Array) -> None:
        self.points: Array = y[:, None] * attended

    def __call__(self, v: Array) -> tuple[float, Array]:
        """log L and its gradient (d,)."""
        x = self.points @ v
        # log log(1 + e^{-x}): for large x the inner logarithm is e^{-x}(1 − e^{-x}/2), whose logarithm is exact.
        tail = np.exp(-np.maximum(x, 30.0))
        logs = np.where(x > 30.0, -x - tail / 2, np.log(np.logaddexp(0.0, -np.minimum(x, 30.0))))
        top = float(logs.max())
        value = top + float(np.log(np.exp(logs - top).mean()))
        weights = np.exp(-np.logaddexp(0.0, x) - value) / len(x)
        return value, -(weights @ self.points)


def attended(X: Array, z: Array, W: Array, mask: Any) -> Array:
    """X_iᵀσ(X_i W z_i), (n, d)."""
    h = np.where(mask, (X @ (z @ W.T)[:, :, None])[:, :, 0], -np.inf)
    s = np.exp(h - h.max(1, keepdims=True))
    result: Array = ((s / s.sum(1, keepdims=True))[:, None] @ X)[:, 0]
    return result


def _apply(function: Callable[[torch.Tensor], torch.Tensor], x: Array) -> Array:
    result: Array = function(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    return result
