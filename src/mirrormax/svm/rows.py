"""The constraint rows as linear maps, never expanded to an m × d² matrix when that would be large.

Row r of A is the rank-one matrix x_r z_{i(r)}ᵀ, where x_r is a scaled difference of tokens and z_i the
query of its sample. With B problems in a batch, m rows, weights w of N = d·e entries:

    fwd(w)  = A w        (B, N) -> (B, m)
    adj(λ)  = Aᵀ λ       (B, m) -> (B, N)
    gram(D) = A diag(D) Aᵀ   (B, N) -> (B, m, m)

Seen as a d × e array, D gives h_ij = D (z_i ∘ z_j), and block (i, j) of the Gram matrix is
X_i diag(h_ij) X_jᵀ: m² d + n² d e work instead of m² d e.

Below the rows, what interior points do with them most: powers, steps to the boundary, and systems
(A diag(D) Aᵀ + diag(Δ)) y = r, in one of three ways:

- :class:`Factor`: the Cholesky factors of a batch of such matrices;
- :class:`ThinFactor`: by an N × N factor, for far more rows than weights;
- :class:`Implicit`: the matrix is never written out. All pairs of n samples would take n² d e operations, a product
  with A D Aᵀ takes n d e. What makes conjugate gradients quick is a matrix nearby that is cheap to factor
  (:func:`coupled`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt
import torch
from scipy.linalg.lapack import dpotrf, dpotrs
from scipy.sparse import csr_array
from scipy.sparse.linalg import LinearOperator, cg

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

EPS = float(np.finfo(np.float64).eps)
LARGEST_DENSE = 200_000  # entries of A below which one matrix product beats the structure's many small ones
LARGEST_PAIRS = 2_000_000  # entries of all z_i ∘ z_j that are written out at once
JITTER = 1e-14  # relative to each diagonal entry; grows tenfold until the factorisation goes through
ATTEMPTS = 8
LARGEST_SLOW_POWER = 2000
REFINEMENTS = 2
MANY_PAIRS = 2e9  # n² d e from which on products with the matrix are cheaper than the matrix
STEPS = 300
NEARLY = 10.0  # times the residual asked for: what still counts as solved, as residuals that are summed up drift


class Rows(Protocol):
    """What the solvers need of a batch of constraint matrices."""

    m: int
    size: int

    def fwd(self, w: Array) -> Array:
        """A w."""

    def adj(self, lam: Array) -> Array:
        """Aᵀ λ."""

    def gram(self, weight: Array) -> Array:
        """A diag(weight) Aᵀ."""

    def take(self, members: Index) -> Rows:
        """The problems with these indices."""

    def scaled(self, kappa: Array) -> Rows:
        """κ A, with κ of shape (B,)."""

    def dense(self) -> Array:
        """A itself, (B, m, N)."""

    def subset(self, keep: Index) -> Rows:
        """The rows with these sorted indices."""

    def absolute(self) -> Rows:
        """|A|, entry by entry: what rounding in A w and Aᵀλ is measured by."""


class DenseRows:
    """A stored as (B, m, N): quickest while it is small."""

    def __init__(self, matrix: Array) -> None:
        self.matrix = matrix
        self.m, self.size = matrix.shape[1:]

    def fwd(self, w: Array) -> Array:
        return np.asarray((self.matrix @ w[..., None])[..., 0])

    def adj(self, lam: Array) -> Array:
        return np.asarray((lam[:, None, :] @ self.matrix)[:, 0])

    def gram(self, weight: Array) -> Array:
        return np.asarray((self.matrix * weight[:, None, :]) @ self.matrix.swapaxes(1, 2))

    def take(self, members: Index) -> DenseRows:
        return DenseRows(self.matrix[members])

    def scaled(self, kappa: Array) -> DenseRows:
        return DenseRows(self.matrix * kappa[:, None, None])

    def dense(self) -> Array:
        return self.matrix

    def subset(self, keep: Index) -> DenseRows:
        return DenseRows(self.matrix[:, keep])

    def absolute(self) -> DenseRows:
        return DenseRows(np.abs(self.matrix))


class BlockRows:
    """Rows in equal blocks: x (B, n, R, d), z (B, n, e); a row that does not exist is a zero in x."""

    def __init__(self, x: Array, z: Array) -> None:
        self.x, self.z = x, z
        self.batch, self.n, self.rows, self.d = x.shape
        self.e = z.shape[-1]
        self.m, self.size = self.n * self.rows, self.d * self.e
        self._zz: Array | None = None

    def fwd(self, w: Array) -> Array:
        queries = self.z @ w.reshape(-1, self.d, self.e).swapaxes(1, 2)
        return np.asarray(self.x @ queries[..., None]).reshape(-1, self.m)

    def adj(self, lam: Array) -> Array:
        sums = (lam.reshape(-1, self.n, 1, self.rows) @ self.x)[:, :, 0]
        return np.asarray(sums.swapaxes(1, 2) @ self.z).reshape(-1, self.size)

    def gram(self, weight: Array) -> Array:
        if self._zz is None:
            self._zz = (self.z[:, :, None] * self.z[:, None]).reshape(-1, self.n * self.n, self.e)
        h = self._zz @ weight.reshape(-1, self.d, self.e).swapaxes(1, 2)
        weighted = self.x[:, None] * h.reshape(-1, self.n, self.n, 1, self.d)
        weighted = weighted.reshape(-1, self.n, self.m, self.d)
        return np.asarray(self.x @ weighted.swapaxes(2, 3)).reshape(-1, self.m, self.m)

    def take(self, members: Index) -> BlockRows:
        return BlockRows(self.x[members], self.z[members])

    def scaled(self, kappa: Array) -> BlockRows:
        return BlockRows(self.x * kappa[:, None, None, None], self.z)

    def dense(self) -> Array:
        return outer_rows(self.x, self.z)

    def subset(self, keep: Index) -> Rows:
        """Blocks would not stay equal: the rows of one problem become flat, those of several are written out."""
        if self.batch > 1:
            return DenseRows(self.dense()[:, keep])
        return FlatRows(self.x.reshape(-1, self.d)[keep], keep // self.rows, self.z[0])

    def absolute(self) -> BlockRows:
        return BlockRows(np.abs(self.x), np.abs(self.z))


class FlatRows:
    """Any rows of one problem: x (m, d), sorted by the sample ``owner`` (m,) they come from, z (n, e)."""

    def __init__(self, x: Array, owner: Index, z: Array) -> None:
        self.x, self.owner, self.z = x, owner, z
        self.m, self.d = x.shape
        self.n, self.e = z.shape
        self.size = self.d * self.e
        self.present, self.starts, self.place = np.unique(owner, return_index=True, return_inverse=True)
        self.stops = np.append(self.starts[1:], self.m)

    def fwd(self, w: Array) -> Array:
        queries = self.z[self.present] @ w.reshape(self.d, self.e).T
        return np.asarray(np.einsum("rd,rd->r", self.x, queries[self.place]))[None]

    def adj(self, lam: Array) -> Array:
        # λ as a sparse matrix, one row per sample: its product with x sums each sample's rows without writing out λ x.
        by_sample = csr_array((lam[0], np.arange(self.m), np.append(self.starts, self.m)), (len(self.present), self.m))
        return np.asarray((by_sample @ self.x).T @ self.z[self.present]).reshape(1, -1)

    def gram(self, weight: Array) -> Array:
        """The lower triangle, block row by block row, and its mirror image."""
        w = weight.reshape(self.d, self.e)
        out = np.empty((self.m, self.m))
        for h, start, stop in zip(self._pairs(w), self.starts, self.stops, strict=True):
            weighted = self.x[:stop] * h[self.place[:stop]]
            out[start:stop, :stop] = self.x[start:stop] @ weighted.T
            out[:start, start:stop] = out[start:stop, :start].T
        return out[None]

    def _pairs(self, w: Array) -> Iterator[Array]:
        """h_ij of every sample i that has rows, with all j up to i, (i + 1, d): many of them in one product."""
        z = self.z[self.present]
        step = max(1, LARGEST_PAIRS // (len(z) * self.e))
        for first in range(0, len(z), step):
            counts = np.arange(first, min(first + step, len(z))) + 1
            i = np.repeat(counts - 1, counts)
            j = np.concatenate([np.arange(count) for count in counts])
            yield from np.split((z[i] * z[j]) @ w.T, np.cumsum(counts)[:-1])

    def take(self, members: Index) -> FlatRows:
        return self

    def scaled(self, kappa: Array) -> FlatRows:
        return FlatRows(self.x * kappa[0], self.owner, self.z)

    def dense(self) -> Array:
        return (self.x[:, :, None] * self.z[self.owner][:, None, :]).reshape(1, self.m, self.size)

    def subset(self, keep: Index) -> FlatRows:
        return FlatRows(self.x[keep], self.owner[keep], self.z)

    def absolute(self) -> FlatRows:
        return FlatRows(np.abs(self.x), self.owner, np.abs(self.z))


def make_rows(x: Array, z: Array) -> Rows:
    """The quickest form for x (B, n, R, d) and z (B, n, e)."""
    batch, n, per_sample, d = x.shape
    size = d * z.shape[-1]
    if batch == 1 and n * per_sample * size > LARGEST_DENSE:
        owner = np.repeat(np.arange(n), per_sample)
        return FlatRows(x.reshape(-1, d), owner, z[0])
    # A single sample has no structure to gain from, and one small problem too little work to pay for it.
    if (batch == 1 or n == 1) and n * per_sample * size <= LARGEST_DENSE:
        return DenseRows(outer_rows(x, z))
    return BlockRows(x, z)


def outer_rows(x: Array, z: Array) -> Array:
    """All x_r z_iᵀ written out, (B, m, d e)."""
    batch, n, per_sample, d = x.shape
    return (x[..., None] * z[:, :, None, None, :]).reshape(batch, n * per_sample, d * z.shape[-1])


def rounding(rows: Rows, w: Array) -> Array:
    """A bound (B, m) on the rounding in A w, that of the rows themselves included."""
    terms = rows.d + rows.e if isinstance(rows, (BlockRows, FlatRows)) else rows.size
    return (terms + 4) * EPS * rows.absolute().fwd(np.abs(w))


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
            x = np.asarray(conjugate_gradients(apply, right, self.precondition, self.tol, STEPS))
            if np.linalg.norm(right - apply(x)) <= NEARLY * self.tol * np.linalg.norm(right):
                return x
            matrices = self.rows.gram(self.weight)
            np.einsum("bii->bi", matrices)[...] += self.diagonal
            self.exact = Factor(matrices)
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


def p_norm(w: Array, p: Array) -> Array:
    """‖w‖_p over the last axis with one p per problem (B,), at any scale."""
    largest = np.abs(w).max(axis=-1, initial=0.0, keepdims=True)
    safe = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    norm: Array = safe[:, 0] * ((np.abs(w) / safe) ** p[:, None]).sum(axis=-1) ** (1 / p)
    return norm


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
