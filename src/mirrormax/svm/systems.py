"""Systems (A diag(D) Aᵀ + diag(Δ)) y = r whose matrix is never written out: conjugate gradients, two preconditioners.

Rows r and s of samples i and j meet in Σ_k x_rk x_sk h_k with h = D (z_i ∘ z_j), D seen as a d × e array. All pairs of
n samples take n² d e operations: too many for thousands of samples, while a product with A D Aᵀ takes n d e. What
makes conjugate gradients quick is a matrix nearby that is cheap to factor:

- :func:`coupled`, for some thousand rows: D replaced by a bᵀ, the means of its rows and columns. The entries are then
  (x_r·(a ∘ x_s))(z_i·(b ∘ z_j)): two Gram matrices multiplied entry by entry, exact where D is constant (p = 2). Both
  matrices carry the same Δ, so that the quotient of the two forms is nearest to 1 where Δ is large.
- :func:`by_sample`, for more rows: the diagonal blocks, one per sample, X_i diag(h_ii) X_iᵀ + Δ_i.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from scipy.linalg.lapack import dpotrs

from mirrormax.svm.rows import Array, Factor, FlatRows, lower_factor

MANY_PAIRS = 2e9  # n² d e from which on products with the matrix are cheaper than the matrix
STEPS = 300
NEARLY = 10.0  # times the residual asked for: what still counts as solved, as residuals that are summed up drift


class Implicit:
    """The inverse of A diag(D) Aᵀ + diag(Δ) for D (1, N) and Δ (1, m), to a relative residual of ``tol``."""

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
            found = np.asarray(conjugate_gradients(apply, right, self.precondition, self.tol, STEPS))
            if np.linalg.norm(right - apply(found)) <= NEARLY * self.tol * np.linalg.norm(right):
                return found
            matrices = self.rows.gram(self.weight)
            np.einsum("bii->bi", matrices)[...] += self.diagonal
            self.exact = Factor(matrices)
        return self.exact.solve(right)


def conjugate_gradients(
    apply: Callable[[Any], Any], right: Any, precondition: Callable[[Any], Any], tol: float, steps: int
) -> Any:
    """K⁻¹ right for right (1, m), to a relative residual of ``tol``."""
    x, residual = np.zeros_like(right), right
    target = tol * np.linalg.norm(right)
    z = precondition(residual)
    direction, inner = z, np.vdot(residual, z)
    for _ in range(steps):
        if not np.linalg.norm(residual) > target:
            break
        image = apply(direction)
        length = inner / np.vdot(direction, image)
        if not np.isfinite(length):
            break
        x, residual = x + length * direction, residual - length * image
        z = precondition(residual)
        inner, before = np.vdot(residual, z), inner
        direction = z + (inner / before) * direction
    return x


def coupled(rows: FlatRows, weight: Array, diagonal: Array | float) -> Callable[[Array], Array]:
    """The inverse of A (a bᵀ) Aᵀ + diag(Δ), where a bᵀ has the means of the rows and columns of D."""
    D = weight.reshape(rows.d, rows.e)
    a, b = D.mean(axis=1), D.mean(axis=0) / D.mean()
    z = rows.z[rows.present]
    matrix = ((rows.x * a) @ rows.x.T) * ((z * b) @ z.T)[rows.place][:, rows.place]
    matrix.ravel()[:: rows.m + 1] += np.ravel(diagonal)
    lower = lower_factor(matrix)
    return lambda right: dpotrs(lower, right[0], lower=1)[0][None]


def by_sample(rows: FlatRows, weight: Any, shift: float) -> Callable[[Any], Any]:
    """The inverse of the diagonal blocks of A diag(D) Aᵀ + shift, one per sample, in the precision of the rows."""
    z = rows.z[rows.present]
    width = int((rows.stops - rows.starts).max())
    slot = np.arange(rows.m) - rows.starts[rows.place]
    blocks = np.zeros((len(z), width, rows.d), dtype=rows.x.dtype)
    blocks[rows.place, slot] = rows.x
    h = (z * z) @ weight.reshape(rows.d, rows.e).T
    matrices = (blocks * h[:, None]) @ blocks.swapaxes(1, 2)
    # Tokens that repeat leave a block singular; a shift that its precision cannot see would leave it so.
    diagonal = np.einsum("bii->bi", matrices)
    least = 4 * width * np.finfo(rows.x.dtype).eps * diagonal.max(axis=1, keepdims=True)
    diagonal += np.maximum(rows.x.dtype.type(shift), least)
    inverse = np.linalg.inv(matrices)

    def precondition(right: Any) -> Any:
        padded = np.zeros((len(z), width, 1), dtype=right.dtype)
        padded[rows.place, slot, 0] = right[0]
        return (inverse @ padded)[rows.place, slot, 0][None]

    return precondition
