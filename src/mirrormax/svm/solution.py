"""What a solve returns: the weights, the proof that they are right, and what to do when there are none.

The proof is computed from the original data and the arrays that are returned (:func:`certify`): weights at minimum
margin 1 and multipliers, ‖w‖ against 1ᵀλ/‖Aᵀλ‖_*; with equality rows and other right-hand sides against
bᵀλ/‖Aᵀλ + Bᵀν‖_*.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, Generic

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from mirrormax._arrays import A
from mirrormax.svm._types import Certificate, project
from mirrormax.svm.rows import EPS, Array, BlockRows, Bools, rounding
from mirrormax.svm.support import Sharpened, unsure

SUPPORT_TOLERANCE = 1e-4
SHARP = 1e-12  # a gap that is rounding
LARGEST_SYSTEM = 2**20  # entries of the rows with a multiplier, of which each step takes the singular values

Norm = Callable[[Array], Array]


@dataclass(frozen=True, repr=False)
class Solution(Generic[A]):
    """A max-margin solution with its certificate; leading shapes are those of the batch.

    ``weights``   ``W (..., d, d)`` of :func:`att_svm` or ``v (..., d)`` of :func:`lp_svm`, scaled to minimum
                  margin 1; NaN where the problem is infeasible. Also by the names ``W`` and ``v``.
    ``margin``    1/‖W‖ in the norm of the problem; 0 where infeasible.
    ``gap``       relative duality gap 1 − lb/ub, ub = ‖W‖_p, lb = 1ᵀλ/‖Aᵀλ‖_q, computed from the arrays returned;
                  no W that meets the constraints has a norm below (1 − gap)·‖W‖_p.
    ``violation`` how far the smallest margin is below 1.
    ``dual``      the multipliers λ ≥ 0 behind lb, ``(..., n, T)`` or ``(..., n)``, zero at alpha and at masked
                  tokens, scaled to ‖Aᵀλ‖_q = 1 so that lb is their sum. Where infeasible, the Farkas
                  certificate: λ ≥ 0, 1ᵀλ = 1, Aᵀλ = 0.
    ``nu``        only with ``keep``: the multipliers ν of the equalities, of either sign, ``(..., n, T)``, zero but at
                  the kept tokens other than the reference; Aᵀλ then means Aᵀλ + Bᵀν, in the Farkas certificate too.
    ``support``   where the constraint is active: a margin of 1 to within 1e-4, or √gap where that is more. That is
                  what :func:`mirrormax.attention.support_tokens` finds; the multiplier may be zero there.
                  Where infeasible, the constraints in the Farkas certificate.
    ``doubt``     where it is not known whether ``support`` is right. Weights of a relative gap ε may be ε^{1/p} from
                  the solution where p > 2, .1 at p = 9. The multipliers tell more, and mostly all, see
                  :mod:`mirrormax.svm.support`; what they leave open stands here, and a warning names it.
    ``unique``    whether the multipliers prove that there is no other solution: always so in ℓp.
    ``status``    one text per problem: ``optimal``, ``infeasible: …``, or what stopped it and what to do next.

    With ``keep`` or ``rhs`` the rows are A W ≥ b, B W = 0: W is scaled to min A W/b = 1 over b > 0,
    lb = bᵀλ/‖Aᵀλ + Bᵀν‖_q, the Farkas certificate has bᵀλ = 1, and ``violation`` counts rows with b ≤ 0 and equalities
    too, each relative to the size of its own sum.

    With ``C`` (soft margin) nothing is rescaled, λ is the multiplier itself (0 ≤ λ ≤ C), ``gap`` is 1 − D/P for
    primal and dual objectives P and D, with the rounding of the margins charged to P; ``violation`` is the largest
    slack ξ in use, and ``support`` is where the margin is at most 1.
    """

    weights: A
    margin: A
    gap: A
    violation: A
    dual: A
    support: A
    status: str | list[Any]
    iterations: A
    name: str = "W"
    about: str = ""
    nu: A | Any = None
    unique: bool | Any = True
    doubt: A | Any = False

    @property
    def W(self) -> A:
        """The weights of :func:`att_svm`."""
        return self._called("W")

    @property
    def v(self) -> A:
        """The weights of :func:`lp_svm`."""
        return self._called("v")

    @property
    def V(self) -> A:
        """The weights of :func:`class_svm`, ``(..., C, d)``."""
        return self._called("V")

    def _called(self, name: str) -> A:
        if name != self.name:
            raise AttributeError(f"a solution of {self.about} has .{self.name}, not .{name}")
        return self.weights

    @property
    def samples(self) -> A:
        """Boolean ``(..., n)``: the samples with a multiplier; where infeasible, those that contradict each other."""
        positive: Any = self.dual > 0 if self.nu is None else (self.dual > 0) | (self.nu != 0)
        support: A = positive if self.name == "v" else positive.any(-1)
        return support

    @property
    def optimal(self) -> bool | NDArray[np.bool_]:
        """Whether each problem was solved to tolerance, as one bool or an array of them."""
        return _each(self.status, lambda text: text.startswith("optimal"))

    @property
    def infeasible(self) -> bool | NDArray[np.bool_]:
        """Whether each problem was proved infeasible, as one bool or an array of them."""
        return _each(self.status, lambda text: text.startswith("infeasible"))

    def __repr__(self) -> str:
        shape = tuple(self.weights.shape)
        head = f"Solution({self.about}, {self.name} {shape}"
        if isinstance(self.status, str):
            active = f"{int(self.support.sum())} active constraints"
            numbers = (
                f"margin={float(self.margin):.6g}, gap={float(self.gap):.1e}, violation={float(self.violation):.1e}"
            )
            return f"{head}, {numbers}, {active}, {int(self.iterations)} iterations, status={self.status!r})"
        solved = np.asarray(self.optimal)
        worst = float(np.asarray(self.gap)[solved].max()) if solved.any() else np.nan
        return f"{head}, {int(solved.sum())} of {solved.size} optimal, largest gap of these {worst:.1e})"


class NotSolvedError(ValueError):
    """A problem was not solved to tolerance; ``solution`` is what was reached, as with ``throw=False``."""

    def __init__(self, message: str, solution: Solution) -> None:
        super().__init__(message)
        self.solution = solution


class InfeasibleError(NotSolvedError):
    """No weights separate the data; ``certificate`` is the Farkas λ, ``samples`` the boolean (..., n) in it."""

    @property
    def certificate(self) -> NDArray[Any] | Tensor:
        dual: NDArray[Any] | Tensor = self.solution.dual
        return dual

    @property
    def samples(self) -> NDArray[Any] | Tensor:
        samples: NDArray[Any] | Tensor = self.solution.samples
        return samples


def raise_if_failed(solution: Solution) -> None:
    """Raise for the first problem that failed, infeasible ones first, naming all that did."""
    if isinstance(solution.status, str):
        if solution.infeasible:
            raise InfeasibleError(solution.status, solution)
        if not solution.optimal:
            raise NotSolvedError(solution.status, solution)
        return
    failed = np.argwhere(~solution.optimal)
    if not len(failed):
        return
    texts = np.array(solution.status, dtype=object)
    refuted = np.argwhere(solution.infeasible)
    first = tuple((refuted if len(refuted) else failed)[0])
    named = ", ".join(str(k[0] if len(k) == 1 else tuple(map(int, k))) for k in failed[:10])
    more = f" and {len(failed) - 10} more" if len(failed) > 10 else ""
    where = first[0] if len(first) == 1 else tuple(map(int, first))
    message = (
        f"{len(failed)} of {texts.size} problems were not solved (problems {named}{more}); "
        f"problem {where}: {texts[first]}; use throw=False to keep the others."
    )
    raise (InfeasibleError if len(refuted) else NotSolvedError)(message, solution)


def warn_of_doubt(solution: Solution) -> None:
    """Name the constraints of which it is not known whether they are active."""
    places = np.argwhere(np.asarray(solution.doubt))
    if not len(places):
        return
    named = ", ".join(str(tuple(place)) for place in places[:5].tolist())
    more = f" and {len(places) - 5} more" if len(places) > 5 else ""
    warnings.warn(
        f"{solution.about}: whether {named}{more} {'are' if len(places) > 1 else 'is'} in solution.support is in doubt "
        "(see solution.doubt), since weights of a relative gap ε are known to ε^(1/p) only, and multipliers to "
        "rounding; take a p nearer to 2.",
        stacklevel=5,  # past this function, its caller, the solver, and the one that takes a Problem apart
    )


def device_of(*arrays: Any) -> torch.device | None:
    """Where the first tensor among the arguments lives; None for numpy throughout."""
    return next((array.device for array in arrays if isinstance(array, Tensor)), None)


def as_given(array: Any, device: torch.device | None) -> Any:
    """An array in the kind of the arguments: a tensor on their device, or numpy."""
    return array[()] if device is None else torch.from_numpy(np.array(array)).to(device)


def _each(status: str | list[Any], test: Callable[[str], bool]) -> bool | NDArray[np.bool_]:
    if isinstance(status, str):
        return bool(test(status))
    texts = np.array(status, dtype=object)
    return np.array([bool(test(text)) for text in texts.ravel()], dtype=bool).reshape(texts.shape)


def certify(
    rows: BlockRows,
    c: Array,
    w: Array,
    lam: Array,
    norm: Norm,
    dual_norm: Norm,
    p: Array,
    tol: float,
    right: Array | None = None,
    equal: Bools | None = None,
) -> Certificate:
    """Scale w to min A w/b = 1 over b > 0 and compare ‖w‖ with bᵀλ/‖Aᵀλ‖_*.

    ``c`` (B, m) are the norms of the rows, 0 where none exists; ``lam`` the multipliers of unit rows; ``p`` (B,) the
    power to which the norm is uniformly convex, where that is more than 2. b is 1, or ``right`` (B, m); the rows
    ``equal`` (B, m) ask B w = 0, on which w is projected.
    """
    given = norm, dual_norm, tol, right, equal
    proof = _certify(rows, c, w, lam, *given)
    return proof if right is not None or not (p > 2).any() else _settled(rows, c, proof, p, given)


def _certify(
    rows: BlockRows,
    c: Array,
    w: Array,
    lam: Array,
    norm: Norm,
    dual_norm: Norm,
    tol: float,
    right: Array | None,
    equal: Bools | None,
) -> Certificate:
    exists = c > 0
    level = np.zeros_like(exists) if equal is None else exists & equal
    above = exists & ~level
    b = np.where(above, 1.0 if right is None else right, 0.0)
    w = project(rows, level, w)
    for _ in range(2):  # the second time for the rounding of the first
        margins = rows.fwd(w)
        smallest = np.divide(margins, b, out=np.full_like(b, np.inf), where=b > 0).min(axis=1, keepdims=True)
        w = w / np.where(smallest > 0, smallest, 1.0)
    margins = rows.fwd(w)
    unit = np.where(above, np.maximum(lam, 0), np.where(level, lam, 0.0))
    every = np.divide(unit, c, out=np.zeros_like(c), where=exists)
    likely = level | _complementary(unit, margins - b, c)
    dual, lower = _lower_bound(rows, np.where(likely, every, 0.0), b, dual_norm)
    upper = norm(w)
    gap = 1 - lower / np.maximum(upper, 1e-300)
    if (gap > tol).any():
        # Multipliers where the slack is larger are rounding of zero as a rule; where they matter they stay.
        kept, bound = _lower_bound(rows, every, b, dual_norm)
        better = (bound > lower) & (gap > tol)
        dual, lower = np.where(better[:, None], kept, dual), np.where(better, bound, lower)
        gap = 1 - lower / np.maximum(upper, 1e-300)
    # Scaling cannot mend rows with b ≤ 0: weights that miss one by more than ``tol`` of its own sum prove nothing.
    missed = np.where(above, b - margins, np.abs(margins))
    if right is not None:
        missed = missed / np.maximum(np.maximum(np.abs(b), rows.absolute().fwd(np.abs(w))), 1e-300)
    violation = np.where(exists, missed, 0.0).max(axis=1, initial=0.0)
    # A margin of 1 that rounding alone could have made is no margin; one that exceeds it by far is.
    error = rounding(rows, w)
    usable = (smallest[:, 0] > 0) & ((error < b) | (margins - error >= b) | ~(b > 0)).all(axis=1)
    usable &= np.isfinite(upper) & (upper > 0) & ((right is None) | (violation <= tol))
    # Weak duality leaves a negative gap to rounding alone (of the other rows too, with right-hand sides); anything more
    # is no proof of anything. And what rounding cannot tell from zero is not zero.
    usable &= gap > (-1e-11 if right is None else -1e-8)
    gap = np.where(usable, np.maximum(gap, EPS), np.inf)
    violation = np.where(usable, violation, np.inf)
    margin = np.where(usable, 1 / np.maximum(upper, 1e-300), 0.0)
    support = above & (margins - b <= support_tolerance(gap)[:, None] * np.maximum(1.0, np.abs(b)))
    return Certificate(w, dual, margin, gap, violation, support, np.zeros_like(support))


def _settled(rows: BlockRows, c: Array, proof: Certificate, p: Array, given: Any) -> Certificate:
    """The same with (*) of :mod:`mirrormax.svm.support` solved where it is unclear which rows are active.

    What stays unclear is said in ``doubt``.
    """
    tol = given[2]
    unclear = np.zeros_like(proof.support)
    members = np.flatnonzero((p > 2) & (proof.gap <= tol))
    if len(members):
        unclear[members] = _unclear(rows.take(members), proof.take(members), p[members], c[members] > 0)
    w, lam = proof.weights.copy(), proof.dual * c
    changed, left = np.zeros(len(p), dtype=bool), unclear.copy()
    for k in np.flatnonzero(unclear.any(axis=1)).tolist():
        if (proof.dual[k] > 0).sum() * w.shape[1] > LARGEST_SYSTEM:
            continue
        sharp = Sharpened(rows.take(np.array([k])), c[k] > 0, w[k], proof.dual[k], float(p[k]))
        if sharp.solved:
            changed[k], w[k], lam[k] = True, sharp.w, sharp.lam * c[k]
            left[k] = sharp.unclear(SUPPORT_TOLERANCE)
    if changed.any():
        sharper = _certify(rows, c, w, lam, *given)
        better = changed & (sharper.gap <= np.maximum(proof.gap, SHARP))
        unclear = np.where(better[:, None], left, unclear)
        proof = proof.where(better, sharper)
    return replace(proof, doubt=unclear)


def _unclear(rows: BlockRows, proof: Certificate, p: Array, exists: Bools) -> Bools:
    """Which rows (B, m) without a multiplier are as near to the end of the support as the weights are to the best."""
    tolerance = support_tolerance(proof.gap)[:, None]
    beyond = np.abs(rows.fwd(proof.weights) - 1 - tolerance)
    near = beyond <= tolerance / 2 + unsure(rows, proof.weights, proof.dual, p)
    return np.asarray(near & exists & (proof.dual == 0))


def support_tolerance(gap: Array) -> Array:
    """How far from 1 an active margin may be, (B,): weights within a relative gap are exact to about its root.

    For p > 2 it is a higher root, but there :func:`certify` says what is in doubt. Never below the tolerance of
    :func:`mirrormax.attention.support_tokens`, so that both name the same tokens.
    """
    return np.asarray(np.maximum(np.sqrt(np.minimum(gap, 1.0)), SUPPORT_TOLERANCE))


def p_norm(w: Array, p: Array) -> Array:
    """‖w‖_p over the last axis with one p per problem (B,), at any scale."""
    largest = np.abs(w).max(axis=-1, initial=0.0, keepdims=True)
    safe = np.where((largest > 0) & np.isfinite(largest), largest, 1.0)
    norm: Array = safe[:, 0] * ((np.abs(w) / safe) ** p[:, None]).sum(axis=-1) ** (1 / p)
    return norm


def _complementary(unit: Array, slack: Array, c: Array) -> Bools:
    """λ_r m/Σλ ≥ slack_r, both of unit rows: complementarity leaves one of the two at zero."""
    smallest = np.where(c > 0, c, np.inf).min(axis=1, keepdims=True)
    b = np.divide(smallest, c, out=np.zeros_like(c), where=c > 0)
    share = unit * unit.shape[1] / np.maximum(unit.sum(axis=1, keepdims=True), 1e-300)
    active: Bools = (c > 0) & (share > 0) & (share >= np.abs(slack) * b)
    return active


def _lower_bound(rows: BlockRows, lam: Array, b: Array, dual_norm: Norm) -> tuple[Array, Array]:
    """λ scaled to ‖Aᵀλ‖ = 1, and then bᵀλ."""
    size = dual_norm(rows.adj(lam))
    lam = lam / np.where(size > 0, size, 1.0)[:, None]
    lower: Array = (b * lam).sum(axis=1)
    return lam, lower
