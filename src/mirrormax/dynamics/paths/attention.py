"""Regularisation paths: minimisers of the risk over ℓp balls of growing radius (Theorem 1, and jointly Theorem 5)."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._arrays import A
from mirrormax._checks import integer
from mirrormax.attention import Loss, as_loss
from mirrormax.dynamics.paths.minimisation import Array, Excess
from mirrormax.dynamics.paths.search import JointSearch, Local, Search
from mirrormax.dynamics.setup import per_trial
from mirrormax.geometry import Lp, check_exponent, directional_divergence
from mirrormax.problem import SHAPES, Problem, gathers_problem

STARTS = ("all", "svm", "others")
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
    ``alpha`` (..., n)           the tokens of the best scores, whose attention SVM is the limit; of a joint
                                 path those under the last v
    """

    radii: A
    W: A
    log_excess: A
    residual: A
    alpha: A
    p: float
    v: A | Any = None
    readout_radii: A | Any = None
    readout_residual: A | Any = None

    def divergence_to(self, reference: ArrayLike | Tensor) -> A:
        """D(reference/‖reference‖, W/‖W‖) along the path, (K, ...), for references (..., d, d)."""
        divergence: A = directional_divergence(reference, self.W, self.p)
        return divergence

    def readout_divergence_to(self, reference: ArrayLike | Tensor) -> A:
        """The same for the head of a joint path, with references (..., d)."""
        if self.v is None:
            raise ValueError("this path has a fixed readout; make a joint one with joint_regularization_path.")
        divergence: A = directional_divergence(reference, self.v, self.p, dim=-1)
        return divergence


@gathers_problem("X", "y", "z", "v")
def regularization_path(
    problem: Problem,
    *,
    p: float | Lp = 2,
    radii: ArrayLike = (1.0, 10.0, 100.0, 1000.0),
    loss: str | Loss = "logistic",
    random_starts: int = 2,
    starts: str = "all",
    seed: int = 0,
) -> RegularizationPath:
    """ℓp-AttRP: W(R) = argmin L(W) over ‖W‖_p ≤ R, for each R.

    L is not convex in W. Each radius is tried from the point of the radius before, from the steepest descent at zero,
    from random directions, from the attention SVM of the tokens of the best scores, and from the attention SVMs of
    other selections of tokens: of all where there are at most 256, else of those that differ in one token (the 64
    nearest in score, and again around the selection of the best point found), the 4 of lowest risk. Each start is given
    40 iterations, the 2 lowest are followed to the end, and the lowest minimum is kept. So W(R) is the best of these
    local minimisers, and ``residual`` says how well it is one.

    Args:
        problem: one, or a batch; or its arrays X, y, z, v and mask=, as for :func:`simulate`.
        p: a number above 1, or an :class:`~mirrormax.geometry.Lp`.
        radii: increasing positive numbers (K,).
        loss: as for :func:`simulate`.
        random_starts: how many random directions to try at each radius.
        starts: "all"; "svm", the attention SVM of the best tokens, Theorem 1's own answer, and the point before
            alone; or "others", all but that SVM.
        seed: of the random directions.

    >>> import numpy as np
    >>> X, y = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]]), np.array([1.0, -1.0])
    >>> path = regularization_path(X, y, X[:, 0], np.array([1.0, 0.0]), p=2, radii=[0.1, 1.0])
    >>> path.W[-1].round(3) + 0.0
    array([[ 0.981,  0.   ],
           [-0.196,  0.   ]])
    """
    sizes, exponent = check_radii("radii", radii), p.p if isinstance(p, Lp) else check_exponent(p)
    if starts not in STARTS:
        raise ValueError(f"starts must be one of {', '.join(map(repr, STARTS))}, got {starts!r}.")
    random_starts = integer("random_starts", random_starts, at_least=0)
    rng = np.random.default_rng(seed)
    searches = [
        Search(Excess(X, y, z, v, mask, as_loss(loss)), exponent, starts, random_starts, rng)
        for X, y, z, v, mask in arrays_of(problem, "X", "y", "z", "v")
    ]
    paths = [list(search.follow(sizes.tolist())) for search in searches]
    return path_of(paths, [search.objective.alpha for search in searches], problem, exponent, radii=sizes)


