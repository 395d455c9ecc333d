"""Which units are kept: in each group that a scope compares, all but the lowest scores."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

SCOPES = ("global", "matrix", "row")


def kept_units(scores: Mapping[str, Tensor], share: float, scope: str) -> dict[str, Tensor]:
    """True for all but the ⌊share·n⌋ lowest of n scores: of all tensors together, of each, or of each row of each."""
    if scope == "row":
        return {name: above(score, share) for name, score in scores.items()}
    if scope == "matrix":
        return {name: above(score.reshape(1, -1), share).view(score.shape) for name, score in scores.items()}
    together = above(torch.cat([score.flatten() for score in scores.values()])[None], share)[0]
    parts = together.split([score.numel() for score in scores.values()])
    return {name: part.view(score.shape) for (name, score), part in zip(scores.items(), parts, strict=True)}


def kept_of_each(scores: Mapping[str, Tensor], n: int, m: int) -> dict[str, Tensor]:
    """True for the n highest of every m scores that stand one after the other in a row (n:m sparsity)."""
    found = {}
    for name, score in scores.items():
        if score.shape[-1] % m:
            raise ValueError(
                f"structured='{n}:{m}' needs rows whose length is a multiple of {m}, and {name} has {score.shape[-1]} "
                "inputs; leave it out of params."
            )
        found[name] = above(score.reshape(-1, m), 1 - n / m).view(score.shape)
    return found


def above(scores: Tensor, share: float) -> Tensor:
    """Of scores (groups, n): True in each group for all but its ⌊share·n⌋ lowest; of equals, the first are pruned."""
    count = int(share * scores.shape[1] + 1e-9)
    if count == 0:
        return torch.ones_like(scores, dtype=torch.bool)
    last = scores.kthvalue(count, 1).values[:, None]  # without sorting, which takes several times the memory
    kept = scores > last
    rows, columns = (scores == last).nonzero(as_tuple=True)  # at the threshold: as many go as are still missing
    ties = torch.bincount(rows, minlength=len(scores))
    rank = torch.arange(len(rows), device=rows.device) - (ties.cumsum(0) - ties)[rows]
    missing = count - (scores < last).sum(1)
    kept[rows, columns] = rank >= missing[rows]
    return kept
