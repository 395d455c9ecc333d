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

import math
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from mirrormax._checks import number
from mirrormax.optim import fused
from mirrormax.optim.batch import Batch
from mirrormax.optim.dual import fit
from mirrormax.optim.kernels import in_a_row, in_one_order, pieces
from mirrormax.optim.quantile import kth_smallest, loops, of_sample
from mirrormax.optim.sharding import shard
from mirrormax.optim.update import Tensors

SCOPES = ("global", "matrix", "row")
BEGIN, END = 0.05, 0.6  # of the training, between which the share rises
FIRM = 3.0  # λ times this is where weights are no longer shrunk
PATTERN = re.compile(r"([1-9]\d*):([1-9]\d*)")
LARGE, SAMPLE = 1 << 20, 1 << 17  # numbers of which a sample does on the way, and how many it takes, nearly
# Kept in a group beside its options: steps taken, and the share that somebody else has set.
STEP, GIVEN = "sparsity_step", "sparsity_given"


def checked_target(options: dict[str, Any]) -> dict[str, Any]:
    """The options of a target, checked; a group that has one gets no scale and no trust, which p = 2 does not need."""
    sparsity, steps, scope = options["sparsity"], options["total_steps"], options["scope"]
    if scope not in SCOPES:
        raise ValueError(f"scope must be {', '.join(map(repr, SCOPES[:-1]))} or {SCOPES[-1]!r}, got {scope!r}.")
    if steps is not None:
        options = {**options, "total_steps": _length(steps)}
    if sparsity is None:
        return options
    if isinstance(sparsity, str):
        pattern_of(sparsity)
        if scope != "global":
            raise ValueError(f"scope={scope!r} says nothing where sparsity={sparsity!r}; leave it out.")
    else:
        sparsity = number("sparsity", sparsity, at_least=0, below=1)
    if options["p"] != 2:
        raise ValueError(
            f"sparsity={sparsity!r} puts a threshold in the place of p, got p={options['p']!r}; leave p out, or set it "
            "to 2."
        )
    if options["capturable"]:
        raise ValueError(
            "sparsity= needs the quantile of all weights at every step, for which capturable=True leaves no time; "
            "choose one of them."
        )
    return {**options, "sparsity": sparsity, "scale": None, "trust": None}


def _length(steps: Any) -> int:
    length = number("total_steps", steps, at_least=1)
    if not length.is_integer():
        raise ValueError(f"total_steps must be a whole number of at least 1, got {steps!r}.")
    return int(length)


def with_counts(group: dict[str, Any], others: Iterable[dict[str, Any]]) -> dict[str, Any]:
    """The group with what it counts, if it has a target: a checkpoint holds the keys that a new optimizer has.

    A group that joins a training joins its schedule, unless that has another length.
    """
    if group["sparsity"] is None:
        return group
    steps = [other[STEP] for other in others if STEP in other and other["total_steps"] == group["total_steps"]]
    return {STEP: max(steps, default=0), GIVEN: None, **group}


def pattern_of(sparsity: Any) -> tuple[int, int] | None:
    """(n, m) of "n:m", n of every m weights staying; None of a share."""
    if not isinstance(sparsity, str):
        return None
    match = PATTERN.fullmatch(sparsity)
    if match is None or int(match[1]) >= int(match[2]):
        raise ValueError(f"sparsity must be a share in [0, 1) or n:m with n < m, such as '2:4', got {sparsity!r}.")
    return int(match[1]), int(match[2])


def final_share(sparsity: Any) -> float:
    """The share of zeros at the end."""
    pattern = pattern_of(sparsity)
    return float(sparsity) if pattern is None else 1 - pattern[0] / pattern[1]


