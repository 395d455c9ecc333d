"""The constraint rows as linear maps, never expanded to an m × d² matrix when that would be large.

Row r of A is the rank-one matrix x_r z_{i(r)}ᵀ, where x_r is a scaled difference of tokens and z_i the
query of its sample. With B problems in a batch, m rows, weights w of N = d·e entries:

    fwd(w)  = A w        (B, N) -> (B, m)
    adj(λ)  = Aᵀ λ       (B, m) -> (B, N)
    gram(D) = A diag(D) Aᵀ   (B, N) -> (B, m, m)

and ``take`` for some problems of the batch, ``scaled`` for κ A, ``dense`` for A itself, (B, m, N), ``subset`` for some
rows, in their order, ``absolute`` for |A|, by which rounding in A w and Aᵀλ is measured.

Seen as a d × e array, D gives h_ij = D (z_i ∘ z_j), and block (i, j) of the Gram matrix is
X_i diag(h_ij) X_jᵀ: m² d + n² d e work instead of m² d e.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import TypeAlias

import numpy as np
import numpy.typing as npt
import torch
from scipy.sparse import csr_array

Array = npt.NDArray[np.float64]
Index = npt.NDArray[np.intp]
Bools = npt.NDArray[np.bool_]

EPS = float(np.finfo(np.float64).eps)
LARGEST_DENSE = 200_000  # entries of A below which one matrix product beats the structure's many small ones
LARGEST_PAIRS = 2_000_000  # entries of all z_i ∘ z_j that are written out at once
LARGEST_SLOW_POWER = 2000


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
        outer = self.x[..., None] * self.z[:, :, None, None, :]
        return outer.reshape(self.batch, self.m, self.size)

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


class Framed:
    """[diag(row) A diag(column), offset]: rows and columns scaled, and k more features, offset (B, m, k)."""

    def __init__(self, rows: Rows, row: Array, column: Array, offset: Array) -> None:
        self.rows, self.row, self.column, self.offset = rows, row, column, offset
        self.m: int = rows.m
        self.size: int = rows.size + offset.shape[-1]

    def fwd(self, w: Array) -> Array:
        inner = self.row * self.rows.fwd(self.column * w[:, : self.rows.size])
        return np.asarray(inner + (self.offset @ w[:, self.rows.size :, None])[..., 0])

    def adj(self, lam: Array) -> Array:
        beside = (lam[:, None] @ self.offset)[:, 0]
        return np.concatenate([self.column * self.rows.adj(self.row * lam), beside], axis=1)

    def gram(self, weight: Array) -> Array:
        inner = self.rows.gram(self.column**2 * weight[:, : self.rows.size])
        beside = (self.offset * weight[:, None, self.rows.size :]) @ self.offset.swapaxes(1, 2)
        return np.asarray(self.row[:, :, None] * inner * self.row[:, None, :] + beside)

    def take(self, members: Index) -> Framed:
        parts = self.row[members], self.column[members], self.offset[members]
        return Framed(self.rows.take(members), *parts)

    def scaled(self, kappa: Array) -> Framed:
        return Framed(self.rows, self.row * kappa[:, None], self.column, self.offset * kappa[:, None, None])

    def dense(self) -> Array:
        inner = self.row[:, :, None] * self.rows.dense() * self.column[:, None, :]
        return np.concatenate([inner, self.offset], axis=2)

    def subset(self, keep: Index) -> Framed:
        return Framed(self.rows.subset(keep), self.row[:, keep], self.column, self.offset[:, keep])

    def absolute(self) -> Framed:
        return Framed(self.rows.absolute(), self.row, self.column, self.offset)


Rows: TypeAlias = DenseRows | BlockRows | FlatRows | Framed


def make_rows(x: Array, z: Array) -> Rows:
    """The quickest form for x (B, n, R, d) and z (B, n, e)."""
    rows = BlockRows(x, z)
    small = rows.m * rows.size <= LARGEST_DENSE
    if rows.batch == 1 and not small:
        return FlatRows(x.reshape(-1, rows.d), np.repeat(np.arange(rows.n), rows.rows), z[0])
    # A single sample has no structure to gain from, and one small problem too little work to pay for it.
    return DenseRows(rows.dense()) if small and (rows.batch == 1 or rows.n == 1) else rows


def rounding(rows: Rows, w: Array) -> Array:
    """A bound (B, m) on the rounding in A w, that of the rows themselves included."""
    terms = rows.d + rows.e if isinstance(rows, (BlockRows, FlatRows)) else rows.size
    return (terms + 4) * EPS * rows.absolute().fwd(np.abs(w))


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
    return np.asarray(safe[:, 0] * ((np.abs(w) / safe) ** p[:, None]).sum(axis=-1) ** (1 / p))


def dot(a: Array, b: Array) -> Array:
    """Σ a b over the last axis, (B,)."""
    return np.asarray((a[:, None, :] @ b[:, :, None])[:, 0, 0])


def longest_step(*pairs: tuple[Array, Array]) -> Array:
    """The largest a (B,) with x + a dx ≥ 0 for each pair (x, dx), x > 0."""
    steepest = functools.reduce(np.minimum, (dx / x for x, dx in pairs))
    return np.asarray(-1 / np.minimum(steepest.min(axis=1), -1e-300))
