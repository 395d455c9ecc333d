"""Lemmas 9 to 14 and 16 to 19 as checks on a recorded run.

Each check says whether the lemma's hypothesis is met (``applies``), and if so whether its inequality holds at
every record it speaks of. At the paper's own sizes the cones of Lemmas 9 to 11 and 16 to 19 are so thin, and begin so
far out, that no published run enters them: then the check says that the theory says nothing, and holds is None.
Lemmas 13 and 14 ask for a small step. Updates whose step is too long are outside of them: an inequality that holds
there all the same is vacuous, and counted apart.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.attention import Saturated, saturated, weight_gradient
from mirrormax.attention import leads as token_leads
from mirrormax.dynamics import Trajectory
from mirrormax.geometry import Lp, direction, directional_divergence
from mirrormax.problem import Problem, gathers_problem
from mirrormax.theory.constants import Constants
from mirrormax.theory.setting import Path, one_problem, read_run
from mirrormax.theory.step_size import small_steps
from mirrormax.theory.transitions import Transitions, step_factor, transitions

# Of the terms an inequality compares; their rounding is below this by three orders.
TOLERANCE = 1e-9
LARGEST_PI = 1 - 1e-9  # Lemma 11 has π in (0, 1)

NO_CONE = "it needs no cone, and a small step"
NONE_SMALL = "no recorded update has a step so small that ψ − ηL is convex on its way (Remark 1)"
TOO_LONG = "the step is too long for ψ − ηL to be convex between neighbouring iterates (Remark 1, Lemma 13 fails)"
NEIGHBOURS = "no two recorded steps follow one another; simulate with record='all', or record pairs k, k + 1"


@dataclass(frozen=True, eq=False)
class LemmaCheck:
    """The outcome: ``applies`` and why, ``holds`` (None if it does not apply), and the margins.

    ``margins`` are larger side minus smaller side at ``steps``, the records the lemma speaks of; a negative one
    beyond rounding is a violation, and ``violations`` holds the steps of these. ``outside`` counts the updates that the
    lemma does not speak of because their step is too long (Lemmas 13 and 14), and ``vacuous`` those of them at which
    the inequality holds all the same; neither is in ``steps``.
    """

    lemma: int
    applies: bool
    holds: bool | None
    reason: str
    steps: npt.NDArray[np.int64]
    margins: npt.NDArray[np.float64]
    violations: npt.NDArray[np.int64]
    outside: int = 0
    vacuous: int = 0

    def __str__(self) -> str:
        return self._verdict() + (f" {self._apart()}" if self.outside else "")

    def _apart(self) -> str:
        many = f"{self.outside} update{'s' if self.outside > 1 else ''}"
        return f"Not spoken of: {many} with too long a step, where the inequality holds in {self.vacuous}."

    def _verdict(self) -> str:
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


@gathers_problem("X", "y", "z", "v")
def check_lemma_9(problem: Problem, run: Trajectory, constants: Constants) -> LemmaCheck:
    """Margins near the solution: for W ∈ S_{p,μ0} at the norm of W_mm, t ∈ 𝒯_i and τ ∈ 𝒯̄_i (13a–c),

        (x_t − x_τ)ᵀWz ≥ 3δ/2,   (x_α − x_τ)ᵀWz ≥ 1 + 3δ/2,   |(x_α − x_t)ᵀWz − 1| ≤ δ/2.

    Records are brought to the norm of W_mm first, as the lemma is about directions.
    """
    path, problem = _read(run, constants), one_problem(problem).tensors()
    inside, why = _inside(path, constants, constants.mu0, 0.0)
    if not constants.locally_optimal or not inside.any():
        return _silent(9, why)
    W = direction(path.W[torch.from_numpy(inside)], path.p) * constants.norm
    leads = token_leads(problem, W, torch.from_numpy(constants.alpha))
    support, others = torch.from_numpy(constants.support), torch.from_numpy(constants.others)
    near = torch.where(support, (leads - 1).abs(), 0.0).amax((-2, -1))
    nearest_other = torch.where(others, leads, torch.inf).amin(-1)
    farthest_support = torch.where(support, leads, -torch.inf).amax(-1)
    slack = torch.stack(
        [
            (nearest_other - farthest_support).amin(-1) - 1.5 * constants.delta,
            nearest_other.amin(-1) - 1 - 1.5 * constants.delta,
            0.5 * constants.delta - near,
        ]
    ).amin(0)
    return _judge(9, path.steps[inside], slack, torch.full_like(slack, constants.delta), why)


@gathers_problem("X", "y", "z", "v")
def check_lemma_10(problem: Problem, run: Trajectory, constants: Constants) -> LemmaCheck:
    """The gradient points outwards: for W, V ∈ C_{p,μ0,R_δ} with ‖V‖ = ‖W_mm‖ and R' = ‖W‖/‖W_mm‖, (18) is

        −⟨∇L(W), V⟩ ≥ (1/n) [ (1−δ/2) min γ_gap min|l'_i|/T e^{−(1+δ/2)R'} − 2ΓAT(T+1) Σ|l'_i| e^{−(1+3δ/2)R'} ] > 0.

    V is W_mm, and W itself at the norm of W_mm; the smaller of the two is compared. Both sides are far below what
    floating point holds, so the margin is the difference of their logarithms.
    """
    path, data = _read(run, constants), one_problem(problem).tensors()
    inside, why = _inside(path, constants, constants.mu0, constants.R_delta)
    if not constants.locally_optimal or not inside.any():
        return _silent(10, why)
    W = path.W[torch.from_numpy(inside)]
    state = saturated(data.X, data.y, data.z, data.v, W, data.mask)
    gradient, log_scale = weight_gradient(state, data.z, path.loss)
    towards = (torch.from_numpy(constants.W_mm), direction(W, path.p) * constants.norm)
    pull = torch.stack([-(gradient * V).sum((-2, -1)) for V in towards]).amin(0)
    slack = _log(pull) + log_scale - _log_pull_bound(constants, Lp(path.p).norm(W), state, path)
    return _judge(10, path.steps[inside], slack, torch.ones_like(slack), why)


def _log_pull_bound(constants: Constants, sizes: Tensor, state: Saturated, path: Path) -> Tensor:
    """The logarithm of Lemma 10's lower bound at weights of these norms, (P,)."""
    slopes = path.loss.log_derivative(state.margins).exp()
    ratio, n, T, delta = sizes / constants.norm, constants.n, constants.T, constants.delta
    least = (1 - delta / 2) * float(np.nanmin(constants.gamma_gap)) * slopes.amin(-1)
    lost = 2 * constants.Gamma * constants.A * T**2 * (T + 1) * slopes.sum(-1) / least * torch.exp(-delta * ratio)
    return torch.log(least / (n * T)) - (1 + delta / 2) * ratio + _log(1 - lost)


