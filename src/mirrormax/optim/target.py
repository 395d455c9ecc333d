r"""Training towards a share of zeros: the weights are the dual variables behind a threshold that is a quantile of them.

A step moves u as p = 2 does (AdamW's or SGD's step on u). Then w is the firm threshold of u at λ, the s_t-quantile of
|u| (formulas in :class:`~mirrormax.MirrorAdamW`): the k-th smallest with k = s_t n rounded, so that k weights are zero
(more only where several |u| equal λ to the last bit). Of more than a million weights it is that of a sample until the
last hundredth of the steps, if their number is known. For n of m, λ = x · the (m − n)-th smallest of every m neighbours
in a row, x rising to 1.

**What it converges to.** The map u ↦ w is homogeneous, as λ grows with u, so directions have a limit problem of their
own. The *hard* threshold is ∇ψ*, ψ being half the square of the k-support norm (Argyriou, Foygel and Srebro, 2012): it
is mirror descent, a theorem, and where directions converge, their limit is the SVM in that norm, a derivation. That
they do is a conjecture, and *firm* and *soft* maps at a quantile are the gradient of no function, so that nothing is
claimed for them; docs/math/norms.md has the runs.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterable, Sequence
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from mirrormax.optim import fused
from mirrormax.optim.dual import fit
from mirrormax.optim.hyperparameters import checked_length, final_share, pattern_of
from mirrormax.optim.kernels import CHUNK, in_a_row, in_one_order, pieces, shard
from mirrormax.optim.update import Tensors

if TYPE_CHECKING:
    from mirrormax.optim.preparation import Batch

BEGIN, END = 0.05, 0.6  # of the training, between which the share rises
FIRM = 3.0  # λ times this is where weights are no longer shrunk
DIGIT = 16  # bits of a number that one pass over the data decides
WHOLE = {torch.float32: torch.int32, torch.float64: torch.int64}  # in which the bits of a number are read
LARGE, SAMPLE = 1 << 20, 1 << 17  # numbers of which a sample does on the way, and how many it takes, nearly
# Kept in a group beside its options: steps taken, and the share that somebody else has set.
STEP, GIVEN = "sparsity_step", "sparsity_given"


def with_counts(group: dict[str, Any], others: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The group with what it counts, if it has a target: a checkpoint holds the keys that a new optimizer has.

    A group that joins a training joins its schedule, unless that has another length.
    """
    if group["sparsity"] is None:
        return group
    steps = [other[STEP] for other in others if STEP in other and other["total_steps"] == group["total_steps"]]
    return {STEP: max(steps, default=0), GIVEN: None, **group}


def set_total_steps(optimizer: Any, steps: int) -> None:
    """Tell an optimizer, whatever has been wrapped around it, how long the training is, where it has not been told."""
    while not hasattr(optimizer, "set_sparsity") and hasattr(optimizer, "optimizer"):
        optimizer = optimizer.optimizer
    targets = [group for group in optimizer.param_groups if group.get("sparsity") is not None]
    if not targets:
        raise ValueError(
            f"{type(optimizer).__name__} has no group with sparsity=, so there is nothing to tell it; leave the "
            "callback out, or give sparsity= when the optimizer is made."
        )
    for group in targets:
        group["total_steps"] = group["total_steps"] or checked_length(steps)


def count_step(groups: Iterable[dict[str, Any]]) -> None:
    """The schedule is that of the training: it goes on also in a group that has no gradients for a while."""
    for group in groups:
        if group["sparsity"] is not None:
            group[STEP] = group.get(STEP, 0) + 1


def share_now(group: dict[str, Any]) -> float:
    """The share of the step that is about to be taken."""
    if group.get(GIVEN) is not None:
        return float(group[GIVEN])
    if group["total_steps"] is None:
        raise ValueError(
            f"sparsity={group['sparsity']!r} rises with the training, whose length is not known: give total_steps=, or "
            "say the share as it goes on by optimizer.set_sparsity(share)."
        )
    x = ((group.get(STEP, 0) + 1) / group["total_steps"] - BEGIN) / (END - BEGIN)
    return final_share(group["sparsity"]) * float(1 - (1 - min(1.0, max(0.0, x))) ** 3)


def refuse(group: dict[str, Any]) -> None:
    """Raise where the quantile or the pattern could not be right."""
    pattern = pattern_of(group["sparsity"])
    for param in group["params"]:
        if pattern is not None and (param.ndim < 2 or math.prod(param.shape[1:]) % pattern[1]):
            raise ValueError(
                f"sparsity={group['sparsity']!r} needs rows of a multiple of {pattern[1]} weights, got a tensor of "
                f"shape {tuple(param.shape)}; leave it out of the group, or give a share."
            )
        by_row = pattern is not None or group["scope"] == "row"
        if by_row and any(place.is_shard() and place.dim != 0 for place in getattr(param, "placements", ())):
            raise ValueError(
                f"sparsity={group['sparsity']!r} compares weights of a row, and this tensor {tuple(param.shape)} is "
                "sharded across its rows; shard dimension 0, or compare globally."
            )
        if by_row and param.ndim < 2:
            raise ValueError(f"scope='row' needs matrices, got a tensor of shape {tuple(param.shape)}.")


