"""The norms of W (d, e) in which attention SVMs are solved beside ℓp, each with its dual.

    l1          Σ|w|                      dual: largest |u|
    linf        largest |w|               dual: Σ|u|
    spectral    largest singular value    dual: nuclear
    nuclear     Σ of singular values      dual: spectral
    rows-max    largest row, ‖·‖₂         dual: rows-sum
    rows-sum    Σ of rows, ‖·‖₂           dual: rows-max
    k-support   of unit ball conv{w of at most k entries, ‖w‖₂ ≤ 1}      dual: ℓ2 norm of the k largest |u|

None is strictly convex, so that a solution need not be unique. With the dual matrix M = Aᵀλ of multipliers, every
solution lies in the face of the ball that M exposes, and all of them have A W = 1 where λ > 0: W is the only one iff no
direction of that face (:func:`directions`) has A D = 0 on the active rows.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np

from mirrormax.svm.certificate import Certificate
from mirrormax.svm.rows import Array, BlockRows

DUAL = {
    "l1": "linf",
    "linf": "l1",
    "spectral": "nuclear",
    "nuclear": "spectral",
    "rows-max": "rows-sum",
    "rows-sum": "rows-max",
    "k-support": "top",
}


@dataclass(frozen=True)
class Norm:
    """A norm by its name, of matrices of a shape; ``k`` of the k-support norm only."""

    name: str
    shape: tuple[int, int]
    k: int | None = None

    def sizes(self, w: Array) -> Array:
        """‖W‖ of each of (B, N)."""
        return _norm(self.name, w.reshape(-1, *self.shape), self.k)

    def duals(self, u: Array) -> Array:
        """The dual norm of each of (B, N)."""
        return _norm(DUAL[self.name], u.reshape(-1, *self.shape), self.k)


def _norm(name: str, w: Array, k: int | None) -> Array:
    w = np.where(np.isfinite(w), w, 0.0)  # singular values of anything else would raise
    if name in ("spectral", "nuclear"):
        parts = np.linalg.svd(w, compute_uv=False)
    elif name in ("rows-max", "rows-sum"):
        parts = np.linalg.norm(w, axis=-1)
    else:
        parts = np.abs(w).reshape(len(w), -1)
    if name in ("linf", "spectral", "rows-max"):
        return np.asarray(parts.max(axis=-1))
    if name in ("l1", "nuclear", "rows-sum"):
        return np.asarray(parts.sum(axis=-1))
    assert k is not None
    entries = -np.sort(-parts, axis=-1)
    if name == "top":
        return np.asarray(np.linalg.norm(entries[:, :k], axis=-1))
    return np.array([_k_support(row, k) for row in entries])


def _k_support(entries: Array, k: int) -> float:
    """The norm of |w| sorted downwards: √(Σ_{j < k−r} w_j² + (Σ_{j ≥ k−r} w_j)²/(r + 1)) for the one r in 0, …, k − 1
    with w_{k−r−1} > (Σ_{j ≥ k−r} w_j)/(r + 1) ≥ w_{k−r}, entries counted from 1 (Argyriou, Foygel and Srebro)."""
    tails = np.append(np.cumsum(entries[::-1])[::-1], 0.0)
    for r in range(k):
        head, mean = k - r - 1, tails[k - r - 1] / (r + 1)
        above = entries[head - 1] if head else np.inf
        if above > mean >= entries[head]:
            return float(np.sqrt((entries[:head] ** 2).sum() + (r + 1) * mean**2))
    return float(tails[0] / np.sqrt(k))


def directions(norm: Norm, M: Array, near: float) -> Any:
    """A basis (r, N) of the directions of the face that M exposes; ``near`` says which numbers count as equal.

    l1: entries of largest |M|. linf: entries where M is zero. spectral: E = P⊥ E' Q⊥ᵀ beside the singular vectors of M.
    nuclear: U S Vᵀ, S symmetric, of the largest singular values. rows-max: rows where M is zero. rows-sum: along the
    largest rows of M. k-support: M itself on the entries that tie with the k-th largest.
    """
    d, e = norm.shape
    sizes, largest = np.abs(M), max(np.abs(M).max(), 1e-300)
    single = np.eye(d * e).reshape(-1, d, e)
    if norm.name == "l1":
        return single[(sizes >= largest * (1 - near)).ravel()].reshape(-1, d * e)
    if norm.name == "linf":
        return single[(sizes <= largest * near).ravel()].reshape(-1, d * e)
    if norm.name in ("rows-max", "rows-sum"):
        lengths = np.linalg.norm(M, axis=1)
        if norm.name == "rows-max":
            still = lengths <= lengths.max() * near
            return single.reshape(d, e, d * e)[still].reshape(-1, d * e)
        chosen = np.flatnonzero(lengths >= lengths.max() * (1 - near))
        return np.stack([(np.eye(d)[i][:, None] * M[i] / lengths[i]).ravel() for i in chosen])
    if norm.name == "k-support":
        assert norm.k is not None
        kth = np.sort(sizes.ravel())[::-1][norm.k - 1]
        tied = np.abs(sizes - kth) <= near * largest
        if (sizes > kth + near * largest).sum() + tied.sum() <= norm.k:
            return np.zeros((0, d * e))
        return single[tied.ravel()].reshape(-1, d * e) * np.sign(M).ravel()
    P, sigma, Qt = np.linalg.svd(M)
    if norm.name == "spectral":
        rank = int((sigma > sigma[0] * near).sum())
        return np.einsum("ia,jb->abij", P[:, rank:], Qt[rank:].T).reshape(-1, d * e)
    top = int((sigma >= sigma[0] * (1 - near)).sum())
    pairs = [(a, c) for a in range(top) for c in range(a, top)]
    both = [np.outer(P[:, a], Qt[c]) + np.outer(P[:, c], Qt[a]) for a, c in pairs]
    return np.stack(both).reshape(-1, d * e)


def is_unique(norm: Norm, rows: BlockRows, certificate: Certificate, member: int) -> bool:
    """Whether the weights of a solved problem are its only solution, proved by its multipliers.

    Every solution has A W = 1 where λ > 0 and lies in the face of M = Aᵀλ: True where that leaves no direction.
    """
    gap = float(certificate.gap[member])
    if not np.isfinite(gap):
        return False
    near = max(1e-6, 10 * float(np.sqrt(gap)))
    lam = certificate.dual[member]
    M = rows.take(np.array([member])).adj(lam[None]).reshape(norm.shape)
    basis = directions(norm, M, near)
    if not len(basis):
        return True
    held = np.flatnonzero(np.abs(lam) > near * np.abs(lam).max())
    if len(held) < len(basis):
        return False
    A = rows.take(np.array([member])).subset(held).dense()[0] @ basis.T
    A = A / np.maximum(np.linalg.norm(A, axis=1, keepdims=True), 1e-300)
    return bool(np.linalg.matrix_rank(A, tol=1e-7) == len(basis))
