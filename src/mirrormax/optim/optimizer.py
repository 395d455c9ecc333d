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
# Options that decide which state there is, and where it lies.
LAID_OUT_BY = ("scale", "trust", "sparsity", "normalize", "fused", "capturable")


@dataclasses.dataclass
class Seen:
    """A parameter as the last step left it."""

    param: Tensor  # held, so that its id stays its own
    held: Held
    made_by: tuple[Potential, bool]  # the map from u to w
    version: int | None = None


class MirrorOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose steps are taken on the dual variables u = ∇ψ(w)."""

    def __init__(self, params: Params, defaults: dict[str, Any]) -> None:
        self._forget()
        super().__init__(params, checked(defaults))

    def _forget(self) -> None:
        self._seen: dict[int, Seen] = {}  # by the id of a parameter
        self._rules: dict[int, tuple[dict[str, Any], Rule]] = {}  # of each group the options it had, and their rule
        self._known: dict[int, tuple[Any, list[Batch]]] = {}  # of each group what its batches depend on, and these

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
        self._seen.clear()
        self._known.clear()

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
        work = [
            part
            for batch, (c, norms) in zip(batches, factors, strict=True)
            for part in _work(batch, _numbers(batch, c, norms, later))
        ]
        for part in (*later, *work):  # from here on, things move
            part()
        for group in self.param_groups:
            params = [p for batch in batches if batch.rule.target and batch.group is group for p in batch.params]
            if params:
                target.apply(group, params, [self.state[param] for param in params], shares[id(group)])
        for batch in batches:
            batch.versions = list(map(VERSION, batch.weights))

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
        states = [self.state[param] for param in params]
        # Sparse gradients move their rows alone where the others stand still anyway.
        rows = [grad.is_sparse for grad in grads] if rule.takes_rows else [False] * len(grads)
        options = [group.get(name) for name in LAID_OUT_BY]
        key = (rule, rows, options, list(map(id, params)), list(map(id, states)))
        known, batches = self._known.get(index, (None, []))
        if known != key or not all(batch.holds() for batch in batches):
            self._drop(index)
            batches = self._parts(index, group, rule, params, rows)
            self._known[index] = key, batches
        lr = group["lr"]
        if isinstance(lr, Tensor) and not group["capturable"]:
            lr = float(lr)
        for batch in batches:
            batch.group, batch.lr = group, lr
            ours = [grads[place] for place in batch.places] if len(batch.places) < len(grads) else grads
            if batch.rule.potential.separable:
                ours = list(map(shard, ours))
            batch.columns = batch.columns._replace(g=_received(batch, ours))
        return batches

    def _drop(self, index: int) -> None:
        """Forget what is known of a group's tensors, but for the versions that its last step left them at."""
        _, batches = self._known.pop(index, (None, []))
        for batch in batches:
            for param, version in zip(batch.params, batch.versions, strict=False):  # none if that step has failed
                self._seen[id(param)].version = version

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
        may_fuse = may_fuse and isinstance(rule.potential, Lp)
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
            batch = Batch(group, ours, kernel, places, some, states, None if own else dual_dtype)
            self._prepare(batch)
            batches.append(batch)
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

    def _prepare(self, batch: Batch) -> None:
        """Bring the state up to date, and u with what others have written; note where all of it lies."""
        group, rule = batch.group, batch.rule
        _refuse_pieces(group, rule, batch.params)
        for param, state in zip(batch.params, batch.states, strict=True):
            if not self._knows(param, rule) or ("dual" in state) is (batch.dual_dtype is None):
                self._seen[id(param)] = Seen(param, Held([shard(param)]), (rule.potential, rule.target))
                if rule.target:
                    assert batch.dual_dtype is not None
                    target.make_true(state, group, param, batch.dual_dtype)
                elif batch.dual_dtype is None:
                    state.pop("dual", None)
                else:
                    make_true(state, param, rule.potential, batch.dual_dtype)
                if not rule.target:
                    state.pop("threshold", None)
            for name in filter(None, batch.names):
                fit(state, name, param, batch.dual_dtype or param.dtype)
        for name, start in _numbers_kept(group, rule).items():
            batch.gather(name, start)
        local = shard if rule.potential.separable else _as_it_is
        w = batch.weights = list(map(local, batch.params))
        u, m, v = (None if name is None else [local(state[name]) for state in batch.states] for name in batch.names)
        batch.held = {
            name: Held(column)
            for name, column in zip((None, *batch.names), (w, u, m, v), strict=True)
            if column is not None
        }
        # Under a target, u moves as weights do, and the weights follow when all have.
        moves = u if u is not None and rule.target and u[0].dtype == w[0].dtype else w
        batch.columns = Columns(moves, w if u is None else u, [], m, v)
        if batch.kernel == "fused":
            batch.rows = fused.Rows(batch.columns)

    def _knows(self, param: Tensor, rule: Rule) -> bool:
        """Whether nobody has written a parameter since its last step, as far as torch can tell."""
        seen, local = self._seen.get(id(param)), shard(param)
        same = seen is not None and seen.made_by == (rule.potential, rule.target) and seen.version == local._version
        return same and seen is not None and seen.held.holds([local])


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
    group, rule, known = batch.group, batch.rule, batch.numbers
    t = mean = None
    if rule.adam:
        t = known["step"] + 1
        later.append(functools.partial(known["step"].copy_, t))
    if rule.by_tensor:
        assert norms is not None
        seconds, beta2 = known["exp_avg_sq"], group["betas"][1]
        entries = torch.tensor([max(1, param.numel()) for param in batch.params], dtype=torch.float64)
        mean = beta2 * seconds + (1 - beta2) * ((c * norms) ** 2).to(seconds) / entries.to(seconds)
        later.append(functools.partial(seconds.copy_, mean))
    scale = 1.0 if group["scale"] is None else batch.scales()
    return numbers_of(rule, group, batch.lr, c, scale, known.get("size"), t, mean)


def _work(batch: Batch, numbers: Numbers) -> list[Work]:
    """The step of a batch, ready to be taken."""
    if batch.kernel == "fused":
        return [fused.Step(batch.rule, numbers, batch.columns, batch.rows.table).run]
    each = [(own, batch.columns.one(place)) for place, own in enumerate(numbers.each(len(batch.params)))]
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
    needed = [f"{name}={group[name]!r}" for name in ("normalize", "scale", "trust", "clip") if group.get(name)]
    needed += ["moments='tensor'"] if rule.by_tensor else []
    needed += ["error_if_nonfinite=True"] if group["error_if_nonfinite"] else []
    needed += [] if rule.potential.separable else [f"the potential {rule.potential}"]
    if needed:
        refuse_pieces(params, needed)


def _as_it_is(t: Tensor) -> Tensor:
    return t


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
