"""Cones around a direction (Definition 5), and how attention splits over support and other tokens."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.attention import attention_weights
from mirrormax.geometry import Potential, as_potential, directional_divergence
from mirrormax.problem import Problem, gathers_problem
from mirrormax.theory.constants import Constants
from mirrormax.theory.setting import one_problem


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


class AttentionSplit(NamedTuple):
    """Where the attention of each sample goes, (..., n) each; the rest is on the chosen token."""

    support: Any
    others: Any


@gathers_problem("X", "z")
def attention_split(problem: Problem, W: ArrayLike | Tensor, constants: Constants) -> AttentionSplit:
    """S_i(W) = Σ_{t∈𝒯_i} s_it and Q_i(W) = Σ_{t∈𝒯̄_i} s_it (Appendix B.1, which prints 𝒯_i for both)."""
    weights = W if isinstance(W, Tensor) else torch.from_numpy(np.asarray(W, dtype=np.float64))
    s = attention_weights(one_problem(problem).tensors(), weights)
    parts = [(s * torch.from_numpy(chosen)).sum(-1) for chosen in (constants.support, constants.others)]
    return AttentionSplit(*(part if isinstance(W, Tensor) else part.numpy() for part in parts))
