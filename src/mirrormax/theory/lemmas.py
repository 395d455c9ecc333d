"""Lemmas 9 to 14 and 16 to 19 as checks on a recorded run.

Each check says whether the lemma's hypothesis is met (``applies``), and if so whether its inequality holds at
every record it speaks of. At the paper's own sizes the cones of Lemmas 9 to 11 and 16 to 19 are so thin, and begin so
far out, that no published run enters them: then the check says that the theory says nothing, and holds is None.
Lemmas 13 and 14 ask for a small step, and updates whose step is too long are not judged.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.attention import Saturated
from mirrormax.attention import leads as token_leads
from mirrormax.dynamics import Trajectory
from mirrormax.geometry import Lp, direction, directional_divergence
from mirrormax.problem import Problem, gathers_problem
from mirrormax.theory.constants import Constants
from mirrormax.theory.setting import read_run
from mirrormax.theory.step_size import EIGENVALUE_ROUNDING, step_bounds
from mirrormax.theory.transitions import TOLERANCE, Transitions

LARGEST_PI = 1 - 1e-9  # Lemma 11 has π in (0, 1)

TOO_LONG = "the step is too long for ψ − ηL to be convex between neighbouring iterates (Remark 1, Lemma 13 fails)"
NEIGHBOURS = "no two recorded steps follow one another; simulate with record='all', or record pairs k, k + 1"


@dataclass(frozen=True, eq=False)
class LemmaCheck:
    """The outcome: ``applies`` and why, ``holds`` (None if it does not apply), and the margins.

    ``margins`` are larger side minus smaller side at ``steps``, the records the lemma speaks of; a negative one
    beyond rounding is a violation, and ``violations`` holds the steps of these.
    """

    lemma: int
    applies: bool
    holds: bool | None
    reason: str
    steps: npt.NDArray[np.int64]
    margins: npt.NDArray[np.float64]
    violations: npt.NDArray[np.int64]

    def __str__(self) -> str:
        if not self.applies:
            return f"Lemma {self.lemma} says nothing about this run: {self.reason}."
        worst = f"smallest margin {self.margins.min():.3g}"
        if self.holds:
            return f"Lemma {self.lemma} holds at all {len(self.steps)} records it speaks of ({self.reason}); {worst}."
        first = ", ".join(str(int(k)) for k in self.violations[:5])
        return (
            f"Lemma {self.lemma} is violated at {len(self.violations)} of {len(self.steps)} records "
            f"(steps {first}{', …' if len(self.violations) > 5 else ''}); {worst} ({self.reason})."
        )


Judged = tuple[Tensor, Tensor, Tensor, str]
"""The steps a lemma speaks of, larger side minus smaller side there, the size of what is compared, and a sentence."""


class _Silence(Exception):
    """Why a lemma says nothing about a run."""


class _Records:
    """What the lemmas read: the records W(k) of a run, the updates between neighbours, and which are in a cone."""

    def __init__(
        self, problem: Problem, run: Trajectory, constants: Constants | None, pi: float = 0.5, mu: float | None = None
    ) -> None:
        self.path = read_run(problem, run)
        self._constants, self.pi, self.mu = constants, pi, mu
        if constants is not None and constants.p != self.path.p:
            raise ValueError(
                f"the constants are for p = {constants.p:g} and the run for p = {self.path.p:g}; use one p for both."
            )

    @property
    def constants(self) -> Constants:
        if self._constants is None:
            raise ValueError("constants must be given for this lemma, got None; pass theory.constants(problem, p=p).")
        return self._constants

    @cached_property
    def moves(self) -> Transitions:
        if not len(self.path.pairs):
            raise _Silence(NEIGHBOURS)
        return Transitions(self.path)

    def divergence(self, W: Tensor) -> Tensor:
        """From the direction of W_mm to those of W (K, d, d): (K,)."""
        return directional_divergence(torch.from_numpy(self.constants.W_mm), W, self.path.p)

    def inside(self, mu: float, R: float = 0.0) -> tuple[Tensor, str]:
        """Which records are in C_{p,μ,R}(W_mm), and the sentence that says so; silence if none is."""
        if not self.constants.locally_optimal:
            raise _Silence("alpha is not locally optimal, which the theory asks for")
        far, sizes = self.divergence(self.path.W), Lp(self.path.p).norm(self.path.W)
        inside = (far <= mu) & (sizes >= R)
        cone = f"the cone of divergence at most {mu:.2e}" + (f" and norm at least {R:.2e}" if R > 0 else "")
        if inside.any():
            return inside, f"{int(inside.sum())} of {len(inside)} records are in {cone}"
        defined = far[~far.isnan()]
        nearest = f"{defined.min():.2e}" if len(defined) else "undefined"
        raise _Silence(
            f"no recorded W enters {cone}; the smallest divergence is {nearest} and the largest norm "
            f"{sizes.max():.3g}. At this size the theory says nothing of the run; empirical_cone measures from where "
            "runs do converge"
        )

    def moves_inside(self, mu: float, R: float) -> tuple[Tensor, str]:
        """Which updates start in that cone, and the sentence; silence if none does."""
        moves = self.moves
        inside, why = self.inside(mu, R)
        at = inside[self.path.pairs]
        if not at.any():
            raise _Silence(NEIGHBOURS)
        return at, why + _lost(moves)


@gathers_problem("X", "y", "z", "v")
def check_lemma(
    problem: Problem,
    lemma: int,
    run: Trajectory,
    constants: Constants | None = None,
    *,
    pi: float = 0.5,
    mu: float | None = None,
) -> LemmaCheck:
    """A lemma on a single run of ℓp-AttGD. All but 12 to 14 take ``constants``, those of the tokens and of p.

    9. Margins near the solution: for W ∈ S_{p,μ0} at the norm of W_mm, t ∈ 𝒯_i and τ ∈ 𝒯̄_i (13a–c),

           (x_t − x_τ)ᵀWz ≥ 3δ/2,   (x_α − x_τ)ᵀWz ≥ 1 + 3δ/2,   |(x_α − x_t)ᵀWz − 1| ≤ δ/2.

       Records are brought to the norm of W_mm first, as the lemma is about directions.
    10. The gradient points outwards: for W ∈ C_{p,μ0,R_δ}, V ∈ S_{p,μ0}, ‖V‖ = ‖W_mm‖ and R' = ‖W‖/‖W_mm‖, (18) is

            −n⟨∇L(W), V⟩ ≥ (1−δ/2) min γ_gap min|l'_i|/T e^{−(1+δ/2)R'} − 2ΓAT(T+1) Σ|l'_i| e^{−(1+3δ/2)R'} > 0.

        V is W_mm, and W itself at the norm of W_mm; the smaller of the two is compared. Both sides are far below what
        floating point holds, so the margin is the difference of their logarithms.
    11. No direction in the cone is much steeper than W_mm's: for W ∈ C_{p,μ0,R_π},
        ⟨∇L(W), W/‖W‖⟩ ≥ (1+π) ⟨∇L(W), W_mm/‖W_mm‖⟩.
    12. Norms grow: ‖W(k+1)‖^{p−1} ≥ ‖W(k)‖^{p−1} + (η/‖W(k)‖) ⟨−∇L(W(k)), W(k)⟩. It needs no cone and no small step;
        its proof needs ψ = (1/p)‖W‖_p^p, which the paper prints without the power.
    13. (p−1)/p (‖W(k+1)‖^p − ‖W(k)‖^p) + η(L(W(k+1)) − L(W(k))) ≤ ⟨−η∇L(W(k)), W(k)⟩ (24), if η is small: if ψ − ηL is
        convex between W(k) and W(k+1) (Remark 1), by its Hessian at both ends and halfway, as in :func:`step_size_ok`.
        The margin is D_{ψ−ηL}(W(k+1), W(k)): a violation says that convexity fails between the points looked at, or
        that the run is not one of ℓp-AttGD.
    14. The risk falls: L(W(k+1)) ≤ L(W(k)), if the step is small, which means what it does in Lemma 13.
        Margins are η(L(W(k)) − L(W(k+1))).
    16. Progress along W_mm: for W(k) ∈ C_{p,μ0,R_π} and a small step (25), with W̄_mm of norm 1,

            ⟨∇ψ(W(k+1)) − ∇ψ(W(k)), W̄_mm⟩ ≥ (‖W(k+1)‖^{p−1} − ‖W(k)‖^{p−1})/(1+π) + (η/‖W(k)‖)(L(W(k+1)) − L(W(k))).

    17. The cone is not left: W(0) ∈ C_{p,μ/3,R_μ} implies W(k) ∈ C_{p,μ,R_μ} for all k, for 0 < μ ≤ μ0 (default μ0).
        R_μ must make the last term of (27) at most μ/3. For plain steps η(L_max − L_min)/R^p bounds it. Normalised
        steps have no such bound in advance, and the sum Σ η_k (L(k) − L(k+1)) / (‖W(k)‖ ‖W(K)‖^{p−1}) is taken from the
        run itself, of which every step must then be recorded. W(0) is the hypothesis, and not judged.
    18. What the direction loses is paid for by the norm: (30) before its sums are bounded by O(·). In C_{p,μ0,R_π},

            E(K) ≤ E(0) + Σ_{k<K} [ π_k/(1+π_k) (‖W(k+1)‖^{p−1} − ‖W(k)‖^{p−1}) + η_k (L(k) − L(k+1))/‖W(k)‖ ],

        E(k) = ‖W(k)‖^{p−1} D(W_mm/‖W_mm‖, W(k)/‖W(k)‖) and π_k the smallest π with R_π ≤ ‖W(k)‖. The lemma's rates (28)
        follow with π_k = O(log ‖W(k)‖/‖W(k)‖). K runs over the records from the first in the cone on, as long as they
        stay and each update is recorded and has a small enough step.
    19. Norms grow like log k at least: with Lemma 10's bound b(W) of −⟨∇L(W), V⟩, for W(k) ∈ C_{p,μ0,R_δ},

            ‖W(k+1)‖^{p−1} ≥ ‖W(k)‖^{p−1} + η_k b(W(k))/‖W_mm‖,      b(W) = Θ(e^{−(1+δ/2)‖W‖/‖W_mm‖}),

        from which ‖W(k)‖ = Ω(log k) follows by summation. The margin is the difference of the logarithms of the two
        increments. A plain step so far out is below the rounding of W; such updates are not judged.

    Args:
        problem: the problem of the run, or its arrays X, y, z, v.
        lemma: its number.
        run: with every weight kept; ``record="all"`` for the lemmas about updates.
        constants: of :func:`constants`.
        pi: π of Lemmas 11 and 16.
        mu: μ of Lemma 17.
    """
    if lemma not in LEMMAS:
        raise ValueError(f"lemma must be one of {', '.join(map(str, LEMMAS))}, got {lemma!r}.")
    return _checked(lemma, _Records(problem, run, constants, pi, mu))


@gathers_problem("X", "y", "z", "v")
def check_lemmas(problem: Problem, run: Trajectory, constants: Constants) -> list[LemmaCheck]:
    """All ten, with their default π and μ. ``print(*check_lemmas(...), sep='\\n')`` reads as a report."""
    records = _Records(problem, run, constants)
    return [_checked(lemma, records) for lemma in LEMMAS]


def _checked(lemma: int, records: _Records) -> LemmaCheck:
    try:
        judged, slack, scale, reason = LEMMAS[lemma](records)
    except _Silence as silence:
        none = np.empty(0, np.int64)
        return LemmaCheck(lemma, False, None, str(silence), none, np.empty(0), none)
    steps, bad = judged.numpy(), ~(slack >= -TOLERANCE * scale).numpy()
    return LemmaCheck(lemma, True, not bad.any(), reason, steps, slack.numpy(), steps[bad])


def _lemma_9(r: _Records) -> Judged:
    c = r.constants
    inside, why = r.inside(c.mu0)
    W = direction(r.path.W[inside], r.path.p) * c.norm
    leads = token_leads(r.path.data, W, torch.from_numpy(c.alpha))
    support, others = torch.from_numpy(c.support), torch.from_numpy(c.others)
    near = torch.where(support, (leads - 1).abs(), 0.0).amax((-2, -1))
    nearest_other = torch.where(others, leads, torch.inf).amin(-1)
    farthest_support = torch.where(support, leads, -torch.inf).amax(-1)
    slacks = [
        (nearest_other - farthest_support).amin(-1) - 1.5 * c.delta,
        nearest_other.amin(-1) - 1 - 1.5 * c.delta,
        0.5 * c.delta - near,
    ]
    slack = torch.stack(slacks).amin(0)
    return r.path.steps[inside], slack, torch.full_like(slack, c.delta), why


def _lemma_10(r: _Records) -> Judged:
    c, p = r.constants, r.path.p
    inside, why = r.inside(c.mu0, c.R_delta)
    W = r.path.W[inside]
    state, gradient, log_scale = r.path.gradient(W)
    towards = (torch.from_numpy(c.W_mm), direction(W, p) * c.norm)
    pull = torch.stack([-(gradient * V).sum((-2, -1)) for V in towards]).amin(0)
    slack = _log(pull) + log_scale - _log_pull_bound(r, W, state)
    return r.path.steps[inside], slack, torch.ones_like(slack), why


def _log_pull_bound(r: _Records, W: Tensor, state: Saturated) -> Tensor:
    """The logarithm of Lemma 10's lower bound at W (P, d, d): (P,)."""
    c = r.constants
    slopes = r.path.loss.log_derivative(state.margins).exp()
    ratio, T, delta = Lp(r.path.p).norm(W) / c.norm, c.T, c.delta
    least = (1 - delta / 2) * float(np.nanmin(c.gamma_gap)) * slopes.amin(-1)
    lost = 2 * c.Gamma * c.A * T**2 * (T + 1) * slopes.sum(-1) / least * torch.exp(-delta * ratio)
    return torch.log(least / (c.n * T)) - (1 + delta / 2) * ratio + _log(1 - lost)


