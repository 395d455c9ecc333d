"""What the parameters of a group need before they can step: their state, brought up to date and parted by kernels.

It is kept from step to step. What was found out about tensors is found out again only if they have not kept type,
shape, strides and memory: that is looked at for every one of them, at every step.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import warnings
from collections.abc import Sequence
from operator import attrgetter, is_, itemgetter
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.optim import Optimizer

from mirrormax.geometry import Lp
from mirrormax.optim import fused, kernels, target
from mirrormax.optim.dual import fit, make_true
from mirrormax.optim.kernels import PLAIN, shard, whole
from mirrormax.optim.update import ALL, Numbers, Places, Rule, Tensors, at

VERSION = attrgetter("_version")
# Options that ask for all of a tensor, of which FSDP1's processes have pieces.
NEED_ALL = ("sparsity", "normalize", "scale", "trust", "clip", "moments", "error_if_nonfinite")
Member = tuple[int, int, bool]
"""The ids of a parameter and of its state, and whether it has a sparse gradient that moves rows alone."""


class Held:
    """What some tensors of this process are, and where they lie.

    Their storages are held, so that no other can come to lie there.
    """

    def __init__(self, tensors: Sequence[Tensor]) -> None:
        self._storages = [t.untyped_storage() for t in tensors]
        self._seen = _look(tensors, self._storages)

    def holds(self, tensors: Sequence[Tensor], places: Places = ALL) -> bool:
        """Whether these tensors, those at some places or all, are still the same, and still there."""
        return _look(tensors, at(self._storages, places)) == at(self._seen, places)


def _look(tensors: Sequence[Tensor], storages: Sequence[torch.UntypedStorage]) -> list[tuple[Any, ...]]:
    """All that matters of each tensor: one after the other, as each lies somewhere else in memory."""
    pairs = zip(tensors, storages, strict=True)
    return [(t.dtype, t.shape, t.stride(), t.data_ptr(), storage.nbytes()) for t, storage in pairs]


@dataclasses.dataclass
class Batch:
    """Parameters of one group that take the same step: they have one type, one device, one potential, one kernel.

    What is prepared has no gradients; of each step's batch the parameters are those at ``places`` of what is held.
    """

    group: dict[str, Any]
    rule: Rule
    kernel: str  # "fused", "rows" of sparse gradients, or "any"
    dual_dtype: torch.dtype | None  # None if weights are their own dual variables
    params: list[Tensor]
    states: list[dict[str, Any]]
    # Of one step: the numbers in its formulas, what numbers in the states become by it, and the threshold behind which
    # the step itself puts the weights, where it is known before.
    numbers: Numbers = dataclasses.field(init=False)
    later: dict[str, Tensor] = dataclasses.field(init=False)
    threshold: float | None = dataclasses.field(init=False, default=None)

    def __post_init__(self) -> None:
        self.places: Places = ALL
        self.vectors: dict[str, Tensor] = {}  # of the numbers in the states
        self._views: dict[str, list[Tensor]] = {}  # of these, which the states hold
        self._distributed = not all(map(PLAIN.__contains__, map(type, self.params)))

    def make_ready(self, standing: dict[int, Rule]) -> None:
        """Bring the state up to date, and u with what others have written; note where all of it lies."""
        group, rule = self.group, self.rule
        names = None if self.dual_dtype is None else "dual", *rule.moments
        for param, state in zip(self.params, self.states, strict=True):
            self._renew(param, state, standing.get(id(param)))
            for name in filter(None, names):
                fit(state, name, param, self.dual_dtype or param.dtype)
        if rule.adam:
            self._gather("step", 0.0)
        if rule.by_tensor:
            self._gather("exp_avg_sq", 0.0)
        if group.get("normalize") == "running":
            self._gather("norm", math.nan)
        if group["scale"] is not None or group["trust"] is not None:
            self._gather("size", 1.0)
        if group["scale"] is not None:  # which follows from the size, and is no state
            sizes = self.vectors["size"]
            self.vectors["scale"] = sizes.new_tensor([rule.potential.curvature(size) for size in sizes.tolist()])
        columns: dict[str | None, list[Tensor]] = {None: self.params}
        for name in filter(None, names):
            columns[name] = [state[name] for state in self.states]
        shards = {name: list(map(shard, column)) for name, column in columns.items()}
        self._held = {name: Held(column) for name, column in shards.items()}
        # What needs all of a tensor gets distributed ones, whose own storage holds nothing.
        columns = shards if rule.in_pieces else columns
        w = self.weights = columns[None]
        self.versions = self.versions_now()  # of the weights, when u was last known to be theirs
        u, m, v = (None if name is None else columns[name] for name in names)
        # Under a target, u moves as weights do, and the weights follow when all have.
        moves = u if u is not None and rule.target and u[0].dtype == w[0].dtype else w
        self.columns = Tensors(moves, w if u is None else u, None, m, v)
        self.rows: Any = fused.Rows(self.columns._replace(w=w)) if self.kernel == "fused" else None

    def _renew(self, param: Tensor, state: dict[str, Any], made_by: Rule | None) -> None:
        """Bring a parameter's state up to date; ``made_by`` is the rule by which its u is that of its weights."""
        rule, dtype = self.rule, self.dual_dtype
        knows = made_by is not None and (made_by.potential, made_by.target) == (rule.potential, rule.target)
        if not knows or ("dual" in state) is (dtype is None):
            if not rule.target:
                state.pop("threshold", None)
            if dtype is None or (made_by is not None and not knows):  # another potential's u says nothing of this one's
                state.pop("dual", None)
            if dtype is not None and rule.target:
                target.make_true(state, self.group, param, dtype)
            elif dtype is not None:
                make_true(state, param, rule.potential, dtype)
        if rule.by_matrix:
            state.pop("exp_avg_sq", None)
        elif rule.adam and "exp_avg_sq" not in state:  # m̂ and v̂ are right where both have taken the same steps
            for name in ("exp_avg", "step"):
                state.pop(name, None)

    def _gather(self, name: str, start: float) -> None:
        """Put a number of the states into one vector, of which each state holds a view."""
        device = self.params[0].device if self.group["capturable"] else torch.device("cpu")
        dtype = torch.float32 if device.type == "mps" else torch.float64
        vector = self.vectors[name] = torch.full((len(self.states),), start, dtype=dtype, device=device)
        self._views[name] = list(vector.unbind())
        for number, state in zip(self._views[name], self.states, strict=True):
            known = state.get(name, start)
            number.copy_(whole(known).detach().to(dtype).mean()) if isinstance(known, Tensor) else number.fill_(known)
            state[name] = number

    def those(self, places: Places, group: dict[str, Any]) -> Batch:
        """The parameters at these places, for a step in which the others have no gradients, and the group as it is."""
        part = copy.copy(self)
        part.places, part.group, part.later = places, group, {}
        part.params, part.states, part.weights = (at(each, places) for each in (self.params, self.states, self.weights))
        part.columns = self.columns.each(lambda column: at(column, places))
        part.rows = None if self.rows is None else self.rows.those(places)
        return part

    def number(self, name: str) -> Tensor:
        """A number of the state, of each parameter."""
        return self.vectors[name][self.places]

    def holds(self) -> bool:
        """Whether its tensors are those that they were when they were last looked at one by one."""
        if self._distributed or (self.versions[self.places] != self.versions_now()).any():
            return False
        try:
            return all(
                held.holds(self.weights if name is None else self._kept(name), self.places)
                for name, held in self._held.items()
            ) and all(all(map(is_, self._kept(name), at(views, self.places))) for name, views in self._views.items())
        except (KeyError, AttributeError):  # something is gone, or no tensor any more
            return False

    def _kept(self, name: str) -> list[Any]:
        """What the states have under a name."""
        return list(map(itemgetter(name), self.states))

    def stands(self, place: int) -> bool:
        """Whether nobody has written the weights at a place since, as far as torch can tell."""
        param = self.params[place]
        return self._held[None].holds([shard(param)], [place]) and self.versions_now([param])[0] == self.versions[place]

    def versions_now(self, params: list[Tensor] | None = None) -> Any:
        """What tells of writes; a write into a distributed tensor does not count as one into its shard."""
        params = self.params if params is None else params
        if self._distributed:
            return np.array([param._version + shard(param)._version for param in params])
        return np.array(list(map(VERSION, params)))


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
        batch.make_ready(standing)
    known = (id(states[param]) for param in params)
    return Prepared(key, list(zip(map(id, params), known, rows, strict=True)), batches)


