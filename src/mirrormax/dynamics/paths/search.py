"""From where a path is followed: the selections of tokens near the best point, and starts that belong to none.

The risk is not convex. At a large radius attention is all but decided, and each local minimum stands
near the attention SVM of its own selection α, a token for each sample; which of them is lowest changes with the radius,
since a selection of slightly worse tokens with a much wider margin has the lower risk until the radius is large. So all
selections are looked at where there are at most ``ENUMERATED``; else the ``SWAPS`` best of those that differ from a
centre in one token, and once more around the selection of whatever was best, until that is a centre already. Of those
looked at, the ``TRIED`` of lowest risk are starts beside others; each start has 40 iterations, and the
``FINISHED`` lowest are followed to their minimum.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any, NamedTuple

import numpy as np

from mirrormax.attention import LOGISTIC
from mirrormax.dynamics.paths.minimisation import (
    Array,
    Excess,
    HeadLoss,
    attended,
    minimize_on_sphere,
    norm,
    on_sphere,
    residual,
)
from mirrormax.svm import att_svm, lp_svm

Selection = tuple[int, ...]  # a token for each sample
Start = tuple[Any, Array]  # a readout, if one is looked for, and weights

ENUMERATED = 256
SWAPS = 64
TRIED = 4
FINISHED = 2
ROUNDS = 30  # of readout and weights in turn
TOLERANCE = 1e-9  # residual of both at which these end


class Selections:
    """The selections of one problem X (n, T, d), z (n, d), mask (n, T), with the attention SVMs of those looked at that
    have one."""

    def __init__(self, X: Array, z: Array, mask: Any, p: float) -> None:
        self.X, self.z, self.mask, self.p = X, z, mask, p
        self.tokens = [np.flatnonzero(row).tolist() for row in mask]
        self.few = math.prod(len(row) for row in self.tokens) <= ENUMERATED  # so that each one is looked at
        self.looked_at: set[Selection] = set()
        self.solved: dict[Selection, Array] = {}
        self.centres: set[Selection] = set()

    def around(self, centre: Selection, scores: Array) -> None:
        """Look at ``centre`` and its neighbours of the best ``scores`` (n, T); or at all, if they are few."""
        self.centres.add(centre)
        others = [(i, t) for i, row in enumerate(self.tokens) for t in row if t != centre[i]]
        others.sort(key=lambda other: scores[other[0], centre[other[0]]] - scores[other])
        near = [(*centre[:i], t, *centre[i + 1 :]) for i, t in others[:SWAPS]]
        self.look_at(list(product(*self.tokens)) if self.few else [centre, *near])

    def look_at(self, selections: Sequence[Selection]) -> None:
        """Solve for those of these selections that were not looked at before."""
        new = [alpha for alpha in selections if alpha not in self.looked_at]
        self.looked_at |= set(new)
        if new:
            solution = att_svm(self.X, self.z, np.array(new), p=self.p, mask=self.mask, throw=False)
            solved = zip(new, solution.W, np.asarray(solution.optimal), strict=True)
            self.solved |= {alpha: W for alpha, W, optimal in solved if optimal}

    def knows(self, centre: Selection) -> bool:
        """Whether all that is to be looked at around ``centre`` has been."""
        return self.few or centre in self.centres


class Local(NamedTuple):
    """A local minimiser on its spheres, and the selection around which to look for a lower one."""

    W: Array
    value: float
    residual: float
    alpha: Selection
    v: Any = None
    readout_residual: float = 0.0


class Search:
    """How the path of one problem is followed: in weights alone here, for a fixed readout."""

    def __init__(self, objective: Excess, p: float, kinds: str, count: int, rng: np.random.Generator) -> None:
        self.objective, self.p, self.kinds, self.count, self.rng = objective, p, kinds, count, rng
        self.selections = Selections(objective.X, objective.z, objective.absent == 0, p)
        self.best = tuple(objective.alpha.tolist())  # the tokens of the best scores
        self.around(self.best, None)

    def starts(self) -> dict[str, Start]:
        """Those of the first radius that belong to no selection."""
        if self.kinds == "svm":
            return {}
        d = self.objective.X.shape[-1]
        return {"steepest": (None, on_sphere(-self.objective(np.zeros((d, d)))[1], 1.0, self.p))}

    def random(self) -> dict[str, Start]:
        """Those made anew for each radius."""
        count, d = 0 if self.kinds == "svm" else self.count, self.objective.X.shape[-1]
        return {f"random {k}": (None, self.rng.standard_normal((d, d))) for k in range(count)}

    def minimize(self, start: Start, R: Any, *, look: bool = False) -> Local:
        """A local minimiser on the sphere, or for a first ``look`` what a few iterations come to."""
        o, point = self.objective, minimize_on_sphere(self.objective, start[1], R, self.p, look=look)
        logits = (o.X @ (o.z @ point.w.T)[:, :, None])[:, :, 0] + o.absent
        return Local(*point, alpha=tuple(logits.argmax(1).tolist()))

    def around(self, alpha: Selection, v: Any) -> None:
        """Look at a selection and its neighbours."""
        if self.kinds == "svm":  # no other selection is a start
            self.selections.look_at([self.best])
        else:
            self.selections.around(alpha, -self.objective.gaps)

    def chosen(self, R: Any) -> dict[str, Start]:
        """The attention SVM of the best tokens, and those of other selections that have the lowest risk at R."""
        solved = dict(self.selections.solved)
        own: dict[str, Start] = {"attention SVM": (None, solved.pop(self.best))} if self.best in solved else {}
        if self.kinds == "svm":
            if not own:
                raise ValueError("starts='svm', but the best tokens have no attention SVM; give starts='others'.")
            return own
        values = {alpha: self.objective(R / norm(W, self.p) * W)[0] for alpha, W in solved.items()}
        others = {str(alpha): (None, solved[alpha]) for alpha in sorted(values, key=values.__getitem__)[:TRIED]}
        return others if self.kinds == "others" else own | others

    def follow(self, radii: Sequence[Any]) -> Iterator[Local]:
        """The lowest minimiser at each of the radii."""
        starts = self.starts()
        for R in radii:
            points: list[Local] = []
            tried: set[str] = set()
            new = starts | self.random() | self.chosen(R)
            while new:
                tried |= new.keys()
                looked = [self.minimize(start, R, look=True) for start in new.values()]
                for point in sorted(looked, key=lambda point: point.value)[:FINISHED]:
                    points.append(self.minimize((point.v, point.W), R))
                best = min(points, key=lambda point: point.value)
                if self.selections.knows(best.alpha):
                    break
                self.around(best.alpha, best.v)
                new = {name: start for name, start in self.chosen(R).items() if name not in tried}
            starts = starts | {"before": (best.v, best.W)}
            yield best


class JointSearch(Search):
    """A readout and weights, minimised in turn."""

    def __init__(self, X: Array, y: Array, z: Array, mask: Any, p: float, count: int, rng: np.random.Generator) -> None:
        self.X, self.y, self.z, self.mask, self.p, self.count, self.rng = X, y, z, mask, p, count, rng
        self.selections = Selections(X, z, mask, p)
        self.heads: dict[Selection, Array | None] = {}

    def minimize(self, start: Start, R: Any, *, look: bool = False) -> Local:
        """Head and weights in turn, until both are first-order optimal; once, for a first look."""
        (v, W), (R, r) = start, R
        W = R / norm(W, self.p) * W
        head = minimize_on_sphere(self._head_loss(W), v, r, self.p, look=look)
        for _ in range(1 if look else ROUNDS):
            W = minimize_on_sphere(self._excess(head.w), W, R, self.p, look=look).w
            head = minimize_on_sphere(self._head_loss(W), head.w, r, self.p, look=look)
            after = self._excess(head.w)
            left = residual(after(W)[1], W, R, self.p)
            if max(left, head.residual) <= TOLERANCE:
                break
        return Local(W, head.value, left, tuple(after.alpha.tolist()), head.w, head.residual)

    def starts(self) -> dict[str, Start]:
        """Random heads with the weights that suit them."""
        d = self.X.shape[-1]
        heads: dict[str, Array] = {f"random {k}": self.rng.standard_normal((d,)) for k in range(self.count)}
        for v in heads.values():
            improved = self._improve(v)
            self.around(tuple(self._excess(improved).alpha.tolist()), improved)
        return {name: (v, on_sphere(-self._excess(v)(np.zeros((d, d)))[1], 1.0, self.p)) for name, v in heads.items()}

    def random(self) -> dict[str, Start]:
        return {}

    def around(self, alpha: Selection, v: Any) -> None:
        """The scores being those of v; and solve for their heads."""
        self.selections.around(alpha, self.y[:, None] * (self.X @ v))
        new = [alpha for alpha in self.selections.solved if alpha not in self.heads]
        if new:
            solution = lp_svm(self.X[np.arange(len(self.y)), np.array(new)], self.y, p=self.p, throw=False)
            solved = zip(new, solution.v, np.asarray(solution.optimal), strict=True)
            self.heads |= {alpha: v if optimal else None for alpha, v, optimal in solved}

    def chosen(self, R: Any) -> dict[str, Start]:
        R, r = R
        pairs = {alpha: (self.heads[alpha], W) for alpha, W in self.selections.solved.items()}
        values = {
            alpha: self._head_loss(R / norm(W, self.p) * W)(r / norm(v, self.p) * v)[0]
            for alpha, (v, W) in pairs.items()
            if v is not None
        }
        return {str(alpha): pairs[alpha] for alpha in sorted(values, key=values.__getitem__)[:TRIED]}

    def _improve(self, v: Array) -> Array:
        """A head whose best tokens have no better max-margin head than itself, if they have one at all."""
        before, alpha = None, self._excess(v).alpha
        while before is None or (alpha != before).any():
            solution = lp_svm(self.X[np.arange(len(alpha)), alpha], self.y, p=self.p, throw=False)
            if not solution.optimal:
                break
            v, before = solution.v, alpha
            alpha = self._excess(v).alpha
        return v

    def _excess(self, v: Array) -> Excess:
        return Excess(self.X, self.y, self.z, v, self.mask, LOGISTIC)

    def _head_loss(self, W: Array) -> HeadLoss:
        return HeadLoss(attended(self.X, self.z, W, self.mask), self.y)