@gathers_problem("X", "y", "z", "v")
def check_lemma_11(problem: Problem, run: Trajectory, constants: Constants, *, pi: float = 0.5) -> LemmaCheck:
    """No direction in the cone is much steeper than W_mm's: for W ∈ C_{p,μ0,R_π},

    ⟨∇L(W), W/‖W‖⟩ ≥ (1+π) ⟨∇L(W), W_mm/‖W_mm‖⟩.
    """
    path, data = _read(run, constants), one_problem(problem).tensors()
    inside, why = _inside(path, constants, constants.mu0, constants.R_pi(pi))
    if not constants.locally_optimal or not inside.any():
        return _silent(11, why)
    W = path.W[torch.from_numpy(inside)]
    gradient, _ = weight_gradient(saturated(data.X, data.y, data.z, data.v, W, data.mask), data.z, path.loss)
    own, best = (-(gradient * direction(V, path.p)).sum((-2, -1)) for V in (W, torch.from_numpy(constants.W_mm)))
    return _judge(11, path.steps[inside], (1 + pi) * best - own, own.abs() + best.abs(), why)


@gathers_problem("X", "y", "z", "v")
def check_lemma_12(problem: Problem, run: Trajectory) -> LemmaCheck:
    """Norms grow: ‖W(k+1)‖^{p−1} ≥ ‖W(k)‖^{p−1} + (η/‖W(k)‖) ⟨−∇L(W(k)), W(k)⟩.

    Needs no cone and no small step; its proof needs ψ = (1/p)‖W‖_p^p, which the paper prints without the power.
    """
    path, moves = _moves(problem, run)
    if moves is None:
        return _silent(12, NEIGHBOURS)
    usable = moves.norm > 0  # the lemma divides by ‖W(k)‖
    if not usable.any():
        return _silent(12, "the only recorded update starts at W = 0, where the lemma divides by zero")
    slack, scale = moves.norm_slack(), (moves.along(moves.W) / moves.norm).abs()
    steps = path.steps[path.pairs()][usable.numpy()]
    return _judge(12, steps, slack[usable], scale[usable], "it needs no cone" + _lost(moves))


