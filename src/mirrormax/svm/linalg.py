"""Cholesky factors of a batch of positive definite matrices, and a step to the boundary."""

from __future__ import annotations

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotrs

from mirrormax.svm.rows import Array

JITTER = 1e-14  # relative to each diagonal entry; grows tenfold until the factorisation goes through
ATTEMPTS = 8


class Factor:
    """L Lᵀ = K for K (B, m, m).

    Interior-point matrices lose positive definiteness only by rounding, so a factorisation that breaks
    down is repeated with a diagonal a little larger; the next outer iteration absorbs the difference.
    A matrix that stays indefinite is replaced by its diagonal.
    """

    def __init__(self, matrices: Array) -> None:
        self.single = len(matrices) == 1
        if self.single:
            self.lower = _lower(matrices[0])
            return
        self.batched, infos = torch.linalg.cholesky_ex(torch.from_numpy(matrices))
        for member in torch.nonzero(infos).flatten().tolist():
            self.batched[member] = torch.from_numpy(np.tril(_lower(matrices[member])))

    def solve(self, right: Array) -> Array:
        """K⁻¹ right, for right (B, m)."""
        if self.single:
            solution: Array = dpotrs(self.lower, right[0], lower=1)[0][None]
            return solution
        out: Array = torch.cholesky_solve(torch.from_numpy(right)[..., None], self.batched)[..., 0].numpy()
        return out


def _lower(matrix: Array) -> Array:
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


def longest_step(*pairs: tuple[Array, Array]) -> Array:
    """The largest a (B,) with x + a dx ≥ 0 for each pair (x, dx), x > 0."""
    steepest = np.maximum.reduce([(-dx / x).max(axis=1) for x, dx in pairs])
    step: Array = 1 / np.maximum(steepest, 1e-300)
    return step
