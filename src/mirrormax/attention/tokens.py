"""Which tokens are good, which attention selects, and which stand nearest (Definitions 2 and 3).

Shapes are those of :mod:`mirrormax.attention.model`; indices and masks run over (..., n, T).
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.attention.model import logits, masked_logits, values
from mirrormax.attention.problem import blank_padding, check_problem, common_type, sample_name
from mirrormax.attention.relative import relative_to

SUPPORT_TOLERANCE = 1e-4
"""A solver that reaches a relative gap of 1e-9 has weights, and so margins, good to about its root."""


class OptimalTokens(NamedTuple):
    """The best token of every sequence, and the others that score as well."""

    alpha: Tensor  # (..., n)     the first token of the highest score
    ties: Tensor  # (..., n, T)   True at every other token of that score


@in_kind
def token_scores(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None = None) -> Tensor:
    """γ_it = y_i vᵀx_it, of shape (..., n, T); −inf where the mask leaves a token out (Definition 2)."""
    check_problem(X, y=y, v=v, mask=mask)
    X, y, v = common_type(X, y, v)
    scores = y.unsqueeze(-1) * values(blank_padding(X, mask), v)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


@in_kind
def optimal_tokens(X: Tensor, y: Tensor, v: Tensor, mask: Tensor | None = None) -> OptimalTokens:
    """The globally optimal tokens argmax_t γ_it, the first of several, and the ties (Definition 3.1).

    Scores tie when rounding cannot tell them apart: see :func:`score_rounding`.

    >>> optimal_tokens(X=[[[1.0, 0.0], [3.0, 1.0], [3.0, 2.0]]], y=[1], v=[1.0, 0.0])
    OptimalTokens(alpha=array([1]), ties=array([[False, False,  True]]))
    """
    scores = token_scores(X, y, v, mask)
    rounding = score_rounding(blank_padding(X, mask).to(scores.dtype), v.to(scores.dtype))
    best = scores >= scores.amax(-1, keepdim=True) - rounding
    alpha = _first_true(best)
    return OptimalTokens(alpha, best.scatter(-1, alpha.unsqueeze(-1), False))


@in_kind
def selected_tokens(X: Tensor, W: Tensor, z: Tensor, mask: Tensor | None = None) -> Tensor:
    """argmax_t of the logits X_i W z_i, of shape (..., n): what attention selects; the first of several."""
    h = logits(X, W, z, mask)
    return _first_true(h == h.amax(-1, keepdim=True))


@in_kind
def margins(X: Tensor, z: Tensor, alpha: Tensor, W: Tensor, mask: Tensor | None = None) -> Tensor:
    """(x_iα − x_it)ᵀ W z_i, of shape (..., n, T): by how much the chosen token leads each other one.

    +inf at the chosen token and at padding, so that the minimum is the margin of the problem.
    """
    check_problem(X, z=z, alpha=alpha, W=W, mask=mask)
    X, z, W = common_type(blank_padding(X, mask), z, W)
    _, offsets, others = relative_to(X, alpha, mask)
    return masked_logits(-offsets, W, z).masked_fill(~others, torch.inf)


@in_kind
def support_tokens(
    X: Tensor,
    z: Tensor,
    alpha: Tensor,
    W: Tensor,
    tol: float = SUPPORT_TOLERANCE,
    mask: Tensor | None = None,
) -> Tensor:
    """The tokens nearest to being selected, (x_iα − x_it)ᵀ W z_i = 1 within ``tol``: boolean (..., n, T).

    W is scaled to minimum margin 1 first, so any W that separates alpha will do; those of Definition
    3.2 are the support tokens of the ℓp-AttSVM solution. Never True at alpha or at padding.
    """
    if not 0 <= tol < torch.inf:
        raise ValueError(f"tol must be a finite number of at least 0, got {tol!r}; try {SUPPORT_TOLERANCE:g}.")
    leads = margins(X, z, alpha, W, mask)
    smallest = leads.amin((-2, -1), keepdim=True)
    _require_separation(leads, smallest)
    return (leads <= smallest * (1 + tol)) & (leads < torch.inf)


def score_rounding(X: Tensor, v: Tensor) -> Tensor:
    """4 d ε max_t Σ_j |v_j x_tj|, of shape (..., n, 1): scores that differ by less are called equal."""
    return 4 * X.shape[-1] * torch.finfo(X.dtype).eps * values(X.abs(), v.abs()).amax(-1, keepdim=True)


def _require_separation(leads: Tensor, smallest: Tensor) -> None:
    failing = (leads == smallest) & (smallest <= 0)
    if failing.any():
        index = tuple(failing.nonzero()[0].tolist())
        raise ValueError(
            f"W does not separate alpha: token {index[-1]} of {sample_name(index[:-1])} has the margin "
            f"{leads[index].item():.3g}, which must be positive; pass the attention SVM solution of this alpha."
        )


def _first_true(flags: Tensor) -> Tensor:
    """The index of the first True along the last dimension (argmax may return any of several)."""
    T = flags.shape[-1]
    return torch.where(flags, torch.arange(T, device=flags.device), T).amin(-1)
