"""What is asked of all gradients before a step: that they are finite, and their norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import Tensor

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused
from mirrormax.optim.batch import Batch
from mirrormax.optim.sharding import PLAIN, whole
from mirrormax.optim.update import Number

EUCLIDEAN = Lp(2.0)
Norms = list[Number]
"""A float for each gradient where that needs no waiting, else a tensor."""


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def norms(batch: Batch, potential: Potential = EUCLIDEAN) -> Norms:
    """‖g‖_* of each gradient, in the norm that is dual to the potential's; of a distributed one, of all its shards."""
    if not all(map(PLAIN.__contains__, map(type, batch.params))):
        ours = [_norm(grad, potential) for grad in (param.grad for param in batch.params) if grad is not None]
        return [float(norm) for norm in ours] if batch.host else ours
    if batch.taken and isinstance(potential, Lp):
        found = np.empty(len(batch.grads))
        if not batch.rest:
            return list(fused.norms(batch.rows.table, batch.grads[0].dtype, potential.p).tolist())
        found[batch.taken] = fused.norms(batch.rows.table[batch.taken], batch.grads[0].dtype, potential.p)
        for place in batch.rest:
            found[place] = _norm(batch.grads[place], potential)
        return list(found.tolist())
    ours = [_norm(grad, potential) for grad in batch.grads]
    return [float(norm) for norm in ours] if batch.host else ours


def _norm(grad: Tensor, potential: Potential) -> Tensor:
    values = _values(grad)
    if potential.is_identity:
        wide = torch.promote_types(values.dtype, torch.float32)
        return whole(torch.linalg.vector_norm(values, dtype=wide))
    return whole(potential.dual_norm(values, tuple(range(values.ndim))))


def clip_factor(clip: float, norms: Sequence[Number]) -> Number:
    """min(1, clip/(‖g‖₂ + 1e-6)), ‖g‖₂ being the common norm of gradients that have these; NaN stays NaN."""
    if any(isinstance(norm, Tensor) for norm in norms):
        return (clip / (_stacked(norms).norm() + 1e-6)).clamp(max=1.0)
    length = math.hypot(*norms)
    return length if math.isnan(length) else min(1.0, clip / (length + 1e-6))


def common_norm(parts: Sequence[tuple[Potential, Sequence[Number]]]) -> Number:
    """One norm for gradients of several tensors: dual within a potential, the root of the squares across."""
    by_potential: dict[Potential, list[Number]] = {}
    for potential, norms in parts:
        by_potential.setdefault(potential, []).extend(norms)
    totals = [potential.dual_norm(_stacked(norms)) for potential, norms in by_potential.items() if norms]
    if not totals:
        return 0.0
    total = totals[0] if len(totals) == 1 else _stacked(totals).square().sum().sqrt()
    return total if any(isinstance(norm, Tensor) for _, norms in parts for norm in norms) else float(total)


def _stacked(norms: Sequence[Number]) -> Tensor:
    norms = [torch.tensor(norm, dtype=torch.float64) if isinstance(norm, float) else norm for norm in norms]
    dtype = functools.reduce(torch.promote_types, (norm.dtype for norm in norms))
    return torch.stack([norm.to(norms[0].device, dtype) for norm in norms])


def clip_factors(batches: Sequence[Batch], norms_of: Sequence[Norms | None]) -> Norms:
    """For each batch the factor by which its gradients are clipped, together with those of all groups that clip."""
    clipped = [batch.group["clip"] is not None for batch in batches]
    known = [
        norms(batch) if clips and own is None else own or ()
        for batch, own, clips in zip(batches, norms_of, clipped, strict=True)
    ]
    together = [norm for own, clips in zip(known, clipped, strict=True) if clips for norm in own]
    return [
        clip_factor(batch.group["clip"], together) if clips else 1.0
        for batch, clips in zip(batches, clipped, strict=True)
    ]


def refuse_nonfinite(groups: Sequence[dict[str, Any]]) -> None:
    """Raise if a group that asks for it has a gradient with NaN or Inf; nothing has moved yet."""
    for index, group in enumerate(groups):
        if not group["error_if_nonfinite"]:
            continue
        grads = [param.grad for param in group["params"] if param.grad is not None]
        for position, grad in enumerate(grads):
            count = int(whole((~torch.isfinite(_values(grad))).sum()))
            if count:
                name = f" ({group['name']!r})" if "name" in group else ""
                raise RuntimeError(
                    f"the gradient of parameter {position} in group {index}{name} has {count} entries that are NaN "
                    "or Inf, and error_if_nonfinite=True; nothing was changed: skip this batch or lower lr."
                )
