"""Flat pictures of spaces with more dimensions: where tokens and weights are put on the page."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.geometry import lp_norm
from mirrormax.svm import Norm

Array = npt.NDArray[np.float64]

NEGLIGIBLE = 1e-6
ANGLES = np.linspace(0, 2 * np.pi, 240, endpoint=False)
CIRCLE = np.stack([np.cos(ANGLES), np.sin(ANGLES)], -1)
HALVINGS = 30


def size_of(W: Any, norm: float | str) -> Array:
    """‖W‖ of (..., d, d), in ℓp or in a norm with a name."""
    W = np.asarray(W)
    if isinstance(norm, str):
        return np.asarray(Norm(norm, W.shape[-2:]).sizes(W).reshape(W.shape[:-2]))
    return np.asarray(lp_norm(W, norm))


def token_planes(tokens: Array, target: Array, first: Array) -> Array:
    """An orthonormal pair for each sample, (n, 2, d), onto which its tokens are projected.

    Data of two dimensions stay as they are. Of more, the horizontal axis is the direction W z_i along which
    attention tells tokens apart once trained (``target``, (n, d)), so that the margin is read off exactly. The
    vertical one is where the first step W(1) z_i (``first``, (n, d)) pointed apart from that, so that training is
    seen to turn from the one to the other; or the tokens' widest spread, if the first step was right already.
    """
    n, _, d = tokens.shape
    if d == 2:
        return np.tile(np.eye(2), (n, 1, 1))
    spread = np.linalg.svd(tokens - tokens.mean(1, keepdims=True), full_matrices=False)[2]
    return np.stack([_pair([target[i], first[i], *spread[i], *np.eye(d)]) for i in range(n)])


@dataclass(frozen=True)
class WeightPlane:
    """A plane in the space of weights, through a direction U with ‖U‖ = 1, and the unit ball's cut with it.

    ``axes`` (2, d, d)    orthonormal; weights are placed by their projections on these
    ``ball`` (k, 2)       the edge of {W in the plane: ‖W‖ ≤ 1}
    ``entries``           the two entries of W that the axes are, as (row, column); None where they are none
    """

    axes: Array
    ball: Array
    entries: tuple[tuple[int, int], ...] | None

    def place(self, weights: Array) -> Array:
        """Weights (..., d, d) as (..., 2)."""
        return np.asarray(np.einsum("...de,ade->...a", weights, self.axes))

    def half_planes(self, x: Array, z: Array, margin: Array) -> Array:
        """Where in the plane the margins xᵀWz are no less than U's least: rows (a, b, c), a·δ_1 + b·δ_2 + c ≥ 0.

        x (m, d) are the leads x_iα − x_it, z (m, d) their queries, ``margin`` (m,) what U gives them, and δ is
        counted from U. No W of unit norm does better than U, so these half-planes meet the ball in U alone.
        """
        slopes = np.einsum("md,ade,me->ma", x, self.axes, z)
        return np.concatenate([slopes, (margin - margin.min())[:, None]], 1)


def entries_plane(direction: Array, norm: float | str, ranking: Array) -> WeightPlane:
    """Through ``direction`` (d, d) along the two entries of the largest |ranking|; all others are as in ``direction``.

    In ℓp the cut is {|a|^p + |b|^p ≤ r^p} with r^p = |U_a|^p + |U_b|^p: an ℓp ball again, with U on its edge. In any of
    our norms it holds the point where both entries are zero, and its edge is found on every ray from there.
    """
    flat = np.sort(np.argsort(-np.abs(ranking), axis=None, kind="stable")[:2])
    axes = np.eye(ranking.size)[flat].reshape(2, *ranking.shape)
    rest = np.where(axes.any(0), 0.0, direction)
    rays = np.einsum("ka,ade->kde", CIRCLE, axes)
    if isinstance(norm, str):
        near, far = np.zeros(len(CIRCLE)), np.ones(len(CIRCLE))
        # An entry is at most the norm in each of them: no ray leaves the ball beyond 2.
        for _ in range(HALVINGS):
            middle = near + far
            inside = size_of(rest + middle[:, None, None] * rays, norm) <= 1
            near, far = np.where(inside, middle, near), far / 2
    else:
        near = size_of(direction - rest, norm) / size_of(rays, norm)
    entries = tuple(divmod(k, ranking.shape[1]) for k in flat.tolist())
    return WeightPlane(axes, near[:, None] * CIRCLE, entries)


def start_plane(direction: Array, norm: float | str, first: Array) -> WeightPlane:
    """Through the origin, ``direction`` (d, d) and the weights ``first`` (d, d): where training ends and began."""
    axes = _pair([direction.ravel(), first.ravel(), *np.eye(3, direction.size)]).reshape(2, *direction.shape)
    ball = CIRCLE / size_of(np.einsum("ka,ade->kde", CIRCLE, axes), norm)[:, None]
    return WeightPlane(axes, ball, None)


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