def _lemma_11(r: _Records) -> Judged:
    c, p, pi = r.constants, r.path.p, r.pi
    inside, why = r.inside(c.mu0, c.R_pi(pi))
    W = r.path.W[inside]
    _, gradient, _ = r.path.gradient(W)
    own, best = (-(gradient * direction(V, p)).sum((-2, -1)) for V in (W, torch.from_numpy(c.W_mm)))
    return r.path.steps[inside], (1 + pi) * best - own, own.abs() + best.abs(), why


def _lemma_12(r: _Records) -> Judged:
    moves = r.moves
    usable = moves.norm > 0  # the lemma divides by ‖W(k)‖
    if not usable.any():
        raise _Silence("the only recorded update starts at W = 0, where the lemma divides by zero")
    slack, scale = moves.norm_slack(), (moves.along(moves.W) / moves.norm).abs()
    return moves.steps[usable], slack[usable], scale[usable], "it needs no cone" + _lost(moves)


def _lemma_13(r: _Records) -> Judged:
    return _where_small(r, r.moves.convexity() - (r.moves.residual * r.moves.W_next).sum((-2, -1)))


def _lemma_14(r: _Records) -> Judged:
    return _where_small(r, -r.moves.loss_change)


def _where_small(r: _Records, slack: Tensor) -> Judged:
    """Judged where the step is so small that ψ − ηL is convex at W(k), halfway, and at W(k+1)."""
    bounds = step_bounds(r.path, r.path.pairs, torch.tensor([0.0, 0.5, 1.0], dtype=torch.float64))
    small = (bounds >= 1 - EIGENVALUE_ROUNDING).all(-1)
    if not small.any():
        raise _Silence("no recorded update has a step so small that ψ − ηL is convex on its way (Remark 1)")
    long = int((~small).sum())
    why = f"; of {len(small)} updates {long} have too long a step" if long else ""
    why = "it needs no cone, and a small step" + why + _lost(r.moves)
    return r.moves.steps[small], slack[small], r.moves.length()[small], why


