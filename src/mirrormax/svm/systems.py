"""Linear systems (A diag(D) Aᵀ + diag(Δ)) y = r of interior points and Newton steps, solved in four ways."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse.linalg import LinearOperator, cg

from mirrormax.svm.rows import Array, FlatRows

JITTER = 1e-14  # relative to each diagonal entry; grows tenfold until the factorisation goes through
ATTEMPTS = 8
REFINEMENTS = 2
MANY_PAIRS = 2e9  # n² d e from which on products with the matrix are cheaper than the matrix
STEPS = 300
NEARLY = 10.0  # times the residual asked for: what still counts as solved, as residuals that are summed up drift

Long = Any  # numpy.longdouble arrays


class Factor:
    """L Lᵀ = K + diag(Δ) for K (B, m, m), which is overwritten, and Δ (B, m).

    Interior-point matrices lose positive definiteness only by rounding, so a factorisation that breaks
    down is repeated with a diagonal a little larger; the next outer iteration absorbs the difference.
    A matrix that stays indefinite is replaced by its diagonal.
    """

    def __init__(self, matrices: Array, diagonal: Array | float = 0.0) -> None:
        np.einsum("bii->bi", matrices)[...] += diagonal
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
            return np.asarray(dpotrs(self.lower, right[0], lower=1)[0][None])
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
        return np.asarray(scaled - (self.half @ inner) / self.diagonal)


class Implicit:
    """The inverse of A diag(D) Aᵀ + diag(Δ) for D (1, N) and Δ (1, m), to a relative residual of ``tol``.

    The matrix is never written out: all pairs of n samples would take n² d e operations, a product with A D Aᵀ takes
    n d e. What makes conjugate gradients quick is a matrix nearby that is cheap to factor (:func:`coupled`).
    """

    def __init__(self, rows: FlatRows, weight: Array, diagonal: Array, tol: float) -> None:
        self.rows, self.weight, self.diagonal, self.tol = rows, weight, diagonal, tol
        self.precondition = coupled(rows, weight, diagonal)
        self.exact: Factor | None = None

    def solve(self, right: Array) -> Array:
        """The solution for right (1, m); by a factor of the matrix after all, once conjugate gradients do not arrive.

        That happens at large p, where D is far from any a bᵀ.
        """

        def apply(y: Array) -> Array:
            return self.diagonal * y + self.rows.fwd(self.weight * self.rows.adj(y))

        if self.exact is None:
            x = np.asarray(conjugate_gradients(apply, right, self.precondition, self.tol, STEPS))
            if np.linalg.norm(right - apply(x)) <= NEARLY * self.tol * np.linalg.norm(right):
                return x
            self.exact = Factor(self.rows.gram(self.weight), self.diagonal)
        return self.exact.solve(right)


def conjugate_gradients(
    apply: Callable[[Any], Any], right: Any, precondition: Callable[[Any], Any], tol: float, steps: int
) -> Any:
    """K⁻¹ right for right (1, m), to a relative residual of ``tol``, in the precision of the right-hand side."""
    shape = (right.size, right.size)
    K, M = (LinearOperator(shape, lambda y, f=f: f(y[None])[0], dtype=right.dtype) for f in (apply, precondition))
    return cg(K, right[0], rtol=tol, maxiter=steps, M=M)[0][None]


def coupled(rows: FlatRows, weight: Array, diagonal: Array | float) -> Callable[[Array], Array]:
    """The inverse of A (a bᵀ) Aᵀ + diag(Δ), where a bᵀ has the means of the rows and columns of D, a d × e array.

    Its entries are (x_r·(a ∘ x_s))(z_i·(b ∘ z_j)): two Gram matrices multiplied entry by entry, exact where D is
    constant (p = 2). Both matrices carry the same Δ, so that the quotient of the two forms is nearest to 1 where Δ is
    large.
    """
    D = weight.reshape(rows.d, rows.e)
    a, b = D.mean(axis=1), D.mean(axis=0) / D.mean()
    z = rows.z[rows.present]
    matrix = ((rows.x * a) @ rows.x.T) * ((z * b) @ z.T)[rows.place][:, rows.place]
    matrix.ravel()[:: rows.m + 1] += np.ravel(diagonal)
    lower = lower_factor(matrix)
    return lambda right: dpotrs(lower, right[0], lower=1)[0][None]


def lower_factor(matrix: Array) -> Array:
    """L with L Lᵀ = K for one K (m, m); what stands above the diagonal is not to be read."""
    lower, info = dpotrf(matrix.T, lower=1, clean=0)
    if info == 0:
        return np.asarray(lower)
    diagonal = np.abs(matrix.diagonal())
    diagonal = np.maximum(diagonal, np.finfo(np.float64).tiny / JITTER + JITTER * diagonal.max())
    for attempt in range(ATTEMPTS):
        trial = matrix.copy()
        np.einsum("ii->i", trial)[...] += diagonal * JITTER * 10.0**attempt
        lower, info = dpotrf(trial, lower=1, clean=0)
        if info == 0:
            return np.asarray(lower)
    return np.diag(np.sqrt(diagonal))


class Elimination:
    """P R M C = L U for a square M in extended precision: R, C, powers of two, bring rows and columns to one size."""

    def __init__(self, matrix: Long) -> None:
        size = np.abs(matrix)
        self.row, self.column = np.ones(len(size), dtype=size.dtype), np.ones(len(size), dtype=size.dtype)
        for _ in range(6):
            for axis, scale in ((1, self.row), (0, self.column)):
                largest = (self.row[:, None] * size * self.column).max(axis=axis)
                scale *= np.where(largest > 0, np.ldexp(np.longdouble(1.0), -(np.frexp(largest)[1] // 2)), 1.0)
        self.factors = self.row[:, None] * matrix * self.column
        self.order = np.arange(len(matrix))
        for k in range(len(matrix) - 1):
            pivot = k + int(np.argmax(np.abs(self.factors[k:, k])))
            if self.factors[pivot, k] == 0:
                continue
            self.factors[[k, pivot]], self.order[[k, pivot]] = self.factors[[pivot, k]], self.order[[pivot, k]]
            share = self.factors[k + 1 :, k] / self.factors[k, k]
            self.factors[k + 1 :, k] = share
            self.factors[k + 1 :, k + 1 :] -= share[:, None] * self.factors[k, k + 1 :]

    def solve(self, right: Long) -> Long:
        """M⁻¹ right, for right (1, n)."""
        x = (self.row * right[0])[self.order]
        for k in range(len(x)):
            x[k + 1 :] -= self.factors[k + 1 :, k] * x[k]
        for k in reversed(range(len(x))):
            x[k] /= self.factors[k, k]
            x[:k] -= self.factors[:k, k] * x[k]
        return (self.column * x)[None]


System: TypeAlias = Factor | ThinFactor | Implicit | Elimination