@gathers_problem("X", "y", "z", "v")
def check_lemma_13(problem: Problem, run: Trajectory) -> LemmaCheck:
    """(p−1)/p (‖W(k+1)‖^p − ‖W(k)‖^p) + η(L(W(k+1)) − L(W(k))) ≤ ⟨−η∇L(W(k)), W(k)⟩ (24), if η is small.

    η is small if ψ − ηL is convex between W(k) and W(k+1) (Remark 1), by its Hessian at both ends and halfway, as in
    :func:`step_size_ok`. The margin is D_{ψ−ηL}(W(k+1), W(k)): a violation says that convexity fails between the points
    looked at, or that the run is not one of ℓp-AttGD. Updates with longer steps are counted apart.
    """
    path, moves = _moves(problem, run)
    if moves is None:
        return _silent(13, NEIGHBOURS)
    slack = moves.convexity() - (moves.residual * moves.W_next).sum((-2, -1))
    return _small_steps(13, problem, path, moves, slack)


@gathers_problem("X", "y", "z", "v")
def check_lemma_14(problem: Problem, run: Trajectory) -> LemmaCheck:
    """The risk falls: L(W(k+1)) ≤ L(W(k)), if the step is small, which means what it does in Lemma 13.

    Margins are η(L(W(k)) − L(W(k+1))); updates with longer steps are counted apart.
    """
    path, moves = _moves(problem, run)
    if moves is None:
        return _silent(14, NEIGHBOURS)
    return _small_steps(14, problem, path, moves, -moves.loss_change)


def _small_steps(lemma: int, problem: Problem, path: Path, moves: Transitions, slack: Tensor) -> LemmaCheck:
    """Judged where the step is small; elsewhere only counted."""
    small = small_steps(one_problem(problem).tensors(), path)
    scale, steps = moves.length(), path.steps[path.pairs()]
    outside, vacuous = int((~small).sum()), int((~small & (slack >= -TOLERANCE * scale)).sum())
    if not small.any():
        return replace(_silent(lemma, NONE_SMALL), outside=outside, vacuous=vacuous)
    judged = _judge(lemma, steps[small.numpy()], slack[small], scale[small], NO_CONE + _lost(moves))
    return replace(judged, outside=outside, vacuous=vacuous)


@gathers_problem("X", "y", "z", "v")
def check_lemma_16(problem: Problem, run: Trajectory, constants: Constants, *, pi: float = 0.5) -> LemmaCheck:
    """Progress along W_mm: for W(k) ∈ C_{p,μ0,R_π} and a small step (25), with W̄_mm of norm 1,

    ⟨∇ψ(W(k+1)) − ∇ψ(W(k)), W̄_mm⟩ ≥ (‖W(k+1)‖^{p−1} − ‖W(k)‖^{p−1})/(1+π) + (η/‖W(k)‖)(L(W(k+1)) − L(W(k))).
    """
    path, moves = _moves(problem, run, constants)
    inside, why = _inside(path, constants, constants.mu0, constants.R_pi(pi))
    if moves is None:
        return _silent(16, NEIGHBOURS)
    at = inside[path.pairs()]
    if not constants.locally_optimal or not at.any():
        return _silent(16, why if not inside.any() else NEIGHBOURS)
    at &= ~moves.too_long(TOLERANCE).numpy()
    if not at.any():
        return _silent(16, TOO_LONG)
    target = direction(torch.from_numpy(constants.W_mm), path.p)
    pull = moves.along(target) + (moves.residual * target).sum((-2, -1))
    slack = pull - moves.norm_growth() / (1 + pi) - moves.loss_change / moves.norm
    chosen = torch.from_numpy(at)
    return _judge(
        16, path.steps[path.pairs()][at], slack[chosen], moves.along(target).abs()[chosen], why + _lost(moves)
    )


