"""The constants of Appendix B, for one problem, one choice of tokens and one p.

Misprints are corrected where the formulas stand: A' takes the p/(p−1) norm of x zᵀ in both indices, Q_i sums over the
tokens that are no support, and ψ has its p-th power.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._checks import number
from mirrormax.attention import SUPPORT_TOLERANCE, Loss, as_loss, support_tokens
from mirrormax.attention import leads as token_leads
from mirrormax.geometry import Lp, dual_exponent, lp_norm
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import att_svm
from mirrormax.theory.losses import LossCheck, check_loss
from mirrormax.theory.setting import Array, chosen_tokens, exponent, one_problem

# A loss need not have a monotone slope, so its extremes over an interval are looked for on a grid of this size.
SLOPE_POINTS = 257


@dataclass(frozen=True, eq=False, repr=False)
class Constants:
    """Everything the lemmas of Appendix B take from the data; it prints as a table.

    ``R_pi(pi)`` and ``R_mu(mu, lr)`` are methods, since they are functions. The γ gaps are NaN for samples
    without a support token. Where alpha is not locally optimal a gap is not positive, no radius is large
    enough, and R_δ is infinite. So it is, with L̄, for a loss that violates Assumption A; the table then says how.
    """

    p: float
    n: int
    T: int
    d: int
    alpha: npt.NDArray[np.intp]
    W_mm: Array
    support: npt.NDArray[np.bool_]  # 𝒯_i, (n, T)
    others: npt.NDArray[np.bool_]  # 𝒯̄_i, (n, T)
    norm: float  # ‖W_mm‖_p
    delta_prime: float
    delta: float
    A: float
    mu0: float
    gamma_gap: Array  # (n,)
    gamma_bar_gap: Array  # (n,)
    Gamma: float
    L_bar: float
    gradient_bound: float
    loss_min: float
    loss_max: float
    R_delta: float
    loss: LossCheck | None = None  # Assumption A on the margins that attention can give; None if it can give one only

    @property
    def Xi(self) -> float:
        """Ξ = 1/‖W_mm‖_p, the margin of the attention SVM (34)."""
        return 1 / self.norm

    @property
    def locally_optimal(self) -> bool:
        """Whether every support token scores below the chosen one (Definition 3.2)."""
        return bool(np.nanmin(self.gamma_gap) > 0)

    def R_pi(self, pi: float) -> float:
        """R_π = max{R_δ, ‖W_mm‖/min{π, 3δ/2} · log[(½δ max γ̄_gap T² + 6ΓAT²(T+1)) L̄ / (π min γ_gap)]} (Lemma 11).

        The extremes run over all samples with a support token; the paper's 𝓘₁ and 𝓘₃ depend on W.
        """
        pi = number("pi", pi, above=0.0, below=1.0)
        if not self.locally_optimal:
            return math.inf
        tail = 0.5 * self.delta * float(np.nanmax(self.gamma_bar_gap)) * self.T**2
        tail += 6 * self.Gamma * self.A * self.T**2 * (self.T + 1)
        logarithm = math.log(tail * self.L_bar / (pi * float(np.nanmin(self.gamma_gap))))
        return max(self.R_delta, self.norm / min(pi, 1.5 * self.delta) * logarithm)

    def pi_at(self, R: float) -> float:
        """The smallest π in (0, 1) with R_π ≤ R, to nine digits, which is Lemma 11's at the norm R; 1 if none."""
        low, high = math.log(1e-300), 0.0
        if not self.R_pi(1 - 1e-15) <= R:
            return 1.0
        while high - low > 1e-9:
            middle = (low + high) / 2
            low, high = (low, middle) if self.R_pi(math.exp(middle)) <= R else (middle, high)
        return math.exp(high)

    def R_mu(self, mu: float | None = None, lr: float = 0.1) -> float:
        """R_μ = max{R_{π=μ/3}, (3η(L_max − L_min)/μ)^{1/p}} of Lemma 17 for 0 < μ ≤ μ0, by default μ0.

        The second term bounds η(L(0) − L(K)) by the range of the risk, so it is for plain steps of size η.
        """
        mu = number("mu", self.mu0 if mu is None else mu, above=0.0, below=1.0)
        if mu > self.mu0:
            raise ValueError(f"mu must be at most μ0 = {self.mu0:.3e}, where Lemma 17 ends, got {mu!r}; leave it out.")
        descent = 3 * number("lr", lr, above=0.0) * (self.loss_max - self.loss_min) / mu
        return max(self.R_pi(mu / 3), float(descent ** (1 / self.p)))

    def __str__(self) -> str:
        gaps = f"{np.nanmin(self.gamma_gap):.4g} … {np.nanmax(self.gamma_bar_gap):.4g}"
        optimal = "locally optimal" if self.locally_optimal else "NOT locally optimal: R is infinite"
        rows = [
            (f"p = {self.p:g}; n, T, d = {self.n}, {self.T}, {self.d}", f"alpha {optimal}"),
            ("‖W_mm‖_p, Ξ", f"{self.norm:.4g}, {self.Xi:.4g}"),
            ("δ', δ", f"{self.delta_prime:.4g}, {self.delta:.4g}"),
            ("A", f"{self.A:.4g}"),
            ("μ0", f"{self.mu0:.3e}"),
            ("γ_gap … γ̄_gap", gaps),
            ("Γ, L̄", f"{self.Gamma:.4g}, {self.L_bar:.4g}"),
            ("risk between", f"{self.loss_min:.4g} and {self.loss_max:.4g}"),
            ("R_δ", f"{self.R_delta:.4g}"),
            ("R_μ at μ0", f"{self.R_mu():.4g}"),
        ]
        broken = [] if self.loss is None or self.loss.holds else [f"{self.loss}"]
        return "\n".join([*(f"{name:<32}{text}" for name, text in rows), *broken])

    __repr__ = __str__


