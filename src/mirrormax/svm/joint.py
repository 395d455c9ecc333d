"""W trained together with the readout goes to the attention SVM, relaxed far from the label margin.

With a_it = (x_iα − x_it)z_iᵀ the pull on row (i, t) is e^{−⟨a_it, W⟩} times the slope of the loss, e^{−(label margin
of i)}. Both norms grow. With ρ = lim ‖v‖/‖W‖ and ξ_i ≥ 0 the excess of sample i's label margin over the smallest one
(of the ℓp SVM v of the selected tokens, ‖v‖_p = 1), a sample needs that much less margin of attention:

    max t   s.t.   ⟨a_it, W⟩ + ρ ξ_i ≥ t,   ‖W‖_p ≤ 1.

This is the attention SVM if and only if every sample is a label support vector, ξ = 0. Scaled by σ = 1/t it reads
min ‖W‖_p s.t. ⟨a_it, W⟩ ≥ 1 − ρ ξ_i ‖W‖_p: with N(σ) = min ‖W‖_p s.t. ⟨a_it, W⟩ ≥ 1 − ρ ξ_i σ, the solution is that of
N(σ) = σ. N is convex and falls, with N' = −ρ ξᵀλ, so that Newton's method climbs to the root from the left.

**Certificate.** λ ≥ 0 with ‖Aᵀλ‖_q + ρ ξᵀλ = 1 proves ‖W‖_p ≥ 1ᵀλ for every W that meets the rows, since then
1ᵀλ ≤ λᵀA W + ρ ξᵀλ ‖W‖_p ≤ ‖W‖_p.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._arrays import as_array, as_tensor
from mirrormax._checks import number
from mirrormax.geometry import Potential
from mirrormax.problem import Problem, joined, takes_problem
from mirrormax.svm._types import Members
from mirrormax.svm.api import att_svm, check_exponents, flat, per_problem, shown
from mirrormax.svm.certificate import Certificate, support_tolerance
from mirrormax.svm.readout import label_excess
from mirrormax.svm.rows import EPS, Array, Bools, Index, p_norm
from mirrormax.svm.solution import Solution, Solved, device_of

ROUNDS = 40
INNER = 0.1  # of the tolerance, for the problems on the way


@takes_problem
def joint_limit(
    X: ArrayLike | Tensor,
    y: ArrayLike | Tensor,
    z: ArrayLike | Tensor,
    alpha: ArrayLike | Tensor,
    *,
    p: ArrayLike | Tensor | Potential = 2,
    ratio: ArrayLike | Tensor = 1.0,
    excess: ArrayLike | Tensor | None = None,
    mask: ArrayLike | Tensor | None = None,
    tol: float = 1e-9,
    throw: bool = True,
) -> Solution:
    """The direction of W under joint training of W and v that selects ``alpha``: the relaxed attention SVM

        min ‖W‖_p   s.t.   (x_{iα_i} − x_{it})ᵀ W z_i ≥ 1 − ρ ξ_i ‖W‖_p   for all i and t ≠ α_i.

    Args:
        X: as for :func:`att_svm`, as are z and mask.
        y: labels ±1, ``(..., n)``.
        z: queries ``(..., n, d)``.
        alpha: the selected token of each sample, ``(..., n)``.
        p: as for :func:`att_svm`.
        ratio: ρ = lim ‖v‖/‖W‖, or one per problem: 1 for normalised steps of one length, lr_v/lr in general; 0 is the
            attention SVM itself. The end of a run has ``run.readout_norm[-1] / run.norm[-1]``.
        excess: ξ ``(..., n)``, if it is not to be that of :func:`label_excess`: for several classes or heads that of
            :func:`class_excess`. y is not read then.
        mask: booleans ``(..., n, T)``, True where a token is present.
        tol: as for :func:`att_svm`.
        throw: as for :func:`att_svm`.

    The :class:`Solution` is that of :func:`att_svm` with other rows: ``W`` has min ⟨a_it, W⟩ + ρ ξ_i ‖W‖_p = 1, its
    ``margin`` is t = 1/‖W‖_p, ``dual`` λ has ‖Aᵀλ‖_q + ρ ξᵀλ = 1 and ``gap`` is 1 − 1ᵀλ/‖W‖_p. A sample with
    ρ ξ_i > t need never select. Infeasible means that the samples at the label margin cannot all select.

    >>> import numpy as np
    >>> X = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-9.0, 0.0], [0.0, -1.0]]])
    >>> solution = joint_limit(X, [1, -1], X[:, 0], [0, 0])
    >>> solution.samples, (solution.W / solution.W[0, 0]).round(6) + 0.0  # the second sample has label margin to spare
    (array([ True, False]), array([[ 1. ,  0. ],
           [-0.2,  0. ]]))
    """
    problem = Problem(X=X, y=y if excess is None else None, z=z, alpha=alpha, mask=mask).numpy()
    tol = number("tol", tol, above=0.0, below=1.0)
    n = problem.X.shape[-3]
    if excess is None:
        spare = np.asarray(label_excess(problem.X, problem.y, problem.alpha, p=p, mask=problem.mask))
    else:
        spare = as_array(as_tensor("excess", excess).double())
        if spare.shape[-1:] != (n,) or not (spare >= 0).all() or not np.isfinite(spare).all():
            given = f"{spare.shape}, from {spare.min():g} to {spare.max():g}" if spare.size else f"{spare.shape}"
            raise ValueError(f"excess must hold finite numbers of at least 0, (..., n) with n = {n}, got {given}.")
    shape = joined("excess", spare.shape[:-1], problem.batch_shape)
    exponents, rho = check_exponents(p, shape), per_problem(ratio, "ratio", shape)
    if not ((rho >= 0) & np.isfinite(rho)).all():
        raise ValueError(f"ratio must be a finite number of at least 0, got {ratio!r}; 1 is that of normalised steps.")
    present = np.ones(problem.X.shape[-3:-1], dtype=bool) if problem.mask is None else problem.mask
    tokens, queries, chosen = flat(problem.X, shape, 3), flat(problem.z, shape, 2), flat(problem.alpha, shape, 1)
    missing = rho[:, None] * flat(spare, shape, 1)
    relaxed = _Relaxed(tokens, queries, chosen, flat(present, shape, 2), missing, exponents)
    about = f"joint_limit, p={shown(p)}, ratio={shown(ratio)}"
    return relaxed.solved(tol).solution(shape, "W", about, device_of(X, y, z, alpha), throw)


@dataclass
class _Relaxed(Members):
    """A batch of B relaxed problems, and Newton's method on N(σ) = σ for all of them at once; ``spare`` is ρ ξ."""

    X: Array
    z: Array
    alpha: Index
    mask: Bools
    spare: Array
    p: Array

    def __post_init__(self) -> None:
        self.chosen = np.arange(self.X.shape[2]) == self.alpha[..., None]
        self.rows = self.mask & ~self.chosen
        own = np.take_along_axis(self.X, self.alpha[..., None, None], 2)
        self.leads = np.where(self.rows[..., None], own - self.X, 0.0)

    def solved(self, tol: float) -> Solved:
        """The best that Newton's method comes to."""
        size = len(self.p)
        W, dual = np.full((size, *self.X.shape[-1:] * 2), np.nan), np.zeros(self.rows.shape)
        gap, iterations = np.full(size, np.inf), np.zeros(size, dtype=np.intp)
        sigma, refuted = self._start(tol)
        members = np.array([k for k in range(size) if k not in refuted], dtype=np.intp)
        for _ in range(ROUNDS):
            if not len(members):
                break
            part, before = self.take(members), sigma[members]
            solution = part._at(before, tol)
            iterations[members] += solution.iterations
            new_gap, weights, multipliers = part._certify(solution.W, solution.dual)
            better = new_gap < gap[members]
            put = members[better]
            W[put], dual[put], gap[put] = weights[better], multipliers[better], new_gap[better]
            fall = (part.spare[..., None] * solution.dual).sum((-2, -1))
            newton = (part._norm(np.nan_to_num(solution.W)) + fall * before) / (1 + fall)
            sigma[members] = np.where(np.isfinite(solution.gap), newton, 2 * before)
            stuck = np.abs(sigma[members] / np.maximum(before, 1e-300) - 1) < 1e-15
            members = members[(gap[members] > tol) & ~stuck]
        for k, solution in refuted.items():
            dual[k] = solution.dual
        finite = np.isfinite(gap)
        with np.errstate(invalid="ignore"):
            margins = self._margins(W)
            active = margins <= 1 + support_tolerance(gap)[:, None, None]
            margin = np.where(finite, 1 / self._norm(W), 0.0)
            violation = np.where(finite, np.maximum(1 - margins.min((1, 2)), 0), np.inf)
        support = np.where(finite[:, None, None], active, dual > 0)
        proof = Certificate(W, dual, margin, gap, violation, support, np.zeros_like(support))
        status = [str(refuted[k].status) if k in refuted else _status(gap[k], tol) for k in range(size)]
        return Solved(proof, iterations, status, np.ones(size, dtype=bool))

    def _start(self, tol: float) -> tuple[Array, dict[int, Solution]]:
        """σ to the left of the root, and the problems that have none, refuted by the label support vectors.

        Where the attention SVM itself is feasible, σ = 0 is such a start: its own solution is the first iterate.
        """
        sigma, refuted = np.zeros(len(self.p)), {}
        for k in np.flatnonzero(~np.isfinite(self._at(sigma, tol).gap)):
            needed = self.mask[k] & ((self.spare[k] == 0)[:, None] | self.chosen[k])
            if not (needed & self.rows[k]).any():
                sigma[k] = 1 / float(self.spare[k].max())
                continue
            settings = {"p": self.p[k], "mask": needed, "tol": INNER * tol}
            core = att_svm(self.X[k], self.z[k], self.alpha[k], **settings, throw=False)
            if np.isfinite(core.gap):
                sigma[k] = 1 / float(core.margin)
            else:
                refuted[int(k)] = core
        return sigma, refuted

    def _at(self, sigma: Array, tol: float) -> Solution:
        """The problems with right-hand sides 1 − ρ ξ_i σ."""
        right = np.broadcast_to((1 - self.spare * sigma[:, None])[..., None], self.rows.shape)
        # A problem whose rows have no right-hand side above zero is solved by W = 0: σ is too large, and a half is not.
        idle = self.rows.any((1, 2)) & ~((right > 0) & self.rows).any((1, 2))
        if idle.any():
            sigma[idle] /= 2
            return self._at(sigma, tol)
        settings = {"p": self.p, "mask": self.mask, "tol": INNER * tol, "throw": False}
        return att_svm(self.X, self.z, self.alpha, rhs=None if (right == 1).all() else right, **settings)

    def _norm(self, W: Array) -> Array:
        return p_norm(W.reshape(len(W), -1), self.p)

    def _margins(self, W: Array) -> Array:
        """⟨a_it, W⟩ + ρ ξ_i ‖W‖_p, (B, n, T), infinite where no row is."""
        leads = np.einsum("bntd,bde,bne->bnt", self.leads, W, self.z)
        return np.where(self.rows, leads + self.spare[..., None] * self._norm(W)[:, None, None], np.inf)

    def _certify(self, W: Array, dual: Array) -> tuple[Array, Array, Array]:
        """The gap of the relaxed problem, W at minimum relaxed margin 1, and λ at ‖Aᵀλ‖_q + ρ ξᵀλ = 1."""
        size = self._norm(W)
        unit = W / np.where(size > 0, size, 1.0)[:, None, None]
        t = self._margins(unit).min((1, 2))
        pull = np.einsum("bnt,bntd,bne->bde", dual, self.leads, self.z)
        bound = p_norm(pull.reshape(len(W), -1), self.p / (self.p - 1)) + (self.spare[..., None] * dual).sum((1, 2))
        multipliers = dual / np.where(bound > 0, bound, 1.0)[:, None, None]
        with np.errstate(all="ignore"):
            gap = np.where((t > 0) & np.isfinite(size), 1 - t * multipliers.sum((1, 2)), np.inf)
            weights = unit / np.where(t > 0, t, np.nan)[:, None, None]
        return np.where(gap > -1e-8, np.maximum(gap, EPS), np.inf), weights, multipliers


def _status(gap: float, tol: float) -> str:
    if gap <= tol:
        return "optimal"
    return (
        f"stopped at relative gap {gap:.1e}, above tol={tol:g}; accept it with a larger tol, "
        "bring the samples to one scale, or take a p nearer to 2"
    )
