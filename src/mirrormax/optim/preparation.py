"""What the parameters of a group need before they can step: their state, brought up to date and parted by kernels.

It is kept from step to step, as long as the tensors are those that were prepared.
"""

from __future__ import annotations

import dataclasses
import math
import warnings
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor
from torch.optim import Optimizer

from mirrormax.geometry import Lp
from mirrormax.optim import fused, kernels, target
from mirrormax.optim.batch import ALL, Batch, Held
from mirrormax.optim.dual import fit, make_true
from mirrormax.optim.sharding import shard, whole
from mirrormax.optim.update import Rule, Tensors

# Options that ask for all of a tensor, of which FSDP1's processes have pieces.
NEED_ALL = ("sparsity", "normalize", "scale", "trust", "clip", "moments", "error_if_nonfinite")
Member = tuple[int, int, bool]
"""The ids of a parameter and of its state, and whether it has a sparse gradient that moves rows alone."""


@dataclasses.dataclass
class Prepared:
    """The parameters of a group that have had gradients, ready to step, and what that depends on."""

    key: Any
    members: list[Member]
    batches: list[Batch]

    def moving(self, group: dict[str, Any], key: Any, members: list[Member]) -> list[Batch] | None:
        """Of the parameters that have gradients, all or some of those that are prepared, batches for one step.

        None if not all of them are, with these states and options. Where a graph may be captured they must be the same
        in every step, as to choose some would mean to wait for the device.
        """
        if self.key != key:
            return None
        if members == self.members:
            return [batch.those(ALL, group) for batch in self.batches]
        if group["capturable"] or not set(members) <= set(self.members):
            return None
        moving = {member[0] for member in members}
        places = [[place for place, param in enumerate(b.params) if id(param) in moving] for b in self.batches]
        return [batch.those(chosen, group) for batch, chosen in zip(self.batches, places, strict=True) if chosen]


def prepare(
    optimizer: Optimizer, index: int, rule: Rule, key: Any, members: list[Member], before: Prepared | None
) -> Prepared:
    """Prepare the parameters of a group that have gradients, and with them those that were and have not changed."""
    group, states = optimizer.param_groups[index], optimizer.state
    by_rows = {name: sparse for name, _, sparse in members}
    standing: dict[int, Rule] = {}  # of parameters whose u is that of their weights, the rule that made it so
    if before is not None:
        for batch in before.batches:
            for place, (param, state) in enumerate(zip(batch.params, batch.states, strict=True)):
                if states.get(param) is state and batch.stands(place):
                    standing[id(param)] = batch.rule
        if before.key == key and not group["capturable"]:
            by_rows = {name: sparse for name, _, sparse in before.members if name in standing} | by_rows
    params = [param for param in group["params"] if id(param) in by_rows]
    _refuse(group, rule, params)
    rows = [by_rows[id(param)] for param in params]
    batches = _parts(optimizer, index, rule, params, rows)
    for batch in batches:
        _make_ready(batch, standing)
    known = (id(states[param]) for param in params)
    return Prepared(key, list(zip(map(id, params), known, rows, strict=True)), batches)


def _parts(optimizer: Optimizer, index: int, rule: Rule, params: list[Tensor], rows: list[bool]) -> list[Batch]:
    """The parameters parted by type, place, kernel, and whether they began at zero, which means p = 2."""
    group, began = optimizer.param_groups[index], [False] * len(params)
    if group["scale"] is not None or group["trust"] is not None:
        stuck = group["scale"] is not None and rule.potential.curvature(0.0) in (0.0, math.inf)
        _measure(optimizer, index, params, stuck)
        if stuck:
            began = [bool(optimizer.state[param]["zero_start"]) for param in params]
    may_fuse = fused.is_installed() and group["fused"] is not False and not group["capturable"]
    may_fuse = may_fuse and isinstance(rule.potential, Lp) and not rule.by_matrix
    kinds: dict[Any, list[int]] = {}
    for place, (param, by_row, at_zero) in enumerate(zip(params, rows, began, strict=True)):
        kernels.check_memory(param, "a parameter")
        if any(stride == 0 and size > 1 for stride, size in zip(param.stride(), param.shape, strict=True)):
            raise ValueError(
                f"entries of a parameter of shape {tuple(param.shape)} share memory; make it of a contiguous() tensor."
            )
        kernel = "rows" if by_row else "fused" if may_fuse and fused.takes(param) else "any"
        kinds.setdefault((param.dtype, param.device, kernel, at_zero), []).append(place)
    batches = []
    for (dtype, _, kernel, at_zero), places in kinds.items():
        some = [params[place] for place in places]
        dual_dtype = rule.potential.dual_dtype(dtype)
        own = rule.potential.is_identity and dual_dtype == dtype and not rule.target
        ours = dataclasses.replace(rule, potential=Lp(2.0)) if at_zero else rule
        states = [optimizer.state[param] for param in some]
        batches.append(Batch(group, ours, kernel, some, states, None if own else dual_dtype))
    return batches