def make_true(state: dict[str, Any], group: dict[str, Any], param: Tensor, dtype: torch.dtype) -> None:
    """Make u of ``param``, or correct it where somebody else has written the weights, with the λ that they had."""
    if not fit(state, "dual", param, dtype) or "threshold" not in state:  # w is what it is, and its own u
        state["dual"].copy_(param.detach())
        state["threshold"] = torch.zeros(3, dtype=torch.float64, device="cpu")
        return
    if state["threshold"].ndim == 0:  # an earlier version kept the level alone
        state["threshold"] = torch.tensor(
            [float(state["threshold"]), *_compared(group)], dtype=torch.float64, device="cpu"
        )
    u, w = shard(state["dual"]), shard(param.detach())
    lam = _local_threshold(u, *state["threshold"].tolist())
    strange = thresholded(u, lam).to(w.dtype) != w
    if bool(strange.any()):
        size = w.to(dtype).abs()
        back = torch.where(size > FIRM * lam, size, lam + size * ((FIRM - 1) / FIRM))
        u.copy_(torch.where(strange, torch.where(size > 0, torch.copysign(back, w.to(dtype)), 0.0), u))


def aim(batches: Sequence[Batch]) -> None:
    """Find λ of the batches of a group before they step, where it is that of a sample.

    Its entries take the step before all others, in copies; the fused kernel then writes w along with u.
    """
    group, share = batches[0].group, share_now(batches[0].group)
    every = _stride([u for batch in batches for u in batch.columns.u], group)
    together = _compared(group) == (0, 0) and group["scope"] == "global" and float(group["lr"]) > 0
    if not (every and together and all(batch.kernel == "fused" and batch.columns.own for batch in batches)):
        return
    sample = []
    for batch in batches:
        columns = batch.columns.each(lambda column: [in_a_row(t)[::every].clone() for t in column])
        rows = fused.Rows(columns)
        rows.receive(columns.g)
        fused.step(batch.rule, batch.numbers, columns, rows)()
        sample += columns.u
    level = of_sample(sample, share)
    for batch in batches:
        batch.threshold = level


def reach(batches: Sequence[Batch]) -> None:
    """Make w from u for the batches of a group, unless the step has done so; all u have moved by now."""
    group, known, share = batches[0].group, batches[0].threshold, share_now(batches[0].group)
    if float(group["lr"]) == 0:  # which moves nothing
        return
    params = [param for batch in batches for param in batch.params]
    states = [state for batch in batches for state in batch.states]
    duals, (kept, of) = [state["dual"] for state in states], _compared(group)
    if known is not None:
        levels = [known] * len(duals)
    elif of:
        levels = [share / final_share(group["sparsity"]) if kept else share] * len(duals)
    elif group["scope"] == "matrix":
        levels = [_quantile([u], share, group) for u in duals]
    else:
        levels = [_quantile(duals, share, group)] * len(duals)
    for param, u, state, level in zip(params, duals, states, levels, strict=True):
        if known is None:
            _write(shard(param.detach()), shard(u), _local_threshold(shard(u), level, kept, of), group["fused"])
        state["threshold"].copy_(torch.tensor([level, kept, of], dtype=torch.float64, device="cpu"))
    torch.autograd.graph.increment_version(params)


def _quantile(duals: Sequence[Tensor], share: float, group: dict[str, Any]) -> float:
    """λ: exactly, or of every so-manyth number where these are many and the last hundredth of the steps is to come.

    A sample of 131,072 has a share within .0015 (one standard error) of what was asked for, for a twentieth of the time
    of a step.
    """
    every = _stride(duals, group)
    if every:
        return of_sample([in_a_row(u)[::every] for u in duals], share)
    return kth_smallest(duals, round(share * sum(u.numel() for u in duals)), group["fused"])


def _stride(duals: Sequence[Tensor], group: dict[str, Any]) -> int:
    """Of how many numbers one is sampled; 0 where all are counted.

    It divides neither rows nor columns, as a sample of the same few columns in every row would tell of these alone.
    """
    total = sum(u.numel() for u in duals)
    on_the_way = group.get(GIVEN) is None and group.get(STEP, 0) + 1 < 0.99 * group["total_steps"] - 1
    if total < LARGE or not on_the_way or any(hasattr(u, "placements") for u in duals):
        return 0
    every = total // SAMPLE
    while any(math.gcd(every, u.numel()) > 1 for u in duals if u.numel()):
        every += 1
    return every


