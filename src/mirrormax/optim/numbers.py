"""The numbers of a step, which are made before anything moves: of the options, the gradients' norms and the state."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused
from mirrormax.optim.kernels import PLAIN, whole
from mirrormax.optim.preparation import Batch
from mirrormax.optim.update import Number, Numbers

EUCLIDEAN = Lp(2.0)
SMALLEST_NORM = 2.2e-16


def bring_numbers(batches: Sequence[Batch]) -> None:
    """Give each batch the numbers in the formulas for its parameters, and those that its states will hold.

    A group does not clip what it normalises.
    """
    of_batches = [(batch, _norms(batch)) for batch in batches]
    clipped = [own for batch, own in of_batches if own is not None and batch.group["clip"] is not None]
    length = torch.linalg.vector_norm(_joined(clipped)) if clipped else None
    together: dict[Potential, list[Tensor]] = {}
    for batch, own in of_batches:
        if own is not None and batch.group.get("normalize") == "global":
            together.setdefault(batch.rule.potential, []).append(own)
    totals = [potential.dual_norm(_joined(parts)).view(1) for potential, parts in together.items()]
    common = totals[0] if len(totals) == 1 else _joined(totals).norm() if totals else None
    for batch, own in of_batches:
        # What gradients are multiplied by: a vector that lies where they are, so that nobody waits for it.
        c = torch.ones(len(batch.params), dtype=torch.float64, device="cpu") if own is None else torch.ones_like(own)
        if own is not None and batch.group["clip"] is not None:
            assert length is not None
            c = c * (batch.group["clip"] / (length + 1e-6)).clamp(max=1.0).to(c.device)  # NaN stays NaN
        elif own is not None and batch.group.get("normalize"):
            divisor = {"tensor": own, "global": common}.get(batch.group["normalize"])
            divisor = _running(batch, own) if divisor is None else divisor
            c = c / (divisor.to(c.device) + SMALLEST_NORM)
        batch.numbers = _numbers(batch, -c if batch.group["maximize"] else c, own)


def _numbers(batch: Batch, c: Tensor, norms: Tensor | None) -> Numbers:
    group, rule, lr = batch.group, batch.rule, batch.group["lr"]
    if isinstance(lr, Tensor) and not group["capturable"]:
        lr = float(lr)
    scale = 1.0 if group["scale"] is None else batch.number("scale")
    room = None if group["trust"] is None else group["trust"] * batch.number("size")
    if not rule.adam:
        mu = group["momentum"]
        scale = scale.to(c.device) if isinstance(scale, Tensor) else scale
        return Numbers(c * scale, lr, room, mu, 1 - mu, decay=group["weight_decay"])
    (first, second), t = group["betas"], batch.number("step") + 1
    batch.later["step"] = t
    keep, degree = 1 - lr * group["weight_decay"], rule.potential.degree
    drop = 0.0 if degree is None else 1 - _signed(keep, degree - 1)
    a, root, least = lr * scale / (1 - first**t), (1 - second**t) ** 0.5, 0.0
    if rule.by_matrix:
        a = lr * scale
    elif rule.by_tensor:
        assert norms is not None
        before = batch.number("exp_avg_sq")
        entries = before.new_tensor([max(1, param.numel()) for param in batch.params])
        mean = second * before + (1 - second) * ((c * norms) ** 2).to(before) / entries
        batch.later["exp_avg_sq"] = mean
        a = a / (mean**0.5 / root + group["eps"])
    else:  # a m/(√v/root + ε)
        a, least = a * root, group["eps"] * root
    return Numbers(c, a, room, first, 1 - first, keep, drop, least, second, 1 - second)


def _signed(x: Number, exponent: float) -> Number:
    return x.sign() * x.abs() ** exponent if isinstance(x, Tensor) else math.copysign(abs(x) ** exponent, x)


def _norms(batch: Batch) -> Tensor | None:
    """The norms of the gradients that the step needs, if any: ‖g‖₂, or, to normalise, ‖g‖_*, dual to the potential's.

    They are taken in the type of the dual variables, whose steps they scale, Euclidean ones in float64: gradients of
    half precision have too few digits, and those of groups that clip together may be of several types.
    """
    group, wide = batch.group, batch.columns.u[0].dtype
    if not (group.get("normalize") or batch.rule.by_tensor or group["clip"] is not None):
        return None
    potential = batch.rule.potential if group.get("normalize") else EUCLIDEAN
    if batch.kernel == "fused" and isinstance(potential, Lp):
        return torch.from_numpy(fused.norms(batch.rows, potential.p))
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


def _joined(vectors: Sequence[Tensor]) -> Tensor:
    dtype = functools.reduce(torch.promote_types, (vector.dtype for vector in vectors))
    return torch.cat([vector.to(vectors[0].device, dtype) for vector in vectors])


def _running(batch: Batch, norms: Tensor) -> Tensor:
    """What to divide by, max(r, ‖g‖/3), r being brought up to date; a norm that is not finite leaves it alone."""
    rho, average = batch.group["normalize_decay"], batch.number("norm")
    norms = norms.to(average.device, average.dtype)
    new = torch.where(average.isnan(), norms, rho * average + (1 - rho) * norms)
    new = torch.where(norms.isfinite(), new, average)
    batch.later["norm"] = new
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
