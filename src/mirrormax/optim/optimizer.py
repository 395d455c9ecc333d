"""What MirrorDescent and MirrorAdamW share: groups, dual state, sizes of tensors, and the choice of a kernel.

A step is prepared as a whole, then taken. Until :meth:`MirrorOptimizer._advance` comes to its last lines nothing has
moved, so whatever is wrong with a gradient, an option or a state leaves the model as it was.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from operator import attrgetter
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler at once
from torch.optim import Optimizer

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused, gradients, kernels, target
from mirrormax.optim.batch import DTYPE, Batch, Column, Columns, Held, Roster
from mirrormax.optim.dual import DualState, make_true
from mirrormax.optim.hyperparameters import canonical, checked, checked_lr, potential_of
from mirrormax.optim.sharding import refuse_pieces, shard, whole
from mirrormax.optim.update import Number, Numbers, Rule, numbers_of

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Work = Callable[[], None]
"""A part of a step that is ready to be taken."""

# State that is one number for a tensor.
NUMBERS = ("step", "size", "zero_start", "norm", "threshold")
GRAD, PARAMS, STATES = attrgetter("grad"), attrgetter("params"), attrgetter("states")
# Options that decide which state there is, and where it lies.
LAID_OUT_BY = ("scale", "trust", "sparsity", "normalize", "fused", "capturable")
# float16 weights on an accelerator are asked every so many steps whether they have left their range: it means waiting.
STEPS_BETWEEN_WAITS = 100


class Factors(NamedTuple):
    """For each parameter of a batch the factor c of its gradient, and ‖g‖₂ where it is needed."""

    c: Sequence[Number]
    norms: Sequence[Number] | None = None


class MirrorOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose steps are taken on the dual variables u = ∇ψ(w)."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, checked(defaults))

    def _forget(self) -> None:
        self._duals = DualState()
        self._rules: dict[int, tuple[dict[str, Any], Rule]] = {}  # of each group the options it had, and their rule
        self._warned: set[str] = set()
        self._rosters: dict[int, Roster] = {}  # of each group what is known of its tensors
        self._steps = 0

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set it takes from the constructor's arguments."""
        super().add_param_group(target.with_counts(canonical(param_group, self.defaults)))

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
            if potential_of(group) != potential_of(before):
                changed.append((index, potential_of(before), potential_of(group)))
            for place, param in zip(saved["params"], group["params"], strict=True):
                state = self.state.get(param, {})
                for name, value in state.items():
                    state[name] = _restored(value, state_dict["state"].get(place, {}).get(name))
                    if name in NUMBERS and not group["capturable"]:
                        state[name] = state[name].cpu()
                state.pop("scale", None)  # which an earlier version kept, though it follows from the size
        for index, ours, theirs in changed:
            warnings.warn(
                f"load_state_dict changes p of group {index} from {ours} to {theirs}, as it was saved; to keep "
                f"yours, set param_groups[{index}]['p'] after loading.",
                stacklevel=2,
            )

    def resync(self) -> None:
        """Compare all parameters with their dual variables at the next step, as after writes through ``.data``."""
        self._duals.forget()
        self._rosters.clear()

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
        moving = [batch.group for batch in batches if batch.rule.target]
        targets = [group for group in self.param_groups if any(group is own for own in moving)]
        shares = [target.share_now(group) for group in targets]
        later: list[Work] = []
        factors = self._factors(batches, later)
        work = [part for batch, own in zip(batches, factors, strict=True) for part in self._work(batch, own, later)]
        for part in (*later, *work):  # from here on, things move
            part()
        for group, share in zip(targets, shares, strict=True):
            ours = [batch for batch in batches if batch.group is group and batch.lr != 0]  # which moves nothing
            if ours:
                params, states = ([one for batch in ours for one in of(batch)] for of in (PARAMS, STATES))
                target.apply(group, params, states, share)
        self._steps += 1
        for batch in batches:
            batch.versions = self._duals.stamp(batch.params, batch.weights)
            if batch.params[0].dtype == torch.float16 and not batch.group["capturable"]:
                self._look_for_overflow(batch)

    # What the two optimizers differ in.

    @abstractmethod
    def _rule(self, group: dict[str, Any]) -> Rule:
        """The group's options as a rule."""

    @abstractmethod
    def _moments(self, group: dict[str, Any]) -> tuple[str | None, str | None]:
        """What m and v are called in the state, None if there are none for each entry."""

    @abstractmethod
    def _numbers(self, group: dict[str, Any]) -> dict[str, float]:
        """The numbers in a parameter's state that steps change, and with what they begin."""

    @abstractmethod
    def _factors(self, batches: Sequence[Batch], later: list[Work]) -> list[Factors]:
        """The factors of the gradients of each batch; what the state learns of it is written ``later``."""

    @abstractmethod
    def _counts(self, batch: Batch, factors: Factors, later: list[Work]) -> tuple[Any, Any]:
        """t and the second moments of whole tensors after this step, of each parameter; None where there are none."""

    # What they share, in the order of a step.

    def _rule_of(self, index: int, group: dict[str, Any]) -> Rule:
        """The rule of a group, whose options are looked at again if they have changed."""
        options = {name: group[name] for name in self.defaults if name != "lr"}
        known = self._rules.get(index)
        if not isinstance(group["lr"], Tensor):
            group["lr"] = checked_lr(group["lr"])
        if known is None or known[0] != options:
            group.update(checked({name: group[name] for name in self.defaults}))
            options = {name: group[name] for name in options}
            rule = self._rule(group)
            # An equal rule stays the object it was, by which parameters are known.
            known = self._rules[index] = options, known[1] if known is not None and known[1] == rule else rule
        return known[1]

    def _batches(self, index: int, group: dict[str, Any], rule: Rule) -> list[Batch]:
        """The group's parameters that have gradients, ready to step."""
        grads = list(map(GRAD, group["params"]))
        params = [param for param, grad in zip(group["params"], grads, strict=True) if grad is not None]
        if not params:
            return []
        grads = [grad for grad in grads if grad is not None]
        states = [self.state[param] for param in params]
        key = (rule, *(group.get(name) for name in LAID_OUT_BY))
        roster = self._rosters.get(index)
        if roster is None or not roster.holds(key, params, states):
            self._rosters.pop(index, None)
            roster = Roster(key, params, states, self._parts(index, group, rule, params, states))
        self._rosters[index] = roster
        lr = group["lr"]
        if isinstance(lr, Tensor) and lr.is_cpu and not group["capturable"]:
            lr = float(lr)
        for batch in roster.batches:
            batch.group, batch.lr = group, lr
            self._receive(batch, grads)
        return roster.batches

    def _receive(self, batch: Batch, grads: list[Tensor]) -> None:
        """Give the batch its gradients, and see which of its tensors the fused kernel takes."""
        if len(batch.places) < len(grads):
            grads = [grads[place] for place in batch.places]
        if batch.rule.potential.separable:
            grads = list(map(shard, grads))
        batch.receive(grads)
        sparse = [place for place in batch.rest if grads[place].is_sparse and not batch.rule.takes_rows]
        if sparse:
            for place in sparse:
                grads[place] = grads[place].to_dense()
            batch.receive(grads)

    def _parts(
        self, index: int, group: dict[str, Any], rule: Rule, params: list[Tensor], states: list[dict[str, Any]]
    ) -> list[Batch]:
        """The parameters parted by type and by whether they began at zero, which means p = 2; with their state."""
        host = not group["capturable"] and all(param.is_cpu for param in params)
        began = [False] * len(params)
        if group["scale"] is not None or group["trust"] is not None:
            self._measure(index, group, rule, params, states)
            if group["scale"] is not None and not rule.potential.is_identity:
                began = [bool(state["zero_start"]) for state in states]
        kinds: dict[Any, list[int]] = {}
        for place, kind in enumerate(zip(map(DTYPE, params), began, strict=True)):
            kinds.setdefault(kind, []).append(place)
        names = self._moments(group)
        batches = []
        for (dtype, at_zero), places in kinds.items():
            some, theirs = [params[place] for place in places], [states[place] for place in places]
            own = rule.potential.is_identity and rule.potential.dual_dtype(dtype) == dtype and not rule.target
            ours = dataclasses.replace(rule, potential=Lp(2.0)) if at_zero else rule
            batch = Batch(
                group, ours, rule.potential, places, some, theirs, host, own, (None if own else "dual", *names)
            )
            self._prepare(batch)
            batches.append(batch)
        return batches

    def _measure(
        self, index: int, group: dict[str, Any], rule: Rule, params: list[Tensor], states: list[dict[str, Any]]
    ) -> None:
        """Take the root mean square of every tensor that steps for the first time.

        The state has the same names whatever the weights are, so that a checkpoint fits any model of these shapes.
        """
        zero, typical = [], 0.0
        stuck = group["scale"] is not None and rule.potential.curvature(0.0) in (0.0, math.inf)
        for param, state in zip(params, states, strict=True):
            began_at_zero = 0.0
            if "size" not in state:
                size = _root_mean_square([param])
                if size == 0 and param.numel():
                    typical = typical or self._typical_size()
                    if stuck:
                        began_at_zero = 1.0
                        zero.append(_name(group, index, param))
                state["size"] = number_of_state(size or typical or 1.0, group, param)
            if "zero_start" not in state:
                state["zero_start"] = number_of_state(began_at_zero, group, param)
        if zero:
            named = ", ".join(zero[:6]) + (f" and {len(zero) - 6} more" if len(zero) > 6 else "")
            warnings.warn(
                f"these tensors begin at zero, where mirror descent with this potential has no step size, and are "
                f"trained with p = 2 instead: {named}. Give them a group of their own with p=2 to say so yourself.",
                stacklevel=8,
            )

    def _typical_size(self) -> float:
        """The root mean square of all parameters that are not zero; 1 if there are none."""
        params = [param for group in self.param_groups for param in group["params"]]
        return _root_mean_square([param for param in params if bool(whole(param.detach().any()))]) or 1.0

    def _prepare(self, batch: Batch) -> None:
        """Bring the state up to date, and u with what others have written; note where all of it lies."""
        group, names = batch.group, [name for name in batch.names if name not in (None, "dual")]
        numbers = self._numbers(group)
        self._refuse_pieces(group, batch.rule, batch.params)
        for param, state in zip(batch.params, batch.states, strict=True):
            if not self._duals.knows(param, batch.rule) or ("dual" in state) is batch.own:
                dtype = batch.of_group.dual_dtype(param.dtype)
                self._duals.meet(param, batch.rule)
                if batch.rule.target:
                    target.make_true(state, group, param, dtype)
                else:
                    state.pop("threshold", None)
                    make_true(state, param, batch.rule.potential, None if batch.own else dtype)
            for name, value in numbers.items():
                known = state.get(name)
                if known is None or known.ndim:
                    state[name] = number_of_state(value if known is None else float(whole(known.mean())), group, param)
            _fit(state, names, param)
        local = shard if batch.rule.potential.separable else _as_it_is
        w = list(map(local, batch.params))
        u, m, v = (None if name is None else [local(state[name]) for state in batch.states] for name in batch.names)
        batch.weights = w
        # Under a target, u moves as weights do, and the weights follow when all have.
        moves = u if u is not None and batch.rule.target and u[0].dtype is w[0].dtype else w
        batch.columns = Columns(moves, w if u is None else u, [], m, v)
        batch.held = {
            name: Held(column) for name, column in zip((None, *batch.names), (w, u, m, v), strict=True) if column
        }
        if batch.host:
            known = (*numbers, *(name for name in ("size", "zero_start") if name in batch.states[0]))
            batch.held |= {name: Column(batch.states, name) for name in known}
            if group["fused"] is not False and isinstance(batch.rule.potential, Lp) and fused.is_installed():
                batch.rows = fused.Rows(batch.columns)

    def _refuse_pieces(self, group: dict[str, Any], rule: Rule, params: Sequence[Tensor]) -> None:
        if rule.target:
            target.refuse(group)
        needed = [f"{name}='tensor'" for name in ("normalize", "scale", "moments") if group.get(name) == "tensor"]
        needed += [f"normalize={group['normalize']!r}" for _ in "1" if group.get("normalize") in ("running", "global")]
        needed += [f"{name}={group[name]:g}" for name in ("trust", "clip") if group[name] is not None]
        needed += ["error_if_nonfinite=True"] if group["error_if_nonfinite"] else []
        needed += [] if rule.potential.separable else [f"the potential {rule.potential}"]
        if needed:
            refuse_pieces(params, needed)

    def _work(self, batch: Batch, factors: Factors, later: list[Work]) -> list[Work]:
        """The step of a batch, by the kernels that suit its tensors."""
        group, rule, count = batch.group, batch.rule, len(batch.params)
        sizes = batch.known("size") if group["scale"] is not None or group["trust"] is not None else np.ones(count)
        scales = np.ones(count) if group["scale"] is None else batch.scales(sizes)
        counts, means = self._counts(batch, factors, later)
        if not batch.host:
            each = zip(factors.c, scales.tolist(), sizes, counts, means, strict=True)
            numbers = [numbers_of(rule, group, batch.lr, *own) for own in each]
            return [self._kernel(batch, own, place) for place, own in enumerate(numbers)]
        together = numbers_of(rule, group, batch.lr, np.asarray(factors.c), scales, sizes, counts, means)
        work = [self._kernel(batch, _some(together, place), place) for place in batch.rest]
        if batch.taken:
            w, u, rows = batch.columns.w, batch.columns.u, batch.rows.table
            if batch.rest:
                w, u = ([column[place] for place in batch.taken] for column in (w, u))
                rows, together = rows[batch.taken], _some(together, batch.taken)
            work.append(fused.Step(rule, together, rows, w, u, batch.columns.own).run)
        return work

    def _kernel(self, batch: Batch, numbers: Numbers, place: int) -> Work:
        """The step of one parameter that the fused kernel does not take."""
        tensors = batch.columns.one(place)
        if tensors.g.is_sparse:
            take = kernels.step_rows
        elif batch.group["capturable"]:
            take = kernels.step_traced
        else:
            take = kernels.step_compiled if batch.group["compile"] else kernels.step_eagerly
        return functools.partial(take, batch.rule, numbers, tensors)

    def _look_for_overflow(self, batch: Batch) -> None:
        """float16 ends at 65504, where the dual variable of a weight may still be small."""
        for param, w, u in zip(batch.params, batch.weights, batch.columns.u, strict=True):
            if u is w or (not w.is_cpu and self._steps % STEPS_BETWEEN_WAITS):
                continue
            if bool(torch.isfinite(w).all()) or not bool(torch.isfinite(u).all()):
                continue
            text = (
                f"float16 weights of a tensor {tuple(param.shape)} have left the range of their type (65504) "
                "though their dual variables are finite; use bfloat16 or float32 weights, or trust=0.5."
            )
            if batch.group["error_if_nonfinite"]:
                raise RuntimeError(text)
            if "float16" not in self._warned:
                self._warned.add("float16")
                warnings.warn(text, stacklevel=5)


