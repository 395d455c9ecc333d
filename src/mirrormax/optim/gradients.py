"""What is asked of all gradients before a step: that they are finite, and their norms."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused
from mirrormax.optim.batch import Batch
from mirrormax.optim.sharding import PLAIN, whole

EUCLIDEAN = Lp(2.0)
SMALLEST_NORM = 2.2e-16
Work = Callable[[], object]
"""A part of a step that is ready to be taken."""


def norms(batch: Batch, potential: Potential = EUCLIDEAN) -> Tensor:
    """‖g‖_* of each gradient, in the norm that is dual to the potential's; of a distributed one, of all its shards.

    They are taken in the type of the dual variables, whose steps they scale, Euclidean ones in float64: gradients of
    half precision have too few digits, and those of groups that clip together may be of several types.
    """
    wide = batch.columns.u[0].dtype
    if batch.kernel == "fused" and isinstance(potential, Lp):
        return torch.from_numpy(fused.norms(batch.rows.table, batch.columns.g[0].dtype, wide, potential.p))
    if potential.is_identity and batch.params[0].is_cpu:
        wide = torch.float64
    grads: Sequence[Any] = batch.columns.g
    if not all(map(PLAIN.__contains__, map(type, batch.params))):
        grads = [param.grad for param in batch.params]
    lengths = torch.stack([_norm(_values(grad), potential, wide) for grad in grads])
    return lengths.double() if lengths.is_cpu else lengths


def _norm(values: Tensor, potential: Potential, wide: torch.dtype) -> Tensor:
    if potential.is_identity:
        return whole(torch.linalg.vector_norm(values, dtype=wide))
    return whole(potential.dual_norm(values.to(wide), tuple(range(values.ndim))))


def _values(grad: Tensor) -> Tensor:
    return grad.coalesce().values() if grad.is_sparse else grad


def factors(batches: Sequence[Batch], later: list[Work]) -> list[tuple[Tensor, Tensor | None]]:
    """For each batch a vector of what its gradients are multiplied by, and their norms where a moment needs them.

    It holds sign, clipping and normalisation. What the state learns on the way is written ``later``.
    """
    plain = [norms(b) if b.group["clip"] is not None or b.rule.by_tensor else None for b in batches]
    clipped = [own for b, own in zip(batches, plain, strict=True) if own is not None and b.group["clip"] is not None]
    length = torch.linalg.vector_norm(_joined(clipped)) if clipped else None
    dual = [norms(b, b.rule.potential) if b.group.get("normalize") else None for b in batches]
    together: dict[Potential, list[Tensor]] = {}
    for batch, own in zip(batches, dual, strict=True):
        if own is not None and batch.group["normalize"] == "global":
            together.setdefault(batch.rule.potential, []).append(own)
    totals = [potential.dual_norm(_joined(parts)).view(1) for potential, parts in together.items()]
    common = totals[0] if len(totals) == 1 else _joined(totals).norm() if totals else None
    of_batches = []
    for batch, ours, theirs in zip(batches, plain, dual, strict=True):
        # A vector of factors lies where the gradients are, so that nobody waits for it.
        like = next((n for n in (ours, theirs) if n is not None), None)
        c = torch.ones(len(batch.params), dtype=torch.float64) if like is None else torch.ones_like(like)
        if batch.group["clip"] is not None and length is not None:
            c = c * (batch.group["clip"] / (length + 1e-6)).clamp(max=1.0).to(c.device)  # NaN stays NaN
        if theirs is not None:
            divisor = theirs if common is None or batch.group["normalize"] != "global" else common
            if batch.group["normalize"] == "running":
                divisor = _running(batch, theirs, later)
            c = c / (divisor.to(c.device) + SMALLEST_NORM)
        of_batches.append((-c if batch.group["maximize"] else c, ours))
    return of_batches


def _joined(vectors: Sequence[Tensor]) -> Tensor:
    dtype = functools.reduce(torch.promote_types, (vector.dtype for vector in vectors))
    return torch.cat([vector.to(vectors[0].device, dtype) for vector in vectors])


def _running(batch: Batch, norms: Tensor, later: list[Work]) -> Tensor:
    """What to divide by, max(r, ‖g‖/3), r being brought up to date; a norm that is not finite leaves it alone."""
    rho, average = batch.group["normalize_decay"], batch.number("norm")
    norms = norms.to(average.device, average.dtype)
    new = torch.where(average.isnan(), norms, rho * average + (1 - rho) * norms)
    new = torch.where(norms.isfinite(), new, average)
    later.append(functools.partial(batch.set_number, "norm", new))
    return torch.maximum(new, norms / 3)


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
