"""Who holds which part of a parameter: FSDP2's DTensor, and FSDP1's pieces, without importing torch.distributed."""

from __future__ import annotations

from torch import Tensor, nn

PLAIN = frozenset((Tensor, nn.Parameter))  # subclasses may be anything


def shard(t: Tensor) -> Tensor:
    """The part of a distributed tensor that lives here; an ordinary tensor is its own shard."""
    return t if type(t) in PLAIN or not hasattr(t, "to_local") else t.to_local()


def whole(t: Tensor) -> Tensor:
    """All of a distributed tensor, the same on every process; an ordinary tensor as it is."""
    return t if type(t) in PLAIN or not hasattr(t, "full_tensor") else t.full_tensor()
