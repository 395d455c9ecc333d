"""The bounds in the proof of Theorem 5, the joint regularisation path: (34) to (37), and from which R they separate.

With Ξ = 1/‖W_mm‖_p and Γ = 1/‖v_mm‖_p the proof compares the path with (W̄, v̄) = (R Ξ W_mm, r Γ v_mm). Two things are
otherwise than printed. M is the diameter of a sample's tokens in ℓq, q = p/(p−1): |v_mmᵀ(r̄_i − x_iα)| is at most
‖v_mm‖_p ‖r̄_i − x_iα‖_q by Hölder's inequality, and the printed ℓp norm is too small for p > 2. And the factor 1/2n,
which the text ignores "for simplicity", is in :meth:`JointBounds.readout_radius`: it asks for an r that grows with R
like e^{(1−γ)ΞR}.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._checks import number
from mirrormax.geometry import Lp, dual_exponent, lp_norm
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import att_svm, lp_svm
from mirrormax.theory.setting import Array, chosen_tokens, exponent, one_problem


@dataclass(frozen=True, eq=False)
class JointBounds:
    """What the proof of Theorem 5 takes from the data, and its bounds as functions of the radii.

    ``Xi``         Ξ = 1/‖W_mm‖_p, the margin of the attention SVM (34)
    ``Gamma``      Γ = 1/‖v_mm‖_p, the label margin of the chosen tokens (34)
    ``M``          max over i, t, τ of ‖x_it − x_iτ‖_q
    ``M_printed``  the same in ℓp, as the paper prints it
    """

    p: float
    n: int
    T: int
    Xi: float
    Gamma: float
    M: float
    M_printed: float
    W_mm: Array
    v_mm: Array

    def W_bar(self, R: float) -> Array:
        """W̄ = R Ξ W_mm, of norm R (34)."""
        return number("R", R, above=0) * self.Xi * self.W_mm

    def v_bar(self, r: float) -> Array:
        """v̄ = r Γ v_mm, of norm r (34)."""
        return number("r", r, above=0) * self.Gamma * self.v_mm

    def nonoptimality(self, R: float) -> tuple[float, float]:
        """T⁻¹e^{−ΞR} ≤ max_i (1 − s_iα(W̄)) ≤ T e^{−ΞR} (35a, 35c, 36)."""
        decay = math.exp(-self.Xi * number("R", R, above=0))
        return decay / self.T, self.T * decay

    def nonoptimality_elsewhere(self, R: float, gamma: float) -> float:
        """max_i (1 − s_iα(W)) ≥ T⁻¹e^{−(1−γ)ΞR} for every W of norm R whose margin is at most Ξ(1 − γ)R (35b)."""
        return math.exp(-(1 - number("gamma", gamma, above=0, below=1)) * self.Xi * number("R", R, above=0)) / self.T

    def perturbation(self, R: float) -> float:
        """max_i ‖X_iᵀσ(X_i W̄ z_i) − x_iα‖_q ≤ M T e^{−ΞR}."""
        return self.M * self.nonoptimality(R)[1]

    def log_risk_bound(self, R: float, r: float) -> float:
        """log L(v̄, W̄) ≤ −rΓ + r M T e^{−ΞR} (37)."""
        return number("r", r, above=0) * (self.perturbation(R) - self.Gamma)

    def log_risk_elsewhere(self, R: float, r: float, nu: float, gamma: float) -> float:
        """log L(v, W) ≥ min{r(ν/T)e^{−(1−γ)ΞR} − rΓ − log 2n, log log 2} for those W, under Assumption B with ν."""
        lost = number("nu", nu, above=0) * self.nonoptimality_elsewhere(R, gamma)
        return min(number("r", r, above=0) * (lost - self.Gamma) - math.log(2 * self.n), math.log(math.log(2)))

    def threshold(self, nu: float, gamma: float) -> float:
        """R from which (ν/T)e^{−(1−γ)ΞR} ≥ M T e^{−ΞR}: log(MT²/ν)/(γΞ), or 0."""
        nu, gamma = number("nu", nu, above=0), number("gamma", gamma, above=0, below=1)
        return max(0.0, math.log(self.M * self.T**2 / nu) / (gamma * self.Xi)) if self.M > 0 else 0.0

    def readout_radius(self, R: float, nu: float, gamma: float) -> float:
        """r beyond which the lower bound is above (37), the factor 1/2n counted: log 2n over the difference of the two
        exponents' rates; infinite up to the threshold of R."""
        gain = number("nu", nu, above=0) * self.nonoptimality_elsewhere(R, gamma) - self.perturbation(R)
        return math.log(2 * self.n) / gain if gain > 0 else math.inf


@gathers_problem("X", "y", "z")
def joint_bounds(problem: Problem, alpha: ArrayLike | Tensor | None = None, *, p: float | Lp = 2) -> JointBounds:
    """The quantities of the proof of Theorem 5 for a problem and its chosen tokens.

    InfeasibleError where no W separates the tokens, or no readout the samples.

    >>> from mirrormax.data import example2
    >>> bounds = joint_bounds(example2(), [1, 0], p=2)
    >>> bounds.threshold(nu=0.1, gamma=0.5) > 0
    True
    """
    problem, p = one_problem(problem), exponent(p)
    chosen = chosen_tokens(problem, alpha)
    tokens = np.take_along_axis(problem.X, chosen[:, None, None], 1)[:, 0]
    attention, readout = att_svm(problem, chosen, p=p), lp_svm(tokens, problem.y, p=p)
    n, T, _ = problem.X.shape
    return JointBounds(
        p=p,
        n=n,
        T=T,
        Xi=float(attention.margin),
        Gamma=float(readout.margin),
        M=_diameter(problem, dual_exponent(p)),
        M_printed=_diameter(problem, p),
        W_mm=np.asarray(attention.W),
        v_mm=np.asarray(readout.v),
    )


def _diameter(problem: Problem, r: float) -> float:
    """max over i, t, τ of ‖x_it − x_iτ‖_r, over the tokens that are there."""
    sizes = lp_norm(problem.X[:, :, None] - problem.X[:, None], r, dim=-1)
    if problem.mask is not None:
        sizes = np.where(problem.mask[:, :, None] & problem.mask[:, None], sizes, 0.0)
    return float(sizes.max())