def _measure(optimizer: Optimizer, index: int, params: list[Tensor], stuck: bool) -> None:
    """Take the root mean square of every tensor that steps for the first time, and note whether it is zero.

    The state has the same names whatever the weights are, so that a checkpoint fits any model of these shapes.
    """
    zero, typical = [], 0.0
    for param in params:
        state, began_at_zero = optimizer.state[param], False
        if "size" not in state:
            size = _root_mean_square([param])
            began_at_zero = size == 0 and param.numel() > 0
            if began_at_zero:
                typical = typical or _typical_size(optimizer.param_groups)
                zero.append(_name(optimizer.param_groups[index], index, param))
            state["size"] = torch.tensor(size or typical or 1.0, dtype=torch.float64, device="cpu")
        if "zero_start" not in state:
            state["zero_start"] = torch.tensor(float(began_at_zero), dtype=torch.float64, device="cpu")
    if zero and stuck:
        named = ", ".join(zero[:6]) + (f" and {len(zero) - 6} more" if len(zero) > 6 else "")
        warnings.warn(
            f"these tensors begin at zero, where mirror descent with this potential has no step size, and are "
            f"trained with p = 2 instead: {named}. Give them a group of their own with p=2 to say so yourself.",
            stacklevel=7,
        )


def _typical_size(groups: Sequence[dict[str, Any]]) -> float:
    """The root mean square of all parameters that are not zero; 1 if there are none."""
    params = [param for group in groups for param in group["params"]]
    return _root_mean_square([param for param in params if bool(whole(param.detach().any()))]) or 1.0


def _root_mean_square(params: Sequence[Tensor]) -> float:
    squares = sum(float(whole(torch.linalg.vector_norm(param.detach(), dtype=torch.float64))) ** 2 for param in params)
    return math.sqrt(squares / max(1, sum(param.numel() for param in params)))


def _name(group: dict[str, Any], index: int, param: Tensor) -> str:
    position = next(k for k, member in enumerate(group["params"]) if member is param)
    if "param_names" in group:
        return str(group["param_names"][position])
    return f"parameter {position} of group {index} {tuple(param.shape)}"


def _refuse(group: dict[str, Any], rule: Rule, params: Sequence[Tensor]) -> None:
    """Raise where a step could not be what the options say."""
    if rule.target:
        target.refuse(group)
    for param in params if rule.by_matrix else ():
        if param.ndim < 2:
            raise ValueError(
                f"moments='matrix' needs matrices, got a tensor of shape {tuple(param.shape)}; give it a group with "
                "moments='entry'."
            )
    if not any(getattr(param, "_fsdp_flattened", False) for param in params):
        return
    chosen = {name: group.get(name) for name in NEED_ALL}
    needed = [f"{k}={v!r}" for k, v in chosen.items() if not (v is None or v is False or v == "entry")]
    needed += [] if rule.potential.separable else [f"the potential {rule.potential}"]
    if needed:
        raise ValueError(
            f"{', '.join(needed)} cannot be computed under FullyShardedDataParallel (FSDP1), whose processes hold "
            "pieces of flattened tensors; use FSDP2 (torch.distributed.fsdp.fully_shard), or switch the option off."
        )


def _make_ready(batch: Batch, standing: dict[int, Rule]) -> None:
    """Bring the state up to date, and u with what others have written; note where all of it lies."""
    group, rule = batch.group, batch.rule
    for param, state in zip(batch.params, batch.states, strict=True):
        _renew(batch, param, state, standing.get(id(param)))
    if rule.adam:
        batch.gather("step", 0.0)
    if rule.by_tensor:
        batch.gather("exp_avg_sq", 0.0)
    if group.get("normalize") == "running":
        batch.gather("norm", math.nan)
    if group["scale"] is not None or group["trust"] is not None:
        batch.gather("size", 1.0)
    if group["scale"] is not None:  # which follows from the size, and is no state
        sizes = batch.vectors["size"]
        batch.vectors["scale"] = sizes.new_tensor([rule.potential.curvature(size) for size in sizes.tolist()])
    columns: dict[str | None, list[Tensor]] = {None: batch.params}
    for name in filter(None, batch.names):
        columns[name] = [state[name] for state in batch.states]
    shards = {name: list(map(shard, column)) for name, column in columns.items()}
    batch.held = {name: Held(column) for name, column in shards.items()}
    # What needs all of a tensor gets distributed ones, whose own storage holds nothing.
    columns = shards if rule.in_pieces else columns
    w = batch.weights = columns[None]
    batch.versions = batch.versions_now()
    u, m, v = (None if name is None else columns[name] for name in batch.names)
    # Under a target, u moves as weights do, and the weights follow when all have.
    moves = u if u is not None and rule.target and u[0].dtype == w[0].dtype else w
    batch.columns = Tensors(moves, w if u is None else u, None, m, v)
    if batch.kernel == "fused":
        batch.rows = fused.Rows(batch.columns._replace(w=w))


def _renew(batch: Batch, param: Tensor, state: dict[str, Any], made_by: Rule | None) -> None:
    """Bring the state of one parameter up to date; ``made_by`` is the rule by which its u is that of its weights."""
    rule, dtype = batch.rule, batch.dual_dtype
    knows = made_by is not None and (made_by.potential, made_by.target) == (rule.potential, rule.target)
    if not knows or ("dual" in state) is (dtype is None):
        if not rule.target:
            state.pop("threshold", None)
        if dtype is None or (made_by is not None and not knows):  # another potential's u says nothing of this one's
            state.pop("dual", None)
        if dtype is not None and rule.target:
            target.make_true(state, batch.group, param, dtype)
        elif dtype is not None:
            make_true(state, param, rule.potential, dtype)
    if rule.by_matrix:
        state.pop("exp_avg_sq", None)
    elif rule.adam and "exp_avg_sq" not in state:  # m̂ and v̂ are right where both have taken the same steps
        for name in ("exp_avg", "step"):
            state.pop(name, None)
    for name in filter(None, batch.names):
        fit(state, name, param, dtype or param.dtype)
