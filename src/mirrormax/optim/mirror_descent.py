"""MirrorDescent: exact mirror descent as a plain ``torch.optim.Optimizer``."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal, overload

import torch
from torch import Tensor
from torch._compile import _disable_dynamo  # torch.compiler.disable would import the compiler at once
from torch.optim import Optimizer

from mirrormax.geometry import Potential
from mirrormax.optim import compiled, kernels
from mirrormax.optim.dual import DualState, is_own_dual
from mirrormax.optim.hyperparameters import canonical, checked, potential_of
from mirrormax.optim.kernels import Rule, Slot
from mirrormax.optim.normalization import dual_norms, refuse_nonfinite
from mirrormax.optim.sharding import shard

SMALLEST_NORM = 2.2e-16


class MirrorDescent(Optimizer):
    r"""Mirror descent with potential ψ, by default the paper's ψ(w) = (1/p)‖w‖_p^p.

    Each step is ∇ψ(w) ← ∇ψ(w) − η d, carried out on the dual variable u = ∇ψ(w), which is the
    optimizer's state:

    .. code-block:: text

        g ← −g                             if maximize
        g ← g / (‖g‖_* + 2.2e-16)          if normalize, in the dual norm (‖·‖_q, q = p/(p−1), for ℓp)
        d = g + λ u                        λ = weight_decay: the gradient of λψ(w)
        m ← μ m + d                        μ = momentum, m starts at 0
        d ← m, or d + μ m with nesterov    (only if μ > 0)
        u ← u − η d
        w ← ∇ψ*(u)                         for ℓp: w = sign(u) |u|^{1/(p−1)}

    p = 2 is ``torch.optim.SGD``. Keeping u makes every step exact: an entry whose weight
    underflows to zero (easily so near p = 1) still remembers its u, and nothing is rounded forth and
    back. u has at least 32 bits, so half-precision weights need no master copy of their own.

    When somebody else writes a parameter between steps (initialisation, ``load_state_dict``, an
    averaged copy swapped in, a clamp), its version counter tells, and the entries that differ are
    mapped to u anew. In-place writes through ``.data``, a numpy view or another process are invisible to
    torch and so to this optimizer: use ``torch.no_grad()``, or call :meth:`resync` after them.

    Args:
        params: parameters, named parameters or parameter groups; see :func:`mirrormax.param_groups`.
        lr: step size η, a number or a 0-dim tensor. What is a good one depends on p: for weights of
            typical size s, (p−1)·s^{p−2} times the step size you would give SGD.
        p: exponent > 1, or a :class:`~mirrormax.Potential`.
        potential: the same as passing it for ``p``.
        momentum: μ in [0, 1).
        nesterov: Nesterov's form of momentum; needs ``momentum > 0``.
        weight_decay: λ ≥ 0.
        normalize: ``"tensor"`` divides each gradient by its own dual norm, ``"global"`` all gradients by
            their common one. Where groups have different potentials, the common norm is the
            root of the sum of squares of each potential's.
        maximize: ascend instead of descend.
        foreach: multi-tensor kernels; by default on for parameters on an accelerator.
        compile: fuse the step into one kernel by ``torch.compile`` (compiles at the first step).
        error_if_nonfinite: raise, before anything is changed, when a gradient holds NaN or Inf.

    Sparse gradients touch only their rows, unless momentum, weight decay or a potential that is not
    separable moves all of them anyway.

    >>> import torch
    >>> from mirrormax import MirrorDescent
    >>> w = torch.nn.Parameter(torch.tensor([0.5, -0.5, 0.0]))
    >>> optimizer = MirrorDescent([w], lr=0.1, p=1.5)
    >>> (w.sum() ** 2 / 2 + w[2]).backward()
    >>> optimizer.step()
    >>> w.detach()
    tensor([ 0.5000, -0.5000, -0.0100])
    """

    def __init__(
        self,
        params: Iterable[Tensor] | Iterable[dict[str, Any]] | Iterable[tuple[str, Tensor]],
        lr: float | Tensor,
        p: float | Potential = 2.0,
        *,
        potential: Potential | Mapping[str, Any] | None = None,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        normalize: Literal["tensor", "global"] | None = None,
        maximize: bool = False,
        foreach: bool | None = None,
        compile: bool = False,
        error_if_nonfinite: bool = False,
    ) -> None:
        defaults = {
            "lr": lr,
            "p": None if potential is not None and p == 2.0 else p,
            "potential": potential,
            "momentum": momentum,
            "nesterov": nesterov,
            "weight_decay": weight_decay,
            "normalize": normalize,
            "maximize": maximize,
            "foreach": foreach,
            "compile": compile,
            "error_if_nonfinite": error_if_nonfinite,
        }
        self._duals = DualState()
        super().__init__(params, checked(defaults))

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group; what it does not set it takes from the constructor's arguments."""
        super().add_param_group(canonical(param_group, self.defaults))

    def __setstate__(self, state: dict[str, Any]) -> None:
        super().__setstate__(state)
        for group in self.param_groups:
            for name, value in self.defaults.items():
                group.setdefault(name, value)
        self._duals = DualState()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Restore a ``state_dict()``; the run then goes on bit for bit where it was saved."""
        own = [dict(group) for group in self.param_groups]
        super().load_state_dict(state_dict)
        for group, before, saved in zip(self.param_groups, own, state_dict["param_groups"], strict=True):
            group.update({name: before[name] for name in before.keys() & self.defaults.keys() - saved.keys()})
            for index, param in zip(saved["params"], group["params"], strict=True):
                for name, value in self.state.get(param, {}).items():
                    self.state[param][name] = _restored(value, state_dict["state"].get(index, {}).get(name))

    def resync(self) -> None:
        """Compare all parameters with their dual variables at the next step, as after writes through ``.data``."""
        self._duals.forget()

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
        rules = self._prepare()
        norms = dual_norms(self.param_groups, [rule.potential for rule in rules])
        for group, rule, own in zip(self.param_groups, rules, norms, strict=True):
            params = _with_gradient(group)
            if own:
                slots = [self._slot(rule, param, norm) for param, norm in zip(params, own, strict=True)]
            else:
                slots = [self._slot(rule, param) for param in params]
            _take(rule, slots)
        self._stamp(rules)
        return loss

    # Versions and storages mean nothing to a compiler, so what looks at them stays outside of its graphs.
    @_disable_dynamo
    def _prepare(self) -> list[Rule]:
        """Refuse what cannot be done while nothing has moved, then bring the state up to date."""
        rules = [_rule(group) for group in self.param_groups]
        refuse_nonfinite(self.param_groups)
        for group, rule in zip(self.param_groups, rules, strict=True):
            for param in _with_gradient(group):
                state = self.state[param]
                self._duals.make_true(state, param, rule.potential, functools.partial(_rewrite, rule))
                if rule.momentum and "momentum_buffer" not in state:
                    state["momentum_buffer"] = torch.zeros_like(state.get("dual", param), requires_grad=False)
        return rules

    @_disable_dynamo
    def _stamp(self, rules: Sequence[Rule]) -> None:
        for group, rule in zip(self.param_groups, rules, strict=True):
            for param in _with_gradient(group):
                self._duals.stamp(param, rule.potential)

    def _slot(self, rule: Rule, param: Tensor, norm: Tensor | None = None) -> Slot:
        state, grad, c = self.state[param], param.grad, rule.sign
        assert grad is not None
        if grad.is_sparse and (rule.momentum or rule.weight_decay or not rule.potential.separable):
            grad = grad.to_dense()
        if norm is not None:
            if norm.device.type == "cpu" and not torch.compiler.is_compiling():
                c = c / (float(norm) + SMALLEST_NORM)
            else:
                grad = grad / (norm + SMALLEST_NORM)  # a number would have to wait for the device
        local = shard if rule.potential.separable else (lambda t: t)
        w = local(param)
        u = w if is_own_dual(param, rule.potential) else local(state["dual"])
        return Slot(w, u, local(grad), local(state["momentum_buffer"]) if rule.momentum else None, c)


def _rule(group: dict[str, Any]) -> Rule:
    if isinstance(group["p"], Potential) or isinstance(group["potential"], Potential):
        group.update(checked(group))  # somebody set it between steps; checkpoints hold plain data
    return Rule(
        potential=potential_of(group),
        lr=group["lr"],
        momentum=group["momentum"],
        nesterov=group["nesterov"],
        weight_decay=group["weight_decay"],
        sign=-1.0 if group["maximize"] else 1.0,
        foreach=group["foreach"],
        compile=group["compile"],
    )


def _with_gradient(group: dict[str, Any]) -> list[Tensor]:
    return [param for param in group["params"] if param.grad is not None]


def _take(rule: Rule, slots: Sequence[Slot]) -> None:
    """One step of one group, by the kernel that suits it."""
    dense = [slot for slot in slots if not slot.g.is_sparse]
    for slot in slots:
        if slot.g.is_sparse:
            kernels.step_sparse(rule, slot)
    if torch.compiler.is_compiling():
        for slot in dense:
            compiled.step_traced(rule, slot)
    elif rule.compile:
        compiled.step_compiled(rule, dense)
    elif dense and (rule.foreach or (rule.foreach is None and all(slot.w.is_cuda for slot in dense))):
        kernels.step_foreach(rule, dense)
    else:
        for slot in dense:
            kernels.step_in_chunks(rule, slot)


def _rewrite(rule: Rule, u: Tensor, w: Tensor) -> None:
    """w ← ∇ψ*(u) with the bits that the group's own kernel writes: a step of length zero."""
    still = dataclasses.replace(rule, lr=0.0, momentum=0.0, nesterov=False, weight_decay=0.0)
    _take(still, [Slot(w, u.clone(), torch.zeros_like(w), None, 1.0)])


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
