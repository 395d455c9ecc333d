"""Regularisation paths: minimisers of the risk over ℓp balls of growing radius (Theorem 1)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._arrays import A
from mirrormax.attention import Loss, as_loss
from mirrormax.dynamics.paths.minimisation import (
    FINISHED,
    LOOK,
    TRIED,
    Array,
    Excess,
    Point,
    Selections,
    lowest,
    minimize_on_sphere,
    name_of,
    norm,
    steepest,
)
from mirrormax.dynamics.setup import Setup, prepare
from mirrormax.geometry import Lp, check_exponent, directional_divergence
from mirrormax.problem import takes_problem

WARNED = 1e-4  # residual above which a point is said not to be first-order optimal


@dataclass(frozen=True, eq=False)
class RegularizationPath(Generic[A]):
    """The best points found over K balls, for one problem or a batch (...).

    ``radii`` (K,)               R, and ``readout_radii`` (K,) r of a joint path
    ``W`` (K, ..., d, d)         minimisers of L over ‖W‖_p ≤ R; a joint path has ``v`` (K, ..., d) too
    ``log_excess`` (K, ...)      log(L − L*), L* the risk if attention held the best tokens alone; of a joint
                                 path log L
    ``residual`` (K, ...)        (⟨g, W⟩ + R‖g‖_q)/(R‖g‖_q) at W, 0 where W is first-order optimal; of a joint
                                 path also ``readout_residual``
    ``start`` (K, ...)           which start led to the point
    ``searched``                 per problem of the batch (flat), which selections of tokens were looked at, in words
    ``alpha`` (..., n)           the tokens of the best scores, whose attention SVM is the limit; of a joint
                                 path those under the last v
    """

    radii: A
    W: A
    log_excess: A
    residual: A
    start: A
    alpha: A
    p: float
    v: A | Any = None
    readout_radii: A | Any = None
    readout_residual: A | Any = None
    searched: tuple[str, ...] = ()
    config: dict[str, Any] = field(default_factory=dict)

    def divergence_to(self, reference: ArrayLike | Tensor) -> A:
        """D(reference/‖reference‖, W/‖W‖) along the path, (K, ...), for references (..., d, d)."""
        return self._divergence(self.W, reference, 2)

    def readout_divergence_to(self, reference: ArrayLike | Tensor) -> A:
        """The same for the head of a joint path, with references (..., d)."""
        if self.v is None:
            raise ValueError("this path has a fixed readout; make a joint one with joint_regularization_path.")
        return self._divergence(self.v, reference, 1)

    def _divergence(self, w: A, reference: ArrayLike | Tensor, core: int) -> A:
        found: A = directional_divergence(reference, w, self.p, dim=tuple(range(-core, 0)))
        return found


@takes_problem
def regularization_path(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    v: ArrayLike | Tensor,
    *,
    p: float | Lp = 2,
    radii: ArrayLike = (1.0, 10.0, 100.0, 1000.0),
    loss: str | Loss = "logistic",
    mask: ArrayLike | Tensor | None = None,
    random_starts: int = 2,
    svm_start: bool = True,
    seed: int = 0,
) -> RegularizationPath:
    """ℓp-AttRP: W(R) = argmin L(W) over ‖W‖_p ≤ R, for each R.

    L is not convex in W. Each radius is tried from the point of the radius before, from the steepest descent at zero,
    from random directions, from the attention SVM of the tokens of the best scores, and from the attention SVMs of
    other selections of tokens: of all where there are at most 256, else of those that differ in one token (the 64
    nearest in score, and again around the selection of the best point found), the 4 of lowest risk. Each start is given
    40 iterations, the 2 lowest are followed to the end, and the lowest minimum is kept. So W(R) is the best of these
    local minimisers, ``residual`` says how well it is one, and ``searched`` which selections were looked at.

    Args:
        X: tokens ``(..., n, T, d)``; leading dimensions are a batch of problems, and broadcast. A
            :class:`~mirrormax.problem.Problem` may take the place of X, y, z, v and mask.
        y: labels ±1, ``(..., n)``.
        z: queries ``(..., n, d)``.
        v: readout ``(..., d)``.
        p: a number above 1, or an :class:`~mirrormax.geometry.Lp`.
        radii: increasing positive numbers (K,).
        loss: as in :func:`simulate`.
        mask: booleans ``(..., n, T)``, True where a token is present.
        random_starts: how many random directions to try at each radius.
        svm_start: whether the attention SVM of the best tokens, Theorem 1's own answer, is among the starts.
        seed: of the random directions.

    >>> import numpy as np
    >>> X, y = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]]), np.array([1.0, -1.0])
    >>> path = regularization_path(X, y, X[:, 0], np.array([1.0, 0.0]), p=2, radii=[0.1, 1.0])
    >>> path.W[-1].round(3) + 0.0
    array([[ 0.981,  0.   ],
           [-0.196,  0.   ]])
    """
    sizes, exponent = check_radii("radii", radii), exponent_of(p)
    setup = prepare({"X": X, "y": y, "z": z, "v": v, "mask": mask}, exponent, {})
    rng = np.random.default_rng(seed)
    found = []
    for problem in problems(setup):
        search = _Search(Excess(*problem, as_loss(loss)), problem[4], exponent, svm_start)
        found.append((search, list(search.follow(sizes, random_starts, rng))))
    worst = max(point.residual for _, points in found for point, _ in points)
    if worst > WARNED:
        warnings.warn(
            f"p={exponent:g}: a point of the path is first-order optimal to {worst:.1e} only, see its residual; "
            "give a p further from 1, or smaller radii.",
            stacklevel=3,
        )
    tensors = any(isinstance(a, Tensor) for a in (X, y, z, v))
    columns: dict[str, list[list[Any]]] = {
        "W": [[point.w for point, _ in points] for _, points in found],
        "log_excess": [[point.value for point, _ in points] for _, points in found],
        "residual": [[point.residual for point, _ in points] for _, points in found],
    }
    return RegularizationPath(
        radii=sizes,
        **{name: stack(column, setup, tensors) for name, column in columns.items()},
        start=stack([[name for _, name in points] for _, points in found], setup, False),
        alpha=stack([[search.objective.alpha] for search, _ in found], setup, tensors)[0],
        p=exponent,
        searched=tuple(search.selections.searched() for search, _ in found),
        config={"loss": as_loss(loss).name, "random_starts": random_starts, "svm_start": svm_start, "seed": seed},
    )


class _Search:
    """One problem: from where to start, and how to follow its path."""

    def __init__(self, objective: Excess, mask: Any, p: float, svm_start: bool) -> None:
        self.objective, self.p, self.svm_start = objective, p, svm_start
        self.selections = Selections(objective.X, objective.z, mask, p)
        self.selections.around(objective.alpha.tolist(), -objective.gaps)

    def follow(self, radii: Array, random_starts: int, rng: np.random.Generator) -> Iterator[tuple[Point, str]]:
        d = self.objective.X.shape[-1]
        starts = {"steepest": steepest(self.objective(np.zeros((d, d)))[1], self.p)}
        for R in map(float, radii):
            tried = starts | {f"random {k}": rng.standard_normal((d, d)) for k in range(random_starts)}
            tried |= self._chosen(R)
            points = self._minimize(tried, R)
            best = min(points, key=lambda name: points[name].value)
            while not self.selections.knows(selected := self._selected(points[best].w)):
                self.selections.around(selected, -self.objective.gaps)
                new = {name: start for name, start in self._chosen(R).items() if name not in tried}
                tried |= new
                points |= self._minimize(new, R)
                best = min(points, key=lambda name: points[name].value)
            starts["before"] = points[best].w
            yield points[best], best

    def _minimize(self, starts: dict[str, Array], R: float) -> dict[str, Point]:
        """Minimisers from the starts that are lowest after a first look."""
        looked = {name: minimize_on_sphere(self.objective, w, R, self.p, LOOK) for name, w in starts.items()}
        best = lowest({name: point.value for name, point in looked.items()}, FINISHED)
        return {name: minimize_on_sphere(self.objective, looked[name].w, R, self.p) for name in best}

    def _chosen(self, R: float) -> dict[str, Array]:
        """The attention SVM of the best tokens, and those of other selections that have the lowest risk at R."""
        best = tuple(self.objective.alpha.tolist())
        solved = dict(self.selections.solved())
        own = {"attention SVM": solved.pop(best)} if best in solved else {}
        others = {name_of(alpha): W for alpha, W in solved.items()}
        values = {name: self.objective(R / norm(W, self.p) * W)[0] for name, W in others.items()}
        return (own if self.svm_start else {}) | {name: others[name] for name in lowest(values, TRIED)}

    def _selected(self, W: Array) -> list[int]:
        X, z = self.objective.X, self.objective.z
        logits = (X @ (z @ W.T)[:, :, None])[:, :, 0] + self.objective.absent
        found: list[int] = logits.argmax(1).tolist()
        return found


def problems(setup: Setup) -> Iterator[tuple[Array, Array, Array, Array, Any]]:
    """X, y, z, v and mask of each problem of a batch, as numpy arrays."""
    mask = np.ones(setup.X.shape[:-1], dtype=bool) if setup.mask is None else setup.mask.cpu().numpy()
    arrays = [t.cpu().numpy() for t in (setup.X, setup.y, setup.z, setup.V[:, 0, 0])]
    for k in range(len(mask)):
        yield arrays[0][k], arrays[1][k], arrays[2][k], arrays[3][k], mask[k]


def stack(column: list[list[Any]], setup: Setup, tensors: bool) -> Any:
    """Entries [problem][radius] as (K, ..., core)."""
    array = np.moveaxis(np.array(column), 0, 1)
    array = array.reshape((len(array), *setup.batch, *array.shape[2:]))
    return torch.from_numpy(array).to(setup.X.device) if tensors else array


def check_radii(name: str, radii: Any) -> Array:
    """Increasing positive numbers, as an array."""
    sizes = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    if sizes.ndim != 1 or not sizes.size or not np.isfinite(sizes).all() or (np.diff(sizes, prepend=0.0) <= 0).any():
        raise ValueError(f"{name} must be increasing positive numbers, got {radii!r}.")
    return sizes


def exponent_of(p: Any) -> float:
    """p from a number or an Lp."""
    return p.p if isinstance(p, Lp) else check_exponent(p)
