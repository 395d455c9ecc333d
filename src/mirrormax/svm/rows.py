"""The constraint rows as linear maps, never expanded to an m × d² matrix when that would be large.

Row r of A is the rank-one matrix x_r z_{i(r)}ᵀ, where x_r is a scaled difference of tokens and z_i the
query of its sample. With B problems in a batch, m rows, weights w of N = d·e entries:

    fwd(w)  = A w        (B, N) -> (B, m)
    adj(λ)  = Aᵀ λ       (B, m) -> (B, N)
    gram(D) = A diag(D) Aᵀ   (B, N) -> (B, m, m)

Seen as a d × e array, D gives h_ij = D (z_i ∘ z_j), and block (i, j) of the Gram matrix is
X_i diag(h_ij) X_jᵀ: m² d + n² d e work instead of m² d e.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

EPS = float(np.finfo(np.float64).eps)
LARGEST_DENSE = 200_000  # entries of A below which one matrix product beats the structure's many small ones
LARGEST_PAIRS = 2_000_000  # entries of all z_i ∘ z_j that are written out at once


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
        sums = np.add.reduceat(lam[0][:, None] * self.x, self.starts, axis=0)
        return np.asarray(sums.T @ self.z[self.present]).reshape(1, -1)

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


class WithOffset:
    """[A, 1]: rows with one more feature that is 1 everywhere a row exists."""

    def __init__(self, rows: Rows, exists: Array) -> None:
        self.rows, self.exists = rows, exists
        self.m, self.size = rows.m, rows.size + 1

    def fwd(self, w: Array) -> Array:
        return self.rows.fwd(w[:, :-1]) + w[:, -1:] * self.exists

    def adj(self, lam: Array) -> Array:
        return np.concatenate([self.rows.adj(lam), (lam * self.exists).sum(axis=1, keepdims=True)], axis=1)

    def gram(self, weight: Array) -> Array:
        offset = self.exists[:, :, None] * self.exists[:, None, :]
        return self.rows.gram(weight[:, :-1]) + weight[:, -1][:, None, None] * offset

    def take(self, members: Index) -> WithOffset:
        return WithOffset(self.rows.take(members), self.exists[members])

    def scaled(self, kappa: Array) -> WithOffset:
        return WithOffset(self.rows.scaled(kappa), self.exists * kappa[:, None])

    def dense(self) -> Array:
        return np.concatenate([self.rows.dense(), self.exists[:, :, None]], axis=2)

    def subset(self, keep: Index) -> WithOffset:
        return WithOffset(self.rows.subset(keep), self.exists[:, keep])

    def absolute(self) -> WithOffset:
        return WithOffset(self.rows.absolute(), self.exists)


class Equilibrated:
    """diag(row) A diag(column): one problem whose columns, and rows, all have about the same size."""

    def __init__(self, rows: Rows, row: Array, column: Array) -> None:
        self.rows, self.row, self.column = rows, row, column
        self.m, self.size = rows.m, rows.size

    def fwd(self, w: Array) -> Array:
        return self.row * self.rows.fwd(self.column * w)

    def adj(self, lam: Array) -> Array:
        return self.column * self.rows.adj(self.row * lam)

    def gram(self, weight: Array) -> Array:
        return self.row[:, :, None] * self.rows.gram(self.column**2 * weight) * self.row[:, None, :]

    def take(self, members: Index) -> Equilibrated:
        return self

    def scaled(self, kappa: Array) -> Equilibrated:
        return Equilibrated(self.rows, self.row * kappa[:, None], self.column)

    def dense(self) -> Array:
        return self.row[:, :, None] * self.rows.dense() * self.column[:, None, :]

    def subset(self, keep: Index) -> Equilibrated:
        return Equilibrated(self.rows.subset(keep), self.row[:, keep], self.column)

    def absolute(self) -> Equilibrated:
        return Equilibrated(self.rows.absolute(), self.row, self.column)


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