@gathers_problem("X", "y", "z", "v")
def check_lemma_17(problem: Problem, run: Trajectory, constants: Constants, *, mu: float | None = None) -> LemmaCheck:
    """The cone is not left: W(0) ∈ C_{p,μ/3,R_μ} implies W(k) ∈ C_{p,μ,R_μ} for all k, for 0 < μ ≤ μ0 (default μ0).

    R_μ must make the last term of (27) at most μ/3. For plain steps η(L_max − L_min)/R^p bounds it. Normalised steps
    have no such bound in advance, and the sum Σ η_k (L(k) − L(k+1)) / (‖W(k)‖ ‖W(K)‖^{p−1}) is taken from the run
    itself, of which every step must then be recorded.
    """
    path, moves = _moves(problem, run, constants)
    mu = number("mu", constants.mu0 if mu is None else mu, above=0.0)
    if mu > constants.mu0:
        raise ValueError(f"mu must be at most μ0 = {constants.mu0:.3e} in Lemma 17, got {mu!r}.")
    radius = constants.R_pi(mu / 3) if path.normalize else constants.R_mu(mu, path.lr)
    inside, why = _inside(path, constants, mu / 3, radius)
    if path.steps[0] != 0 or not inside[0]:
        return _silent(17, why if not inside.any() else f"W(0) is not in the cone; {why}")
    if moves is not None and bool(moves.too_long(TOLERANCE).any()):
        return _silent(17, TOO_LONG)
    if path.normalize:
        if moves is None or len(path.pairs()) != len(path.steps) - 1:
            return _silent(17, "for normalised steps every update must be recorded; simulate with record='all'")
        descent = torch.cumsum(-moves.loss_change / moves.norm, 0)
        if bool((descent / Lp(path.p).norm(moves.W_next).pow(path.p - 1) > mu / 3).any()):
            return _silent(17, "the last term of (27) exceeds μ/3: start at a larger norm, or take shorter steps")
    W_mm = torch.from_numpy(constants.W_mm)
    sizes = Lp(path.p).norm(path.W)
    slack = torch.minimum(mu - directional_divergence(W_mm, path.W, path.p), mu * (sizes / radius - 1))
    return _judge(17, path.steps, slack, torch.full_like(slack, mu), why)


@gathers_problem("X", "y", "z", "v")
def check_lemma_18(problem: Problem, run: Trajectory, constants: Constants) -> LemmaCheck:
    """What the direction loses is paid for by the norm: (30) before its sums are bounded by O(·). In C_{p,μ0,R_π},

        E(K) ≤ E(0) + Σ_{k<K} [ π_k/(1+π_k) (‖W(k+1)‖^{p−1} − ‖W(k)‖^{p−1}) + η_k (L(k) − L(k+1))/‖W(k)‖ ],

    E(k) = ‖W(k)‖^{p−1} D(W_mm/‖W_mm‖, W(k)/‖W(k)‖) and π_k the smallest π with R_π ≤ ‖W(k)‖. The lemma's rates (28)
    follow with π_k = O(log ‖W(k)‖/‖W(k)‖). K runs over the records from the first in the cone on, as long as they stay
    and each update is recorded and has a small enough step.
    """
    path, moves = _moves(problem, run, constants)
    if moves is None:
        return _silent(18, NEIGHBOURS)
    inside, why = _inside(path, constants, constants.mu0, constants.R_pi(LARGEST_PI))
    if not inside.any():
        return _silent(18, why)
    first = int(inside.argmax())
    usable = np.zeros(len(path.steps) - 1, dtype=bool)
    usable[path.pairs()] = ~moves.too_long(TOLERANCE).numpy()
    usable &= inside[:-1]
    stop = first + int(np.argmin(np.append(usable[first:], False)))
    if stop == first:
        return _silent(18, f"no update inside the cone is recorded with a step that is small enough; {why}")
    used = torch.from_numpy(np.isin(path.pairs(), np.arange(first, stop)))
    pi = torch.tensor([constants.pi_at(float(size)) for size in moves.norm[used]], dtype=torch.float64)
    paid = pi / (1 + pi) * moves.norm_growth()[used] - moves.loss_change[used] / moves.norm[used]
    W = path.W[first : stop + 1]
    far = directional_divergence(torch.from_numpy(constants.W_mm), W, path.p)
    excess = Lp(path.p).norm(W).pow(path.p - 1) * far
    bound = excess[0] + paid.cumsum(0)
    return _judge(
        18, path.steps[first + 1 : stop + 1], bound - excess[1:], bound.abs() + excess[1:], why + _lost(moves)
    )


