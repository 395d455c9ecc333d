"""What the interior points compute most: Cholesky factors of a batch, powers, and steps to the boundary."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotrs

from mirrormax.svm.rows import Array

JITTER = 1e-14  # relative to each diagonal entry; grows tenfold until the factorisation goes through
ATTEMPTS = 8
LARGEST_SLOW_POWER = 2000
REFINEMENTS = 2


class Factor:
    """L Lᵀ = K for K (B, m, m).

    Interior-point matrices lose positive definiteness only by rounding, so a factorisation that breaks
    down is repeated with a diagonal a little larger; the next outer iteration absorbs the difference.
    A matrix that stays indefinite is replaced by its diagonal.
    """

    def __init__(self, matrices: Array) -> None:
        self.single = len(matrices) == 1
        if self.single:
            self.lower = lower_factor(matrices[0])
            return
        # NumPy factors a batch in half the time of torch, and torch solves with the factors in half that of NumPy.
        try:
            lower = np.linalg.cholesky(matrices)
        except np.linalg.LinAlgError:
            lower = np.stack([np.tril(lower_factor(matrix)) for matrix in matrices])
        self.batched = torch.from_numpy(lower)

    def solve(self, right: Array) -> Array:
        """K⁻¹ right, for right (B, m)."""
        if self.single:
            solution: Array = dpotrs(self.lower, right[0], lower=1)[0][None]
            return solution
        half = torch.linalg.solve_triangular(self.batched, torch.from_numpy(right)[..., None], upper=False)
        out = torch.linalg.solve_triangular(self.batched.mT, half, upper=True)
        return np.asarray(out[..., 0].numpy())


class ThinFactor:
    """(A diag(D) Aᵀ + diag(Δ))⁻¹ for A (m, N) with far more rows than columns, by an N × N factor.

    With B = A D^½ it is Δ⁻¹ − Δ⁻¹B (I + BᵀΔ⁻¹B)⁻¹ BᵀΔ⁻¹: m N² work instead of m³. The difference cancels where Δ is
    small, so that every solution is refined by its residual.
    """

    def __init__(self, matrix: Array, weight: Array, diagonal: Array) -> None:
        self.half = matrix * np.sqrt(weight)
        self.diagonal = diagonal
        inner = self.half.T @ (self.half / diagonal[:, None])
        inner.ravel()[:: len(inner) + 1] += 1.0
        self.lower = lower_factor(inner)

    def solve(self, right: Array) -> Array:
        """K⁻¹ right, for right (1, m)."""
        solution = self._once(right[0])
        for _ in range(REFINEMENTS):
            residual = right[0] - self.half @ (self.half.T @ solution) - self.diagonal * solution
            solution = solution + self._once(residual)
        return solution[None]

    def _once(self, right: Array) -> Array:
        scaled = right / self.diagonal
        inner = dpotrs(self.lower, self.half.T @ scaled, lower=1)[0]
        once: Array = scaled - (self.half @ inner) / self.diagonal
        return once


def lower_factor(matrix: Array) -> Array:
    """L with L Lᵀ = K for one K (m, m); what stands above the diagonal is not to be read."""
    lower: Array
    lower, info = dpotrf(matrix.T, lower=1, clean=0)
    if info == 0:
        return lower
    diagonal = np.abs(matrix.diagonal())
    diagonal = np.maximum(diagonal, np.finfo(np.float64).tiny / JITTER + JITTER * diagonal.max())
    for attempt in range(ATTEMPTS):
        trial = matrix.copy()
        np.einsum("ii->i", trial)[...] += diagonal * JITTER * 10.0**attempt
        lower, info = dpotrf(trial, lower=1, clean=0)
        if info == 0:
            return lower
    return np.diag(np.sqrt(diagonal))


def power(x: Array, exponent: Array) -> Array:
    """|x|^exponent for x (B, N) and exponent ≥ 0 (B, 1); 0^0 is 1.

    Through logarithms once that is worth the way to torch: a few last digits less, in a third of the time.
    """
    if x.size < LARGEST_SLOW_POWER:
        return np.asarray(np.abs(x) ** exponent)
    # The floor keeps 0·log 0 from being NaN.
    logarithm = torch.from_numpy(np.maximum(np.abs(x), 1e-300)).log2_()
    return np.asarray(logarithm.mul_(torch.from_numpy(exponent)).exp2_().numpy())


def dot(a: Array, b: Array) -> Array:
    """Σ a b over the last axis, (B,)."""
    return np.asarray((a[:, None, :] @ b[:, :, None])[:, 0, 0])


def longest_step(*pairs: tuple[Array, Array]) -> Array:
    """The largest a (B,) with x + a dx ≥ 0 for each pair (x, dx), x > 0."""
    ratios = [dx / x for x, dx in pairs]
    steepest = ratios[0]
    for ratio in ratios[1:]:
        steepest = np.minimum(steepest, ratio)
    step: Array = -1 / np.minimum(steepest.min(axis=1), -1e-300)
    return step