def _lemma_16(r: _Records) -> Judged:
    c, moves, pi = r.constants, r.moves, r.pi
    at, why = r.moves_inside(c.mu0, c.R_pi(pi))
    at &= ~moves.too_long()
    if not at.any():
        raise _Silence(TOO_LONG)
    target = direction(torch.from_numpy(c.W_mm), r.path.p)
    pull = moves.along(target) + (moves.residual * target).sum((-2, -1))
    slack = pull - moves.norm_growth() / (1 + pi) - moves.loss_change / moves.norm
    return moves.steps[at], slack[at], moves.along(target).abs()[at], why


def _lemma_17(r: _Records) -> Judged:
    c, path = r.constants, r.path
    mu = number("mu", c.mu0 if r.mu is None else r.mu, above=0.0)
    if mu > c.mu0:
        raise ValueError(f"mu must be at most μ0 = {c.mu0:.3e} in Lemma 17, got {mu!r}.")
    radius = c.R_pi(mu / 3) if path.normalize else c.R_mu(mu, path.lr)
    inside, why = r.inside(mu / 3, radius)
    if path.steps[0] != 0 or not inside[0]:
        raise _Silence(f"W(0) is not in the cone; {why}")
    later = path.steps > 0
    if not later.any():
        raise _Silence("nothing is recorded after W(0), with which the lemma begins; run more steps")
    if len(path.pairs) and r.moves.too_long().any():
        raise _Silence(TOO_LONG)
    if path.normalize:
        if len(path.pairs) != len(path.steps) - 1:
            raise _Silence("for normalised steps every update must be recorded; simulate with record='all'")
        descent = torch.cumsum(-r.moves.loss_change / r.moves.norm, 0)
        if (descent / Lp(path.p).norm(r.moves.W_next).pow(path.p - 1) > mu / 3).any():
            raise _Silence("the last term of (27) exceeds μ/3: start at a larger norm, or take shorter steps")
    W = path.W[later]
    slack = torch.minimum(mu - r.divergence(W), mu * (Lp(path.p).norm(W) / radius - 1))
    return path.steps[later], slack, torch.full_like(slack, mu), why