def set_sparsity(groups: Iterable[dict[str, Any]], share: float) -> None:
    """From the next step on, this share of zeros in every group that has a target."""
    share = number("share", share, at_least=0, below=1)
    targets = [group for group in groups if group["sparsity"] is not None]
    if not targets:
        raise ValueError("no group has a target; give sparsity= when the optimizer is made.")
    for group in targets:
        if pattern_of(group["sparsity"]) is not None and share > final_share(group["sparsity"]):
            raise ValueError(f"share={share:g} is more than sparsity={group['sparsity']!r} leaves room for.")
    for group in targets:
        group[GIVEN] = share


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
        group["total_steps"] = group["total_steps"] or _length(steps)


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


@dataclass
class Aim:
    """The share of zeros that the parameters of a group get in a step."""

    group: dict[str, Any]
    batches: list[Batch]
    share: float

    def reach(self) -> None:
        """Make w from u, unless it is already; all u have moved by now."""
        group, known = self.group, self.batches[0].threshold
        if float(group["lr"]) == 0:  # which moves nothing
            return
        params = [param for batch in self.batches for param in batch.params]
        states = [state for batch in self.batches for state in batch.states]
        duals, (kept, of) = [state["dual"] for state in states], _compared(group)
        if known is not None:
            levels = [known] * len(duals)
        elif of:
            levels = [self.share / final_share(group["sparsity"]) if kept else self.share] * len(duals)
        elif group["scope"] == "matrix":
            levels = [_quantile([u], self.share, group) for u in duals]
        else:
            levels = [_quantile(duals, self.share, group)] * len(duals)
        for param, u, state, level in zip(params, duals, states, levels, strict=True):
            if known is None:
                _write(shard(param.detach()), shard(u), _local_threshold(shard(u), level, kept, of), group["fused"])
            state["threshold"].copy_(torch.tensor([level, kept, of], dtype=torch.float64, device="cpu"))
        torch.autograd.graph.increment_version(params)


def aims(batches: Sequence[Batch]) -> list[Aim]:
    """What the groups with a target aim at in this step.

    λ is known before where it is that of a sample, whose entries take the step before all others, in copies; the fused
    kernel then writes w along with u.
    """
    aims = []
    for group in {id(batch.group): batch.group for batch in batches if batch.rule.target}.values():
        aim = Aim(group, [batch for batch in batches if batch.group is group], share_now(group))
        every = _stride([u for batch in aim.batches for u in batch.columns.u], group, group.get(STEP, 0) + 1)
        together = _compared(group) == (0, 0) and group["scope"] == "global" and float(group["lr"]) > 0
        if every and together and all(batch.kernel == "fused" and batch.columns.own for batch in aim.batches):
            level = of_sample([u for batch in aim.batches for u in _stepped(batch, every)], aim.share)
            for batch in aim.batches:
                batch.threshold = level
        aims.append(aim)
    return aims


def _stepped(batch: Batch, every: int) -> list[Tensor]:
    """Every so-manyth dual variable of a batch after its step."""
    columns = batch.columns.each(lambda column: [in_a_row(t)[::every].clone() for t in column])
    rows = fused.Rows(columns)
    rows.receive(columns.g)
    fused.step(batch.rule, batch.numbers, columns, rows)()
    sampled: list[Tensor] = columns.u
    return sampled


def _quantile(duals: Sequence[Tensor], share: float, group: dict[str, Any]) -> float:
    """λ: exactly, or of every so-manyth number where these are many and the last hundredth of the steps is to come.

    A sample of 131,072 has a share within .0015 (one standard error) of what was asked for, for a twentieth of the time
    of a step.
    """
    every = _stride(duals, group, group[STEP])
    if every:
        return of_sample([in_a_row(u)[::every] for u in duals], share)
    return kth_smallest(duals, round(share * sum(u.numel() for u in duals)), group["fused"])


def _stride(duals: Sequence[Tensor], group: dict[str, Any], step: int) -> int:
    """Of how many numbers one is sampled; 0 where all are counted.

    It divides neither rows nor columns, as a sample of the same few columns in every row would tell of these alone.
    """
    total = sum(u.numel() for u in duals)
    on_the_way = group.get(GIVEN) is None and step < 0.99 * group["total_steps"] - 1
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