def _compared(group: dict[str, Any]) -> tuple[int, int]:
    """(n, m) of n:m, (0, 1) where the weights of a row are compared, (0, 0) where those of a matrix or of all are."""
    return pattern_of(group["sparsity"]) or (0, int(group["scope"] == "row"))


def _local_threshold(u: Tensor, level: float, kept: float, of: float) -> Tensor:
    """λ in the type of u: a number, or one of each row or of each m neighbours, laid out so that it can be compared.

    ``level`` is λ itself where it is common to a matrix, else the share of a row, or the part of the pattern's λ.
    """
    if not of or not u.numel():
        return torch.tensor(level, dtype=u.dtype, device=u.device)
    sizes = u.abs().flatten(1)
    if kept:
        parts = sizes.unflatten(1, (-1, int(of)))
        smallest: Tensor = parts.kthvalue(int(of - kept), dim=2, keepdim=True).values
        return (smallest * level).expand(-1, -1, int(of)).reshape(u.shape)
    count = round(level * sizes.shape[1])
    lam = sizes.kthvalue(count, dim=1).values if count else torch.zeros_like(sizes[:, 0])
    return lam.view(-1, *[1] * (u.ndim - 1))


def thresholded(u: Tensor, lam: Tensor) -> Tensor:
    """The firm threshold; each operation is rounded by itself, so that every kernel gives the same bits."""
    size = u.abs()
    shrunk = torch.copysign((size - lam) * (FIRM / (FIRM - 1)), u)
    return torch.where(size > FIRM * lam, u, torch.where(size <= lam, 0.0, shrunk))  # NaN stays NaN


def _write(w: Tensor, u: Tensor, lam: Tensor, wanted: bool | None) -> None:
    both, compiled = Tensors(w, u, None), loops(u, wanted)
    if lam.ndim == 0 and compiled and w.dtype == u.dtype and in_one_order(both):
        compiled.threshold(in_a_row(u).numpy(), in_a_row(w).numpy(), u.numpy().dtype.type(lam))
        return
    for part in [both] if lam.ndim else pieces(both):
        part.w.copy_(thresholded(part.u, lam))


def of_sample(parts: Sequence[Tensor], share: float) -> float:
    """The quantile of the |u| that were sampled; 0 for a share of 0."""
    sample = torch.cat(list(parts)).abs()
    count = round(share * len(sample))
    return float(sample.kthvalue(count).values) if count else 0.0


def kth_smallest(tensors: Sequence[Tensor], k: int, wanted: bool | None = None) -> float:
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
        counts = _counts(tensors, dtype, shift, prefix, wanted).cumsum(0)
        digit = int(torch.searchsorted(counts, k))
        k -= int(counts[digit - 1]) if digit else 0
        prefix = prefix << DIGIT | digit
    return float(torch.tensor(prefix, dtype=WHOLE[dtype], device="cpu").view(dtype))


def _counts(tensors: Sequence[Tensor], dtype: torch.dtype, shift: int, prefix: int, wanted: bool | None) -> Tensor:
    """How many |u| begin with the bits ``prefix`` and go on with each digit, over all processes."""
    of_place: dict[Any, Tensor] = {}
    for t in tensors:
        local, place = shard(t), (getattr(t, "device_mesh", None), tuple(getattr(t, "placements", ())))
        counts = _counts_here(in_a_row(local).to(dtype), shift, prefix, wanted)
        of_place[place] = of_place[place] + counts if place in of_place else counts
    for (mesh, placements), counts in of_place.items():
        for dim, placement in enumerate(placements):
            if placement.is_shard():
                torch.distributed.all_reduce(counts, group=mesh.get_group(dim))
    return sum((counts.cpu() for counts in of_place.values()), torch.zeros(1 << DIGIT, dtype=torch.int64, device="cpu"))


def _counts_here(u: Tensor, shift: int, prefix: int, wanted: bool | None) -> Tensor:
    compiled, whole = loops(u, wanted), WHOLE[u.dtype]
    if compiled:
        return torch.from_numpy(compiled.counts(u.view(whole).numpy(), shift, prefix))
    counts = torch.zeros(1 << DIGIT, dtype=torch.int64, device=u.device)
    for part in u.split(CHUNK["cpu" if u.is_cpu else "other"]):
        bits = part.view(whole) & torch.iinfo(whole).max
        digits = (bits >> shift).long()
        counts += torch.bincount(digits[digits >> DIGIT == prefix] & ((1 << DIGIT) - 1), minlength=1 << DIGIT)
    return counts


def loops(u: Tensor, wanted: bool | None) -> Any:
    """The compiled loops, where they are wanted, there is a numba and u is plain memory of this machine."""
    plain = type(u) is Tensor and u.is_cpu
    return fused.load_kernels() if wanted is not False and plain and fused.is_installed() else None
