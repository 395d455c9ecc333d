"""The joint regularisation path of attention weights and head (Theorem 5)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import LOGISTIC
from mirrormax.dynamics.paths.attention import RegularizationPath, check_radii, exponent_of, problems, stack
from mirrormax.dynamics.paths.ball import Point, minimize_on_sphere, residual, steepest
from mirrormax.dynamics.paths.excess import Array, Excess, HeadLoss, attended
from mirrormax.dynamics.setup import prepare
from mirrormax.geometry import Lp
from mirrormax.problem import takes_problem
from mirrormax.svm import att_svm, lp_svm

ROUNDS = 30
TOLERANCE = 1e-9


class Pair(NamedTuple):
    """A head and weights, both on their spheres."""

    v: Point
    W: Point
    alpha: Any


@takes_problem
def joint_regularization_path(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    *,
    p: float | Lp = 2,
    radii: ArrayLike = (1.0, 10.0, 100.0, 1000.0),
    head_radii: ArrayLike | None = None,
    mask: ArrayLike | Tensor | None = None,
    random_starts: int = 4,
    seed: int = 0,
) -> RegularizationPath:
    """ℓp-JointRP: (v, W) = argmin L(v, W) over ‖W‖_p ≤ R and ‖v‖_p ≤ r, with the logistic loss.

    Head and weights are minimised in turn, each on its sphere, until both are first-order optimal: given W the
    risk is convex in v, and given v it is that of :func:`regularization_path`. Starts are the pair of the
    radii before, and pairs (ℓp-SVM, attention SVM) of selections α that cannot be bettered one step at a time
    (a head chooses the tokens it scores best, the tokens their max-margin head, and so on), reached from
    random heads. Theorem 5's limit is the pair of the α with the largest label margin.

    How the two radii grow matters. A sample i with a label margin of m_i pulls on W with the weight e^{−r m_i},
    and a token at distance R from being selected with e^{−R}: if r grows like R and some sample is no support
    vector of the head (Assumption B then fails), W(R)/R has another limit than the attention SVM. With
    r/R → 0, the default r = √R, the weights of samples do not matter in the end.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are a batch of problems, and broadcast. A
            :class:`~mirrormax.problem.Problem` may take the place of X, y, z and mask.
        y: labels ±1, ``(..., n)``.
        z: queries ``(..., n, d)``.
        p: a number above 1, or an :class:`~mirrormax.geometry.Lp`.
        radii: increasing positive numbers (K,), for W.
        head_radii: the same for v; the square roots of ``radii`` if not given.
        mask: booleans ``(..., n, T)``, True where a token is present.
        random_starts: how many random heads to start from.
        seed: of these.
    """
    sizes, exponent = check_radii("radii", radii), exponent_of(p)
    head_sizes = np.sqrt(sizes) if head_radii is None else check_radii("head_radii", head_radii)
    if len(head_sizes) != len(sizes):
        raise ValueError(f"head_radii has {len(head_sizes)} numbers and radii {len(sizes)}; give as many of each.")
    setup = prepare({"X": X, "y": y, "z": z, "mask": mask}, exponent, {}, {"lr": 1.0}, False)
    rng = np.random.default_rng(seed)
    found = []
    for points, labels, queries, _, present in problems(setup):
        joint = _Joint(points, labels, queries, present, exponent)
        starts = joint.starts(random_starts, rng)
        found.append(list(joint.follow(starts, sizes, head_sizes)))
    tensors = any(isinstance(a, Tensor) for a in (X, y, z))

    def column(entry: Any, in_kind: bool = tensors) -> Any:
        return stack([[entry(pair, name) for pair, name in points] for points in found], setup, in_kind)

    return RegularizationPath(
        radii=sizes,
        head_radii=head_sizes,
        W=column(lambda pair, _: pair.W.w),
        v=column(lambda pair, _: pair.v.w),
        log_excess=column(lambda pair, _: pair.v.value),
        residual=column(lambda pair, _: pair.W.residual),
        head_residual=column(lambda pair, _: pair.v.residual),
        start=column(lambda _, name: name, False),
        alpha=column(lambda pair, _: pair.alpha)[-1],
        p=exponent,
        config={"loss": "logistic", "random_starts": random_starts, "seed": seed},
    )


class _Joint:
    """One problem: how to start, and how to follow its path."""

    def __init__(self, X: Array, y: Array, z: Array, mask: Any, p: float) -> None:
        self.X, self.y, self.z, self.mask, self.p = X, y, z, mask, p

    def follow(self, starts: dict[str, tuple[Array, Array]], radii: Array, head_radii: Array) -> Iterator[Any]:
        for R, r in zip(radii, head_radii, strict=True):
            pairs = {name: self.minimize(*start, float(R), float(r)) for name, start in starts.items()}
            best = min(pairs, key=lambda name: pairs[name].v.value)
            starts = starts | {"before": (pairs[best].v.w, pairs[best].W.w)}
            yield pairs[best], best

    def minimize(self, v: Array, W: Array, R: float, r: float) -> Pair:
        """Head and weights in turn from (v, W), until both are first-order optimal."""
        head = minimize_on_sphere(self._head_loss(W), v, r, self.p)
        for _ in range(ROUNDS):
            excess = self._excess(head.w)
            weights = minimize_on_sphere(excess, W, R, self.p)
            W = weights.w
            head = minimize_on_sphere(self._head_loss(W), head.w, r, self.p)
            after = self._excess(head.w)
            left = residual(after(W)[1], W, R, self.p)
            if max(left, head.residual) <= TOLERANCE:
                break
        return Pair(head, Point(W, weights.value, left), after.alpha)

    def starts(self, count: int, rng: np.random.Generator) -> dict[str, tuple[Array, Array]]:
        """Pairs of max-margin solutions of different selections, and steepest descent where there are none."""
        starts: dict[str, tuple[Array, Array]] = {}
        seen = set()
        for k in range(count):
            v = self._improve(rng.standard_normal((self.X.shape[-1],)))
            excess = self._excess(v)
            chosen = tuple(excess.alpha.tolist())
            if chosen not in seen:
                seen.add(chosen)
                starts[f"selection {' '.join(map(str, chosen))} ({k})"] = (v, self._weights(excess))
        return starts

    def _improve(self, v: Array) -> Array:
        """A head whose best tokens have no better max-margin head than itself, if they have one at all."""
        chosen: tuple[int, ...] | None = None
        while True:
            alpha = self._excess(v).alpha
            if tuple(alpha.tolist()) == chosen:
                return v
            chosen = tuple(alpha.tolist())
            solution = lp_svm(self.X[np.arange(len(alpha)), alpha], self.y, p=self.p, throw=False)
            if not solution.optimal:
                return v
            v = solution.v

    def _weights(self, excess: Excess) -> Array:
        solution = att_svm(self.X, self.z, excess.alpha, p=self.p, mask=self.mask, throw=False)
        if solution.optimal:
            weights: Array = solution.W
            return weights
        d = self.X.shape[-1]
        return steepest(excess(np.zeros((d, d)))[1], self.p)

    def _excess(self, v: Array) -> Excess:
        return Excess(self.X, self.y, self.z, v, self.mask, LOGISTIC)

    def _head_loss(self, W: Array) -> HeadLoss:
        return HeadLoss(attended(self.X, self.z, W, self.mask), self.y)
