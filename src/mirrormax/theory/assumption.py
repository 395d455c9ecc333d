"""Assumption B of the joint problem: how much label margin is lost by attending to other tokens.

It needs every chosen token to be a label support vector. Where one is not, W can be made to take a little attention off
it alone: with the tokens O_j = {α_j, t} of that sample and {α_i} of the others, R·W of the general attention SVM
(:func:`mirrormax.svm.att_svm` with ``keep``) plus a few logits for α_j leaves the others alone as R grows, while Γ'(W)
stays at Γ. Then Γ − Γ'(W) ≥ ν(1 − s_jα) for no ν > 0. So the multipliers are looked at first, and W is
searched after that.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike
from torch import Tensor

from mirrormax.attention import attend, attention_weights
from mirrormax.geometry import Lp, direction, lp_norm
from mirrormax.problem import Problem, gathers_problem
from mirrormax.svm import att_svm, label_excess, lp_svm
from mirrormax.theory.setting import Array, chosen_tokens, exponent, one_problem

# Γ − Γ' must stand well above the 1e-9 to which either margin is solved for.
SMALLEST_LOSS_OF_ATTENTION = 1e-4
ON_MARGIN = 1e-6  # of Γ: an excess below it is that of a label support vector
FAR = 60.0  # logits by which the other samples select
NEAR = 3.0  # logits by which the sample off the margin does
PARENTS, CHILDREN = 8, 6  # of a round of the search
STEPS = (0.5, 0.2, 0.1, 0.05)  # of the norm: how far a child is from its parent, round by round


@dataclass(frozen=True, eq=False)
class AssumptionB:
    """Γ − Γ'(W) ≥ ν (1 − s_iα) for all i: the smallest ratio found over the W looked at.

    ``nu``            an upper bound on the ν of Assumption B, since only some W were looked at
    ``label_margin``  Γ = 1/‖v_mm‖_p of the chosen tokens; 0 if no readout separates them
    ``holds``         False if a W refutes the assumption, if a chosen token is no label support vector and W can take
                      attention off it alone, or if Γ = 0; True says that none of these W did
    ``off_margin``    the samples whose chosen token is no label support vector
    ``W``             the weights with the smallest ratio, (d, d)
    ``ratios``        (Γ − Γ'(W)) / max_i (1 − s_iα) at each W looked at
    """

    nu: float
    label_margin: float
    holds: bool
    W: Array
    ratios: Array
    seed: int
    off_margin: tuple[int, ...] = ()

    def __str__(self) -> str:
        if self.label_margin == 0:
            return "Assumption B cannot hold: no head separates the chosen tokens (Γ = 0)."
        if not self.holds and self.off_margin:
            which = ", ".join(map(str, self.off_margin))
            return (
                f"Assumption B is refuted: the token chosen in sample {which} is no label support vector, so that "
                f"attention can be taken off it at no loss of label margin (ν ≤ {self.nu:.3g})."
            )
        if not self.holds:
            kept = f"some W keeps the label margin Γ = {self.label_margin:.4g}"
            return f"Assumption B is refuted: {kept} (ν ≤ {self.nu:.3g})."
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

    First the label support vectors: a chosen token that is none refutes the assumption (see above). Then W: any
    ``W (K, d, d)`` given, ``samples`` Gaussian directions with norms spread evenly in the logarithm from 0.1 to 1000
    (seeded), and, if there are any, from the best of these a few rounds of smaller and smaller random steps. W with
    max_i (1 − s_iα) below 1e-4 are left out: there the difference of two solved margins has no digits.
    """
    problem, p = one_problem(problem), exponent(p)
    chosen = chosen_tokens(problem, alpha)
    tokens = np.take_along_axis(problem.X, chosen[:, None, None], 1)[:, 0]
    margin = float(_label_margins(tokens[None], problem, p)[0])
    d = problem.X.shape[-1]
    off, witnesses = _off_margin(problem, chosen, p) if margin > 0 else ((), np.empty((0, d, d)))
    given = np.empty((0, d, d)) if W is None else np.asarray(W, dtype=np.float64).reshape(-1, d, d)
    rng = np.random.default_rng(seed)
    random = np.asarray(direction(rng.standard_normal((samples, d, d)), p))
    tried = np.concatenate([given, witnesses, random * np.logspace(-1, 3, samples)[:, None, None]])
    ratios = _ratios(problem, chosen, tried, margin, p)
    if not np.isfinite(ratios).any():
        raise ValueError("every W given selects alpha to 1e-4; give W that attend elsewhere, or more samples.")
    for step in STEPS if samples else ():
        parents = np.repeat(tried[np.argsort(ratios)[:PARENTS]], CHILDREN, axis=0)
        noise = direction(rng.standard_normal(parents.shape), p)
        size = lp_norm(parents, p)[:, None, None]
        children = np.exp(step * rng.standard_normal((len(parents), 1, 1))) * (parents + step * size * noise)
        tried = np.concatenate([tried, children])
        ratios = np.concatenate([ratios, _ratios(problem, chosen, children, margin, p)])
    nu, W_worst = float(ratios.min()), tried[ratios.argmin()]
    holds = margin > 0 and nu > 0 and not len(witnesses)
    return AssumptionB(nu, margin, holds, W_worst, ratios[np.isfinite(ratios)], seed, off)


def _off_margin(problem: Problem, chosen: Any, p: float) -> tuple[tuple[int, ...], Array]:
    """The samples that are no label support vectors, and for those with a way to it the W that shows what it costs."""
    excess = label_excess(problem.X, problem.y, chosen, p=p)
    off = tuple(int(j) for j in np.flatnonzero(excess > ON_MARGIN))
    T = problem.X.shape[1]
    alone = np.arange(T) == chosen[:, None]
    plain = att_svm(problem, chosen, p=p, throw=False)
    weights = []
    for j in off if plain.optimal else ():
        for t in np.flatnonzero(~alone[j]):
            keep = alone.copy()
            keep[j, t] = True
            shared = att_svm(problem.X, problem.z, chosen, keep=keep, p=p, mask=problem.mask, throw=False)
            if shared.optimal:
                weights.append(FAR * shared.W + NEAR * plain.W)
                break
    return off, np.array(weights).reshape(-1, *problem.X.shape[-1:] * 2)


def _ratios(problem: Problem, chosen: Any, W: Array, margin: float, p: float) -> Array:
    """(Γ − Γ'(W)) / max_i (1 − s_iα) for each W (K, d, d); infinite where attention is on alpha to 1e-4."""
    ratios, s = np.full(len(W), np.inf), attention_weights(problem, W)
    lost = (1 - np.take_along_axis(s, np.broadcast_to(chosen[:, None], (*s.shape[:2], 1)), -1)[..., 0]).max(-1)
    usable = lost >= SMALLEST_LOSS_OF_ATTENTION
    if usable.any():
        ratios[usable] = (margin - _label_margins(attend(problem, W[usable]), problem, p)) / lost[usable]
    return ratios


def _label_margins(points: Array, problem: Problem, p: float) -> Array:
    """1/‖v‖_p for each of (K, n, d) points, 0 where no v separates them."""
    return np.asarray(lp_svm(points, problem.y, p=p, throw=False).margin)
