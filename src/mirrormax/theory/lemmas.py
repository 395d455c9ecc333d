"""Lemmas 9, 12, 13, 14, 16 and 17 as checks on a recorded run.

Each check says whether the lemma's hypothesis is met (``applies``), and if so whether its inequality holds at
every record it speaks of. At the paper's own sizes the cones of Lemmas 9, 16 and 17 are so thin, and begin so far
out, that no published run enters them: then the check says that the theory says nothing, and holds is None.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.attention import leads as token_leads
from mirrormax.dynamics import Trajectory
from mirrormax.geometry import Lp, direction, directional_divergence
from mirrormax.problem import Problem, gathers_problem
from mirrormax.theory.constants import Constants
from mirrormax.theory.setting import Path, one_problem, read_run
from mirrormax.theory.transitions import Transitions, transitions

# Of the terms an inequality compares; their rounding is below this by three orders.
TOLERANCE = 1e-9

NO_CONE = "it needs a small step, which step_size_ok checks, and no cone"
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
    """(p−1)/p (‖W(k+1)‖^p − ‖W(k)‖^p) + η(L(W(k+1)) − L(W(k))) ≤ ⟨−η∇L(W(k)), W(k)⟩ (24).

    The margin is D_{ψ−ηL}(W(k+1), W(k)): a violation means that the step is not small enough for ψ − ηL to be
    convex (Remark 1, :func:`step_size_ok`), or that the run is not one of ℓp-AttGD.
    """
    path, moves = _moves(problem, run)
    if moves is None:
        return _silent(13, NEIGHBOURS)
    slack = moves.convexity() - (moves.residual * moves.W_next).sum((-2, -1))
    return _judge(13, path.steps[path.pairs()], slack, moves.length(), NO_CONE + _lost(moves))


@gathers_problem("X", "y", "z", "v")
def check_lemma_14(problem: Problem, run: Trajectory) -> LemmaCheck:
    """The risk falls: L(W(k+1)) ≤ L(W(k)), if the step is small enough. Margins are η(L(W(k)) − L(W(k+1)))."""
    path, moves = _moves(problem, run)
    if moves is None:
        return _silent(14, NEIGHBOURS)
    return _judge(14, path.steps[path.pairs()], -moves.loss_change, moves.length(), NO_CONE + _lost(moves))


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
def check_lemmas(problem: Problem, run: Trajectory, constants: Constants) -> list[LemmaCheck]:
    """All six checks, with their default π and μ. ``print(*check_lemmas(...), sep='\\n')`` reads as a report."""
    return [
        check_lemma_9(problem, run, constants),
        check_lemma_12(problem, run),
        check_lemma_13(problem, run),
        check_lemma_14(problem, run),
        check_lemma_16(problem, run, constants),
        check_lemma_17(problem, run, constants),
    ]


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
