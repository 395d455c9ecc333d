"""What MirrorDescent and MirrorAdamW share, which is all but their options: groups, state, and the step.

A step is prepared as a whole, then taken. Until :meth:`MirrorOptimizer._advance` comes to its last lines nothing has
moved, so whatever is wrong with a gradient, an option or a state leaves the model as it was. The formulas are in
:mod:`~mirrormax.optim.update`.
"""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable, Iterable
from operator import attrgetter, itemgetter
from typing import Any, overload

import torch
from torch import Tensor, nn
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler at once
from torch.optim import Optimizer

from mirrormax._checks import number, several
from mirrormax.geometry import as_potential
from mirrormax.optim import fused, kernels, target
from mirrormax.optim.groups import param_groups
from mirrormax.optim.hyperparameters import canonical, checked, checked_lr, final_share, pattern_of
from mirrormax.optim.numbers import bring_numbers, refuse_nonfinite
from mirrormax.optim.preparation import Batch, Prepared, prepare
from mirrormax.optim.update import Rule

Params = Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]]
GRAD = attrgetter("grad")
# Options that decide which state there is, and where it lies.
LAID_OUT_BY = ("scale", "trust", "sparsity", "normalize", "fused", "capturable")


class MirrorOptimizer(Optimizer):
    """A ``torch.optim.Optimizer`` whose steps are taken on the dual variables u = ∇ψ(w)."""

    def __init__(self, params: nn.Module | Params, arguments: dict[str, Any], rest: dict[str, Any]) -> None:
        """``arguments`` are those of an optimizer, and of a model all but the matrices of its layers gets ``rest``."""
        self._forget()
        if isinstance(params, nn.Module):
            params = param_groups(params, rest=rest, scope="matrices")
        several("params", params, "parameters, such as model.parameters()")
        # Every argument but params is an option of a group.
        options = {name: value for name, value in arguments.items() if name not in ("self", "params", "__class__")}
        super().__init__(params, checked(options))

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
        for group, before, saved in zip(self.param_groups, own, state_dict["param_groups"], strict=True):
            group.update({name: before[name] for name in before.keys() & self.defaults.keys() - saved.keys()})
            for place, param in zip(saved["params"], group["params"], strict=True):
                state = self.state.get(param, {})
                for name, value in state.items():
                    state[name] = _restored(value, state_dict["state"].get(place, {}).get(name))
                state.pop("scale", None)  # which an earlier version kept, though it follows from the size
        for index, (group, before) in enumerate(zip(self.param_groups, own, strict=True)):
            ours, theirs = as_potential(before["p"]), as_potential(group["p"])
            if ours != theirs:
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
        share = number("share", share, at_least=0, below=1)
        groups = [group for group in self.param_groups if group["sparsity"] is not None]
        if not groups:
            raise ValueError("no group has a target; give sparsity= when the optimizer is made.")
        for group in groups:
            if pattern_of(group["sparsity"]) is not None and share > final_share(group["sparsity"]):
                raise ValueError(f"share={share:g} is more than sparsity={group['sparsity']!r} leaves room for.")
        for group in groups:
            group[target.GIVEN] = share

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
        refuse_nonfinite(self.param_groups)
        of_groups = [
            self._batches(index, group, rule)
            for index, (group, rule) in enumerate(zip(self.param_groups, rules, strict=True))
        ]
        batches = [batch for own in of_groups for batch in own]
        aiming = [own for own in of_groups if own and own[0].rule.target]
        bring_numbers(batches)
        for own in aiming:
            target.aim(own)
        work = [part for batch in batches for part in _work(batch)]
        for batch in batches:  # from here on, things move
            for name, values in batch.later.items():
                batch.vectors[name][batch.places] = values
        for part in work:
            part()
        for own in aiming:
            target.reach(own)
        if batches:
            target.count_step(self.param_groups)
        for batch in batches:
            batch.versions[batch.places] = batch.versions_now()

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
        before = self._prepared.get(index)
        batches = None if before is None else before.moving(group, key, members)
        if batches is None or not all(batch.holds() for batch in batches):
            self._prepared.pop(index, None)
            now = self._prepared[index] = prepare(self, index, rule, key, members, before)
            batches = now.moving(group, key, members)
            assert batches is not None
        grad_of = dict(zip(map(id, params), grads, strict=True))
        for batch in batches:
            ours = [grad_of[id(param)] for param in batch.params]
            if batch.rule.in_pieces:
                ours = list(map(kernels.shard, ours))
            if batch.kernel == "fused":
                ours = batch.rows.receive(ours)
            else:
                for grad, w in zip(ours, batch.weights, strict=True):
                    kernels.check_gradient(grad, w)
            if batch.kernel == "any":
                ours = [grad.to_dense() if grad.is_sparse else grad for grad in ours]
            batch.columns = batch.columns._replace(g=ours)
        return batches


def _work(batch: Batch) -> list[Callable[[], object]]:
    """The step of a batch, ready to be taken."""
    if batch.kernel == "fused":
        return [fused.step(batch.rule, batch.numbers, batch.columns, batch.rows, batch.threshold)]
    each = [(own, batch.columns.each(itemgetter(k))) for k, own in enumerate(batch.numbers.each(len(batch.params)))]
    if batch.kernel == "rows":
        take = kernels.step_rows
    elif batch.group["capturable"]:
        take = kernels.step_traced
    elif batch.group["compile"]:
        return [kernels.compiled(batch.rule, *own) for own in each]
    else:
        take = kernels.step_eagerly
    return [functools.partial(take, batch.rule, *own) for own in each]


def _restored(loaded: Any, saved: Any) -> Any:
    """A state tensor of our own, in the type it was saved in.

    torch gives loaded state the type of its parameter, which would round the dual variables of
    half-precision weights, and shares memory with the dict it came from.
    """
    if not isinstance(loaded, Tensor):
        return loaded
    if isinstance(saved, Tensor) and saved.dtype != loaded.dtype and saved.shape == loaded.shape:
        rounded = saved.to(loaded.device, loaded.dtype)
        ours, theirs = (kernels.shard(t).nan_to_num() for t in (rounded, loaded))
        if torch.equal(ours, theirs):  # unless a hook changed it
            return saved.detach().to(loaded.device, copy=True)
    return loaded.clone()
