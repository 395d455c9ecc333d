"""What one update W → W⁺ does, in forms that keep their digits where attention has saturated.

The lemmas compare norms and losses of neighbouring iterates, which agree to the last digit long before the
theory begins: at ‖W‖ ≥ R_δ the risk is constant in float64, and ‖W‖^p is 10¹¹ times the change of it. With
e = ∇ψ(W⁺) − ∇ψ(W) + η∇L(W), zero for an update of ℓp-AttGD, and bars for directions, these are identities:

    ‖W⁺‖^{p−1} − ‖W‖^{p−1} − ⟨−η∇L, W⟩/‖W‖        = ‖W⁺‖^{p−1} D(W̄, W̄⁺) + ⟨e, W⟩/‖W‖
    ⟨−η∇L, W⟩ − (p−1)/p (‖W⁺‖^p − ‖W‖^p) − η(L⁺ − L) = D_{ψ−ηL}(W⁺, W) − ⟨e, W⁺⟩

and their right sides do not cancel. Losses are compared through the change of each attention weight,
s⁺_t − s_t = s_t (expm1 Δ_t − N)/(1 + N) with Δ_t = (x_t − x_α)ᵀ(W⁺ − W) z and N = Σ_t s_t expm1 Δ_t.

A normalised run is ℓp-AttGD with the step size η_k = η/‖∇L(W(k))‖_q, which is what η means below.
"""

from __future__ import annotations

import torch
from torch import Tensor

from mirrormax.attention import Saturated
from mirrormax.geometry import Lp, direction
from mirrormax.problem import masked_logits
from mirrormax.theory.setting import Path

# Of the terms an inequality compares; their rounding is below this by three orders.
TOLERANCE = 1e-9
# Of the update equation's terms: what storing W instead of the dual variable rounds away, for p between 1.1 and 10.
ROUNDING = 256 * torch.finfo(torch.float64).eps
# Below this, l(m + Δ) − l(m) is better had from the slope at the midpoint.
SMALL_CHANGE = 1e-5
# expm1 overflows at 709; a token that gains this much attention in one step has all of it.
LARGEST_GROWTH = 600.0


class Transitions:
    """The updates W → W⁺ of one run between neighbouring records; products with η are those of the update's own step.

    ``steps`` (P,); ``W`` and ``W_next`` (P, d, d); ``step`` η∇L(W), (P, d, d); ``residual`` e, (P, d, d), zero where it
    is rounding; ``loss_change`` η(L(W⁺) − L(W)), (P,); ``lost`` (P,) True where no entry of η∇L shows beside the
    rounding of ∇ψ(W).
    """

    def __init__(self, path: Path) -> None:
        at, self.p, psi = path.pairs, path.p, Lp(path.p)
        self.steps, self.W, self.W_next = path.steps[at], path.W[at], path.W[at + 1]
        state, gradient, log_scale = path.gradient(self.W)
        factor = path.step_factor(gradient, log_scale)
        self.step = gradient * factor[:, None, None]
        before, after = psi.mirror_map(self.W), psi.mirror_map(self.W_next)
        residual = after - before + self.step
        rounding = ROUNDING * (before.abs() + after.abs() + self.step.abs())
        self.residual = torch.where(residual.abs() <= rounding, 0.0, residual)
        self.lost = (self.step.abs() <= rounding).flatten(1).all(-1)
        self.loss_change = _loss_change(path, state, log_scale, self.W_next - self.W) * factor

    @property
    def norm(self) -> Tensor:
        """‖W‖_p, (P,)."""
        return Lp(self.p).norm(self.W)

    def along(self, V: Tensor) -> Tensor:
        """⟨−η∇L(W), V⟩, (P,)."""
        return -(self.step * V).sum((-2, -1))

    def norm_slack(self) -> Tensor:
        """‖W⁺‖^{p−1} − ‖W‖^{p−1} − ⟨−η∇L, W⟩/‖W‖, (P,); NaN at W = 0."""
        psi = Lp(self.p)
        turned = psi.bregman(direction(self.W, psi), direction(self.W_next, psi))
        error = (self.residual * self.W).sum((-2, -1)) / self.norm
        return psi.norm(self.W_next).pow(self.p - 1) * turned + error

    def norm_growth(self) -> Tensor:
        """‖W⁺‖^{p−1} − ‖W‖^{p−1}, (P,)."""
        return self.norm_slack() + self.along(self.W) / self.norm

    def convexity(self) -> Tensor:
        """D_{ψ−ηL}(W⁺, W) = D_ψ(W⁺, W) − η(L⁺ − L) + η⟨∇L, W⁺ − W⟩, (P,): not negative if ψ − ηL is convex."""
        first_order = self.along(self.W_next - self.W)
        return Lp(self.p).bregman(self.W_next, self.W) - self.loss_change - first_order

    def length(self) -> Tensor:
        """The size of the terms in :meth:`convexity`, (P,)."""
        return self.along(self.W_next - self.W).abs() + Lp(self.p).bregman(self.W_next, self.W)

    def too_long(self) -> Tensor:
        """Updates of ℓp-AttGD, (P,), whose step is not small enough for ψ − ηL to be convex between W and W⁺."""
        genuine = (self.residual == 0).flatten(1).all(-1)
        return genuine & ~(self.convexity() >= -TOLERANCE * self.length())


def _loss_change(path: Path, state: Saturated, log_scale: Tensor, change: Tensor) -> Tensor:
    """(L(W + change) − L(W)) / e^log_scale, (P,)."""
    loss = path.loss
    growth = masked_logits(state.offsets, path.data.z, change).clamp(max=LARGEST_GROWTH).expm1()
    s, log_slope = state.log_s.exp(), loss.log_derivative(state.margins)
    total = (s * growth).sum(-1, keepdim=True)
    relative = (growth - total) / (1 + total)  # (s⁺ − s)/s
    delta = (s * relative * state.gains).sum(-1)
    logs = torch.where(state.gains != 0, log_slope.unsqueeze(-1) + state.log_s, -torch.inf)
    scaled = (torch.exp(logs - log_scale[:, None, None]) * relative * state.gains).sum(-1)  # −l' Δm / e^scale
    m, slope = state.margins, loss.derivative(state.margins)
    large = delta.abs() > SMALL_CHANGE
    secant = (loss.value(m + delta) - loss.value(m)) / torch.where(large, delta * slope, 1.0)
    ratio = torch.where(large, secant, (loss.log_derivative(m + delta / 2) - log_slope).exp())
    return -(ratio * scaled).mean(-1)