def _refuse(group: dict[str, Any], rule: Rule, params: Sequence[Tensor]) -> None:
    """Raise where a step could not be what the options say."""
    if rule.target:
        target.refuse(group)
    for param in params:
        if rule.by_matrix and param.ndim < 2:
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


def _parts(optimizer: Optimizer, index: int, rule: Rule, params: list[Tensor], rows: list[bool]) -> list[Batch]:
    """The parameters parted by type, place, kernel, and whether they began at zero, which means p = 2."""
    group, states = optimizer.param_groups[index], [optimizer.state[param] for param in params]
    stuck = group["scale"] is not None and rule.potential.curvature(0.0) in (0.0, math.inf)
    if group["scale"] is not None or group["trust"] is not None:
        _measure(optimizer, index, params, stuck)
    may_fuse = fused.is_installed() and group["fused"] is not False and not group["capturable"]
    may_fuse = may_fuse and isinstance(rule.potential, Lp) and not rule.by_matrix
    kinds: dict[Any, list[int]] = {}
    for place, (param, by_row, state) in enumerate(zip(params, rows, states, strict=True)):
        kernels.check_memory(param, "a parameter")
        if any(stride == 0 and size > 1 for stride, size in zip(param.stride(), param.shape, strict=True)):
            raise ValueError(
                f"entries of a parameter of shape {tuple(param.shape)} share memory; make it of a contiguous() tensor."
            )
        kernel = "rows" if by_row else "fused" if may_fuse and fused.takes(param) else "any"
        at_zero = stuck and bool(state["zero_start"])
        kinds.setdefault((param.dtype, param.device, kernel, at_zero), []).append(place)
    batches = []
    for (dtype, _, kernel, at_zero), places in kinds.items():
        dual_dtype = rule.potential.dual_dtype(dtype)
        own = rule.potential.is_identity and dual_dtype == dtype and not rule.target
        ours = dataclasses.replace(rule, potential=Lp(2.0)) if at_zero else rule
        batches.append(Batch(group, ours, kernel, None if own else dual_dtype, at(params, places), at(states, places)))
    return batches


