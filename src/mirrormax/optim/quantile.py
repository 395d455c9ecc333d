"""The k-th smallest of many numbers without their signs, of several tensors and processes: exactly, or of a sample."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.optim.fused import is_installed, load_kernels
from mirrormax.optim.kernels import CHUNK, in_a_row
from mirrormax.optim.sharding import shard

DIGIT = 16  # bits that one pass over the data decides
WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}  # in which the bits of a number are read


def of_sample(parts: Sequence[Tensor], share: float) -> float:
    """The quantile of the |u| that were sampled; 0 for a share of 0."""
    sample = torch.cat(list(parts)).abs()
    count = round(share * len(sample))
    return float(sample.kthvalue(count).values) if count else 0.0


def kth_smallest(tensors: Sequence[Tensor], k: int, fused: bool | None = None) -> float:
    """The k-th smallest |u| of several tensors, exactly, without copying them; 0 for k = 0.

    Digit by digit: non-negative floats are ordered as their bits are, so 65,536 counts of the first 16 bits say which
    16 bits the k-th has, and counts of the next 16 among those that begin so say the next. Of sharded tensors the
    counts are summed over processes, which is all that these need to tell each other.
    """
    if k <= 0:
        return 0.0
    dtype = functools.reduce(torch.promote_types, (t.dtype for t in tensors))
    prefix = 0
    for shift in range(dtype.itemsize * 8 - DIGIT, -1, -DIGIT):
        counts = _counts(tensors, dtype, shift, prefix, fused).cumsum(0)
        digit = int(torch.searchsorted(counts, k))
        k -= int(counts[digit - 1]) if digit else 0
        prefix = prefix << DIGIT | digit
    return float(torch.tensor(prefix, dtype=WHOLE[dtype], device="cpu").view(dtype))


def _counts(tensors: Sequence[Tensor], dtype: torch.dtype, shift: int, prefix: int, fused: bool | None) -> Tensor:
    """How many |u| begin with the bits ``prefix`` and go on with each digit, over all processes."""
    of_place: dict[Any, Tensor] = {}
    for t in tensors:
        local, place = shard(t), (getattr(t, "device_mesh", None), tuple(getattr(t, "placements", ())))
        counts = _counted(in_a_row(local).to(dtype), shift, prefix, fused)
        of_place[place] = of_place[place] + counts if place in of_place else counts
    for (mesh, placements), counts in of_place.items():
        for dim, placement in enumerate(placements):
            if placement.is_shard():
                torch.distributed.all_reduce(counts, group=mesh.get_group(dim))
    return sum((counts.cpu() for counts in of_place.values()), torch.zeros(1 << DIGIT, dtype=torch.int64, device="cpu"))


def _counted(u: Tensor, shift: int, prefix: int, fused: bool | None) -> Tensor:
    compiled, whole = loops(u, fused), WHOLE[u.dtype]
    if compiled:
        return torch.from_numpy(compiled.counts(u.view(whole).numpy(), shift, prefix))
    counts = torch.zeros(1 << DIGIT, dtype=torch.int64, device=u.device)
    for part in u.split(CHUNK["cpu" if u.is_cpu else "other"]):
        bits = part.view(whole) & torch.iinfo(whole).max
        digits = (bits >> shift).long()
        counts += torch.bincount(digits[digits >> DIGIT == prefix] & ((1 << DIGIT) - 1), minlength=1 << DIGIT)
    return counts


def loops(u: Tensor, fused: bool | None) -> Any:
    """The compiled loops, where they are wanted, there is a numba and u is plain memory of this machine."""
    wanted = fused is not False and type(u) is Tensor and u.is_cpu and is_installed()
    return load_kernels() if wanted else None
