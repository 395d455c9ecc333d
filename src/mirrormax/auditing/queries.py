"""Which rows of attention are looked at: the [CLS] row, another position, the last token, or all of them."""

from __future__ import annotations

import torch
from torch import Tensor

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