@gathers_problem("X", "y", "z", "v")
def check_lemma_19(problem: Problem, run: Trajectory, constants: Constants) -> LemmaCheck:
    """Norms grow like log k at least: with Lemma 10's bound b(W) of −⟨∇L(W), V⟩, for W(k) ∈ C_{p,μ0,R_δ},

        ‖W(k+1)‖^{p−1} ≥ ‖W(k)‖^{p−1} + η_k b(W(k))/‖W_mm‖,      b(W) = Θ(e^{−(1+δ/2)‖W‖/‖W_mm‖}),

    from which ‖W(k)‖ = Ω(log k) follows by summation. The margin is the difference of the logarithms of the two
    increments. A plain step so far out is below the rounding of W; such updates are not judged.
    """
    path, moves = _moves(problem, run, constants)
    if moves is None:
        return _silent(19, NEIGHBOURS)
    inside, why = _inside(path, constants, constants.mu0, constants.R_delta)
    at = inside[path.pairs()]
    if not constants.locally_optimal or not at.any():
        return _silent(19, why if not inside.any() else NEIGHBOURS)
    at &= ~moves.lost.numpy()
    if not at.any():
        return _silent(19, "every recorded update in the cone is below the rounding of W")
    data, chosen = one_problem(problem).tensors(), torch.from_numpy(at)
    W = moves.W[chosen]
    state = saturated(data.X, data.y, data.z, data.v, W, data.mask)
    gradient, log_scale = weight_gradient(state, data.z, path.loss)
    # η_k e^{log_scale}, the factor of the scaled gradient, is what floating point holds.
    factor = torch.log(step_factor(gradient, log_scale, path)) - log_scale
    sizes = Lp(path.p).norm(W)
    bound = factor + _log_pull_bound(constants, sizes, state, path) - math.log(constants.norm)
    slack = _log(moves.norm_growth()[chosen]) - bound
    return _judge(19, path.steps[path.pairs()][at], slack, torch.ones_like(slack), why + _lost(moves))


@gathers_problem("X", "y", "z", "v")
def check_lemmas(problem: Problem, run: Trajectory, constants: Constants) -> list[LemmaCheck]:
    """All ten checks, with their default π and μ. ``print(*check_lemmas(...), sep='\\n')`` reads as a report."""
    return [
        check_lemma_9(problem, run, constants),
        check_lemma_10(problem, run, constants),
        check_lemma_11(problem, run, constants),
        check_lemma_12(problem, run),
        check_lemma_13(problem, run),
        check_lemma_14(problem, run),
        check_lemma_16(problem, run, constants),
        check_lemma_17(problem, run, constants),
        check_lemma_18(problem, run, constants),
        check_lemma_19(problem, run, constants),
    ]


def _log(x: Tensor) -> Tensor:
    """log x, −inf where x is not positive."""
    return torch.where(x > 0, torch.log(x.clamp_min(torch.finfo(x.dtype).tiny)), -torch.inf)


def _read(run: Trajectory, constants: Constants | None) -> Path:
    path = read_run(run)
    if constants is not None and constants.p != path.p:
        raise ValueError(
            f"the constants are for p = {constants.p:g} and the run for p = {path.p:g}; use one p for both."
        )
    return path


def _moves(problem: Problem, run: Trajectory, constants: Constants | None = None) -> tuple[Path, Transitions | None]:
    path = _read(run, constants)
    return path, transitions(one_problem(problem).tensors(), path) if len(path.pairs()) else None


def _inside(path: Path, constants: Constants, mu: float, R: float) -> tuple[npt.NDArray[np.bool_], str]:
    """Which records are in C_{p,μ,R}(W_mm), and the sentence that says so."""
    if not constants.locally_optimal:
        return np.zeros(len(path.steps), dtype=bool), "alpha is not locally optimal, which the theory asks for"
    far = directional_divergence(torch.from_numpy(constants.W_mm), path.W, path.p).numpy()
    sizes = Lp(path.p).norm(path.W).numpy()
    inside = (far <= mu) & (sizes >= R)
    cone = f"the cone of divergence at most {mu:.2e}" + (f" and norm at least {R:.2e}" if R > 0 else "")
    if inside.any():
        return inside, f"{int(inside.sum())} of {len(inside)} records are in {cone}"
    nearest = f"{np.nanmin(far):.2e}" if not np.isnan(far).all() else "undefined"
    return inside, (
        f"no recorded W enters {cone}; the smallest divergence is {nearest} and the largest norm {sizes.max():.3g}. "
        "At this size the theory says nothing of the run; empirical_cone measures from where runs do converge"
    )


def _lost(moves: Transitions) -> str:
    """Said of updates that float64 cannot write down: the inequality then compares rounded weights."""
    count = int(moves.lost.sum())
    return f"; {count} of {len(moves.lost)} updates are below the rounding of W" if count else ""


def _judge(lemma: int, steps: Any, slack: Tensor, scale: Tensor, reason: str) -> LemmaCheck:
    bad = ~(slack >= -TOLERANCE * scale).numpy()
    steps = np.asarray(steps, dtype=np.int64)
    return LemmaCheck(lemma, True, not bad.any(), reason, steps, slack.numpy(), steps[bad])


def _silent(lemma: int, reason: str) -> LemmaCheck:
    return LemmaCheck(lemma, False, None, reason, np.empty(0, np.int64), np.empty(0, np.float64), np.empty(0, np.int64))
