"""Local optimality of chosen tokens (Definition 3.2)."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.attention.model import values
from mirrormax.attention.problem import blank_padding, check_problem, common_type
from mirrormax.attention.relative import relative_to
from mirrormax.attention.tokens import SUPPORT_TOLERANCE, score_rounding, support_tokens


class LocalOptimality(NamedTuple):
    """Whether chosen tokens are locally optimal, and what speaks against it. True or false by itself."""

    optimal: Tensor  # (...)          one answer for each problem of a batch
    violations: Tensor  # (..., n, T)  support tokens that score at least as high as the chosen one

    @property
    def offending(self) -> list[tuple[int, ...]]:
        """The (sample, token) pairs in violation, with the index of the problem before them in a batch."""
        return [tuple(index) for index in torch.as_tensor(self.violations).nonzero().tolist()]

    def __bool__(self) -> bool:
        if self.optimal.ndim:
            raise ValueError(
                f"a batch of shape {tuple(self.optimal.shape)} has one answer a problem; "
                "use .optimal, or .optimal.all() for all of them."
            )
        return bool(self.optimal)


@in_kind
def is_locally_optimal(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor,
    alpha: Tensor,
    W: Tensor | None = None,
    *,
    support: Tensor | None = None,
    tol: float = SUPPORT_TOLERANCE,
    mask: Tensor | None = None,
) -> LocalOptimality:
    """Whether γ_iα > γ_iτ for every sample i and each of its support tokens τ (Definition 3.2).

    The support tokens are those of ``W``, the attention SVM solution of ``alpha`` (scaled as you like;
    see :func:`support_tokens` for ``tol``), or given as a boolean ``support`` (..., n, T). Scores that
    rounding cannot tell apart are equal, and equal is not greater.

    >>> X, y, z = [[[5.0, 0.0], [0.0, 1.0]]], [1], [[5.0, 0.0]]
    >>> result = is_locally_optimal(X, y, z, v=[0.0, 1.0], alpha=[0], W=[[25.0, 0.0], [-5.0, 0.0]])
    >>> bool(result), result.offending
    (False, [(0, 1)])
    """
    check_problem(X, y=y, z=z, v=v, alpha=alpha, W=W, support=support, mask=mask)
    if W is not None and support is None:
        near = support_tokens(X, z, alpha, W, tol, mask)
    elif support is not None and W is None:
        near = support
    else:
        given = "neither" if W is None else "both"
        raise ValueError(f"is_locally_optimal needs either W or support, got {given}; pass one of them.")
    X, y, v = common_type(blank_padding(X, mask), y, v)
    _, offsets, others = relative_to(X, alpha, mask)
    as_good = y.unsqueeze(-1) * values(offsets, v) >= -score_rounding(X, v)
    violations = near & others & as_good
    return LocalOptimality(~violations.any(-1).any(-1), violations)