@gathers_problem("X", "y", "z")
def joint_regularization_path(
    problem: Problem,
    *,
    p: float | Lp = 2,
    radii: ArrayLike = (1.0, 10.0, 100.0, 1000.0),
    readout_radii: ArrayLike | None = None,
    random_starts: int = 4,
    seed: int = 0,
) -> RegularizationPath:
    """ℓp-JointRP: (v, W) = argmin L(v, W) over ‖W‖_p ≤ R and ‖v‖_p ≤ r, with the logistic loss.

    Head and weights are minimised in turn, each on its sphere, until both are first-order optimal: given W the
    risk is convex in v, and given v it is that of :func:`regularization_path`. Starts are the pair of the radii before,
    random heads, and pairs (ℓp-SVM, attention SVM) of selections α: of all where there are at most 256; else of the α
    that cannot be bettered one step at a time (a head chooses the tokens it scores best, the tokens their max-margin
    head, and so on), reached from random heads, and of those that differ from these, or from the best pair found, in
    one token (the 64 nearest in score); of these the 4 of lowest risk. The 2 starts that are lowest after 40 iterations
    are followed to the end. Theorem 5's limit is the pair of the α with the largest label margin.

    How the two radii grow matters. A sample i with a label margin of m_i pulls on W with the weight e^{−r m_i},
    and a token at distance R from being selected with e^{−R}: if r grows like R and some sample is no support
    vector of the head (Assumption B then fails), W(R)/R has another limit than the attention SVM. With
    r/R → 0, the default r = √R, the weights of samples do not matter in the end.

    Arguments are those of :func:`regularization_path`, but for the readout, which the problem need not have; ``radii``
    are for W alone, those for v are ``readout_radii``, the square roots if not given, and ``random_starts`` is how many
    random heads to start from, at least one.
    """
    sizes, exponent = check_radii("radii", radii), p.p if isinstance(p, Lp) else check_exponent(p)
    head_sizes = np.sqrt(sizes) if readout_radii is None else check_radii("readout_radii", readout_radii)
    if len(head_sizes) != len(sizes):
        raise ValueError(f"readout_radii has {len(head_sizes)} numbers and radii {len(sizes)}; give as many of each.")
    random_starts = integer("random_starts", random_starts, at_least=1)
    rng = np.random.default_rng(seed)
    searches = [
        JointSearch(X, y, z, mask, exponent, random_starts, rng) for X, y, z, mask in arrays_of(problem, "X", "y", "z")
    ]
    radii_of_both = list(zip(sizes.tolist(), head_sizes.tolist(), strict=True))
    paths = [list(search.follow(radii_of_both)) for search in searches]
    alpha = [path[-1].alpha for path in paths]
    return path_of(paths, alpha, problem, exponent, radii=sizes, readout_radii=head_sizes)


def arrays_of(problem: Problem, *names: str) -> Iterator[tuple[Any, ...]]:
    """These fields of each problem of a batch, and its mask, as numpy arrays."""
    data, batch = problem.tensors(), problem.batch_shape
    mask = torch.ones(data.X.shape[:-1], dtype=torch.bool) if data.mask is None else data.mask
    fields = {**{name: data.require(name, "a path") for name in names}, "mask": mask}
    cores = {name: tuple(t.shape[t.ndim - len(SHAPES[name]) :]) for name, t in fields.items()}
    flat = (per_trial(name, t, batch, cores[name]).cpu().numpy() for name, t in fields.items())
    return zip(*flat, strict=True)


def path_of(
    paths: list[list[Local]], alpha: list[Any], problem: Problem, p: float, **radii: Array
) -> RegularizationPath:
    """The points [problem][radius] as one path, in kind; it warns of those that are none."""
    worst = max(max(point.residual, point.readout_residual) for path in paths for point in path)
    if worst > WARNED:
        warnings.warn(
            f"p={p:g}: a point of the path is first-order optimal to {worst:.1e} only, see its residual; "
            "give a p further from 1, or smaller radii.",
            stacklevel=4,  # past this function, the path's, and the one that takes a Problem apart
        )

    def stack(column: list[list[Any]]) -> Any:
        array = np.moveaxis(np.array(column), 0, 1)
        array = array.reshape((len(array), *problem.batch_shape, *array.shape[2:]))
        return torch.from_numpy(array).to(problem.X.device) if isinstance(problem.X, Tensor) else array

    names = {"W": "W", "log_excess": "value", "residual": "residual"}
    if "readout_radii" in radii:
        names |= {"v": "v", "readout_residual": "readout_residual"}
    columns = {
        field: stack([[getattr(point, name) for point in path] for path in paths]) for field, name in names.items()
    }
    return RegularizationPath(**radii, **columns, alpha=stack([[chosen] for chosen in alpha])[0], p=p)


def check_radii(name: str, radii: Any) -> Array:
    """Increasing positive numbers, as an array."""
    try:
        sizes = np.atleast_1d(np.asarray(radii, dtype=np.float64))
    except (TypeError, ValueError, OverflowError):  # text, say, which the same sentence refuses
        sizes = np.empty(0)
    if sizes.ndim != 1 or not sizes.size or not np.isfinite(sizes).all() or (np.diff(sizes, prepend=0.0) <= 0).any():
        raise ValueError(f"{name} must be increasing positive numbers, got {radii!r}.")
    return sizes
