"""Who holds which part of a parameter: FSDP2's DTensor, and FSDP1's pieces, without importing torch.distributed."""

from __future__ import annotations

from collections.abc import Iterable

from torch import Tensor, nn

PLAIN = frozenset((Tensor, nn.Parameter))  # subclasses may be anything


def shard(t: Tensor) -> Tensor:
    """The part of a distributed tensor that lives here; an ordinary tensor is its own shard."""
    return t if type(t) in PLAIN or not hasattr(t, "to_local") else t.to_local()


def whole(t: Tensor) -> Tensor:
    """All of a distributed tensor, the same on every process; an ordinary tensor as it is."""
    return t if type(t) in PLAIN or not hasattr(t, "full_tensor") else t.full_tensor()


def refuse_pieces(params: Iterable[Tensor], options: Iterable[str]) -> None:
    """Raise if ``options`` need whole tensors and FSDP1 has flattened them and cut them up."""
    if any(getattr(param, "_fsdp_flattened", False) for param in params):
        raise ValueError(
            f"{', '.join(options)} cannot be computed under FullyShardedDataParallel (FSDP1), whose processes hold "
            "pieces of flattened tensors; use FSDP2 (torch.distributed.fsdp.fully_shard), or switch the option off."
        )
