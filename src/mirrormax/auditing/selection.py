"""Which rows of attention are looked at, and what the heads of a layer select there.

A row is the attention of one query: that of [CLS], of another position, of the last token, or of every token.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from mirrormax.auditing.layers import AttentionLayer
from mirrormax.auditing.passes import View, attention_of

Query = int | str
NAMED = {"first": "the first token, usually [CLS]", "last": "the last token that is there", "all": "every token"}


def check_query(query: Query) -> Query:
    """``query`` as given, refused if it names nothing."""
    if isinstance(query, bool) or not isinstance(query, int | str):
        raise TypeError(f"query must be a position or one of {', '.join(NAMED)}, got {query!r}.")
    if (isinstance(query, str) and query not in NAMED) or (isinstance(query, int) and query < 0):
        raise ValueError(f"query must be a position from 0 on or one of {', '.join(NAMED)}, got {query!r}.")
    return query


def query_positions(mask: Tensor, query: Query) -> tuple[Tensor, Tensor]:
    """Positions (B, R) of the queries in question and whether each is there, for a mask (B, Q, T).

    A token is there if some query may look at it; where queries and keys are different tokens, all are.
    """
    B, Q, T = mask.shape
    there = mask.any(-1) & (mask.any(1) if Q == T else True)
    every = torch.arange(Q, device=mask.device).expand(B, Q)
    if query == "all":
        return every, there
    if query == "last":
        positions = torch.where(there, every, -1).amax(-1, keepdim=True).clamp(min=0)
    else:
        k = 0 if query == "first" else int(query)
        if k >= Q:
            return every[:, :1], torch.zeros_like(there[:, :1])
        positions = every[:, k : k + 1]
    return positions, there.gather(1, positions)


@dataclass(frozen=True, eq=False)
class Selection:
    """Rows of attention, one for each of N queries and each of H heads."""

    logits: Tensor  # (N, H, T) float64, −inf where the query may not look
    attention: Tensor  # (N, H, T)
    alpha: Tensor  # (N, H)     the selected token, argmax of the logits, the first of several
    mass: Tensor  # (N, H)      attention on it
    entropy: Tensor  # (N, H)   −Σ s log s / log(number of tokens), 0 decided … 1 uniform; NaN with one token
    lead: Tensor  # (N, H)      logit of alpha minus the next best; +inf with one token
    last: Tensor  # (N,)        the last token that the query may look at
    query: Tensor  # (N,)       the query's own position
    sequence: Tensor  # (N,)    its place in the batch


def select(layer: AttentionLayer, view: View, positions: Tensor, there: Tensor) -> Selection:
    """The rows of queries at ``positions`` (B, R), those that are ``there``."""
    batch = torch.arange(len(positions), device=positions.device).unsqueeze(1).expand_as(positions)
    z = view.z[batch, positions]
    mask = view.mask[batch, positions]
    logits = layer.logits(view.x, z).masked_fill(~mask.unsqueeze(1), -torch.inf)
    attention = attention_of(logits, mask)

    def rows(values: Tensor) -> Tensor:
        return values.transpose(1, 2)[there]

    logits, attention, mask = rows(logits), rows(attention), mask[there]
    best = logits.topk(min(2, logits.shape[-1]), -1)
    alpha = (logits == best.values[..., :1]).double().argmax(-1)
    next_best = best.values[..., 1] if best.values.shape[-1] > 1 else torch.full_like(best.values[..., 0], -torch.inf)
    count = mask.sum(-1)
    entropy = torch.special.entr(attention).sum(-1) / count.double().log().unsqueeze(-1)
    order = torch.arange(mask.shape[-1], device=mask.device)
    return Selection(
        logits=logits,
        attention=attention,
        alpha=alpha,
        mass=attention.gather(-1, alpha.unsqueeze(-1)).squeeze(-1),
        entropy=torch.where(count.unsqueeze(-1) > 1, entropy.clamp(0, 1), torch.nan),
        lead=best.values[..., 0] - next_best,
        last=torch.where(mask, order, -1).amax(-1),
        query=positions[there],
        sequence=batch[there],
    )
