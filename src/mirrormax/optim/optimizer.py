"""What MirrorDescent and MirrorAdamW share: groups, dual state, sizes of tensors, and the choice of a kernel."""

from __future__ import annotations

import dataclasses
import functools
import math
import warnings
from abc import abstractmethod
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler at once
from torch.optim import Optimizer

from mirrormax.geometry import Lp, Potential
from mirrormax.optim import compiled, fused, gradients, kernels
from mirrormax.optim.dual import STEPS_BETWEEN_WAITS, DualState, is_own_dual
from mirrormax.optim.hyperparameters import canonical, checked, potential_of, with_p_alone
from mirrormax.optim.kernels import Number, Rule, Slot
from mirrormax.optim.sharding import made_by_zero, refuse_partition, refuse_pieces, shard, whole

SMALLEST_NORM = 2.2e-16

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]

# State that is one number for a tensor.
NUMBERS = ("step", "size", "scale", "zero_start", "norm")


@dataclass(frozen=True)
class Batch:
    """Parameters of one group that take the same step: they have gradients, and one potential."""

    group: dict[str, Any]
    rule: Rule
    params: list[Tensor]
    lr: Number
    plan: fused.Plan | None = None

    @property
    def on_host(self) -> bool:
        """Whether numbers may be read, or must stay in tensors."""
        return not (self.rule.capturable or torch.compiler.is_compiling())


class MirrorOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose steps are taken on the dual variables u = ∇ψ(w)."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._duals = DualState()
        self._numbers: dict[Tensor, tuple[Any, Any]] = {}  # scale and size, read from the state once
        self._plans: dict[int, tuple[Any, list[Batch]]] = {}  # of each group the options and batches of its last step
        self._in_zero = made_by_zero()
        self._warned: set[str] = set()
        super().__init__(params, checked(defaults))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set it takes from the constructor's arguments."""
        super().add_param_group(canonical(param_group, self.defaults))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        self.param_groups[:] = map(with_p_alone, self.param_groups)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._duals = DualState()
        self._numbers = {}
        self._plans = {}
        self._in_zero = getattr(self, "_in_zero", False)
        self._warned = set()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a ``state_dict()``; the run then goes on bit for bit where it was saved.

        Hyperparameters come from the file as in every torch optimizer; if that changes p, a warning says so.
        """
        self.resync()
        own = [dict(group) for group in self.param_groups]
        state_dict = {**state_dict, "param_groups": [with_p_alone(group) for group in state_dict["param_groups"]]}
        changed: list[tuple[int, Potential, Potential]] = []
        super().load_state_dict(state_dict)
        for index, (group, before, saved) in enumerate(
            zip(self.param_groups, own, state_dict["param_groups"], strict=True)
        ):
            group.update({name: before[name] for name in before.keys() & self.defaults.keys() - saved.keys()})
            if potential_of(group) != potential_of(before):
                changed.append((index, potential_of(before), potential_of(group)))
            for place, param in zip(saved["params"], group["params"], strict=True):
                for name, value in self.state.get(param, {}).items():
                    self.state[param][name] = _restored(value, state_dict["state"].get(place, {}).get(name))
                    if name in NUMBERS and not group["capturable"]:
                        self.state[param][name] = self.state[param][name].cpu()
        for index, ours, theirs in changed:
            warnings.warn(
                f"load_state_dict changes p of group {index} from {ours} to {theirs}, as it was saved; to keep "
                f"yours, set param_groups[{index}]['p'] after loading.",
                stacklevel=2,
            )

    def resync(self) -> None:
        """Compare all parameters with their dual variables at the next step, as after writes through ``.data``."""
        self._duals.forget()
        self._numbers.clear()
        self._plans.clear()

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
        if _is_traced():
            self._advance_outside()
        else:
            self._advance()
        return loss

    def _advance(self) -> None:
        batches = self._prepare()
        factors, norms = self._factors(batches)
        for batch, factor, own in zip(batches, factors, norms, strict=True):
            if batch.plan is not None:
                for which, plan in reversed(batch.plan.parts):  # the last gradients were read last
                    numbers = self._numbers_of(batch, plan, factor[which], own[which])
                    fused.run(batch.rule, plan.layout, numbers, batch.group["trust"] is not None)
            else:
                _take(batch.rule, self._slots(batch, factor, own))
        self._stamp(batches)

    @_disable_dynamo
    def _advance_outside(self) -> None:
        """The step between two graphs: a compiler would watch each gradient, and compile again for the next one."""
        self._advance()

    # What the two optimizers differ in.

    @abstractmethod
    def _rule(self, group: dict[str, Any]) -> Rule:
        """The group's options as a rule."""

    @abstractmethod
    def _tensors(self, batch: Batch, param: Tensor) -> Slot:
        """What a parameter brings to a step, without its numbers."""

    @abstractmethod
    def _new_state(self, batch: Batch, param: Tensor, state: dict[str, Any]) -> None:
        """Make what is missing of a parameter's own state."""

    @abstractmethod
    def _factors(self, batches: Sequence[Batch]) -> tuple[list[list[Number]], list[list[Any]]]:
        """For each parameter of each batch the factor c of its gradient, and ‖g‖₂ if it is known by now (else None)."""

    @abstractmethod
    def _slots(self, batch: Batch, factors: Sequence[Number], norms: Sequence[Any]) -> list[Slot]:
        """The tensors and numbers of a batch's parameters for this step."""

    @abstractmethod
    def _numbers_of(self, batch: Batch, plan: fused.Plan, factors: Sequence[Number], norms: Sequence[Any]) -> Any:
        """The numbers of :class:`Slot`, a row (c, a, keep, b, room) for each parameter of a part of a batch's plan."""

    # What they share.

    # Versions and storages mean nothing to a compiler, so what looks at them stays outside of its graphs.
    @_disable_dynamo
    def _prepare(self) -> list[Batch]:
        """Refuse what cannot be done while nothing has moved, then bring the state up to date."""
        for group in self.param_groups:
            if isinstance(group["p"], Potential):
                group.update(checked(group))  # somebody set it between steps; checkpoints hold plain data
        rules = [self._rule(group) for group in self.param_groups]
        self._refuse_parts(rules)
        gradients.refuse_nonfinite(self.param_groups)
        self._look_for_unseen_writes()
        planned = [
            self._planned(index, group, rule)
            for index, (group, rule) in enumerate(zip(self.param_groups, rules, strict=True))
        ]
        self._measure([rule if known is None else None for rule, known in zip(rules, planned, strict=True)])
        batches: list[Batch] = []
        for index, (group, rule, known) in enumerate(zip(self.param_groups, rules, planned, strict=True)):
            lr = group["lr"]
            if isinstance(lr, Tensor) and lr.device.type == "cpu" and not (group["capturable"] or _is_traced()):
                lr = float(lr)
            if known is None:
                known = [
                    Batch(group, dataclasses.replace(rule, potential=potential), params, lr)
                    for potential, params in self._by_potential(group, rule.potential)
                ]
                for batch in known:
                    for param in batch.params:
                        self._bring_up_to_date(batch, param)
                known = self._plan(index, group, rule, known)
            batches += [dataclasses.replace(batch, lr=lr) for batch in known]
        return batches

    def _planned(self, index: int, group: dict[str, Any], rule: Rule) -> list[Batch] | None:
        """The group's batches of the last step, if nothing about them has changed but the gradients."""
        key, batches = self._plans.get(index, (None, ()))
        if not batches or key != _options(group, rule) or not fused.is_wanted(rule):
            return None
        known, params = [param for batch in batches for param in batch.params], _with_gradient(group)
        if len(known) != len(params) or {*map(id, known)} != {*map(id, params)}:
            return None
        for batch in batches:
            assert batch.plan is not None
            if any(
                self.state.get(param) is not own for param, own in zip(batch.params, batch.plan.states, strict=True)
            ):
                return None
            if not self._duals.know(batch.params) or not batch.plan.holds([param.grad for param in batch.params]):
                return None
        return batches

    def _plan(self, index: int, group: dict[str, Any], rule: Rule, batches: list[Batch]) -> list[Batch]:
        """The batches, and those with a plan of which the fused kernel takes every tensor."""
        found = []
        for batch in batches:
            slots = [self._tensors(batch, param) for param in batch.params] if fused.suits(batch.rule) else []
            lasting = all(s.w is p and s.g is p.grad for s, p in zip(slots, batch.params, strict=False))
            if slots and lasting and fused.takes_all(slots):  # no gradient made dense, no shard
                plan = fused.Plan(slots, batch.params, [self.state[param] for param in batch.params])
                batch = dataclasses.replace(batch, plan=plan)
                for param in batch.params:
                    self._duals.stamp(param, batch.rule.potential)
            found.append(batch)
        self._plans[index] = _options(group, rule), found if all(batch.plan for batch in found) else []
        return found

    def _bring_up_to_date(self, batch: Batch, param: Tensor) -> None:
        state, potential = self.state[param], batch.rule.potential
        lost = "dual" not in state and not is_own_dual(param, potential)  # optimizer.state.clear(), say
        if lost or not self._duals.knows(param, potential):
            self._numbers.pop(param, None)
            if "scale" in state:
                state["scale"].fill_(potential.curvature(float(state["size"])))
            self._duals.make_true(state, param, potential, functools.partial(_rewrite, batch.rule))
        self._new_state(batch, param, state)

    def _by_potential(self, group: dict[str, Any], potential: Potential) -> list[tuple[Potential, list[Tensor]]]:
        """The group's parameters with gradients; those that began at zero under p = 2."""
        params = _with_gradient(group)
        if group["scale"] is None:
            return [(potential, params)]
        zero = [param for param in params if "zero_start" in self.state[param]]
        if not zero:
            return [(potential, params)]
        rest = [param for param in params if "zero_start" not in self.state[param]]
        return [(potential, rest), (Lp(2.0), zero)] if rest else [(Lp(2.0), zero)]

    def _refuse_parts(self, rules: Sequence[Rule]) -> None:
        for group, rule in zip(self.param_groups, rules, strict=True):
            common = [f"clip={group['clip']:g}"] if group["clip"] is not None else []
            if group.get("normalize") == "global":
                common.append("normalize='global'")
            if group["error_if_nonfinite"]:
                common.append("error_if_nonfinite=True")
            if self._in_zero:
                refuse_partition(common)
            needed = [f"{name}='tensor'" for name in ("normalize", "scale", "moments") if group.get(name) == "tensor"]
            needed += ["normalize='running'"] if group.get("normalize") == "running" else []
            needed += [f"trust={group['trust']:g}"] if group["trust"] is not None else []
            needed += [] if rule.potential.separable else [f"the potential {rule.potential}"]
            if common or needed:
                refuse_pieces(group["params"], [*needed, *common])

    def _look_for_unseen_writes(self) -> None:
        if self._duals.was_written_unseen():
            self._duals.forget()
            self._warn_once(
                "data",
                "a parameter was written through .data (or numpy, or another process), which torch does not tell its "
                "optimizers; it was noticed by chance this time. Write under torch.no_grad(), or call "
                "optimizer.resync() after each such write.",
            )

    def _warn_once(self, kind: str, text: str) -> None:
        if kind not in self._warned:
            self._warned.add(kind)
            warnings.warn(text, stacklevel=5)

    def _measure(self, rules: Sequence[Rule | None]) -> None:
        """Take the root mean square of every tensor that steps for the first time, if its group asks for it.

        Groups of which all is known have None in place of their rule.
        """
        zero: list[str] = []
        typical: float | None = None
        for index, (group, rule) in enumerate(zip(self.param_groups, rules, strict=True)):
            if rule is None or (group["scale"] is None and group["trust"] is None):
                continue
            for position, param in enumerate(group["params"]):
                state = self.state[param] if param.grad is not None else {}
                if param.grad is None or ("size" in state and (group["scale"] is None or "scale" in state)):
                    continue
                if "size" not in state:
                    size = _root_mean_square([param])
                    if size == 0 and param.numel():
                        typical = typical or self._typical_size()
                        if group["scale"] is not None and rule.potential.curvature(0.0) in (0.0, math.inf):
                            state["zero_start"] = number_of_state(1.0, group, param)
                            zero.append(_name(group, index, position, param))
                    state["size"] = number_of_state(size or typical or 1.0, group, param)
                if group["scale"] is not None:
                    potential = Lp(2.0) if "zero_start" in state else rule.potential
                    state["scale"] = number_of_state(potential.curvature(float(state["size"])), group, param)
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

    @_disable_dynamo
    def _stamp(self, batches: Sequence[Batch]) -> None:
        mapped: list[Tensor] = []
        for batch in batches:
            if batch.plan is not None:
                self._duals.stamp_again(batch.params)
                mapped += [] if batch.plan.layout.own else batch.params
                continue
            for param in batch.params:
                self._duals.stamp(param, batch.rule.potential)
                if "dual" in self.state[param]:
                    mapped.append(param)
        if batches and not batches[0].rule.capturable:
            waits = bool(mapped) and mapped[0].device.type != "cpu"
            self._duals.watch(mapped, may_wait=not waits)
            self._look_for_overflow(batches, [param for param in mapped if param.dtype == torch.float16], waits)

    def _look_for_overflow(self, batches: Sequence[Batch], halves: Sequence[Tensor], waits: bool) -> None:
        """float16 ends at 65504, where the dual variable of a weight may still be small."""
        if not halves or (waits and self._duals.steps % STEPS_BETWEEN_WAITS):
            return
        for param in halves:
            w, u = shard(param), shard(self.state[param]["dual"])
            if not bool(torch.isfinite(w).all()) and bool(torch.isfinite(u).all()):
                text = (
                    f"float16 weights of a tensor {tuple(param.shape)} have left the range of their type (65504) "
                    "though their dual variables are finite; use bfloat16 or float32 weights, or trust=0.5."
                )
                if any(batch.group["error_if_nonfinite"] for batch in batches):
                    raise RuntimeError(text)
                self._warn_once("float16", text)

    def _parts(self, batch: Batch, param: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """w, u and g of a parameter: of its shard, where the potential is separable."""
        rule, grad = batch.rule, param.grad
        assert grad is not None
        if grad.is_sparse and (rule.adam or rule.momentum or rule.weight_decay or not rule.potential.separable):
            grad = grad.to_dense()
        local = shard if rule.potential.separable else (lambda t: t)
        w = local(param)
        u = w if is_own_dual(param, rule.potential) else local(self.state[param]["dual"])
        return w, u, local(grad)

    def _number_of(self, batch: Batch, param: Tensor, name: str) -> Number:
        value: Tensor = self.state[param][name]
        return float(value) if batch.on_host and value.device.type == "cpu" else value

    def _scale_and_room(self, batch: Batch, param: Tensor) -> tuple[Number, Number | None]:
        """ψ''(rms) of a tensor (1 if steps are not scaled), and by how much its weights may grow in this step."""
        scaled, trust = batch.group["scale"] is not None, batch.group["trust"]
        if not scaled and trust is None:
            return 1.0, None
        known = self._numbers.get(param) if batch.on_host else None
        if known is None or (scaled and known[0] is None):
            scale: Any = self._number_of(batch, param, "scale") if scaled else None
            known = scale, self._number_of(batch, param, "size")
            if batch.on_host:
                self._numbers[param] = known
        return (known[0] if scaled else 1.0), None if trust is None else trust * known[1]


def _options(group: dict[str, Any], rule: Rule) -> tuple[Any, ...]:
    """What a plan was made for; step sizes and other numbers may change."""
    return rule, *(group[name] is None for name in ("scale", "trust")), group.get("moments"), group.get("normalize")


def _is_traced() -> bool:
    return torch.compiler.is_compiling()


def _with_gradient(group: dict[str, Any]) -> list[Tensor]:
    return [param for param in group["params"] if param.grad is not None]


def _root_mean_square(params: Sequence[Tensor]) -> float:
    squares = sum(float(whole(torch.linalg.vector_norm(param.detach(), dtype=torch.float64))) ** 2 for param in params)
    return math.sqrt(squares / max(1, sum(param.numel() for param in params)))


def number_of_state(value: float, group: dict[str, Any], param: Tensor) -> Tensor:
    """A number of the state: on the host, unless steps may not ask for numbers."""
    if group["capturable"]:
        dtype = torch.float32 if param.device.type == "mps" else torch.float64
        return torch.tensor(value, dtype=dtype, device=param.device)
    return torch.tensor(value, dtype=torch.float64)


def _name(group: dict[str, Any], index: int, position: int, param: Tensor) -> str:
    if "param_names" in group:
        return str(group["param_names"][position])
    return f"parameter {position} of group {index} {tuple(param.shape)}"


def _take(rule: Rule, slots: Sequence[Slot]) -> None:
    """One step of one batch, by the kernel that suits it."""
    dense = [slot for slot in slots if not slot.g.is_sparse]
    for slot in slots:
        if slot.g.is_sparse:
            kernels.step_sparse(rule, slot)
    if dense and fused.suits(rule):
        fused.step(rule, [slot for slot in dense if fused.takes(slot)])
        dense = [slot for slot in dense if not fused.takes(slot)]
    if torch.compiler.is_compiling() or rule.capturable:
        for slot in dense:
            compiled.step_traced(rule, slot)
    elif rule.compile:
        compiled.step_compiled(rule, dense)
    elif dense and (rule.foreach or (rule.foreach is None and all(slot.w.is_cuda for slot in dense))):
        if rule.potential.separable:
            kernels.step_foreach(rule, dense)
        else:
            for slot in dense:
                compiled.step_traced(rule, slot)
    else:
        kernels.step_eager(rule, dense)


def _rewrite(rule: Rule, u: Tensor, w: Tensor) -> None:
    """w ← ∇ψ*(u) with the bits that the group's own kernel writes: a step of length zero."""
    still = dataclasses.replace(rule, momentum=0.0, nesterov=False, weight_decay=0.0, adam=False)
    _take(still, [Slot(w, u.clone(), torch.zeros_like(w))])


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
