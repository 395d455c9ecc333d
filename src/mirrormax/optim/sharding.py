"""Distributed tensors (FSDP2, DTensor) without importing ``torch.distributed``."""

from __future__ import annotations

from torch import Tensor


def shard(t: Tensor) -> Tensor:
    """The part of a distributed tensor that lives here; an ordinary tensor is its own shard."""
    return t.to_local() if hasattr(t, "to_local") else t


def whole(t: Tensor) -> Tensor:
    """All of a distributed tensor, the same on every process; an ordinary tensor as it is."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t
