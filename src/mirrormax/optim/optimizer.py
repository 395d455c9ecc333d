"""What MirrorDescent and MirrorAdamW share, which is all but their options: groups, state, and the step.

A step is prepared as a whole, then taken. Until :meth:`MirrorOptimizer._advance` comes to its last lines nothing has
moved, so whatever is wrong with a gradient, an option or a state leaves the model as it was. The formulas are in
:mod:`~mirrormax.optim.update`.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler at once
from torch.optim import Optimizer

from mirrormax.geometry import Lp, Potential, as_potential
from mirrormax.optim import fused, gradients, kernels, target
from mirrormax.optim.batch import VERSION, Batch, Columns, Held
from mirrormax.optim.dual import fit, make_true
from mirrormax.optim.gradients import Work
from mirrormax.optim.hyperparameters import canonical, checked, checked_lr
from mirrormax.optim.sharding import refuse_pieces, shard, whole
from mirrormax.optim.update import Numbers, Rule, numbers_of

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
GRAD = attrgetter("grad")
Member = tuple[int, int, bool]
"""The ids of a parameter and of its state, and whether it has a sparse gradient that moves rows alone."""
# Options that decide which state there is, and where it lies.
LAID_OUT_BY = ("scale", "trust", "sparsity", "normalize", "fused", "capturable")


@dataclasses.dataclass
class Prepared:
    """The parameters of a group that have had gradients, ready to step, and what that depends on."""

    key: Any
    members: list[Member]
    batches: list[Batch]


class MirrorOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose steps are taken on the dual variables u = ∇ψ(w)."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, checked(defaults))

    def _forget(self) -> None:
        self._rules: dict[int, tuple[dict[str, Any], Rule]] = {}  # of each group the options it had, and their rule
        self._prepared: dict[int, Prepared] = {}  # by the index of a group

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set it takes from the constructor's arguments."""
        group = canonical(param_group, self.defaults)
        super().add_param_group(target.with_counts(group, self.param_groups))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._forget()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a ``state_dict()``; the run then goes on bit for bit where it was saved.

        Hyperparameters come from the file as in every torch optimizer; if that changes p, a warning says so.
        """
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        self.resync()
        changed: list[tuple[int, Potential, Potential]] = []
        groups = zip(self.param_groups, own, state_dict["param_groups"], strict=True)
        for index, (group, before, saved) in enumerate(groups):
            group.update({name: before[name] for name in before.keys() & self.defaults.keys() - saved.keys()})
            if as_potential(group["p"]) != as_potential(before["p"]):
                changed.append((index, as_potential(before["p"]), as_potential(group["p"])))
            for place, param in zip(saved["params"], group["params"], strict=True):
                state = self.state.get(param, {})
                for name, value in state.items():
                    state[name] = _restored(value, state_dict["state"].get(place, {}).get(name))
                state.pop("scale", None)  # which an earlier version kept, though it follows from the size
        for index, ours, theirs in changed:
            warnings.warn(
                f"load_state_dict changes p of group {index} from {ours} to {theirs}, as it was saved; to keep "
                f"yours, set param_groups[{index}]['p'] after loading.",
                stacklevel=2,
            )

    def resync(self) -> None:
        """Compare all parameters with their dual variables at the next step, as after writes through ``.data``."""
        self._prepared.clear()

    def set_sparsity(self, share: float) -> None:
        """From the next step on, let this share of the weights be zero in every group that has ``sparsity=``.

        It takes the place of the schedule that ``total_steps`` gives, for trainings whose length nobody knows before.
        """
        target.set_sparsity(self.param_groups, share)

    @overload
    def step(self, closure: None = None) -> None: ...

    @overload
    def step(self, closure: Callable[[], float]) -> float: ...

    @torch.no_grad()
    def step(self, closure: Callable[[], float] | None = None) -> float | None:
        """Take one step; with ``closure``, evaluate it first (with gradients) and return its value."""
        loss = None
        if closure is not None:
            with torch.enable_grad():
                loss = closure()
        if torch.compiler.is_compiling():
            self._advance_outside()
        else:
            self._advance()
        return loss

    @_disable_dynamo
    def _advance_outside(self) -> None:
        """The step between two graphs: a compiler would watch each gradient, and compile again for the next one."""
        self._advance()

    def _advance(self) -> None:
        rules = [self._rule_of(index, group) for index, group in enumerate(self.param_groups)]
        gradients.refuse_nonfinite(self.param_groups)
        batches = [
            batch
            for index, (group, rule) in enumerate(zip(self.param_groups, rules, strict=True))
            for batch in self._batches(index, group, rule)
        ]
        shares = {id(batch.group): target.share_now(batch.group) for batch in batches if batch.rule.target}
        later: list[Work] = []
        factors = gradients.factors(batches, later)
        numbers = [_numbers(batch, c, norms, later) for batch, (c, norms) in zip(batches, factors, strict=True)]
        levels = target.known_levels(batches, numbers, shares)
        work = [
            part
            for batch, own in zip(batches, numbers, strict=True)
            for part in _work(batch, own, levels.get(id(batch.group)))
        ]
        for part in (*later, *work):  # from here on, things move
            part()
        if batches:
            target.count_step(self.param_groups)
        for group in self.param_groups:
            params = [p for batch in batches if batch.rule.target and batch.group is group for p in batch.params]
            if params:
                states = [self.state[param] for param in params]
                target.apply(group, params, states, shares[id(group)], levels.get(id(group)))
        for batch in batches:
            batch.note_versions()

    def _rule_of(self, index: int, group: dict[str, Any]) -> Rule:
        """The rule of a group, whose options are looked at again if they have changed."""
        options = {name: group[name] for name in self.defaults if name != "lr"}
        known = self._rules.get(index)
        if not isinstance(group["lr"], Tensor):
            group["lr"] = checked_lr(group["lr"])
        if known is None or known[0] != options:
            group.update(checked({name: group[name] for name in self.defaults}))
            known = self._rules[index] = {name: group[name] for name in options}, Rule.of(group)
        return known[1]

    def _batches(self, index: int, group: dict[str, Any], rule: Rule) -> list[Batch]:
        """The group's parameters that have gradients, ready to step."""
        grads = list(map(GRAD, group["params"]))
        params = [param for param, grad in zip(group["params"], grads, strict=True) if grad is not None]
        if not params:
            return []
        grads = [grad for grad in grads if grad is not None]
        # Sparse gradients move their rows alone where the others stand still anyway.
        rows = [grad.is_sparse for grad in grads] if rule.takes_rows else [False] * len(grads)
        members = list(zip(map(id, params), map(id, map(self.state.__getitem__, params)), rows, strict=True))
        key = rule, [group.get(name) for name in LAID_OUT_BY]
        batches = self._moving(index, key, members, group["capturable"])
        if batches is None or not all(batch.holds() for batch in batches):
            self._prepare(index, group, rule, key, members)
            batches = self._moving(index, key, members, group["capturable"])
            assert batches is not None
        lr = group["lr"]
        if isinstance(lr, Tensor) and not group["capturable"]:
            lr = float(lr)
        grad_of = dict(zip(map(id, params), grads, strict=True))
        for batch in batches:
            batch.group, batch.lr = group, lr
            ours = [grad_of[id(param)] for param in batch.params]
            if batch.rule.in_pieces:
                ours = list(map(shard, ours))
            batch.columns = batch.columns._replace(g=_received(batch, ours))
        return batches

    def _moving(self, index: int, key: Any, members: list[Member], captured: bool) -> list[Batch] | None:
        """The batches of the parameters that have gradients, which may be some of those that are prepared.

        None if not all of them are, with these states and options. Where a graph may be captured they must be the same
        in every step, as to choose some would mean to wait for the device.
        """
        prepared = self._prepared.get(index)
        if prepared is None or prepared.key != key:
            return None
        if members == prepared.members:
            return prepared.batches
        if captured or not set(members) <= set(prepared.members):
            return None
        moving = {member[0] for member in members}
        chosen = []
        for batch in prepared.batches:
            places = [place for place, param in enumerate(batch.params) if id(param) in moving]
            if places:
                chosen.append(batch if len(places) == len(batch.params) else batch.those(places))
        return chosen

    def _prepare(self, index: int, group: dict[str, Any], rule: Rule, key: Any, members: list[Member]) -> None:
        """Prepare the parameters that have gradients, and with them those that were and have not changed."""
        before = self._prepared.pop(index, None)
        by_rows = {name: sparse for name, _, sparse in members}
        standing: dict[int, Rule] = {}  # of parameters whose u is that of their weights, the rule that made it so
        if before is not None:
            for batch in before.batches:
                for place, (param, state) in enumerate(zip(batch.params, batch.states, strict=True)):
                    if self.state.get(param) is state and batch.stands(place):
                        standing[id(param)] = batch.rule
            if before.key == key and not group["capturable"]:
                by_rows = {name: sparse for name, _, sparse in before.members if name in standing} | by_rows
        params = [param for param in group["params"] if id(param) in by_rows]
        rows = [by_rows[id(param)] for param in params]
        batches = self._parts(index, group, rule, params, rows)
        for batch in batches:
            self._make_ready(batch, standing)
        states = (id(self.state[param]) for param in params)
        self._prepared[index] = Prepared(key, list(zip(map(id, params), states, rows, strict=True)), batches)

    def _parts(
        self, index: int, group: dict[str, Any], rule: Rule, params: list[Tensor], rows: list[bool]
    ) -> list[Batch]:
        """The parameters parted by type, place, kernel, and whether they began at zero, which means p = 2."""
        began = [False] * len(params)
        if group["scale"] is not None or group["trust"] is not None:
            stuck = group["scale"] is not None and rule.potential.curvature(0.0) in (0.0, math.inf)
            self._measure(index, group, params, stuck)
            if stuck:
                began = [bool(self.state[param]["zero_start"]) for param in params]
        may_fuse = fused.is_installed() and group["fused"] is not False and not group["capturable"]
        may_fuse = may_fuse and isinstance(rule.potential, Lp) and not rule.by_matrix
        kinds: dict[Any, list[int]] = {}
        for place, (param, by_row, at_zero) in enumerate(zip(params, rows, began, strict=True)):
            kernels.check_memory(param, "a parameter")
            if any(stride == 0 and size > 1 for stride, size in zip(param.stride(), param.shape, strict=True)):
                raise ValueError(
                    f"entries of a parameter of shape {tuple(param.shape)} share memory; "
                    "make it of a contiguous() tensor."
                )
            kernel = "rows" if by_row else "fused" if may_fuse and fused.takes(param) else "any"
            kinds.setdefault((param.dtype, param.device, kernel, at_zero), []).append(place)
        batches = []
        for (dtype, _, kernel, at_zero), places in kinds.items():
            some = [params[place] for place in places]
            dual_dtype = rule.potential.dual_dtype(dtype)
            own = rule.potential.is_identity and dual_dtype == dtype and not rule.target
            ours = dataclasses.replace(rule, potential=Lp(2.0)) if at_zero else rule
            states = [self.state[param] for param in some]
            batches.append(Batch(group, ours, kernel, some, states, None if own else dual_dtype))
        return batches

    def _measure(self, index: int, group: dict[str, Any], params: list[Tensor], stuck: bool) -> None:
        """Take the root mean square of every tensor that steps for the first time, and note whether it is zero.

        The state has the same names whatever the weights are, so that a checkpoint fits any model of these shapes.
        """
        zero, typical = [], 0.0
        for param in params:
            state, began_at_zero = self.state[param], False
            if "size" not in state:
                size = _root_mean_square([param])
                began_at_zero = size == 0 and param.numel() > 0
                if began_at_zero:
                    typical = typical or self._typical_size()
                    zero.append(_name(group, index, param))
                state["size"] = torch.tensor(size or typical or 1.0, dtype=torch.float64)
            if "zero_start" not in state:
                state["zero_start"] = torch.tensor(float(began_at_zero), dtype=torch.float64)
        if zero and stuck:
            named = ", ".join(zero[:6]) + (f" and {len(zero) - 6} more" if len(zero) > 6 else "")
            warnings.warn(
                f"these tensors begin at zero, where mirror descent with this potential has no step size, and are "
                f"trained with p = 2 instead: {named}. Give them a group of their own with p=2 to say so yourself.",
                stacklevel=7,
            )

    def _typical_size(self) -> float:
        """The root mean square of all parameters that are not zero; 1 if there are none."""
        params = [param for group in self.param_groups for param in group["params"]]
        return _root_mean_square([param for param in params if bool(whole(param.detach().any()))]) or 1.0

    def _make_ready(self, batch: Batch, standing: dict[int, Rule]) -> None:
        """Bring the state up to date, and u with what others have written; note where all of it lies."""
        group, rule = batch.group, batch.rule
        _refuse_pieces(group, rule, batch.params)
        for param, state in zip(batch.params, batch.states, strict=True):
            _renew(batch, param, state, standing.get(id(param)))
        for name, start in _numbers_kept(group, rule).items():
            batch.gather(name, start)
        columns: dict[str | None, list[Tensor]] = {None: batch.params}
        for name in filter(None, batch.names):
            columns[name] = [state[name] for state in batch.states]
        shards = {name: list(map(shard, column)) for name, column in columns.items()}
        batch.held = {name: Held(column) for name, column in shards.items()}
        # What needs all of a tensor gets distributed ones, whose own storage holds nothing.
        columns = shards if rule.in_pieces else columns
        w = batch.weights = columns[None]
        batch.versions = list(map(VERSION, w))
        u, m, v = (None if name is None else columns[name] for name in batch.names)
        # Under a target, u moves as weights do, and the weights follow when all have.
        moves = u if u is not None and rule.target and u[0].dtype == w[0].dtype else w
        batch.columns = Columns(moves, w if u is None else u, [], m, v)
        if batch.kernel == "fused":
            batch.rows = fused.Rows(batch.columns._replace(w=w))


