"""Who holds which part of a parameter: FSDP2's DTensor, and what cuts tensors in ways that torch does not tell.

``torch.distributed`` is not imported for it.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable

from torch import Tensor

ZERO = "ZeroRedundancyOptimizer"


def shard(t: Tensor) -> Tensor:
    """The part of a distributed tensor that lives here; an ordinary tensor is its own shard."""
    return t.to_local() if hasattr(t, "to_local") else t


def whole(t: Tensor) -> Tensor:
    """All of a distributed tensor, the same on every process; an ordinary tensor as it is."""
    return t.full_tensor() if hasattr(t, "full_tensor") else t


def made_by_zero() -> bool:
    """Whether an optimizer is being made by ZeroRedundancyOptimizer, which gives each process some of the tensors."""
    frame = sys._getframe(1)
    for _ in range(16):
        if type(frame.f_locals.get("self")).__name__ == ZERO:
            return True
        if frame.f_back is None:
            break
        frame = frame.f_back
    return False


def refuse_pieces(params: Iterable[Tensor], options: Iterable[str]) -> None:
    """Raise if ``options`` need whole tensors and FSDP1 has flattened them and cut them up."""
    asked = ", ".join(options)
    if asked and any(getattr(param, "_fsdp_flattened", False) for param in params):
        raise ValueError(
            f"{asked} cannot be computed under FullyShardedDataParallel (FSDP1), whose processes hold pieces of "
            "flattened tensors; use FSDP2 (torch.distributed.fsdp.fully_shard), or switch the option off."
        )


def refuse_partition(options: Iterable[str]) -> None:
    """Raise if ``options`` need all gradients and ZeRO has given this process some of them."""
    asked = ", ".join(options)
    if asked:
        raise ValueError(
            f"{asked} cannot be computed under {ZERO}, whose processes see some of the gradients each; use FSDP2 "
            "(torch.distributed.fsdp.fully_shard), or switch the option off and clip with clip_grad_norm_."
        )
