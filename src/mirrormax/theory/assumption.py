"""Assumption B of the joint problem: how much label margin is lost by attending to other tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import attend, attention_weights
from mirrormax.geometry import Lp, direction
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import lp_svm
from mirrormax.theory.setting import Array, chosen_tokens, exponent, one_problem

# Γ − Γ' must stand well above the 1e-9 to which either margin is solved for.
SMALLEST_LOSS_OF_ATTENTION = 1e-4


@dataclass(frozen=True, eq=False)
class AssumptionB:
    """Γ − Γ'(W) ≥ ν (1 − s_iα) for all i: the smallest ratio found over the W looked at.

    ``nu``            an upper bound on the ν of Assumption B, since only some W were looked at
    ``label_margin``  Γ = 1/‖v_mm‖_p of the chosen tokens; 0 if no head separates them
    ``holds``         False if a W refutes the assumption, or Γ = 0; True says that none of these W did
    ``W``             the weights with the smallest ratio, (d, d)
    ``ratios``        (Γ − Γ'(W)) / max_i (1 − s_iα) at each W looked at
    """

    nu: float
    label_margin: float
    holds: bool
    W: Array
    ratios: Array
    seed: int

    def __str__(self) -> str:
        if self.label_margin == 0:
            return "Assumption B cannot hold: no head separates the chosen tokens (Γ = 0)."
        if not self.holds:
            found = f"some W keeps the label margin Γ = {self.label_margin:.4g}"
            return f"Assumption B is refuted: {found} (ν ≤ {self.nu:.3g})."
        return (
            f"Assumption B is not refuted by {len(self.ratios)} W: ν ≤ {self.nu:.4g}, with Γ = {self.label_margin:.4g}."
        )


@gathers_problem("X", "y", "z")
def estimate_nu(
    problem: Problem,
    alpha: ArrayLike | Tensor | None = None,
    *,
    p: float | Lp = 2,
    W: ArrayLike | Tensor | None = None,
    samples: int = 500,
    seed: int = 0,
) -> AssumptionB:
    """The ν of Assumption B, from above: min over W of (Γ − Γ'(W)) / max_i (1 − s_iα(W)).

    Γ is the label margin 1/‖v‖_p of the ℓp-SVM on the chosen tokens x_iα, Γ'(W) that on X_iᵀσ(X_i W z_i), zero where
    no head separates these. The inequality must hold for every i, so the largest 1 − s_iα counts.

    W are ``samples`` Gaussian directions with norms spread evenly in the logarithm from 0.1 to 1000 (seeded), and any
    ``W (K, d, d)`` given beside them, such as those of a run. W with max_i (1 − s_iα) below 1e-4 are left out: there
    the difference of two solved margins has no digits.
    """
    problem, p = one_problem(problem), exponent(p)
    chosen, data = chosen_tokens(problem, alpha), problem.tensors()
    candidates = _candidates(problem.X.shape[-1], p, samples, seed)
    if W is not None:
        candidates = np.concatenate([np.asarray(W, dtype=np.float64).reshape(-1, *candidates.shape[1:]), candidates])
    s = attention_weights(data, torch.from_numpy(candidates)).numpy()
    lost = 1 - np.take_along_axis(s, np.broadcast_to(chosen[:, None], (*s.shape[:2], 1)), -1)[..., 0]
    lost = lost.max(-1)
    usable = lost >= SMALLEST_LOSS_OF_ATTENTION
    if not usable.any():
        raise ValueError("every W given selects alpha to 1e-4; give W that attend elsewhere, or more samples.")
    tokens = np.take_along_axis(problem.X, chosen[:, None, None], 1)[:, 0]
    margin = _label_margins(tokens[None], problem, p)[0]
    attended = attend(data, torch.from_numpy(candidates[usable])).numpy()
    ratios = (margin - _label_margins(attended, problem, p)) / lost[usable]
    worst = int(ratios.argmin())
    nu = float(ratios[worst])
    return AssumptionB(nu, float(margin), bool(margin > 0 and nu > 0), candidates[usable][worst], ratios, seed)


def _label_margins(points: Array, problem: Problem, p: float) -> Array:
    """1/‖v‖_p for each of (K, n, d) points, 0 where no v separates them."""
    margins: Array = np.asarray(lp_svm(points, problem.y, p=p, throw=False).margin)
    return margins


def _candidates(d: int, p: float, samples: int, seed: int) -> Array:
    noise = torch.from_numpy(np.random.default_rng(seed).standard_normal((samples, d, d)))
    radii = torch.logspace(-1, 3, samples, dtype=torch.float64)
    result: Array = (direction(noise, Lp(p)) * radii[:, None, None]).numpy()
    return result
