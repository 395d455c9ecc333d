"""Token scores by the model's own head, and whether a head's selection is locally optimal by them.

The paper scores a token by γ_t = y vᵀx_t, where v is the linear head behind the attention. Behind a head of a deep
model stands everything after it; to first order that is linear as well. With G the gradient of the model's log-odds
for a class at the layer's output (the query's row),

    γ_t = Gᵀ W_O W_V x_t,

how much the log-odds would rise per unit of attention moved to token t. The log-odds of class c are
logit_c − log Σ_{k≠c} exp(logit_k): shifting all logits does not change them, and for two classes they are the paper's
y · f. A model with a single output is scored by that output.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from mirrormax.auditing.adapters.base import Adapter

Array = npt.NDArray[np.float64]
Bools = npt.NDArray[np.bool_]


def log_odds(logits: Tensor, labels: Tensor | None) -> Tensor:
    """Of each row's label, or of the class it predicts: logits (B, classes) to (B,)."""
    if logits.ndim != 2:
        raise ValueError(f"the head must give logits (batch, classes), got shape {tuple(logits.shape)}.")
    if logits.shape[1] == 1:
        return logits[:, 0]
    chosen = logits.argmax(-1) if labels is None else labels.to(logits.device).long()
    one = torch.nn.functional.one_hot(chosen, logits.shape[1]).bool()
    return logits[one] - logits.masked_fill(one, -torch.inf).logsumexp(-1)


class LocalOptimality(NamedTuple):
    """Definition 3.2 on a sample: every support token must score below the selected one."""

    optimal: bool
    in_order: float | None  # share of support tokens that do; None without any
    best_token: float  # share of rows whose selected token scores highest of those kept


def local_optimality(gamma: Array, mask: Bools, support: Bools) -> LocalOptimality:
    """Of rows whose first token is the selected one: gamma, mask and support (n, K + 1)."""
    lower = gamma < gamma[:, :1]
    pairs = lower[support]
    rivals = mask.copy()
    rivals[:, 0] = False
    return LocalOptimality(
        optimal=bool(pairs.all()),
        in_order=float(pairs.mean()) if pairs.size else None,
        best_token=float((lower | ~rivals).all(1).mean()),
    )


def scorer(
    adapter: Adapter, head: Callable[[Any], Tensor] | None, labels: Tensor | None
) -> Callable[[Any], Tensor | None]:
    """From a model's output to log-odds (B,), or None where it has no head."""

    def score(output: Any) -> Tensor | None:
        logits = adapter.logits(output) if head is None else head(output)
        return None if logits is None else log_odds(logits, labels)

    return score