def _measure(optimizer: Optimizer, index: int, params: list[Tensor], stuck: bool) -> None:
    """Take the root mean square of every tensor that steps for the first time, and note whether it is zero.

    The state has the same names whatever the weights are, so that a checkpoint fits any model of these shapes.
    """
    group, zero, typical = optimizer.param_groups[index], [], 0.0
    for param in params:
        state, began_at_zero = optimizer.state[param], False
        if "size" not in state:
            size = _root_mean_square([param])
            began_at_zero = size == 0 and param.numel() > 0
            if began_at_zero:
                position = next(k for k, member in enumerate(group["params"]) if member is param)
                unnamed = f"parameter {position} of group {index} {tuple(param.shape)}"
                zero.append(str(group["param_names"][position]) if "param_names" in group else unnamed)
            if began_at_zero and not typical:  # of all that are not zero
                everybody = [each for every in optimizer.param_groups for each in every["params"]]
                typical = _root_mean_square([each for each in everybody if bool(whole(each.detach().any()))]) or 1.0
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


def _root_mean_square(params: Sequence[Tensor]) -> float:
    squares = sum(float(whole(torch.linalg.vector_norm(param.detach(), dtype=torch.float64))) ** 2 for param in params)
    return math.sqrt(squares / max(1, sum(param.numel() for param in params)))
