"""MirrorAdamW: AdamW's moments in the dual space, for weights that can be pruned."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Literal

import numpy as np
import torch
from torch import Tensor, nn

from mirrormax.geometry import Potential
from mirrormax.optim import gradients
from mirrormax.optim.fused import Plan, euclidean_norms
from mirrormax.optim.groups import is_rest_by_name, param_groups
from mirrormax.optim.hyperparameters import potential_of, takes_p_alone
from mirrormax.optim.kernels import Number, Rule, Slot
from mirrormax.optim.optimizer import Batch, MirrorOptimizer, Params, number_of_state
from mirrormax.optim.sharding import shard

DEFAULT_P = 1.1

# What embeddings, gains, biases and heads get where nothing else was said: AdamW's own step.
ADAMW = {"p": 2.0, "moments": "entry"}


class MirrorAdamW(MirrorOptimizer):
    r"""AdamW in the dual space of a potential ψ, by default ψ(w) = (1/p)‖w‖_p^p with steps that fit every tensor.

    With dual variables u = ∇ψ(w), at step t:

    .. code-block:: text

        g ← −g                             if maximize
        g ← g min(1, clip/(‖g‖₂ + 1e-6))   if clip, ‖g‖₂ over all gradients, as clip_grad_norm_ does
        m ← β₁ m + (1 − β₁) g              m̂ = m/(1 − β₁^t)
        v ← β₂ v + (1 − β₂) g²             v̂ = v/(1 − β₂^t); g² of each entry (moments="entry"), or its
                                           mean over the tensor, one number (moments="tensor")
        u ← ∇ψ((1 − ηλ) w)                 λ = weight_decay: w shrinks by 1 − ηλ at every p
        u ← u − η ψ''(s) m̂/(√v̂ + ε)       ψ''(s) = 1 with scale=None; s is the tensor's root mean square at
                                           its first step
        u ← clamp(u, ±∇ψ(|w| + κ s))       if trust=κ: no weight grows by more than κ s in one step
        w ← ∇ψ*(u)                         for ℓp: w = sign(u) |u|^{1/(p−1)}

    Where a decayed entry's u is not ∇ψ(w) (a weight that is rounded, or zero under a threshold), u changes by
    the difference of both sides. With ``scale=trust=clip=None``, ``p=2, moments="entry"`` this is
    ``torch.optim.AdamW``, and ``p=ElasticNet(λ, δ), moments="entry", weight_decay=0`` is AdaBreg. lr is the
    one you would give AdamW. p towards 1 leaves weights of which more can be cut (:func:`mirrormax.prune`).

    One object serves a whole model. ``MirrorAdamW(model)`` gives ``p`` and ``moments`` to the matrices of
    its layers, and AdamW's own step (p = 2, a moment per entry) to embeddings, gains, biases and output
    heads; so does :func:`mirrormax.param_groups` with ``scope="matrices"``. Of parameters without a model,
    and with p not given, those with fewer than two dimensions get AdamW's step (and of named ones those
    that are called embeddings or heads); with p given, it is everybody's.

    Args:
        params: a model, parameters, named parameters or parameter groups.
        lr: step size η, a number or a 0-dim tensor, as for AdamW.
        p: exponent > 1 and at most 80, or a :class:`~mirrormax.Potential`; None is 1.1 for matrices and 2 for
            the rest, as said above. It may change between steps; u is then read off the weights anew.
        betas: β₁, β₂ in [0, 1).
        eps: ε ≥ 0.
        weight_decay: λ ≥ 0.
        moments: ``"entry"`` keeps one second moment for each entry, ``"tensor"`` one for each tensor: less memory, and
            in `mirrormax reproduce practice`'s pre-study a worse model of which more could be cut.
        scale: ``"tensor"`` multiplies the step by ψ''(s). Tensors that begin at zero, where ℓp has no such
            number, are trained with p = 2, and a warning names them (the B of LoRA, say).
        trust: κ > 0, or None. s of a tensor that begins at zero is that of all others together.
        clip: bound of the common norm of the gradients of all groups that set it, or None.
        maximize: ascend instead of descend.
        foreach: multi-tensor kernels; by default on for parameters on an accelerator.
        fused: on a CPU, the whole step in one pass over memory, by a kernel that numba compiles (extra ``fast``) once
            and keeps on disk. It takes float32 and float64, and ℓp with a whole 1/(p−1) (p = 1.05, 1.1, 1.2, 1.25,
            1.5, 2). None takes it where it can be had, also with ``compile=True``; False never.
        compile: fuse the step into one kernel by ``torch.compile`` (compiles at the first step).
        capturable: keep all numbers in tensors on the device, so that a CUDA graph can capture the step after a
            first one outside of it; with a tensor lr no step waits for the device.
        error_if_nonfinite: raise, before anything is changed, when a gradient holds NaN or Inf.

    Sparse gradients are made dense, as moments move all rows anyway.

    >>> import torch
    >>> from mirrormax import MirrorAdamW
    >>> model = torch.nn.TransformerEncoderLayer(8, 2)
    >>> optimizer = MirrorAdamW(model, lr=1e-3, p=1.1)
    >>> [(group["name"], group["p"], group["moments"], len(group["params"])) for group in optimizer.param_groups]
    [('matrices', 1.1, 'entry', 4), ('rest', 2.0, 'entry', 8)]
    """

    _by_dimension = False

    @takes_p_alone
    def __init__(
        self,
        params: nn.Module | Params,
        lr: float | Tensor = 1e-3,
        p: float | Potential | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        moments: Literal["entry", "tensor"] = "entry",
        scale: Literal["tensor"] | None = "tensor",
        trust: float | None = 0.5,
        clip: float | None = 1.0,
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        compile: bool = False,
        capturable: bool = False,
        error_if_nonfinite: bool = False,
    ) -> None:
        self._by_dimension = p is None
        defaults = {
            "lr": lr,
            "p": DEFAULT_P if self._by_dimension else p,
            "betas": betas,
            "eps": eps,
            "weight_decay": weight_decay,
            "moments": moments,
            "scale": scale,
            "trust": trust,
            "clip": clip,
            "maximize": maximize,
            "foreach": foreach,
            "fused": fused,
            "compile": compile,
            "capturable": capturable,
            "error_if_nonfinite": error_if_nonfinite,
        }
        if isinstance(params, nn.Module):
            params = param_groups(params, rest=ADAMW, scope="matrices")
        super().__init__(params, defaults)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, or two where p was never given: matrices, and the rest under AdamW's step."""
        for group in self._parted(param_group):
            super().add_param_group(group)

    def _parted(self, group: dict[str, Any]) -> Iterator[dict[str, Any]]:
        said = not isinstance(group, dict) or any(group.get(name) is not None for name in ("p", "moments"))
        if said or not self._by_dimension or "params" not in group:
            yield group
            return
        if self._in_zero:
            raise ValueError(
                "p=None parts parameters into two groups, which ZeroRedundancyOptimizer cannot keep; give it p, or the "
                "groups of mirrormax.param_groups(model, scope='matrices') with a p each."
            )
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterator) else params
        if not isinstance(params, list | tuple):
            yield group  # torch says what it thinks of it
            return
        given = group.get("param_names")
        names = given or [item[0] if isinstance(item, tuple) else "" for item in params]
        rest = [_is_rest(name, item) for name, item in zip(names, params, strict=True)]
        for chosen, options in ((False, {}), (True, ADAMW)):
            part = {**group, **options, "params": [x for x, r in zip(params, rest, strict=True) if r is chosen]}
            if given:
                part["param_names"] = [name for name, r in zip(given, rest, strict=True) if r is chosen]
            if part["params"] or (not params and not chosen):
                yield part

    def _rule(self, group: dict[str, Any]) -> Rule:
        return Rule(
            potential=potential_of(group),
            momentum=group["betas"][0],
            adam=True,
            beta2=group["betas"][1],
            eps=group["eps"],
            foreach=group["foreach"],
            fused=group["fused"],
            compile=group["compile"],
            capturable=group["capturable"],
        )

    def _new_state(self, batch: Batch, param: Tensor, state: dict[str, Any]) -> None:
        like = state.get("dual", param)
        if "step" not in state:
            state["step"] = number_of_state(0.0, batch.group, param)
            state["exp_avg"] = torch.zeros_like(like, requires_grad=False)
        entries = batch.group["moments"] == "entry"
        if "exp_avg_sq" not in state:
            if entries:
                state["exp_avg_sq"] = torch.zeros_like(like, requires_grad=False)
            else:
                state["exp_avg_sq"] = torch.zeros((), dtype=shard(like).dtype, device=param.device)
        elif entries != (state["exp_avg_sq"].ndim == param.ndim):
            # Somebody has changed his mind between steps: the mean is the mean of the entries.
            mean = state["exp_avg_sq"].mean()
            state["exp_avg_sq"] = torch.zeros_like(like, requires_grad=False).add_(mean) if entries else mean

    def _factors(self, batches: Sequence[Batch]) -> tuple[list[list[Number]], list[list[Any]]]:
        none: list[list[Any]] = [[None] * len(batch.params) for batch in batches]
        # Where only moments need them and there is a plan, norms are taken part by part, right before the step.
        norms = [
            gradients.euclidean_norms(batch)
            if batch.group["clip"] is not None or (batch.group["moments"] == "tensor" and batch.plan is None)
            else own
            for batch, own in zip(batches, none, strict=True)
        ]
        clips = gradients.clipping(batches, norms)
        factors = [
            [-clip if batch.group["maximize"] else clip] * len(batch.params)
            for batch, clip in zip(batches, clips, strict=True)
        ]
        return factors, norms

    def _slots(self, batch: Batch, factors: Sequence[Number], norms: Sequence[Any]) -> list[Slot]:
        states, rule = [self.state[param] for param in batch.params], batch.rule
        steps, vs = [state["step"] for state in states], [state["exp_avg_sq"] for state in states]
        entries = batch.group["moments"] == "entry"
        means: list[Any] = [None] * len(vs)
        if steps:
            torch._foreach_add_(steps, 1)
            if not entries:
                means = self._second_moments(batch, vs, factors, norms)
        times = _read(steps) if batch.on_host else steps
        keep = 1 - batch.lr * batch.group["weight_decay"]
        slots = []
        for param, c, t, mean in zip(batch.params, factors, times, means, strict=True):
            first, second = 1 - rule.momentum**t, 1 - rule.beta2**t
            scale, room = self._scale_and_room(batch, param)
            slot, a = self._tensors(batch, param), batch.lr * scale / first
            slot.c, slot.keep, slot.room = c, keep, room
            if entries:
                slot.a, slot.b = a, second**0.5
            else:
                slot.a = a / ((mean / second) ** 0.5 + rule.eps)
            slots.append(slot)
        return slots

    def _tensors(self, batch: Batch, param: Tensor) -> Slot:
        state, local = self.state[param], shard if batch.rule.potential.separable else (lambda t: t)
        v = local(state["exp_avg_sq"]) if batch.group["moments"] == "entry" else None
        return Slot(*self._parts(batch, param), local(state["exp_avg"]), v)

    def _numbers_of(self, batch: Batch, plan: Plan, factors: Sequence[Number], norms: Sequence[Any]) -> Any:
        rule, steps = batch.rule, plan.vectors["step"]
        steps += 1
        first, second = 1 - rule.momentum**steps, 1 - rule.beta2**steps
        numbers = np.ones((len(steps), 5))
        numbers[:, 0] = factors
        numbers[:, 1] = batch.lr * plan.scale(batch.group) / first
        numbers[:, 2] = 1 - batch.lr * batch.group["weight_decay"]
        if batch.group["moments"] == "entry":
            numbers[:, 3] = second**0.5
        else:
            if batch.group["clip"] is None:
                norms = euclidean_norms(*plan.addresses)
            means = plan.vectors["exp_avg_sq"]
            means *= rule.beta2
            means += (1 - rule.beta2) * (numbers[:, 0] * norms) ** 2 / plan.sizes
            numbers[:, 1] /= (means.astype(np.float64) / second) ** 0.5 + rule.eps
        numbers[:, 4] = plan.room(batch.group)
        return numbers

    def _second_moments(
        self, batch: Batch, vs: list[Tensor], factors: Sequence[Number], norms: Sequence[Any]
    ) -> list[Any]:
        """Bring the moments of whole tensors up to date, and return them: as numbers, if they may be read."""
        beta2 = batch.rule.beta2
        new = [
            (1 - beta2) * (c * norm) ** 2 / max(1, param.numel())
            for param, c, norm in zip(batch.params, factors, norms, strict=True)
        ]
        torch._foreach_mul_(vs, beta2)
        if any(isinstance(square, Tensor) for square in new):
            for v, square in zip(vs, new, strict=True):
                v.add_(square)
        else:
            torch._foreach_add_(vs, new)
        return _read(vs) if batch.on_host else vs


def _read(numbers: list[Tensor]) -> list[Any]:
    """Numbers out of tensors that hold one each, where that needs no waiting."""
    if not numbers or any(number.device.type != "cpu" for number in numbers):
        return numbers
    dtype = numbers[0].dtype
    same = all(number.dtype == dtype for number in numbers)
    found: list[Any] = torch.stack(numbers if same else [number.double() for number in numbers]).tolist()
    return found


def _is_rest(name: str, item: Any) -> bool:
    param = item[1] if isinstance(item, tuple) else item
    return getattr(param, "ndim", 2) < 2 or is_rest_by_name(name)
