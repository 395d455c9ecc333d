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
from dataclasses import dataclass
from typing import Any, NamedTuple, overload

import numpy as np
import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler at once
from torch.optim import Optimizer

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import fused, gradients, kernels, target
from mirrormax.optim.dual import DualState, is_own_dual
from mirrormax.optim.hyperparameters import canonical, checked, checked_lr, potential_of
from mirrormax.optim.sharding import refuse_pieces, shard, whole
from mirrormax.optim.update import Number, Numbers, Rule, Tensors, numbers_of

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
Work = Callable[[], None]
"""A part of a step that is ready to be taken."""

# State that is one number for a tensor.
NUMBERS = ("step", "size", "zero_start", "norm", "threshold")
# float16 weights on an accelerator are asked every so many steps whether they have left their range: it means waiting.
STEPS_BETWEEN_WAITS = 100


@dataclass(frozen=True)
class Batch:
    """Parameters of one group that take the same step: they have gradients, and one potential."""

    group: dict[str, Any]
    rule: Rule
    of_group: Potential  # the group's; that of the rule is another one for tensors that began at zero
    params: list[Tensor]
    states: list[dict[str, Any]]
    lr: Number
    host: bool  # whether all of it is on the CPU, where numbers may be read at any time

    @property
    def map(self) -> Any:
        """What makes weights of dual variables: the potential, or a target's threshold."""
        return self.rule.potential if self.group["sparsity"] is None else target.MAP


class Factors(NamedTuple):
    """For each parameter of a batch the factor c of its gradient, and ‖g‖₂ where it is needed."""

    c: Sequence[Number]
    norms: Sequence[Number] | None = None


class Column:
    """One number of the state of several parameters, kept in one vector, of which each state holds a view."""

    def __init__(self, states: Sequence[dict[str, Any]], name: str) -> None:
        numbers = [state[name] for state in states]
        self.index = [number.storage_offset() for number in numbers]
        if not self._is_one_vector(numbers):
            vector = torch.stack([number.detach().to("cpu", torch.float64).reshape(()) for number in numbers])
            numbers, self.index = list(vector.unbind()), list(range(len(states)))
            for state, number in zip(states, numbers, strict=True):
                state[name] = number
        size = numbers[0].untyped_storage().nbytes() // 8
        self._vector = numbers[0].as_strided((size,), (1,), 0).numpy()

    def _is_one_vector(self, numbers: Sequence[Tensor]) -> bool:
        first, size = numbers[0], numbers[0].untyped_storage().nbytes() // 8
        base = first.data_ptr() - 8 * first.storage_offset()
        return max(self.index) < size and all(
            number.dtype is torch.float64 and number.is_cpu and number.data_ptr() == base + 8 * k
            for number, k in zip(numbers, self.index, strict=True)
        )

    def read(self) -> Any:
        """A vector of the numbers."""
        return self._vector[self.index]

    def write(self, values: Any) -> None:
        """Replace them."""
        self._vector[self.index] = values


class MirrorOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose steps are taken on the dual variables u = ∇ψ(w)."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, checked(defaults))

    def _forget(self) -> None:
        self._duals = DualState()
        self._rules: dict[int, tuple[dict[str, Any], Rule]] = {}  # of each group the options it had, and their rule
        self._warned: set[str] = set()
        self._read: dict[tuple[Tensor, str], tuple[Tensor, int, float]] = {}  # numbers read from a device
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
        self._refuse_pieces(rules)
        gradients.refuse_nonfinite(self.param_groups)
        self._measure(rules)
        batches = [
            batch for group, rule in zip(self.param_groups, rules, strict=True) for batch in self._split(group, rule)
        ]
        for batch in batches:
            self._bring_up_to_date(batch)
        shares = [None if batch.group["sparsity"] is None else target.share_now(batch.group) for batch in batches]
        later: list[Work] = []
        factors = self._factors(batches, later)
        work = [part for batch, own in zip(batches, factors, strict=True) for part in self._work(batch, own, later)]
        for part in (*later, *work):  # from here on, things move
            part()
        for batch, share in zip(batches, shares, strict=True):
            if share is not None and batch.lr != 0:  # a step of size 0 moves nothing
                target.apply(batch.group, batch.params, batch.states, share)
        self._stamp(batches)

    # What the two optimizers differ in.

    @abstractmethod
    def _rule(self, group: dict[str, Any]) -> Rule:
        """The group's options as a rule."""

    @abstractmethod
    def _moments(self, group: dict[str, Any]) -> tuple[str | None, str | None]:
        """What m and v are called in the state, None if there are none for each entry."""

    @abstractmethod
    def _add_numbers(self, group: dict[str, Any], param: Tensor, state: dict[str, Any]) -> None:
        """Make what is missing of the numbers in a parameter's state."""

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
            known = self._rules[index] = options, self._rule(group)
        return known[1]

    def _refuse_pieces(self, rules: Sequence[Rule]) -> None:
        for group, rule in zip(self.param_groups, rules, strict=True):
            if group["sparsity"] is not None:
                target.refuse(group)
            needed = [f"{name}='tensor'" for name in ("normalize", "scale", "moments") if group.get(name) == "tensor"]
            needed += [
                f"normalize={group['normalize']!r}" for _ in "1" if group.get("normalize") in ("running", "global")
            ]
            needed += [f"{name}={group[name]:g}" for name in ("trust", "clip") if group[name] is not None]
            needed += ["error_if_nonfinite=True"] if group["error_if_nonfinite"] else []
            needed += [] if rule.potential.separable else [f"the potential {rule.potential}"]
            if needed:
                refuse_pieces(group["params"], needed)

    def _measure(self, rules: Sequence[Rule]) -> None:
        """Take the root mean square of every tensor that steps for the first time, if its group asks for it.

        The state has the same names whatever the weights are, so that a checkpoint fits any model of these shapes.
        """
        zero: list[str] = []
        typical: float | None = None
        for index, (group, rule) in enumerate(zip(self.param_groups, rules, strict=True)):
            if group["scale"] is None and group["trust"] is None:
                continue
            for position, param in enumerate(group["params"]):
                if param.grad is None:
                    continue
                state = self.state[param]
                if "size" not in state:
                    size, began_at_zero = _root_mean_square([param]), 0.0
                    if size == 0 and param.numel():
                        typical = typical or self._typical_size()
                        if group["scale"] is not None and rule.potential.curvature(0.0) in (0.0, math.inf):
                            began_at_zero = 1.0
                            zero.append(_name(group, index, position, param))
                    state["size"] = number_of_state(size or typical or 1.0, group, param)
                    state["zero_start"] = number_of_state(began_at_zero, group, param)
                elif "zero_start" not in state:
                    state["zero_start"] = number_of_state(0.0, group, param)
        if zero:
            named = ", ".join(zero[:6]) + (f" and {len(zero) - 6} more" if len(zero) > 6 else "")
            warnings.warn(
                f"these tensors begin at zero, where mirror descent with this potential has no step size, and are "
                f"trained with p = 2 instead: {named}. Give them a group of their own with p=2 to say so yourself.",
                stacklevel=5,
            )

    def _typical_size(self) -> float:
        """The root mean square of all parameters that are not zero; 1 if there are none."""
        params = [param for group in self.param_groups for param in group["params"]]
        return _root_mean_square([param for param in params if bool(whole(param.detach().any()))]) or 1.0

    def _split(self, group: dict[str, Any], rule: Rule) -> list[Batch]:
        """The group's parameters with gradients; those that began at zero under p = 2."""
        params = [param for param in group["params"] if param.grad is not None]
        if not params:
            return []
        lr, host = group["lr"], not group["capturable"] and all(param.is_cpu for param in params)
        if isinstance(lr, Tensor) and lr.is_cpu and not group["capturable"]:
            lr = float(lr)
        batch = Batch(group, rule, rule.potential, params, [self.state[param] for param in params], lr, host)
        if group["scale"] is None or rule.potential.is_identity:
            return [batch]
        zero = np.asarray(self._known_numbers(batch, "zero_start"))
        if not zero.any():
            return [batch]
        parts = []
        for chosen, potential in ((np.flatnonzero(zero == 0), rule.potential), (np.flatnonzero(zero), Lp(2.0))):
            if len(chosen):
                some, states = [params[k] for k in chosen], [batch.states[k] for k in chosen]
                part = dataclasses.replace(rule, potential=potential)
                parts.append(dataclasses.replace(batch, rule=part, params=some, states=states))
        return parts

    def _known_numbers(self, batch: Batch, name: str) -> Any:
        """Numbers of the state that a step does not change; from a device they are read once."""
        if batch.host:
            return Column(batch.states, name).read()
        found = []
        for param, state in zip(batch.params, batch.states, strict=True):
            known = self._read.get((param, name))
            if known is None or known[0] is not state[name] or known[1] != state[name]._version:
                known = self._read[param, name] = state[name], state[name]._version, float(state[name])
            found.append(known[2])
        return found

    def _bring_up_to_date(self, batch: Batch) -> None:
        """Make what is missing of the state, and read u off weights that somebody else has written."""
        potential, names = batch.rule.potential, self._moments(batch.group)
        for param, state in zip(batch.params, batch.states, strict=True):
            own = is_own_dual(param, batch.of_group) and batch.group["sparsity"] is None
            if self._duals.knows(param, batch.map) and (own or "dual" in state):
                pass
            elif batch.group["sparsity"] is not None:
                target.make_true(state, batch.group, param, batch.of_group.dual_dtype(param.dtype))
            else:
                state.pop("threshold", None)
                self._duals.make_true(state, param, potential, None if own else batch.of_group.dual_dtype(param.dtype))
            self._add_numbers(batch.group, param, state)
            like = param if own else state["dual"]
            for name in names:
                if name is not None:
                    _fit(state, name, like)

    def _work(self, batch: Batch, factors: Factors, later: list[Work]) -> list[Work]:
        """The step of a batch, by the kernels that suit its tensors."""
        group, rule = batch.group, batch.rule
        tensors = [self._tensors(batch, param, state) for param, state in zip(batch.params, batch.states, strict=True)]
        measured = group["scale"] is not None or group["trust"] is not None
        sizes = self._known_numbers(batch, "size") if measured else np.ones(len(tensors))
        scaled = group["scale"] is not None
        scales = [_curvature(rule.potential, float(size)) if scaled else 1.0 for size in sizes]
        counts, means = self._counts(batch, factors, later)
        if not batch.host:
            numbers = [
                numbers_of(rule, group, batch.lr, *own)
                for own in zip(factors.c, scales, sizes, counts, means, strict=True)
            ]
            return [self._kernel(batch, own, one) for own, one in zip(numbers, tensors, strict=True)]
        together = numbers_of(rule, group, batch.lr, np.asarray(factors.c), np.array(scales), sizes, counts, means)
        work: list[Work] = []
        kinds: dict[Any, list[tuple[int, fused.Row]]] = {}
        wanted = group["fused"] is not False and isinstance(rule.potential, Lp) and fused.is_installed()
        for k, one in enumerate(tensors):
            row = fused.row_of(one) if wanted else None
            if row is None:
                work.append(self._kernel(batch, _some(together, k), one))
            else:
                kinds.setdefault((one.w.dtype, one.u.dtype, one.own), []).append((k, row))
        for chosen in kinds.values():
            places = [k for k, _ in chosen]
            rows, parts = [row for _, row in chosen], [tensors[k] for k in places]
            work.append(fused.Step(rule, _some(together, places), rows, parts).run)
        return work

    def _kernel(self, batch: Batch, numbers: Numbers, tensors: Tensors) -> Work:
        """The step of one parameter that the fused kernel does not take."""
        if tensors.g.is_sparse:
            take = kernels.step_rows
        elif batch.group["capturable"]:
            take = kernels.step_traced
        else:
            take = kernels.step_compiled if batch.group["compile"] else kernels.step_eagerly
        return functools.partial(take, batch.rule, numbers, tensors)

    def _tensors(self, batch: Batch, param: Tensor, state: dict[str, Any]) -> Tensors:
        """What a parameter brings to a step: of its shard, where the potential is separable."""
        rule, grad = batch.rule, param.grad
        assert grad is not None
        if grad.is_sparse and (rule.adam or rule.heavy or rule.decays or not rule.potential.separable):
            grad = grad.to_dense()
        local = shard if rule.potential.separable else _as_it_is
        w = local(param)
        m, v = (None if name is None else local(state[name]) for name in self._moments(batch.group))
        u, grad = local(state["dual"]) if "dual" in state else w, local(grad)
        # Under a target, u moves as weights do, and the weights follow when all have.
        return Tensors(u if batch.group["sparsity"] is not None and grad.dtype is u.dtype else w, u, grad, m, v)

    def _stamp(self, batches: Sequence[Batch]) -> None:
        self._steps += 1
        for batch in batches:
            for param, state in zip(batch.params, batch.states, strict=True):
                self._duals.stamp(param, batch.map)
                if param.dtype == torch.float16 and not batch.group["capturable"]:
                    self._look_for_overflow(batch.group, param, state)

    def _look_for_overflow(self, group: dict[str, Any], param: Tensor, state: dict[str, Any]) -> None:
        """float16 ends at 65504, where the dual variable of a weight may still be small."""
        if "dual" not in state or (not param.is_cpu and self._steps % STEPS_BETWEEN_WAITS):
            return
        w, u = shard(param), shard(state["dual"])
        if bool(torch.isfinite(w).all()) or not bool(torch.isfinite(u).all()):
            return
        text = (
            f"float16 weights of a tensor {tuple(param.shape)} have left the range of their type (65504) "
            "though their dual variables are finite; use bfloat16 or float32 weights, or trust=0.5."
        )
        if group["error_if_nonfinite"]:
            raise RuntimeError(text)
        if "float16" not in self._warned:
            self._warned.add("float16")
            warnings.warn(text, stacklevel=5)


