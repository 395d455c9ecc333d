"""From tokens to constraint rows at scale 1, and multipliers back.

Row (i, t), t ≠ α_i, asks ⟨(x_{iα} − x_{it}) z_iᵀ, W⟩ ≥ 1. The solvers see unit rows: with c_r the norm of
row r and c* the smallest of them, W = w / c* and λ_r = l_r / c_r, the problem is â_r·w ≥ b_r with
b_r = c*/c_r in (0, 1]. A row that does not exist (a masked token) is â = 0, b = −1: it holds for every w.

Samples of very different scale make b tiny, and rounding of a few 1e-16 in â·w a large *relative* error
of the margin there. The solvers therefore aim at b + FLOOR·tol, which such a row meets with room to
spare, at a cost of about FLOOR·tol in the gap; the certificate is always that of b itself.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from mirrormax.svm.dual_ipm import Batch
from mirrormax.svm.rows import Array, BlockRows, Index, Rows, make_rows

FLOOR = 1e-3
START = 1.5  # the first guess of ‖w‖ over its lower bound


@dataclass
class Unit:
    """Problems at scale 1: x (B, n, R, d), z (B, n, e), and norms c (B, n, R), 0 where no row exists."""

    x: Array
    z: Array
    c: Array

    @property
    def exact(self) -> Array:
        """b (B, m): c*/c_r, and −1 where no row exists."""
        c = self.c.reshape(len(self.c), -1)
        smallest = np.where(c > 0, c, np.inf).min(axis=1, keepdims=True)
        return np.asarray(np.divide(smallest, c, out=np.full_like(c, -1.0), where=c > 0))

    def batch(self, p: Array, tol: float) -> Batch:
        """The problems as the solvers take them, p of shape (B,)."""
        return self._batch(make_rows(self.x, self.z), p, tol)

    def flat_batch(self, p: Array, tol: float) -> Batch:
        """One problem whose rows can be picked, p of shape (1,)."""
        return self._batch(BlockRows(self.x, self.z), p, tol)

    def _batch(self, rows: Rows, p: Array, tol: float) -> Batch:
        exact = self.exact
        return Batch(rows, np.where(exact > 0, exact + FLOOR * tol, exact), exact, p[:, None])

    def take(self, members: Index) -> Unit:
        return Unit(self.x[members], self.z[members], self.c[members])


def unit_rows(x: Array, z: Array, exists: npt.NDArray[np.bool_]) -> Unit:
    """Rows x (B, n, R, d) and queries z (B, n, e) divided by their norms; zero rows stay zero."""
    x_norm, z_norm = binary(norms(x)), binary(norms(z))
    x = x / np.where((x_norm > 0) & exists, x_norm, np.inf)[..., None]
    z = z / np.where(z_norm > 0, z_norm, np.inf)[..., None]
    return Unit(x, z, np.where(exists, x_norm * z_norm[..., None], 0.0))


def norms(x: Array) -> Array:
    """Euclidean norms over the last axis, safe at any scale."""
    largest = np.abs(x).max(axis=-1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    return np.asarray(largest * np.linalg.norm(x / safe[..., None], axis=-1))


def binary(size: Array) -> Array:
    """The power of two just above each size, 0 for 0: dividing by it rounds nothing."""
    return np.asarray(np.where(size > 0, np.ldexp(1.0, np.frexp(size)[1]), 0.0))


def dual_start(batch: Batch, weights: Array | None = None) -> tuple[Batch, Array]:
    """The batch scaled so that its solution has entries near 1, and multipliers to start from.

    With l > 0 (ones, or ``weights``), u = Aᵀl, lb0 = bᵀl/‖u‖_q and N_eff = Σ(|u|/max|u|)^q:
    κ = 1.5·lb0/N_eff^{1/p}, solve with κA from λ = l/max|κu|; then w = κŵ.
    """
    q = batch.q
    lam = np.ones_like(batch.b) if weights is None else weights
    u = np.abs(batch.rows.adj(lam))
    # Rows that cancel exactly have no scale to offer; phase 0 will judge them.
    largest = np.maximum(u.max(axis=1, keepdims=True), 1e-8 * lam.max(axis=1, keepdims=True))
    effective = np.maximum(((u / largest) ** q).sum(axis=1, keepdims=True), 1e-8)
    bound = (np.maximum(batch.b, 0) * lam).sum(axis=1, keepdims=True) / (largest * effective ** (1 / q))
    kappa = START * bound / effective ** (1 - 1 / q)
    scaled = Batch(batch.rows.scaled(kappa[:, 0]), batch.b, batch.exact, batch.p)
    return scaled, lam / (kappa * largest)