def _renew(batch: Batch, param: Tensor, state: dict[str, Any], made_by: Rule | None) -> None:
    """Bring the state of one parameter up to date; ``made_by`` is the rule by which its u is that of its weights."""
    rule, dtype = batch.rule, batch.dual_dtype
    knows = made_by is not None and (made_by.potential, made_by.target) == (rule.potential, rule.target)
    if not knows or ("dual" in state) is (dtype is None):
        if not rule.target:
            state.pop("threshold", None)
        if dtype is None:
            state.pop("dual", None)
        elif rule.target:
            target.make_true(state, batch.group, param, dtype)
        else:
            make_true(state, param, rule.potential, dtype)
    if rule.by_matrix:
        state.pop("exp_avg_sq", None)
    elif rule.adam and "exp_avg_sq" not in state:  # m̂ and v̂ are right where both have taken the same steps
        for name in ("exp_avg", "step"):
            state.pop(name, None)
    for name in filter(None, batch.names):
        fit(state, name, param, dtype or param.dtype)


def _received(batch: Batch, grads: list[Tensor]) -> list[Tensor]:
    """The gradients of a step as the kernel of a batch takes them."""
    if batch.kernel == "fused":
        received: list[Tensor] = batch.rows.receive(grads)
        return received
    for grad, w in zip(grads, batch.weights, strict=True):
        kernels.check_gradient(grad, w)
    return grads if batch.kernel == "rows" else [grad.to_dense() if grad.is_sparse else grad for grad in grads]


