"""Which tokens are good, which attention selects, which stand nearest, and which are locally optimal
(Definitions 2 and 3).

Shapes are those of :mod:`mirrormax.attention.model`; indices and masks run over (..., n, T).
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from mirrormax._arrays import in_kind
from mirrormax.attention.classes import labelled, optimal_attention
from mirrormax.attention.model import logits
from mirrormax.problem import (
    blank_padding,
    check,
    check_classes,
    common_type,
    first_true,
    highest_scores,
    masked_logits,
    relative_to,
    sample_name,
    takes_problem,
)
from mirrormax.problem import token_scores as checked_scores

SUPPORT_TOLERANCE = 1e-4
"""A solver that reaches a relative gap of 1e-9 has weights, and so leads, good to about its root up to p = 2; beyond,
:func:`mirrormax.svm.att_svm` follows the multipliers further, and warns where leads are known less well."""


class OptimalTokens(NamedTuple):
    """The best token of every sequence, and the others that score as well."""

    alpha: Tensor  # (..., n)     the first token of the highest score
    ties: Tensor  # (..., n, T)   True at every other token of that score


class LocalOptimality(NamedTuple):
    """Whether chosen tokens are locally optimal, and what speaks against it. True or false by itself."""

    optimal: Tensor  # (...)            one answer for each problem of a batch
    violations: Tensor  # (..., n, T)   support tokens that score as high as the chosen ones, or kept without use

    @property
    def offending(self) -> list[tuple[int, ...]]:
        """The (sample, token) pairs in violation, with the index of the problem before them in a batch."""
        return [tuple(index) for index in torch.as_tensor(self.violations).nonzero().tolist()]

    def __bool__(self) -> bool:
        if self.optimal.ndim:
            raise ValueError(
                f"a batch of shape {tuple(self.optimal.shape)} has one answer per problem; "
                "use .optimal, or .optimal.all() for all of them."
            )
        return bool(self.optimal)


@takes_problem
@in_kind
def token_scores(X: Tensor, y: Tensor, v: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """γ_it = y_i vᵀx_it, of shape (..., n, T); −inf where the mask leaves a token out (Definition 2)."""
    check(X, y=y, v=v, mask=mask)
    return checked_scores(X, y, v, mask)


@takes_problem
@in_kind
def optimal_tokens(X: Tensor, y: Tensor, v: Tensor, *, mask: Tensor | None = None) -> OptimalTokens:
    """The globally optimal tokens argmax_t γ_it, the first of several, and the ties (Definition 3.1).

    Scores tie when rounding cannot tell them apart: when they differ by less than 4 d ε max_t Σ_j |v_j x_tj|.

    >>> optimal_tokens(X=[[[1.0, 0.0], [3.0, 1.0], [3.0, 2.0]]], y=[1], v=[1.0, 0.0])
    OptimalTokens(alpha=array([1]), ties=array([[False, False,  True]]))
    """
    check(X, y=y, v=v, mask=mask)
    best = highest_scores(X, y, v, mask)
    alpha = first_true(best)
    return OptimalTokens(alpha, best.scatter(-1, alpha.unsqueeze(-1), False))


@takes_problem
@in_kind
def selected_tokens(X: Tensor, z: Tensor, W: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """argmax_t of the logits X_i W z_i, of shape (..., n): what attention selects; the first of several."""
    h = logits(X, z, W=W, mask=mask)
    return first_true(h == h.amax(-1, keepdim=True))


@takes_problem
@in_kind
def leads(X: Tensor, z: Tensor, W: Tensor, alpha: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """(x_iα − x_it)ᵀ W z_i, of shape (..., n, T): by how much the chosen token leads each other one.

    +inf at the chosen token and at padding, so that the minimum, for W of norm one, is its margin.
    """
    check(X, z=z, W=W, alpha=alpha, mask=mask)
    X, z, W = common_type(blank_padding(X, mask), z, W)
    _, offsets, others = relative_to(X, alpha, mask)
    return masked_logits(-offsets, z, W).masked_fill(~others, torch.inf)


@takes_problem
@in_kind
def support_tokens(
    X: Tensor,
    z: Tensor,
    W: Tensor,
    alpha: Tensor,
    *,
    tol: float = SUPPORT_TOLERANCE,
    mask: Tensor | None = None,
) -> Tensor:
    """The tokens nearest to being selected, (x_iα − x_it)ᵀ W z_i = 1 within ``tol``: boolean (..., n, T).

    W is scaled to smallest lead 1 first, so any W that separates alpha will do; those of Definition
    3.2 are the support tokens of the ℓp-AttSVM solution. Never True at alpha or at padding.

    They are as right as W is: at p > 2 weights of a relative gap ε may be ε^{1/p} from the solution. Those of
    :func:`mirrormax.svm.att_svm` are right to ``tol`` but where its ``doubt`` is True.
    """
    if not 0 <= tol < torch.inf:
        raise ValueError(f"tol must be a finite number of at least 0, got {tol!r}; try {SUPPORT_TOLERANCE:g}.")
    nearest = leads(X, z, W=W, alpha=alpha, mask=mask)
    smallest = nearest.amin((-2, -1), keepdim=True)
    failing = (nearest == smallest) & (smallest <= 0)
    if failing.any():
        index = tuple(failing.nonzero()[0].tolist())
        raise ValueError(
            f"W does not separate alpha: token {index[-1]} of {sample_name(index[:-1])} has the lead "
            f"{nearest[index].item():.3g}, which must be positive; pass the attention SVM solution of this alpha."
        )
    return (nearest <= smallest * (1 + tol)) & (nearest < torch.inf)


@takes_problem
@in_kind
def is_locally_optimal(
    X: Tensor,
    y: Tensor,
    z: Tensor,
    v: Tensor | None = None,
    W: Tensor | None = None,
    alpha: Tensor | None = None,
    *,
    V: Tensor | None = None,
    keep: Tensor | None = None,
    offset: Tensor | None = None,
    support: Tensor | None = None,
    tol: float = SUPPORT_TOLERANCE,
    mask: Tensor | None = None,
) -> LocalOptimality:
    """Whether γ_iα > γ_iτ for every sample i and each of its support tokens τ (Definition 3.2).

    The support tokens are those of ``W``, the attention SVM solution of ``alpha`` (scaled as you like;
    see :func:`support_tokens` for ``tol``), or given as a boolean ``support`` (..., n, T). Scores that
    rounding cannot tell apart are equal, and equal is not greater.

    Several classes: ``V`` (..., C, d) takes the place of v, y is in 0, …, C − 1, and ``keep`` (..., n, T) may take that
    of alpha: the tokens O_i that share the attention of a sample, W then being that of ``att_svm(keep=)``. Locally
    optimal means that (a) the best attention on O_i has a part for each of them, s* > 0, and (b) every support token
    outside has an effective score (:func:`effective_scores`, at f = V X_iᵀs*) below theirs. ``offset`` (..., n, C) is
    what other heads add to the outputs.

    >>> X, y, z = [[[5.0, 0.0], [0.0, 1.0]]], [1], [[5.0, 0.0]]
    >>> result = is_locally_optimal(X, y, z, v=[0.0, 1.0], W=[[25.0, 0.0], [-5.0, 0.0]], alpha=[0])
    >>> bool(result), result.offending
    (False, [(0, 1)])
    """
    _one_of(("v for labels ±1", v), ("V for several classes", V))
    if V is None and (keep is not None or offset is not None):
        raise ValueError(
            "keep and offset are for several classes, with V; with two one token is always best, give alpha."
        )
    _one_of(("alpha, the chosen token of every sample", alpha), ("keep, several of them", keep))
    _one_of(("W", W), ("support", support))
    given: dict[str, Any] = {"y": y, "z": z, "W": W, "alpha": alpha, "keep": keep, "support": support, "mask": mask}
    if V is None:
        assert v is not None
        readout = v
        check(X, v=v, **given)
    else:
        readout = V
        check_classes(X, V=V, offset=offset, **given)
    X, _, readout = common_type(blank_padding(X, mask), y, readout)
    places = torch.arange(X.shape[-2], device=X.device)
    if keep is None:
        assert alpha is not None
        keep = places == alpha.unsqueeze(-1)
    keep = keep if mask is None else keep & mask
    if not keep.any(-1).all():
        raise ValueError(
            f"keep leaves {sample_name(tuple((~keep.any(-1)).nonzero()[0].tolist()))} without a token that is present; "
            "keep at least one."
        )
    reference = first_true(keep)
    if support is None:
        assert W is not None
        rivals = ~keep | (places == reference.unsqueeze(-1))
        support = support_tokens(X, z, W=W, alpha=reference, tol=tol, mask=rivals if mask is None else rivals & mask)
    eps, X, readout = torch.finfo(X.dtype).eps, X.double(), readout.double()
    if V is None:
        direction, face, doubt = y.unsqueeze(-1) * readout.unsqueeze(-2), keep, torch.zeros(())
    else:
        best = optimal_attention(X, y, readout, offset=offset, mask=keep)
        outputs = (best.s.unsqueeze(-2) @ X).squeeze(-2) @ readout.mT
        direction = labelled(outputs if offset is None else outputs + offset, y).pull @ readout
        reference, face = best.s.argmax(-1), best.face
        doubt = torch.where(best.single, 0.0, best.gap.sqrt()).unsqueeze(-1)
    _, offsets, others = relative_to(X, reference, mask)
    ahead = (offsets @ direction.unsqueeze(-1)).squeeze(-1)  # of the kept tokens, which have one score
    rounding = 4 * X.shape[-1] * eps * (X.abs() @ direction.abs().unsqueeze(-1)).amax(-2) + doubt
    violations = (keep & ~face) | (support & others & ~keep & (ahead >= -rounding))
    return LocalOptimality(~violations.any(-1).any(-1), violations)


def _one_of(*arguments: tuple[str, Tensor | None]) -> None:
    """Refuse neither and both of two arguments."""
    given = [value is not None for _, value in arguments]
    if sum(given) != 1:
        names, count = ", or ".join(name for name, _ in arguments), "both" if all(given) else "neither"
        raise ValueError(f"is_locally_optimal needs {names}, got {count}; pass one of them.")
