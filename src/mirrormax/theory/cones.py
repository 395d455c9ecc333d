"""Cones around a direction (Definition 5), and how wide they are for real runs.

The theorems' cone at the paper's sizes is too thin and too far out for any run to meet it. What a user can use is the
measured one: the largest divergence μ such that, of a stated number of random starts at exactly that divergence and
a stated norm, all runs stay within Lemma 17's ratio of it and end nearer, with the tokens α selected.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax._checks import number
from mirrormax.attention import Loss
from mirrormax.dynamics import SimulationOptions, simulate
from mirrormax.geometry import Lp, Potential, as_potential, bregman, direction, directional_divergence, lp_norm
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import att_svm
from mirrormax.theory.setting import Array, chosen_tokens, exponent, one_problem


@in_kind
def in_cone(W: Tensor, W_mm: Tensor, p: float | Potential, mu: float, R: float = 0.0) -> Tensor:
    """Whether W (..., d, d) lies in C_{p,μ,R}(W_mm): D_ψ(W_mm/‖W_mm‖, W/‖W‖) ≤ μ and ‖W‖ ≥ R (Definition 5).

    (5b) prints ‖W_mm‖ ≥ R, which would say nothing of W; ‖W‖ ≥ R is meant. With R = 0 this is the set
    S_{p,μ}. Zero has no direction and lies in no cone.

    >>> in_cone([[[0.0, 2.0]], [[1.0, 0.0]]], [[0.0, 1.0]], p=2, mu=0.5)
    array([ True, False])
    """
    near = directional_divergence(W_mm, W, p) <= mu
    return near & (as_potential(p).norm(W) >= R)


ANGLE_BISECTIONS = 60


@dataclass(frozen=True, eq=False)
class EmpiricalCone:
    """The bracket [``mu``, ``upper``]: every start at divergence mu stays and converges, some at ``upper`` does not.

    ``mu`` is 0 if no μ of the grid passed, ``upper`` infinite if the largest did. ``tried`` holds the μ looked at and
    ``shares`` the share of starts that stayed and converged at each, both in order of μ. A μ below ``mu`` may fail
    too: the thinner a cone, the larger the norm from which it is not left (the paper's R_μ). All this is a statement
    about these starts; more starts can only make ``mu`` smaller. What they say of all starts is ``confidence``.
    """

    mu: float
    upper: float
    R: float
    p: float
    starts: int
    seed: int
    tried: Array
    shares: Array

    @property
    def confidence(self) -> float:
        """The share of all starts at divergence ``mu`` that stay and converge, at least, with 95 % confidence.

        All N random starts did: were the share c, that would have had the probability c^N, so c ≥ 0.05^(1/N). The
        directions are drawn from one distribution, that of :func:`boundary_starts`; 0 where no μ passed.
        """
        return 0.05 ** (1 / self.starts) if self.mu > 0 else 0.0

    def __str__(self) -> str:
        head = f"p = {self.p:g}, {self.starts} starts of norm {self.R:.4g} (seed {self.seed}): "
        if self.mu == 0:
            return head + f"at no divergence between {self.tried[0]:.3g} and {self.tried[-1]:.3g} do all of them stay."
        top = f"not all from {self.upper:.3g}" if math.isfinite(self.upper) else "the largest tried"
        sure = f"at least {self.confidence:.0%} of all such starts do, with 95 % confidence"
        return head + f"all stay and converge from divergence {self.mu:.3g}, {top}; {sure}."


def boundary_starts(
    W_mm: ArrayLike | Tensor,
    p: float | Lp,
    mu: float,
    R: float = 1.0,
    *,
    starts: int = 16,
    seed: int | tuple[int, ...] = 0,
) -> Array:
    """``starts`` matrices of norm R with D_ψ(W_mm/‖W_mm‖, W/‖W‖) = μ, 0 < μ < 2, in random directions.

    For W_mm of shape (..., d, d) they are (starts, ..., d, d), each around its own W_mm.

    They lie on the arcs cos θ W̄_mm + sin θ G for Gaussian G of norm 1: at θ = 0 the divergence is 0 and at θ = π it
    is 2, so some θ between has any μ. The same seed gives the same G at every μ.
    """
    p, mu = exponent(p), number("mu", mu, above=0.0, below=2.0)
    R, target = number("R", R, above=0.0), direction(np.asarray(W_mm, dtype=np.float64), p)
    noise = np.random.default_rng(seed).standard_normal((starts, *target.shape))
    away = direction(noise, p)

    def at(theta: Array) -> Array:
        angle = theta[..., None, None]
        return np.asarray(direction(np.cos(angle) * target + np.sin(angle) * away, p))

    low = np.zeros(noise.shape[:-2])
    high = np.full_like(low, math.pi)
    for _ in range(ANGLE_BISECTIONS):
        middle = (low + high) / 2
        beyond = bregman(target, at(middle), p) > mu
        low, high = np.where(beyond, low, middle), np.where(beyond, middle, high)
    return R * at(low)


@gathers_problem("X", "y", "z", "v")
def empirical_cone(
    problem: Problem,
    alpha: ArrayLike | Tensor | None = None,
    *,
    p: float | Lp = 2,
    R: float | None = None,
    W_mm: ArrayLike | Tensor | None = None,
    starts: int = 16,
    seed: int = 0,
    bracket: tuple[float, float] = (1e-3, 1.0),
    grid: int = 7,
    refinements: int = 3,
    lr: float = 0.1,
    steps: int | None = None,
    normalize: Literal["tensor", "global", "running"] | None = "tensor",
    loss: str | Loss = "logistic",
    stay: float = 3.0,
    shrink: float = 0.5,
) -> EmpiricalCone:
    """The largest μ from which all starts stay and converge: a coarse grid, then bisection of log μ.

    Args:
        problem: one problem; or its arrays X, y, z, v.
        alpha: the tokens of the cone; those of the problem if not given.
        p: the exponent.
        R: the norm of the starts; ‖W_mm‖ if not given, where the margins are 1 and attention is not yet decided.
        W_mm: the ℓp-AttSVM solution of alpha, if known.
        starts: random directions, the same at every μ.
        seed: of these directions.
        bracket: the smallest and largest μ looked at.
        grid: how many μ at equal ratios over the bracket to look at; bisection starts above the largest that passes.
        refinements: each is two bisections, its three μ run as one batch: log(upper/mu) falls to a quarter.
        lr: step size of the runs.
        steps: their length; if not given 1000, or 2(2R)^{p−1}/lr if that is more: a normalised step adds about lr to
            ‖W‖^{p−1}, and the direction turns little before the norm has doubled.
        normalize: as in :func:`~mirrormax.dynamics.simulate`.
        loss: the same.
        stay: a run stays if its divergence never exceeds ``stay``·μ at a record (Lemma 17 has 3).
        shrink: it converges if it ends at or below ``shrink``·μ with alpha selected.
    """
    problem, p = one_problem(problem), exponent(p)
    chosen = chosen_tokens(problem, alpha)
    W_mm = np.asarray(att_svm(problem, chosen, p=p).W if W_mm is None else W_mm, dtype=np.float64)
    R = float(lp_norm(W_mm, p)) if R is None else number("R", R, above=0.0)
    steps = max(1000, math.ceil(2 * (2 * R) ** (p - 1) / lr)) if steps is None else steps
    options = SimulationOptions(references=W_mm, weights="last")
    low, high = number("bracket[0]", bracket[0], above=0.0), number("bracket[1]", bracket[1], below=2.0)
    if not low < high:
        raise ValueError(f"bracket must rise from a smaller to a larger μ, got {bracket!r}.")
    shares: dict[float, float] = {}

    def look(mus: Array) -> None:
        """The share of runs from each of these μ that stay and converge."""
        W0 = np.stack([boundary_starts(W_mm, p, mu, R, starts=starts, seed=seed) for mu in mus])
        run = simulate(
            problem, W0=W0, p=p, lr=lr, steps=steps, normalize=normalize, loss=loss, record=60, options=options
        )
        D, limits = run.divergence["reference"], mus[:, None]
        good = (stay * limits >= D).all(0) & (D[-1] <= shrink * limits) & (run.alpha == chosen).all(-1)
        shares.update(zip(mus.tolist(), good.mean(-1).tolist(), strict=True))

    look(np.geomspace(low, high, max(int(grid), 2)))
    for _ in range(refinements):
        mu, upper = _bracket(shares)
        if 0 < mu < upper < math.inf:
            look(np.geomspace(mu, upper, 5)[1:-1])
    tried = sorted(shares)
    return EmpiricalCone(*_bracket(shares), R, p, starts, seed, np.array(tried), np.array([shares[m] for m in tried]))


def _bracket(shares: dict[float, float]) -> tuple[float, float]:
    """The largest μ from which all starts stayed, or 0, and the next one that was tried, or infinity."""
    mus = [0.0, *sorted(shares), math.inf]
    last = max((k for k, mu in enumerate(mus) if shares.get(mu) == 1.0), default=0)
    return mus[last], mus[last + 1]
