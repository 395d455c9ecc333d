"""Flat pictures of spaces with more dimensions: where tokens and weights are put on the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Array = npt.NDArray[np.float64]

NEGLIGIBLE = 1e-6


def token_planes(tokens: Array, target: Array, first: Array) -> Array:
    """An orthonormal pair for each sample, (n, 2, d), onto which its tokens are projected.

    Data of two dimensions stay as they are. Of more, the horizontal axis is the direction W z_i along which
    attention tells tokens apart once trained (``target``, (n, d)), so that the margin is read off exactly. The
    vertical one is where the first step W(1) z_i (``first``, (n, d)) pointed apart from that, so that training is
    seen to turn from the one to the other; or the tokens' widest spread, if the first step was right already.
    """
    d = tokens.shape[-1]
    if d == 2:
        return np.broadcast_to(np.eye(2), (len(tokens), 2, 2))
    return np.stack(
        [_pair([aim, start, *_spread(x), *np.eye(d)]) for x, aim, start in zip(tokens, target, first, strict=True)]
    )


def _pair(candidates: Iterable[Array]) -> Array:
    """The first two of the candidates that are independent, made orthonormal."""
    pair: list[Array] = []
    for candidate in candidates:
        rest = candidate - sum((axis * (axis @ candidate) for axis in pair), np.zeros_like(candidate))
        length = np.linalg.norm(rest)
        if length > NEGLIGIBLE * np.linalg.norm(candidate):
            pair.append(rest / length)
        if len(pair) == 2:
            break
    return np.stack(pair)


def _spread(tokens: Array) -> Array:
    return np.asarray(np.linalg.svd(tokens - tokens.mean(0), full_matrices=False)[2])


@dataclass(frozen=True)
class Slice:
    """The unit ball ‖W‖_p ≤ 1, cut through a direction U of unit norm along two entries of W.

    All other entries are those of U, so the cut is {|a|^p + |b|^p ≤ radius^p} with radius^p = |U_a|^p + |U_b|^p:
    an ℓp ball again, with U on its edge.
    """

    entries: tuple[tuple[int, int], tuple[int, int]]
    centre: Array  # (2,) the two entries of U
    radius: float

    def of(self, weights: Array) -> Array:
        """The two entries of weights (..., d, d), as (..., 2)."""
        return np.stack([weights[..., row, column] for row, column in self.entries], -1)

    def half_planes(self, x: Array, z: Array, margin: Array) -> Array:
        """Where in the slice the constraints xᵀWz ≥ min margin hold: rows (a, b, c) for a·δ_a + b·δ_b + c ≥ 0.

        x (m, d) are the leads x_iα − x_it, z (m, d) their queries, ``margin`` (m,) what U gives them, and δ is
        counted from U. The least margin of U is the best there is, so all of them hold in one point of the ball.
        """
        slopes = [x[:, row] * z[:, column] for row, column in self.entries]
        return np.stack([*slopes, margin - margin.min()], -1)


def slice_through(direction: Array, p: float, ranking: Array) -> Slice:
    """The slice through a direction (d, d) of unit norm, along the two entries of the largest |ranking|."""
    largest = np.argsort(-np.abs(ranking), axis=None, kind="stable")[:2]
    entries = [tuple(int(k) for k in np.unravel_index(flat, ranking.shape)) for flat in sorted(largest)]
    centre = np.array([direction[entry] for entry in entries])
    radius = float((np.abs(centre) ** p).sum() ** (1 / p))
    return Slice((entries[0], entries[1]), centre, radius)  # type: ignore[arg-type]