def number_of_state(value: float, group: dict[str, Any], param: Tensor) -> Tensor:
    """A number of the state: on the host, unless steps may not ask for numbers."""
    if group["capturable"]:
        dtype = torch.float32 if param.device.type == "mps" else torch.float64
        return torch.tensor(value, dtype=dtype, device=param.device)
    return torch.tensor(value, dtype=torch.float64)


def _as_it_is(t: Tensor) -> Tensor:
    return t


def _some(numbers: Numbers, places: Any) -> Numbers:
    """The numbers of one parameter, or of some."""
    return Numbers(*(n[places] if isinstance(n, np.ndarray) else n for n in numbers))


def _fit(state: dict[str, Any], names: Sequence[str], param: Tensor) -> None:
    """Make moments that are missing, and give the others the type, device and layout of the dual variables.

    A second moment that was one number for the tensor becomes that of each entry.
    """
    like = state.get("dual", param)
    for name in names:
        known = state.get(name)
        if known is not None and known.ndim and known.shape != like.shape:
            raise ValueError(
                f"the state has {name} of shape {tuple(known.shape)} for a parameter of shape {tuple(like.shape)}; "
                "load the state of a model with these shapes."
            )
        if known is None:
            state[name] = torch.zeros_like(like, requires_grad=False)
        elif known.dtype is not like.dtype or known.device != like.device or known.stride() != like.stride():
            state[name] = torch.zeros_like(like, requires_grad=False).copy_(known)


def _root_mean_square(params: Sequence[Tensor]) -> float:
    squares = sum(float(whole(torch.linalg.vector_norm(param.detach(), dtype=torch.float64))) ** 2 for param in params)
    return math.sqrt(squares / max(1, sum(param.numel() for param in params)))


def _name(group: dict[str, Any], index: int, param: Tensor) -> str:
    position = next(k for k, one in enumerate(group["params"]) if one is param)
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
