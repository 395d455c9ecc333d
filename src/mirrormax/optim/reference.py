"""The paper's update in its plainest form: slow, float64, and what every fast path must equal."""

from __future__ import annotations

import torch
from torch import Tensor


def reference_step(w: Tensor, g: Tensor, lr: float, p: float) -> Tensor:
    """One ℓp-AttGD step: raise the entries to the power p−1, subtract ηg, raise back to 1/(p−1)."""
    w, g = w.to(torch.float64), g.to(torch.float64)
    return power(power(w, p - 1) - lr * g, 1 / (p - 1))


def power(x: Tensor, exponent: float) -> Tensor:
    return x.sign() * x.abs() ** exponent


def reference_dual_norm(g: Tensor, p: float) -> float:
    """‖g‖_q, q = p/(p−1), by which the normalised step divides g (plus 2.2e-16)."""
    q = p / (p - 1)
    return float((g.to(torch.float64).abs() ** q).sum() ** (1 / q))