def _lemma_18(r: _Records) -> Judged:
    c, path, moves = r.constants, r.path, r.moves
    inside, why = r.inside(c.mu0, c.R_pi(LARGEST_PI))
    first = int(inside.nonzero()[0])
    usable = torch.zeros(len(path.steps), dtype=torch.bool)
    usable[path.pairs] = ~moves.too_long()
    stop = first + int((~(usable & inside)[first:]).nonzero()[0])
    if stop == first:
        raise _Silence(f"no update inside the cone is recorded with a step that is small enough; {why}")
    used = (path.pairs >= first) & (path.pairs < stop)
    pi = torch.tensor([c.pi_at(float(size)) for size in moves.norm[used]], dtype=torch.float64)
    paid = pi / (1 + pi) * moves.norm_growth()[used] - moves.loss_change[used] / moves.norm[used]
    W = path.W[first : stop + 1]
    excess = Lp(path.p).norm(W).pow(path.p - 1) * r.divergence(W)
    bound = excess[0] + paid.cumsum(0)
    steps = path.steps[first + 1 : stop + 1]
    return steps, bound - excess[1:], bound.abs() + excess[1:], why + _lost(moves)


def _lemma_19(r: _Records) -> Judged:
    c, moves = r.constants, r.moves
    at, why = r.moves_inside(c.mu0, c.R_delta)
    at &= ~moves.lost
    if not at.any():
        raise _Silence("every recorded update in the cone is below the rounding of W")
    W = moves.W[at]
    state, gradient, log_scale = r.path.gradient(W)
    # η_k e^{log_scale}, the factor of the scaled gradient, is what floating point holds.
    factor = torch.log(r.path.step_factor(gradient, log_scale)) - log_scale
    bound = factor + _log_pull_bound(r, W, state) - math.log(c.norm)
    slack = _log(moves.norm_growth()[at]) - bound
    return moves.steps[at], slack, torch.ones_like(slack), why


LEMMAS: dict[int, Callable[[_Records], Judged]] = {
    9: _lemma_9,
    10: _lemma_10,
    11: _lemma_11,
    12: _lemma_12,
    13: _lemma_13,
    14: _lemma_14,
    16: _lemma_16,
    17: _lemma_17,
    18: _lemma_18,
    19: _lemma_19,
}


def _log(x: Tensor) -> Tensor:
    """log x, −inf where x is not positive."""
    return torch.where(x > 0, torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)), -torch.inf)


def _lost(moves: Transitions) -> str:
    """Said of updates that float64 cannot write down: the inequality then compares rounded weights."""
    count = int(moves.lost.sum())
    return f"; {count} of {len(moves.lost)} updates are below the rounding of W" if count else ""