@gathers_problem("X", "y", "z", "v")
def constants(
    problem: Problem,
    alpha: ArrayLike | Tensor | None = None,
    *,
    p: float | Lp = 2,
    W_mm: ArrayLike | Tensor | None = None,
    loss: str | Loss = "logistic",
    tol: float = SUPPORT_TOLERANCE,
) -> Constants:
    """All constants of Appendix B, for a :class:`~mirrormax.problem.Problem` or its arrays X, y, z, v.

    Args:
        problem: one problem; no batch.
        alpha: the chosen tokens ``(n,)``; those of the problem if not given.
        p: the exponent.
        W_mm: the ℓp-AttSVM solution of alpha at any scale, if known; else it is solved for.
        loss: enters L̄, the bounds of the risk and the bound of its gradient.
        tol: how far above the smallest margin a token still is a support token; see
            :func:`~mirrormax.attention.support_tokens`. δ' cannot come out below tol/2.

    >>> from mirrormax.data import example1
    >>> c = constants(example1(), p=2)
    >>> round(c.norm, 4), c.delta, c.locally_optimal
    (0.0392, 0.25, True)
    """
    problem, p, loss = one_problem(problem), exponent(p), as_loss(loss)
    n, T, d = problem.X.shape
    chosen = chosen_tokens(problem, alpha)
    W, leads = _solution(problem, chosen, p, W_mm)
    norm = float(lp_norm(W, p))
    present = np.ones((n, T), dtype=bool) if problem.mask is None else problem.mask
    support = np.asarray(support_tokens(problem, W, chosen, tol=tol))
    others = present & ~support & (np.arange(T) != chosen[:, None])
    # (7): half of what the tokens that are no support have beyond margin 1; no such token, no bound.
    delta_prime = 0.5 * float(np.min(leads[others] - 1)) if others.any() else math.inf
    delta = min(0.25, delta_prime)
    A = max(1.0, norm * float(_outer_norms(problem, dual_exponent(p))[present].max()))
    # Below (9).
    mu0 = (delta / (8 * A)) ** p / p if p >= 2 else (delta * (p - 1) / (4 * A * d ** (2 / p - 1))) ** 2 / p
    scores = problem.scores()
    # (10): γ_iα − max and − min of γ over the support tokens of sample i, NaN without any.
    of_chosen = np.where(support.any(1), np.take_along_axis(scores, chosen[:, None], 1)[:, 0], np.nan)
    gap = of_chosen - np.where(support, scores, -np.inf).max(1)
    # The range of margins that attention can give sample i. Γ is (11); L̄ is (19) at its largest over all W, as the
    # slopes l'_i depend on W; the bounds of the risk are Lemma 6's, and that of ‖∇L‖_p Lemma 8's: Σ_t s_t |γ_t − Σ sγ|
    # is at most half the range, and weighs the x_t zᵀ.
    low, high = np.where(present, scores, np.inf).min(1), np.where(present, scores, -np.inf).max(1)
    grid = low[:, None] + (high - low)[:, None] * np.linspace(0, 1, SLOPE_POINTS)
    slopes = -loss.derivative(torch.from_numpy(grid)).numpy()
    smallest, largest = slopes.min(), slopes.max(1)
    if (largest <= 0).any():
        raise ValueError(f"loss {loss.name!r} must be decreasing; theory.check_loss says where it is not.")
    Gamma = float((high - low).max())
    # Assumption A is violated where the loss is flat: the lemmas then ask for infinite radii.
    L_bar = float(largest.sum() / smallest) if smallest > 0 else math.inf
    R_delta, least_gap = math.inf, float(np.nanmin(gap))
    if least_gap > 0:  # R_δ = (‖W_mm‖/δ) log[2ΓL̄AT²(T+1) / (min γ_gap (1 − δ/2))] (Lemma 10)
        R_delta = norm / delta * math.log(2 * Gamma * L_bar * A * T**2 * (T + 1) / (least_gap * (1 - delta / 2)))
    tokens = np.where(present, _outer_norms(problem, p), 0.0).max(1)
    return Constants(
        p=p,
        n=n,
        T=T,
        d=d,
        alpha=chosen,
        W_mm=W,
        support=support,
        others=others,
        norm=norm,
        delta_prime=delta_prime,
        delta=delta,
        A=A,
        mu0=float(mu0),
        gamma_gap=gap,
        gamma_bar_gap=of_chosen - np.where(support, scores, np.inf).min(1),
        Gamma=Gamma,
        L_bar=L_bar,
        gradient_bound=float((largest * (high - low) / 2 * tokens).mean()),
        loss_min=float(loss.value(torch.from_numpy(high)).mean()),
        loss_max=float(loss.value(torch.from_numpy(low)).mean()),
        R_delta=R_delta,
        loss=check_loss(loss, low.min(), high.max()) if low.min() < high.max() else None,
    )


def _solution(problem: Problem, alpha: Any, p: float, W_mm: Any) -> tuple[Array, Array]:
    """W_mm with smallest margin 1, and its margins (n, T), +inf where there is none."""
    if W_mm is None:
        W_mm = att_svm(problem, alpha, p=p).W
    W = np.array(W_mm.detach().cpu() if isinstance(W_mm, torch.Tensor) else W_mm, dtype=np.float64)
    leads = np.asarray(token_leads(problem, W, alpha))
    if not leads.min() > 0:
        raise ValueError(f"W_mm has the margin {leads.min():.3g}, which must be positive; pass att_svm's W for alpha.")
    return W / leads.min(), leads / leads.min()


def _outer_norms(problem: Problem, r: float) -> Array:
    """‖x_it z_iᵀ‖_{r,r} = ‖x_it‖_r ‖z_i‖_r, (n, T)."""
    return np.asarray(lp_norm(problem.X, r, dim=-1) * lp_norm(problem.z, r, dim=-1)[:, None])