def _numbers_kept(group: dict[str, Any], rule: Rule) -> dict[str, float]:
    """The numbers in a parameter's state, and with what they begin."""
    numbers = {"step": 0.0} if rule.adam else {}
    if rule.by_tensor:
        numbers["exp_avg_sq"] = 0.0
    if group.get("normalize") == "running":
        numbers["norm"] = math.nan
    if group["scale"] is not None or group["trust"] is not None:
        numbers["size"] = 1.0
    return numbers


def _numbers(batch: Batch, c: Tensor, norms: Tensor | None, later: list[Work]) -> Numbers:
    """The numbers in the formulas of each parameter; those of the state are brought up to date ``later``."""
    group, rule = batch.group, batch.rule
    t = mean = None
    if rule.adam:
        t = batch.number("step") + 1
        later.append(functools.partial(batch.set_number, "step", t))
    if rule.by_tensor:
        assert norms is not None
        seconds, beta2 = batch.number("exp_avg_sq"), group["betas"][1]
        entries = torch.tensor([max(1, param.numel()) for param in batch.params], dtype=torch.float64)
        mean = beta2 * seconds + (1 - beta2) * ((c * norms) ** 2).to(seconds) / entries.to(seconds)
        later.append(functools.partial(batch.set_number, "exp_avg_sq", mean))
    scale = 1.0 if group["scale"] is None else batch.scales()
    size = None if group["trust"] is None else batch.number("size")
    return numbers_of(rule, group, batch.lr, c, scale, size, t, mean)


