"""MirrorAdamW: AdamW's moments in the dual space, for weights that are to be pruned."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Literal

from torch import Tensor, nn

from mirrormax.geometry import Potential
from mirrormax.optim.groups import is_rest_by_name
from mirrormax.optim.optimizer import MirrorOptimizer, Params

DEFAULT_P = 1.5  # as good as AdamW dense in `mirrormax reproduce practice`, where 1.1 is behind

# What embeddings, gains, biases and heads get where nothing else was said: AdamW's own step.
ADAMW = {"p": 2.0, "moments": "entry", "sparsity": None}


class MirrorAdamW(MirrorOptimizer):
    r"""AdamW in the dual space of a potential ψ, by default ψ(w) = (1/p)‖w‖_p^p with steps that fit every tensor.

    With dual variables u = ∇ψ(w), at step t:

    .. code-block:: text

        g ← −g                             if maximize
        g ← g min(1, clip/(‖g‖₂ + 1e-6))   if clip, ‖g‖₂ over all gradients, as clip_grad_norm_ does
        m ← β₁ m + (1 − β₁) g              m̂ = m/(1 − β₁^t)
        v ← β₂ v + (1 − β₂) g²             v̂ = v/(1 − β₂^t); of moments="tensor" g² is the mean over the tensor
        x = m̂/(√v̂ + ε)                    of moments="matrix" x = .2 √max(rows, columns) UVᵀ, where
                                           β₁ m + (1 − β₁) g = USVᵀ, nearly: with singular values of .7 to 1.2, as Muon
        u ← ∇ψ((1 − ηλ) w)                 λ = weight_decay: w shrinks by 1 − ηλ at every p, also if that is negative
        u ← u − η ψ''(s) x                 ψ''(s) = 1 with scale=None; s is the tensor's root mean square at
                                           its first step
        u ← clamp(u, ±∇ψ(|w| + κ s))       if trust=κ: no weight grows by more than κ s in one step
        w ← ∇ψ*(u)                         for ℓp: w = sign(u) |u|^{1/(p−1)}; where u has not moved, w does not

    Where u is not ∇ψ(w) (of a weight that is rounded, or zero under a threshold), decay changes u by the difference of
    both sides. With ``scale=trust=clip=None``, ``p=2, moments="entry"`` this is
    ``torch.optim.AdamW``, with ``moments="matrix"`` it is ``torch.optim.Muon(adjust_lr_fn="match_rms_adamw")``, and
    ``p=ElasticNet(λ, δ), moments="entry", weight_decay=0`` is AdaBreg. lr is the one you would give AdamW. With p
    nearer to 1 a model survives heavier pruning (:func:`mirrormax.prune`).

    One object serves a whole model. ``MirrorAdamW(model)`` gives ``p`` and ``moments`` to the matrices of
    its layers, and AdamW's own step (p = 2, a moment per entry) to embeddings, gains, biases and output
    heads; so does :func:`mirrormax.param_groups` with ``scope="matrices"``. Of parameters without a model,
    and with p not given, those with fewer than two dimensions get AdamW's step (and of named ones those
    that are called embeddings or heads); with p given, it is everybody's.

    Args:
        params: a model, parameters, named parameters or parameter groups.
        lr: step size η, a number or a 0-dim tensor, as for AdamW.
        p: exponent > 1 and at most 80, or a :class:`~mirrormax.geometry.Potential`; None is 1.5 for matrices and 2 for
            the rest, as said above. It may change between steps; u is then read off the weights anew.
        betas: β₁, β₂ in [0, 1).
        eps: ε ≥ 0.
        weight_decay: λ ≥ 0.
        moments: ``"entry"`` keeps one second moment for each entry, ``"tensor"`` one for each tensor: less memory, and
            in the pre-study of `mirrormax reproduce practice` a worse model that survived heavier pruning.
            ``"matrix"`` orthogonalises the first moment of each matrix instead (Muon; all dimensions but the first are
            its columns): less memory too, more work (5r/B of a layer's, r being its smaller side, B the tokens of a
            batch), and by far the best sparse model there.
        scale: ``"tensor"`` multiplies the step by ψ''(s). Tensors that begin at zero, where ℓp has no such
            number, are trained with p = 2, and a warning names them (the B of LoRA, say).
        trust: κ > 0, or None. s of a tensor that begins at zero is that of all others together.
        clip: bound of the common norm of the gradients of all groups that set it, or None.
        sparsity: the share of zeros that the matrices end with, such as 0.8, or ``"2:4"`` (any n:m: n of every m
            weights in a row stay). It puts a threshold in the place of p, and scale and trust are not used; see below.
            What has no gradient, such as a frozen matrix, or a step of lr 0, changes nothing.
        total_steps: how often the training calls ``step()`` (under gradient accumulation once for several batches); the
            share rises along it. A group that is added later joins where the others are. Without it, say the share by
            :meth:`set_sparsity`.
        scope: whether the smallest go of all matrices of a group (``"global"``), of each (``"matrix"``) or of each row.
        maximize: ascend instead of descend.
        foreach: accepted as in torch's optimizers, and without effect: on an accelerator ``compile=True`` is the way to
            few kernels.
        fused: on a CPU, the whole step in one pass over memory, by a kernel that numba compiles (extra ``fast``) once
            and keeps on disk. It takes every ℓp, and float32, float64 and bfloat16. None takes it where it can be had,
            also with ``compile=True``; False never.
        compile: fuse the step into one kernel by ``torch.compile`` (compiles at the first step), where ``fused`` does
            not do it already.
        capturable: keep all numbers in tensors on the device, so that a CUDA graph can capture the step after a
            first one outside of it; with a tensor lr no step waits for the device.
        error_if_nonfinite: raise, before anything is changed, when a gradient holds NaN or Inf.

    With ``sparsity=s`` the steps are AdamW's on u, and w is u behind a threshold λ that is the s_t-quantile of |u|:

    .. code-block:: text

        w = 0                              where |u| ≤ λ
        w = sign(u) · 3/2 · (|u| − λ)      where λ < |u| ≤ 3λ
        w = u                              beyond

    s_t rises as s (1 − (1 − x)³), x from 0 to 1 between 5 and 60 % of ``total_steps``, and stays s. Entries below λ
    keep their u and come back when gradients insist. There is no mask and no pruning step, and no tensor beside u, m
    and v.

    Where data can be separated, weights grow without end and only their direction settles. What it turns to in
    one-layer attention (`mirrormax reproduce norms` and docs/math/norms.md have the runs):

    - ``moments="tensor"``: the attention SVM in ℓp. A derivation: divided by one number, a step has the direction of
      the averaged gradient, which is that of :class:`~mirrormax.MirrorDescent` with ``normalize="tensor"``.
    - ``moments="entry"``: open. If the steps became signs and settled, the limit would be the SVM in ℓ∞ at every p;
      runs of 10,000 steps do not show it, and no limit is claimed, the paper's least of all.
    - ``moments="matrix"``: none is claimed. With exact UVᵀ and p = 2 it is the SVM in the spectral norm, a conjecture
      that runs support; those with these singular values end 11.5 % below the largest margin.
    - ``sparsity``: a conjecture for a hard threshold, the SVM in the k-support norm; none for the firm one that is used
      here. See :mod:`mirrormax.optim.target`.

    Sparse gradients are made dense, as moments move all rows anyway.

    >>> import torch
    >>> from mirrormax import MirrorAdamW
    >>> model = torch.nn.TransformerEncoderLayer(8, 2)
    >>> optimizer = MirrorAdamW(model, lr=1e-3, p=1.1)
    >>> [(group["name"], group["p"], group["moments"], len(group["params"])) for group in optimizer.param_groups]
    [('matrices', 1.1, 'entry', 4), ('rest', 2.0, 'entry', 8)]
    >>> optimizer = MirrorAdamW(model, lr=1e-3, sparsity=0.8, total_steps=10)
    >>> for batch in torch.randn(10, 3, 4, 8):
    ...     model(batch).square().mean().backward()
    ...     optimizer.step()
    >>> weights = torch.cat([w.detach().flatten() for w in optimizer.param_groups[0]["params"]])
    >>> int((weights == 0).sum()) == round(0.8 * len(weights))
    True
    """

    _by_dimension = False

    def __init__(
        self,
        params: nn.Module | Params,
        lr: float | Tensor = 1e-3,
        p: float | Potential | None = None,
        betas: tuple[float, float] = (0.9, 0.999),
        eps: float = 1e-8,
        weight_decay: float = 0.01,
        *,
        moments: Literal["entry", "tensor", "matrix"] = "entry",
        scale: Literal["tensor"] | None = "tensor",
        trust: float | None = 0.5,
        clip: float | None = 1.0,
        sparsity: float | str | None = None,
        total_steps: int | None = None,
        scope: Literal["global", "matrix", "row"] = "global",
        maximize: bool = False,
        foreach: bool | None = None,
        fused: bool | None = None,
        compile: bool = False,
        capturable: bool = False,
        error_if_nonfinite: bool = False,
    ) -> None:
        self._by_dimension = p is None
        if p is None:
            p = DEFAULT_P if sparsity is None else 2.0
        super().__init__(params, locals(), rest=ADAMW)

    def add_param_group(self, param_group: dict[str, Any]) -> None:
        """Add a group, or two where p was never given: matrices, and the rest under AdamW's step."""
        for group in self._parted(param_group):
            aims = isinstance(group, dict) and group.get("sparsity", self.defaults["sparsity"]) is not None
            # A threshold takes the place of a p that nobody gave.
            super().add_param_group({"p": 2.0, **group} if aims and self._by_dimension else group)

    def _parted(self, group: dict[str, Any]) -> list[dict[str, Any]]:
        """The group, or its matrices and the rest of it, if neither it nor the optimizer was given p or moments."""
        if not self._by_dimension or not isinstance(group, dict) or "params" not in group:
            return [group]
        if group.get("p") is not None or group.get("moments") is not None:
            return [group]
        params = group["params"]
        params = [params] if isinstance(params, Tensor) else list(params) if isinstance(params, Iterator) else params
        if not isinstance(params, list | tuple):
            return [group]  # torch says what it thinks of it
        given = group.get("param_names")
        names = given or [item[0] if isinstance(item, tuple) else "" for item in params]
        tensors = [item[1] if isinstance(item, tuple) else item for item in params]
        is_rest = [getattr(t, "ndim", 2) < 2 or is_rest_by_name(name) for name, t in zip(names, tensors, strict=True)]
        parts = []
        for options, rest in (({}, False), (ADAMW, True)):
            places = [k for k, chosen in enumerate(is_rest) if chosen is rest]
            part = {**group, **options, "params": [params[k] for k in places]}
            if given:
                part["param_names"] = [given[k] for k in places]
            if places:
                parts.append(part)
        return parts or [group]

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), "_by_dimension": self._by_dimension}
