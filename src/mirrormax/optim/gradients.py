"""What is asked of all gradients before a step: that they are finite, and their norms."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused
from mirrormax.optim.kernels import Number
from mirrormax.optim.sharding import whole

if TYPE_CHECKING:
    from mirrormax.optim.optimizer import Batch


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def euclidean_norms(batch: Batch) -> list[Any]:
    """‖g‖₂ of each gradient: numbers where they can be had without waiting, else tensors."""
    grads = [param.grad for param in batch.params if param.grad is not None]
    memory = _memory(batch, grads)
    if memory is not None:
        return fused.euclidean_norms(*memory)
    if batch.on_host and grads and all(_is_simple(grad, grads[0].dtype) for grad in grads):
        numbers: list[Any] = torch.stack(torch._foreach_norm(grads)).tolist()
        return numbers
    norms = []
    for grad in grads:
        wide = torch.promote_types(grad.dtype, torch.float32)
        norm = whole(torch.linalg.vector_norm(_values(grad), dtype=wide))
        norms.append(float(norm) if batch.on_host and norm.device.type == "cpu" else norm)
    return norms


def _is_simple(grad: Tensor, dtype: torch.dtype) -> bool:
    wide = grad.dtype == dtype and dtype in (torch.float32, torch.float64)
    return wide and not grad.is_sparse and grad.device.type == "cpu" and not hasattr(grad, "full_tensor")


def clipping(batches: Sequence[Batch], norms: Sequence[list[Any]] = ()) -> list[Number]:
    """For each batch the factor min(1, clip/(‖g‖₂ + 1e-6)), ‖g‖₂ over all gradients of the groups that clip.

    ``norms`` are the Euclidean norms of all gradients, if they are known.
    """
    clips = [batch.group["clip"] for batch in batches]
    if all(clip is None for clip in clips):
        return [1.0 for _ in clips]
    norms = norms or [[] if clip is None else euclidean_norms(b) for b, clip in zip(batches, clips, strict=True)]
    parts = [norm for own, clip in zip(norms, clips, strict=True) if clip is not None for norm in own]
    if any(isinstance(norm, Tensor) for norm in parts):
        total = _stacked([torch.as_tensor(norm) for norm in parts]).norm()
        return [1.0 if clip is None else (clip / (total + 1e-6)).clamp(max=1.0) for clip in clips]
    length = math.hypot(*parts)
    # NaN stays NaN, as in torch's own clipping.
    return [1.0 if clip is None else length if length != length else min(1.0, clip / (length + 1e-6)) for clip in clips]


def dual_norms(batches: Sequence[Batch]) -> list[list[Number]]:
    """For each batch that normalises, the norms by which to divide its gradients, in their order."""
    norms = [_dual_norms(batch) if batch.group["normalize"] else [] for batch in batches]
    common = _common_norm(batches, norms)
    return [
        [
            _readable(norm if common is None or batch.group["normalize"] != "global" else common, norm, batch)
            for norm in own
        ]
        for batch, own in zip(batches, norms, strict=True)
    ]


def _memory(batch: Batch, grads: Sequence[Tensor]) -> tuple[Any, Any] | None:
    """Where the fused kernel finds the gradients, if it may look there."""
    if batch.plan is not None:
        return batch.plan.addresses
    return fused.addresses_of(grads) if fused.is_wanted(batch.rule) else None


def _readable(norm: Any, like: Any, batch: Batch) -> Number:
    if isinstance(norm, float):
        return norm
    if isinstance(like, float):
        return float(norm)
    return float(norm) if batch.on_host and norm.device.type == "cpu" else norm.to(like.device, like.dtype)


def _common_norm(batches: Sequence[Batch], norms: Sequence[list[Any]]) -> Tensor | None:
    """The one norm of all gradients that are normalised together, if there are any."""
    parts: dict[Potential, list[Any]] = {}
    for batch, own in zip(batches, norms, strict=True):
        if batch.group["normalize"] == "global" and own:
            parts.setdefault(batch.rule.potential, []).extend(own)
    totals = [potential.dual_norm(_stacked(own)) for potential, own in parts.items()]
    if len(totals) < 2:
        return totals[0] if totals else None
    return _stacked(totals).square().sum().sqrt()


def _stacked(norms: Sequence[Any]) -> Tensor:
    norms = [torch.tensor(norm, dtype=torch.float64) if isinstance(norm, float) else norm for norm in norms]
    dtype = functools.reduce(torch.promote_types, (norm.dtype for norm in norms))
    return torch.stack([norm.to(norms[0].device, dtype) for norm in norms])


def _dual_norms(batch: Batch) -> list[Any]:
    potential = batch.rule.potential
    grads = [param.grad for param in batch.params if param.grad is not None]
    memory = _memory(batch, grads) if isinstance(potential, Lp) else None
    if memory is not None and isinstance(potential, Lp):
        known = fused.dual_norms(potential, *memory)
        if known is not None:
            return known
    dense = [_values(grad) for grad in grads]
    return [whole(potential.dual_norm(values, tuple(range(values.ndim)))) for values in dense]


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
