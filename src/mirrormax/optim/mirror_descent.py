"""MirrorDescent: exact mirror descent as a plain ``torch.optim.Optimizer``."""

from __future__ import annotations

from typing import Literal

from torch import Tensor, nn

from mirrormax.geometry import Potential
from mirrormax.optim.optimizer import MirrorOptimizer, Params


class MirrorDescent(MirrorOptimizer):
    r"""Mirror descent with potential ψ, by default the paper's ψ(w) = (1/p)‖w‖_p^p.

    Each step is ∇ψ(w) ← ∇ψ(w) − η d, carried out on the dual variable u = ∇ψ(w), which is the
    optimizer's state:

    .. code-block:: text

        g ← −g                             if maximize
        g ← g min(1, clip/(‖g‖₂ + 1e-6))   if clip, ‖g‖₂ over all gradients, as clip_grad_norm_ does
        g ← g / (‖g‖_* + 2.2e-16)          if normalize, in the dual norm (‖·‖_q, q = p/(p−1), for ℓp)
        r ← ρ r + (1 − ρ) ‖g‖_*            if normalize="running", r starting at the first ‖g‖_*, and then
        g ← g / max(r, ‖g‖_*/3)            ρ = normalize_decay: no step is longer than three times η
        g ← ψ''(s) g                       if scale="tensor", s the tensor's root mean square at its first step
        d = g + λ u                        λ = weight_decay: the gradient of λψ(w)
        m ← μ m + d                        μ = momentum, m starts at 0
        d ← m, or d + μ m with nesterov    (only if μ > 0)
        u ← u − η d
        u ← clamp(u, ±∇ψ(|w| + κ s))       if trust=κ: no weight grows by more than κ s in one step
        w ← ∇ψ*(u)                         for ℓp: w = sign(u) |u|^{1/(p−1)}; where u has not moved, w does not

    **p = 2 is torch.optim.SGD, and p = 2 is the default**: give p. Keeping u makes every step exact: an
    entry whose weight underflows to zero (easily so near p = 1) still remembers its u, and nothing is
    rounded on a way there and back. u has at least 32 bits, so half-precision weights need no master copy of their own.
    A float16 weight beyond 65504 becomes inf without a warning, as under torch's optimizers (a gradient scaler looks at
    gradients alone); ``trust`` and ``clip`` bound what a step adds to it, bfloat16 has room.

    When somebody else writes a parameter between steps (initialisation, ``load_state_dict``, an
    averaged copy swapped in, a clamp), its version counter tells, and the entries that differ are
    mapped to u anew. In-place writes through ``.data``, a numpy view or another process are invisible to
    torch and so to this optimizer: use ``torch.no_grad()``, or call :meth:`resync` after them.

    Args:
        params: a model, whose matrices get p and whose other parameters p = 2 (see :func:`mirrormax.param_groups` with
            ``scope="matrices"``), or parameters, named parameters or parameter groups.
        lr: step size η, a number or a 0-dim tensor; it must be given. What is a good one depends on p: for weights of
            typical size s, ψ''(s) = (p−1)·s^{p−2} times the step size you would give SGD. With
            ``scale="tensor"`` that factor is applied to each tensor, and lr is the one for SGD.
        p: exponent > 1 and at most 80, or a :class:`~mirrormax.geometry.Potential`; 2, the default, is plain SGD.
            ``ElasticNet(λ, δ)`` makes the steps linearised Bregman iterations (LinBreg). It may change between
            steps (``optimizer.param_groups[0]["p"] = 1.1``); u is then read off the weights anew.
        momentum: μ in [0, 1).
        nesterov: Nesterov's form of momentum; needs ``momentum > 0``.
        weight_decay: λ ≥ 0.
        normalize: ``"tensor"`` divides each gradient by its own dual norm, ``"global"`` all gradients by
            their common one. Where groups have different potentials, the common norm is the
            root of the sum of squares of each potential's. Both give every batch the same length, however little
            is left to learn from it: with batches much smaller than the data they do not lead to the attention
            SVM's direction. ``"running"`` divides by a running average, one for each tensor, and keeps the batches'
            weights relative to each other.
        normalize_decay: ρ of that average, in [0, 1); 1/(1 − ρ) should be some epochs of batches.
        scale: ``"tensor"`` lets weights of size s move as under SGD with the same lr.
        trust: κ, which is of use near p = 1: there w = u^{1/(p−1)} turns a dual step a little too large into an
            enormous weight, and four such steps into NaN; with ``trust`` and ``clip`` none of them is.
        clip, sparsity, total_steps, scope, maximize, foreach, fused, compile, capturable, error_if_nonfinite: as in
            :class:`~mirrormax.MirrorAdamW`, which says more of scale and trust, too.

    In one-layer attention whose data can be separated, full batches and small steps turn the direction of the weights
    to the attention SVM in ℓp: the paper's theorem for ψ = (1/p)‖w‖_p^p, a derivation for other potentials
    (docs/math/horizon.md). Normalised steps and momentum are not in it; that they turn there too is what runs show
    (docs/math/norms.md).

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
        params: nn.Module | Params,
        lr: float | Tensor | None = None,
        p: float | Potential = 2.0,
        *,
        momentum: float = 0.0,
        nesterov: bool = False,
        weight_decay: float = 0.0,
        normalize: Literal["tensor", "global", "running"] | None = None,
        normalize_decay: float = 0.99,
        scale: Literal["tensor"] | None = None,
        trust: float | None = None,
        clip: float | None = None,
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
        super().__init__(params, locals(), rest={"p": 2.0, "sparsity": None})

    def __repr__(self) -> str:
        text = super().__repr__()
        if all(group["p"] == 2.0 for group in self.param_groups):
            text += "\np = 2 in every group: this is SGD. Give p, for example p=1.1."
        return text
