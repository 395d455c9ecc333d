"""What is asked of all gradients before a step: that they are finite, and their norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused
from mirrormax.optim.sharding import whole
from mirrormax.optim.update import Number

Norms = list[Number]
"""A float for each gradient where that needs no waiting, else a tensor."""


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def euclidean_norms(params: Sequence[Tensor], host: bool) -> Norms:
    """‖g‖₂ of each gradient."""
    grads = [param.grad for param in params if param.grad is not None]
    known = fused.norms(grads) if host else None
    if known is not None:
        return known
    found = []
    for grad in grads:
        wide = torch.promote_types(grad.dtype, torch.float32)
        found.append(whole(torch.linalg.vector_norm(_values(grad), dtype=wide)))
    return [float(norm) for norm in found] if host else found


def dual_norms(params: Sequence[Tensor], potential: Potential, host: bool) -> Norms:
    """‖g‖_* of each gradient, in the norm that is dual to the potential's."""
    grads = [param.grad for param in params if param.grad is not None]
    known = fused.norms(grads, potential.p) if host and isinstance(potential, Lp) else None
    if known is not None:
        return known
    dense = [_values(grad) for grad in grads]
    found = [whole(potential.dual_norm(values, tuple(range(values.ndim)))) for values in dense]
    return [float(norm) for norm in found] if host else found


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
