"""What is asked of all gradients before a step: their dual norms, and that they are finite."""

from __future__ import annotations

import functools
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.hyperparameters import potential_of
from mirrormax.optim.sharding import whole


def dual_norms(groups: Sequence[dict[str, Any]]) -> dict[Tensor, Tensor]:
    """The number by which each parameter's gradient is to be divided, where its group normalises."""
    own: dict[Tensor, Tensor] = {}
    common: dict[Potential, dict[Tensor, Tensor]] = defaultdict(dict)
    for group in groups:
        if group["normalize"] is None:
            continue
        potential = potential_of(group)
        norms = {param: _dual_norm(potential, grad) for param, grad in _gradients(group)}
        (common[potential] if group["normalize"] == "global" else own).update(norms)
    return own | _together(common)


def _together(common: Mapping[Potential, dict[Tensor, Tensor]]) -> dict[Tensor, Tensor]:
    """Every parameter with the one norm of them all."""
    parts = [potential.dual_norm(_stacked(norms.values())) for potential, norms in common.items() if norms]
    if not parts:
        return {}
    total = parts[0] if len(parts) == 1 else torch.linalg.vector_norm(_stacked(parts))
    return {param: total.to(norm.device, norm.dtype) for norms in common.values() for param, norm in norms.items()}


def _stacked(norms: Iterable[Tensor]) -> Tensor:
    norms = list(norms)
    dtype = functools.reduce(torch.promote_types, (norm.dtype for norm in norms))
    return torch.stack([norm.to(norms[0].device, dtype) for norm in norms])


def _dual_norm(potential: Potential, grad: Tensor) -> Tensor:
    if grad.is_sparse:
        grad = grad.coalesce().values()
    return whole(potential.dual_norm(grad, tuple(range(grad.ndim))))


def refuse_nonfinite(groups: Sequence[dict[str, Any]]) -> None:
    """Raise if a group that asks for it has a gradient with NaN or Inf; nothing has moved yet."""
    for index, group in enumerate(groups):
        if not group["error_if_nonfinite"]:
            continue
        for position, (_, grad) in enumerate(_gradients(group)):
            values = grad.coalesce().values() if grad.is_sparse else grad
            count = int(whole((~torch.isfinite(values)).sum()))
            if count:
                name = f" ({group['name']!r})" if "name" in group else ""
                raise RuntimeError(
                    f"the gradient of parameter {position} in group {index}{name} has {count} entries that are NaN "
                    "or Inf, and error_if_nonfinite=True; nothing was changed: skip this batch or lower lr."
                )


def _gradients(group: dict[str, Any]) -> list[tuple[Tensor, Tensor]]:
    return [(param, param.grad) for param in group["params"] if param.grad is not None]