def _work(batch: Batch, numbers: Numbers, threshold: float | None) -> list[Work]:
    """The step of a batch, ready to be taken."""
    if batch.kernel == "fused":
        return [fused.Step(batch.rule, numbers, batch.columns, batch.rows.table, threshold).run]
    each = [(own, batch.columns.tensors(place)) for place, own in enumerate(numbers.each(len(batch.params)))]
    if batch.kernel == "rows":
        take = kernels.step_rows
    elif batch.group["capturable"]:
        take = kernels.step_traced
    elif batch.group["compile"]:
        return [kernels.compiled(batch.rule, *own) for own in each]
    else:
        take = kernels.step_eagerly
    return [functools.partial(take, batch.rule, *own) for own in each]


def _refuse_pieces(group: dict[str, Any], rule: Rule, params: Sequence[Tensor]) -> None:
    if rule.target:
        target.refuse(group)
    needed = [f"sparsity={group['sparsity']!r}"] if rule.target else []
    needed += [f"{name}={group[name]!r}" for name in ("normalize", "scale", "trust", "clip") if group.get(name)]
    needed += [f"moments={group['moments']!r}"] if rule.by_tensor or rule.by_matrix else []
    needed += ["error_if_nonfinite=True"] if group["error_if_nonfinite"] else []
    needed += [] if rule.potential.separable else [f"the potential {rule.potential}"]
    if needed:
        refuse_pieces(params, needed)
    for param in params if rule.by_matrix else ():
        if param.ndim < 2:
            raise ValueError(
                f"moments='matrix' needs matrices, got a tensor of shape {tuple(param.shape)}; give it a group with "
                "moments='entry'."
            )


def _root_mean_square(params: Sequence[Tensor]) -> float:
    squares = sum(float(whole(torch.linalg.vector_norm(param.detach(), dtype=torch.float64))) ** 2 for param in params)
    return math.sqrt(squares / max(1, sum(param.numel() for param in params)))


def _name(group: dict[str, Any], index: int, param: Tensor) -> str:
    position = next(k for k, member in enumerate(group["params"]) if member is param)
    if "param_names" in group:
        return str(group["param_names"][position])
    return f"parameter {position} of group {index} {tuple(param.shape)}"


def _restored(loaded: Any, saved: Any) -> Any:
    """A state tensor of our own, in the type it was saved in.

    torch gives loaded state the type of its parameter, which would round the dual variables of
    half-precision weights, and shares memory with the dict it came from.
    """
    if not isinstance(loaded, Tensor):
        return loaded
    if isinstance(saved, Tensor) and saved.dtype != loaded.dtype and saved.shape == loaded.shape:
        rounded = saved.to(loaded.device, loaded.dtype)
        if torch.equal(shard(rounded).nan_to_num(), shard(loaded).nan_to_num()):  # unless a hook changed it
            return saved.detach().to(loaded.device, copy=True)
    return loaded.clone()
