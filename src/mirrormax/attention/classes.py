"""Several classes and several heads: f_i = Σ_h V_h X_iᵀ σ(X_i W_h z_i) ∈ R^C, trained by cross-entropy.

    X (..., n, T, d)   y (..., n) in 0, …, C − 1   z (..., n, d)   V (..., H, C, d)   W (..., H, d, d)

Two classes with the readout v are V = (−v/2, v/2), and cross-entropy is then the logistic loss. With π = softmax(f)
and q_c = π_c/(1 − π_y) the shares of the wrong classes, q_y = 0,

    −∂ℓ/∂f = (1 − π_y)(e_y − q),    log(1 − π_y) = log σ(φ),    φ = log Σ_{c≠y} e^{f_c − f_y},    ℓ = log(1 + e^φ).

All that the binary model has of the readout comes back with V_hᵀ(e_y − q) in the place of y v, and log(1 − π_y) in that
of log(−l'): gradients relative to the selected token, in log scale (:mod:`mirrormax.attention.gradients`). Heads meet
in q and in π_y only.

**Effective scores.** g_it = (e_y − q)ᵀV x_it is a token's margin over the wrong classes, averaged with the weights that
the model gives them *now*: the gain of attending to it. For C = 2 this is the paper's score γ_it. For C > 2 it depends
on the outputs f, so that a token can be the best one only as seen from itself, and often none is: then the best
attention s* = argmin φ(V Xᵀs), a convex problem on the simplex, is a mixture of tokens. By convexity any s has
φ(s) − φ(s*) ≤ max_t g_t − Σ_t s_t g_t: the certificate of :func:`optimal_attention`.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor
from torch.nn import functional

from mirrormax._arrays import in_kind
from mirrormax.attention.gradients import ClassState, class_state, pulled
from mirrormax.attention.losses import Loss
from mirrormax.problem import blank_padding, check_classes, common_type

ROUNDS = 100  # of the interior point; 15 to 40 are needed
SETTLED = 1e-13  # the gap at which it stops, relative to the spread of the scores


class OptimalAttention(NamedTuple):
    """The attention of least cross-entropy in every sample."""

    s: Tensor  # (..., n, T)     on the simplex, exactly zero outside the face
    face: Tensor  # (..., n, T)  True for the tokens that have a part in it
    single: Tensor  # (..., n)   True where that is one token
    loss: Tensor  # (..., n)     cross-entropy there
    gap: Tensor  # (..., n)      proof: no attention has a loss below this one times e^−gap


@in_kind
def predict_classes(X: Tensor, z: Tensor, V: Tensor, W: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """f_i = Σ_h V_h X_iᵀ σ(X_i W_h z_i), of shape (..., n, C); the largest entry is the predicted class.

    >>> X, z = [[[5.0, 0.0], [0.0, 1.0]]], [[5.0, 0.0]]
    >>> predict_classes(X, z, V=[[[1.0, 0.0], [0.0, 1.0], [0.0, 0.0]]], W=[[[0.0, 0.0], [0.0, 0.0]]])
    array([[2.5, 0.5, 0. ]])
    """
    check_classes(X, heads=True, z=z, V=V, W=W, mask=mask)
    X, z, V, W = common_type(blank_padding(X, mask), z, V, W)
    return outputs_of(class_state(X, z, W, mask), V)


@in_kind
def effective_scores(X: Tensor, y: Tensor, V: Tensor, outputs: Tensor, *, mask: Tensor | None = None) -> Tensor:
    """g_it = (e_y − q)ᵀV x_it = Σ_{c≠y} q_c (v_y − v_c)ᵀx_it at outputs f (..., n, C), of shape (..., n, T).

    V (..., C, d) is that of one head, and the outputs are those of all. Where attention has selected α they are V x_iα.
    −inf where the mask leaves a token out.

    >>> X, V = [[[1.0, 0.0], [0.0, 1.0], [0.6, 0.6]]], [[1.0, 1.0], [0.0, -1.0], [-1.0, 0.0]]
    >>> effective_scores(X, [0], V, outputs=[[1.0, 0.0, -1.0]]).round(2)  # the mixture is ahead
    array([[1.27, 1.73, 1.8 ]])
    """
    check_classes(X, y=y, V=V, outputs=outputs, mask=mask)
    X, V, outputs = common_type(blank_padding(X, mask), V, outputs)
    scores = (X @ (labelled(outputs, y).pull @ V).unsqueeze(-1)).squeeze(-1)
    return scores if mask is None else scores.masked_fill(~mask, -torch.inf)


@in_kind
def optimal_attention(
    X: Tensor, y: Tensor, V: Tensor, *, offset: Tensor | None = None, mask: Tensor | None = None
) -> OptimalAttention:
    """The attention s* of least cross-entropy in every sample, argmin over the simplex of ℓ(V X_iᵀs + offset_i, y_i).

    Its face is one token or several. One: no other has a higher effective score, seen from itself. Several: they have
    one effective score, and no other token a higher one. ``offset`` (..., n, C) is what other heads add to the outputs.

    >>> X, V = [[[1.0, 0.0], [0.0, 1.0]]], [[1.0, 1.0], [0.0, 1.0], [1.0, 0.0]]
    >>> best = optimal_attention(X, [0], V)  # either token alone leaves one of the wrong classes level
    >>> best.s.round(6), best.single
    (array([[0.5, 0.5]]), array([False]))
    """
    check_classes(X, y=y, V=V, offset=offset, mask=mask)
    X, V = (tensor.double() for tensor in (blank_padding(X, mask), V))
    f = X @ V.mT.unsqueeze(-3)
    if offset is not None:
        f = f + offset.double().unsqueeze(-2)
    y = y.long().expand(f.shape[:-2])[..., None, None]
    wrong = torch.arange(f.shape[-1] - 1, device=X.device)
    wrong = wrong + (wrong >= y)
    # (v_c − v_y)ᵀx_t + offset_c − offset_y for c ≠ y, (..., n, T, C − 1): φ(s) = log Σ_c exp(costsᵀs)_c.
    costs = f.take_along_dim(wrong, -1) - f.take_along_dim(y, -1)
    present = torch.ones(costs.shape[:-1], dtype=torch.bool, device=X.device)
    present = present if mask is None else present & mask
    batch = costs.shape[:-2]
    flat = costs.reshape(-1, *costs.shape[-2:]), present.expand(costs.shape[:-1]).reshape(-1, costs.shape[-2])
    s, face, gap = _least(*flat)
    loss = -functional.logsigmoid(-torch.logsumexp((s.unsqueeze(-2) @ flat[0]).squeeze(-2), -1))
    single = face.sum(-1) == 1
    return OptimalAttention(*(t.reshape(*batch, *t.shape[1:]) for t in (s, face, single, loss, gap)))


class Labelled(NamedTuple):
    """What the labels make of the outputs."""

    pull: Tensor  # (..., n, C)     e_y − q
    log_slope: Tensor  # (..., n)   log(1 − π_y)
    loss: Tensor  # (..., n)
    margins: Tensor  # (..., n)     f_y − max_{c≠y} f_c


def labelled(outputs: Tensor, y: Tensor) -> Labelled:
    """Of outputs (..., n, C) and labels (..., n), checked before."""
    y = y.long().expand(outputs.shape[:-1]).unsqueeze(-1)
    right = functional.one_hot(y.squeeze(-1), outputs.shape[-1])
    behind = (outputs - outputs.gather(-1, y)).masked_fill(right.bool(), -torch.inf)
    phi = behind.logsumexp(-1)
    return Labelled(
        right - behind.softmax(-1), functional.logsigmoid(phi), -functional.logsigmoid(-phi), -behind.amax(-1)
    )


def signed(outputs: Tensor, y: Tensor, loss: Loss) -> Labelled:
    """The same of one output (..., n, 1) and labels ±1: y in the place of e_y − q, log(−l') in that of log(1 − π_y)."""
    margins = y * outputs.squeeze(-1)
    return Labelled(y.unsqueeze(-1), loss.log_derivative(margins), loss(margins), margins)


def class_weight_gradient(state: ClassState, labels: Labelled, z: Tensor, V: Tensor) -> tuple[Tensor, Tensor]:
    """∇_W L / e^scale, (..., H, d, d), and the scale of each head, (..., H): nothing underflows at any ‖W‖ and ‖V‖.

    ∇_{W_h} L = −(1/n) Σ_i (1 − π_y) X_iᵀ(diag(s_hi) − s_hi s_hiᵀ) g_hi z_iᵀ
    """
    direction = labels.pull.unsqueeze(-3) @ V
    gains = (state.tokens.offsets @ direction.unsqueeze(-1)).squeeze(-1)
    pull, scale = pulled(state.tokens.offsets, state.log_s, gains, labels.log_slope.unsqueeze(-2))
    return pull.mT @ (z.unsqueeze(-3) / -z.shape[-2]), scale


def class_value_gradient(state: ClassState, labels: Labelled) -> tuple[Tensor, Tensor]:
    """∇_V L / e^scale, (..., H, C, d), and the scale (...) = max_i log(1 − π_y).

    ∇_{V_h} L = −(1/n) Σ_i (e_y − π)(X_iᵀ s_hi)ᵀ
    """
    scale = labels.log_slope.amax(-1)
    scale = torch.where(scale == -torch.inf, 0.0, scale)
    weights = torch.exp(labels.log_slope - scale.unsqueeze(-1)).unsqueeze(-1) * labels.pull
    return (weights.unsqueeze(-3) / -weights.shape[-2]).mT @ state.attended, scale


def outputs_of(state: ClassState, V: Tensor) -> Tensor:
    """f, (..., n, C)."""
    return (state.attended @ V.mT).sum(-3)


def _least(costs: Tensor, present: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """argmin of φ on the simplex of the tokens present: s (N, T), its face, and the gap (N,).

    A primal-dual interior point: ∇φ(s) + ν = λ ≥ 0 and λ_t s_t = μ → 0, by Newton's method with steps that lower
    φ(s) − μ Σ_t log s_t. Its path ends where λ tells the tokens of the face from the others; there Newton's method, on
    the face alone, makes their scores equal to rounding.
    """
    costs = torch.where(present.unsqueeze(-1), costs, 0.0)
    scale = costs.abs().amax((-2, -1)).unsqueeze(-1)
    count = present.sum(-1, keepdim=True)
    s, mu = present.to(costs.dtype) / count, 0.1 * scale / count
    dual = torch.where(present, 0.1 * scale, 1.0)
    left, nearest = torch.arange(len(s), device=s.device), torch.full_like(scale, torch.inf).squeeze(-1)
    best, best_dual = s.clone(), dual.clone()
    for _ in range(ROUNDS):
        gaps = _gap(s[left], _slope(costs[left], s[left]), present[left])
        better = gaps < nearest[left]  # not so where rounding has the last word
        put = left[better]
        nearest[put], best[put], best_dual[put] = gaps[better], s[put], dual[put]
        left = left[gaps > SETTLED * scale[left].squeeze(-1)]
        if not len(left):
            break
        step = _inward(*(t[left] for t in (costs, present, s, dual, mu)))
        sound = torch.stack([part.isfinite().all(-1) for part in step]).all(0)
        left = left[sound]
        s[left], dual[left], mu[left] = (part[sound] for part in step)
    s, dual = best, best_dual
    face = present & (s * scale >= dual)
    on_face = _on_face(costs, torch.where(face, s, 0.0), face)
    gap = _gap(on_face, _slope(costs, on_face), present)
    keep = (gap <= torch.maximum(nearest, 100 * SETTLED * scale.squeeze(-1))).unsqueeze(-1)
    return torch.where(keep, on_face, s), torch.where(keep, face, present), torch.where(keep.squeeze(-1), gap, nearest)


def _inward(costs: Tensor, present: Tensor, s: Tensor, dual: Tensor, mu: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """One step of the interior point: s, λ and μ, a tenth of it where the step before has come near enough."""
    held = torch.where(present, s, 1.0)
    slope = _slope(costs, s)
    nu = (s * (dual - slope)).sum(-1, keepdim=True)  # nearly; without it the right-hand side would cancel
    downhill = torch.where(present, slope + nu - mu / held, 0.0)
    ds, dnu = _bordered(_curvature(costs, s), dual / held, -downhill, present)
    ddual = torch.where(present, mu / held - dual - dual / held * ds, 0.0)
    length = 0.995 * _reach(held, ds)
    fall, value = (downhill * ds).sum(-1, keepdim=True), _barrier(costs, s, mu, present)
    for _ in range(40):
        tried = _barrier(costs, s + length * ds, mu, present)
        # A fall that rounding hides is that of a step near the end, where Newton's is right.
        worse = (tried > value + 1e-4 * length * fall) & (-fall > 1e-11 * (value.abs() + 1))
        if not worse.any():
            break
        length = torch.where(worse, 0.5 * length, length)
    new, new_dual = s + length * ds, dual + 0.995 * _reach(dual, ddual) * ddual
    new = new / new.sum(-1, keepdim=True)
    products = torch.where(present, new * new_dual, mu)
    uneven = (
        torch.where(present, _slope(costs, new) + nu + dnu - new_dual, 0.0) * new
    )  # as large as what it adds to the gap
    error = torch.maximum((products - mu).abs().amax(-1, keepdim=True), uneven.abs().amax(-1, keepdim=True))
    return new, new_dual, torch.where(error <= 10 * mu, 0.1 * mu, mu)


def _barrier(costs: Tensor, s: Tensor, mu: Tensor, present: Tensor) -> Tensor:
    """φ(s) − μ Σ_t log s_t, (N, 1)."""
    logs = torch.where(present, s, 1.0).log().sum(-1, keepdim=True)
    return (s.unsqueeze(-2) @ costs).squeeze(-2).logsumexp(-1, keepdim=True) - mu * logs


def _on_face(costs: Tensor, s: Tensor, face: Tensor) -> Tensor:
    """A few steps of Newton's method from s, in the tokens of the face only."""
    s = s / s.sum(-1, keepdim=True)
    for _ in range(4):
        curvature, slope = _curvature(costs, s), _slope(costs, s)
        ridge = 1e-14 * curvature.diagonal(dim1=-2, dim2=-1).amax(-1, keepdim=True) + 1e-300
        step, _ = _bordered(curvature, ridge.expand_as(s), torch.where(face, -slope, 0.0), face)
        tried = torch.where(face, s + step, 0.0)
        better = _uneven(_slope(costs, tried), face) < _uneven(slope, face)
        s = torch.where((better & (tried >= 0).all(-1)).unsqueeze(-1), tried / tried.sum(-1, keepdim=True), s)
    return s


def _bordered(curvature: Tensor, diagonal: Tensor, right: Tensor, free: Tensor) -> tuple[Tensor, Tensor]:
    """x and ν with (curvature + diag)x + ν = right and Σx = 0 over the free entries, 0 elsewhere."""
    both = free.unsqueeze(-1) & free.unsqueeze(-2)
    matrix = torch.where(both, curvature, 0.0) + torch.diag_embed(torch.where(free, diagonal, 1.0))
    both_sides = torch.stack([torch.where(free, right, 0.0), free.to(right.dtype)], -1)
    solved = torch.linalg.solve_ex(matrix, both_sides).result
    nu = solved[..., 0].sum(-1, keepdim=True) / solved[..., 1].sum(-1, keepdim=True)
    return solved[..., 0] - nu * solved[..., 1], nu


def _slope(costs: Tensor, s: Tensor) -> Tensor:
    """∇φ(s) = costs q, (N, T): the effective scores with their sign turned, up to a constant."""
    q = (s.unsqueeze(-2) @ costs).softmax(-1)
    return (costs @ q.mT).squeeze(-1)


def _curvature(costs: Tensor, s: Tensor) -> Tensor:
    """∇²φ(s) = costs (diag q − qqᵀ) costsᵀ, (N, T, T)."""
    q = (s.unsqueeze(-2) @ costs).softmax(-1)
    centred = costs - (costs @ q.mT)
    return (centred * q) @ centred.mT


def _lowest(slope: Tensor, among: Tensor) -> Tensor:
    return slope.masked_fill(~among, torch.inf).amin(-1, keepdim=True)


def _gap(s: Tensor, slope: Tensor, present: Tensor) -> Tensor:
    """max_t g_t − Σ_t s_t g_t ≥ 0, (N,)."""
    return (s * (slope - _lowest(slope, present))).sum(-1)


def _uneven(slope: Tensor, face: Tensor) -> Tensor:
    """How far apart the scores of a face are, (N,)."""
    return slope.masked_fill(~face, -torch.inf).amax(-1) - _lowest(slope, face).squeeze(-1)


def _reach(x: Tensor, dx: Tensor) -> Tensor:
    """How far x > 0 may go along dx and stay so, at most 1/0.995, (N, 1)."""
    ratio = torch.where(dx < 0, -x / torch.where(dx < 0, dx, -1.0), torch.inf)
    return ratio.amin(-1, keepdim=True).clamp(max=1 / 0.995)