def clip_factors(batches: Sequence[Batch], norms: Sequence[Sequence[Number] | None]) -> list[Number]:
    """For each batch the factor by which its gradients are clipped, together with those of all groups that clip."""
    clipped = [batch.group["clip"] is not None for batch in batches]
    known = [
        gradients.euclidean_norms(batch.params, batch.host) if clips and own is None else own or ()
        for batch, own, clips in zip(batches, norms, clipped, strict=True)
    ]
    together = [norm for own, clips in zip(known, clipped, strict=True) if clips for norm in own]
    return [
        gradients.clip_factor(batch.group["clip"], together) if clips else 1.0
        for batch, clips in zip(batches, clipped, strict=True)
    ]


def number_of_state(value: float, group: dict[str, Any], param: Tensor) -> Tensor:
    """A number of the state: on the host, unless steps may not ask for numbers."""
    if group["capturable"]:
        dtype = torch.float32 if param.device.type == "mps" else torch.float64
        return torch.tensor(value, dtype=dtype, device=param.device)
    return torch.tensor(value, dtype=torch.float64)


@functools.lru_cache(maxsize=65_536)
def _curvature(potential: Potential, size: float) -> float:
    return potential.curvature(size)


def _as_it_is(t: Tensor) -> Tensor:
    return t


def _some(numbers: Numbers, places: Any) -> Numbers:
    """The numbers of one parameter, or of some."""
    return Numbers(*(n[places] if isinstance(n, np.ndarray) else n for n in numbers))


def _fit(state: dict[str, Any], name: str, like: Tensor) -> None:
    """Make ``state[name]`` if it is missing; give it type, device and layout of the dual variables if it has others."""
    known = state.get(name)
    if known is None:
        state[name] = torch.zeros_like(like, requires_grad=False)
        return
    if known.shape != like.shape:
        raise ValueError(
            f"the state has {name} of shape {tuple(known.shape)} for a parameter of shape {tuple(like.shape)}; "
            "load the state of a model with these shapes."
        )
    if known.dtype is not like.dtype or known.device != like.device or known.stride() != like.stride():
        state[name] = torch.zeros_like(like, requires_grad=False).copy_(known)


def _root_mean_square(params: Sequence[Tensor]) -> float:
    squares = sum(float(whole(torch.linalg.vector_norm(param.detach(), dtype=torch.float64))) ** 2 for param in params)
    return math.sqrt(squares / max(1, sum(param.numel() for param in params)))


def _name(group: dict[str, Any], index: int, position: int, param: Tensor) -> str:
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
