"""What is asked of all gradients before a step: their dual norms, and that they are finite."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Potential
from mirrormax.optim.sharding import whole


def dual_norms(groups: Sequence[dict[str, Any]], potentials: Sequence[Potential]) -> list[list[Tensor]]:
    """For each group that normalises, the norms by which to divide its gradients, in their order."""
    norms = [
        [_dual_norm(potential, grad) for grad in _gradients(group)] if group["normalize"] else []
        for group, potential in zip(groups, potentials, strict=True)
    ]
    common = _common_norm(groups, potentials, norms)
    return [
        own
        if common is None or group["normalize"] != "global"
        else [common.to(norm.device, norm.dtype) for norm in own]
        for group, own in zip(groups, norms, strict=True)
    ]


def _common_norm(
    groups: Sequence[dict[str, Any]], potentials: Sequence[Potential], norms: Sequence[list[Tensor]]
) -> Tensor | None:
    """The one norm of all gradients that are normalised together, if there are any."""
    parts: dict[Potential, list[Tensor]] = {}
    for group, potential, own in zip(groups, potentials, norms, strict=True):
        if group["normalize"] == "global" and own:
            parts.setdefault(potential, []).extend(own)
    totals = [potential.dual_norm(_stacked(own)) for potential, own in parts.items()]
    if len(totals) < 2:
        return totals[0] if totals else None
    return _stacked(totals).square().sum().sqrt()


def _stacked(norms: Sequence[Tensor]) -> Tensor:
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
        for position, grad in enumerate(_gradients(group)):
            values = grad.coalesce().values() if grad.is_sparse else grad
            count = int(whole((~torch.isfinite(values)).sum()))
            if count:
                name = f" ({group['name']!r})" if "name" in group else ""
                raise RuntimeError(
                    f"the gradient of parameter {position} in group {index}{name} has {count} entries that are NaN "
                    "or Inf, and error_if_nonfinite=True; nothing was changed: skip this batch or lower lr."
                )


def _gradients(group: dict[str, Any]) -> list[Tensor]:
    return [param.grad for param in group["params"] if param.grad is not None]
