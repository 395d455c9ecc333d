"""The loop of :mod:`mirrormax.dynamics.engine` for ℓp potentials, compiled: one trial after another, no tensors.

Per sample, relative to the selected token α, with r_t = (x_t − x_α)ᵀWz and D_t = y vᵀ(x_t − x_α), m the
largest r_t of those with D_t ≠ 0 (the others pull nothing, however much attention they hold),

    e_t = exp(r_t − m),   s_t = e_t e^m / (1 + rest),   rest = Σ_t e^{r_t},
    pulls_t = e_t D_t e^{c − scale},   c = log(−l') + m − log(1 + rest),   scale = max_i c_i,

so that the gradient is that of :func:`mirrormax.attention.scaled_gradient` at one exponential a token.
Offsets x_t − x_α and D are kept until the selection changes, which is rare. All code is in this one
module, because the cache of compiled code looks at no other file to see whether it is stale.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import numpy as np
from numba import njit

LOGISTIC, EXPONENTIAL, CORRELATION = range(3)
RUNNING, NONFINITE, STATIONARY = 0, 4, 5  # as in the engine; a test holds them equal

# Sums may be reordered to fill vector registers; infinities and NaN keep their meaning.
OPTIONS: dict[str, Any] = {"nogil": True, "fastmath": {"reassoc", "contract", "nsz"}, "error_model": "numpy"}


def _compile(function: Any) -> Any:
    """njit, with compiled code kept on disk where there is a folder to keep it in."""
    try:
        return njit(cache=True, **OPTIONS)(function)
    except RuntimeError:
        return njit(**OPTIONS)(function)


@_compile
def whole_power(x: float, k: int) -> float:
    """x^k, k ≥ 0, by squaring."""
    result = 1.0
    while k > 0:
        if k & 1:
            result *= x
        x *= x
        k >>= 1
    return result


@_compile
def signed_power(u: Any, w: Any, exponent: float) -> None:
    """w = sign(u) |u|^exponent on flat arrays; no pow for whole and half exponents up to 128."""
    halves = round(2 * exponent)
    if exponent == 1.0:
        for k in range(u.size):
            w[k] = u[k]
    elif exponent == 0.5:
        for k in range(u.size):
            w[k] = math.copysign(math.sqrt(abs(u[k])), u[k])
    elif halves <= 256 and abs(2 * exponent - halves) <= 4e-15 * halves:
        whole, half = int(halves) // 2, int(halves) % 2 == 1
        for k in range(u.size):
            a = abs(u[k])
            b = whole_power(a, whole)
            w[k] = math.copysign(b * math.sqrt(a) if half else b, u[k])
    else:
        for k in range(u.size):
            w[k] = math.copysign(abs(u[k]) ** exponent, u[k])


@_compile
def power_norm(g: Any, q: float, work: Any) -> float:
    """‖g‖_q of a flat array, the largest entry divided out first."""
    largest = 0.0
    for k in range(g.size):
        a = abs(g[k])
        if not a <= largest:  # NaN included
            largest = a
    if not (0.0 < largest < math.inf):
        return largest
    if q == 2.0:
        total = 0.0
        for k in range(g.size):
            total += (g[k] / largest) ** 2
        return largest * math.sqrt(total)
    for k in range(g.size):
        work[k] = abs(g[k] / largest)
    signed_power(work, work, q)
    total = 0.0
    for k in range(g.size):
        total += work[k]
    return largest * total ** (1.0 / q)


@_compile
def log_slope(x: float, loss: int) -> float:
    """log(−l'(x))."""
    if loss == LOGISTIC:
        return -math.log1p(math.exp(x)) if x <= 0 else -x - math.log1p(math.exp(-x))
    return -x if loss == EXPONENTIAL else 0.0


class Workspace(NamedTuple):
    """What a trial carries from one part of a step to the next; all arrays belong to it alone."""

    alpha: Any  # (n,)          the selected tokens
    others: Any  # (n, T)       True where t ≠ α and the token is present
    offsets: Any  # (n, T, d)   x_t − x_α
    gains: Any  # (n, T)        D_t
    own: Any  # (n,)            y vᵀx_α
    e: Any  # (n, T)
    s: Any  # (n, T)            zero at α and at padding
    c: Any  # (n,)
    slopes: Any  # (n,)         log(−l')
    tokens: Any  # (T,)         scratch
    features: Any  # (d,)       scratch
    entries: Any  # (d * d,)    scratch


@_compile
def workspace(X: Any, y: Any, mask: Any, v: Any) -> Workspace:
    """A workspace in which every sample selects the first token it has."""
    n, T, d = X.shape
    work = Workspace(
        np.zeros(n, np.int64),
        np.zeros((n, T), np.bool_),
        np.empty((n, T, d)),
        np.empty((n, T)),
        np.empty(n),
        np.empty((n, T)),
        np.empty((n, T)),
        np.empty(n),
        np.empty(n),
        np.empty(T),
        np.empty(d),
        np.empty(d * d),
    )
    for i in range(n):
        first = 0
        while not mask[i, first]:
            first += 1
        choose(X[i], mask[i], first, work.offsets[i], work.others[i])
        work.alpha[i] = first
        work.own[i] = score(work.offsets[i], X[i, first], y[i], v, work.gains[i])
    return work


@_compile
def choose(X: Any, mask: Any, alpha: int, offsets: Any, others: Any) -> None:
    """Offsets and others of one sample for the selected token ``alpha``."""
    for t in range(X.shape[0]):
        others[t] = mask[t] and t != alpha
        for a in range(X.shape[1]):
            offsets[t, a] = X[t, a] - X[alpha, a]


@_compile
def score(offsets: Any, chosen: Any, y: float, v: Any, gains: Any) -> float:
    """D_t = y vᵀ(x_t − x_α) into ``gains``; y vᵀx_α returned."""
    product(offsets, v, gains)
    total = 0.0
    for t in range(gains.size):
        gains[t] *= y
    for a in range(chosen.size):
        total += chosen[a] * v[a]
    return y * total


@_compile
def product(A: Any, x: Any, out: Any) -> None:
    """out = A x."""
    for a in range(A.shape[0]):
        total = 0.0
        for b in range(A.shape[1]):
            total += A[a, b] * x[b]
        out[a] = total


@_compile
def leader_of(r: Any, others: Any, alpha: int) -> int:
    """The token of the largest r_t, ``alpha`` if none is positive."""
    lead, leader = 0.0, alpha
    for t in range(r.size):
        if others[t] and r[t] > lead:
            lead, leader = r[t], t
    return leader


@_compile
def attend(r: Any, gains: Any, others: Any, e: Any, s: Any) -> tuple[float, float]:
    """e_t and s_t of one sample from its logits r_t ≤ 0; returns (m − log(1 + rest), Σ s_t D_t)."""
    m = -math.inf
    for t in range(r.size):
        if others[t] and gains[t] != 0.0 and r[t] > m:
            m = r[t]
    rest = 0.0
    top = math.exp(m)
    for t in range(r.size):
        e[t], s[t] = 0.0, 0.0
        if others[t]:
            if gains[t] != 0.0:
                e[t] = math.exp(r[t] - m)
                s[t] = e[t] * top
            else:
                s[t] = math.exp(r[t])
            rest += s[t]
    drift = 0.0
    for t in range(r.size):
        s[t] /= 1.0 + rest
        drift += s[t] * gains[t]
    return m - math.log1p(rest), drift


@_compile
def step_of(g: Any, q: float, lr: float, scale: float, normalize: bool, work: Any) -> float:
    """The factor that makes a step of the scaled gradient ``g``; 0 where it is zero."""
    if not normalize:
        return lr * math.exp(scale)
    norm = power_norm(g, q, work)
    return lr / norm if norm != 0.0 else 0.0


@_compile
def move(u: Any, g: Any, factor: float, exponent: float, new_u: Any, new_w: Any) -> tuple[bool, bool]:
    """new_u = u − factor g and its weights, flat; whether all is finite, and whether anything moved."""
    moved = False
    for k in range(u.size):
        change = factor * g[k]
        moved |= change != 0.0
        new_u[k] = u[k] - change
    signed_power(new_u, new_w, exponent)
    finite = True
    for k in range(u.size):
        finite &= math.isfinite(new_w[k])
    return finite, moved


@_compile
def evaluate(X: Any, y: Any, z: Any, mask: Any, W: Any, v: Any, loss: int, work: Workspace) -> None:
    """The model at W and v into the workspace: selection, attention, slopes and the scales c."""
    query, r = work.features, work.tokens
    for i in range(len(X)):
        product(W, z[i], query)
        product(work.offsets[i], query, r)
        leader = leader_of(r, work.others[i], work.alpha[i])
        if leader != work.alpha[i]:
            work.alpha[i] = leader
            choose(X[i], mask[i], leader, work.offsets[i], work.others[i])
            work.own[i] = score(work.offsets[i], X[i, leader], y[i], v, work.gains[i])
            product(work.offsets[i], query, r)
        log_weight, drift = attend(r, work.gains[i], work.others[i], work.e[i], work.s[i])
        work.slopes[i] = log_slope(work.own[i] + drift, loss)
        work.c[i] = work.slopes[i] + log_weight


@_compile
def scale_of(logs: Any) -> float:
    """The largest, NaN if there is one, and 0 for −inf: the gradient is zero then."""
    scale = -math.inf
    for k in range(logs.size):
        if not logs[k] <= scale:
            scale = logs[k]
    return 0.0 if scale == -math.inf else scale


@_compile
def weight_gradient(z: Any, work: Workspace, G: Any) -> float:
    """∇_W L / e^scale into G (d, d); the scale is returned."""
    n, T, d = work.offsets.shape
    scale, weights, pull = scale_of(work.c), work.tokens, work.features
    G[:] = 0.0
    for i in range(n):
        factor, total = -math.exp(work.c[i] - scale) / n, 0.0
        for t in range(T):
            weights[t] = factor * work.e[i, t] * work.gains[i, t]
            total += weights[t]
        pull[:] = 0.0
        for t in range(T):
            weight = weights[t] - work.s[i, t] * total
            for a in range(d):
                pull[a] += weight * work.offsets[i, t, a]
        for a in range(d):
            for b in range(d):
                G[a, b] += pull[a] * z[i, b]
    return scale


@_compile
def head_gradient(X: Any, y: Any, work: Workspace, g: Any) -> float:
    """∇_v L / e^scale into g (d,); the scale is returned."""
    n, T, d = work.offsets.shape
    scale = scale_of(work.slopes)
    g[:] = 0.0
    for i in range(n):
        weight = -y[i] * math.exp(work.slopes[i] - scale) / n
        for a in range(d):
            total = X[i, work.alpha[i], a]
            for t in range(T):
                total += work.s[i, t] * work.offsets[i, t, a]
            g[a] += weight * total
    return scale


@_compile
def run_trial(problem: Any, weights: Any, head: Any, rule: Any, steps: int) -> tuple[int, int]:
    """Up to ``steps`` steps of one trial, in place; how many were made, and the status.

    problem (X, y, z, mask); weights (W, U) and head (v, V) with their dual variables, flat; rule (1/(p−1), q,
    lr, lr_v, loss, normalize, train_head).
    """
    (X, y, z, mask), (w, U), (v, V) = problem, weights, head
    exponent, q, lr, lr_v, loss, normalize, train_head = rule
    d = X.shape[2]
    W, G = w.reshape((d, d)), np.empty((d, d))
    g, new_U, new_w, new_V, new_v = np.empty(d), np.empty(d * d), np.empty(d * d), np.empty(d), np.empty(d)
    work = workspace(X, y, mask, v)
    for made in range(steps):
        evaluate(X, y, z, mask, W, v, loss, work)
        scale = weight_gradient(z, work, G)
        factor = step_of(G.ravel(), q, lr, scale, normalize, work.entries)
        finite, moved = move(U, G.ravel(), factor, exponent, new_U, new_w)
        if train_head:
            scale = head_gradient(X, y, work, g)
            factor = step_of(g, q, lr_v, scale, normalize, work.features)
            finite_v, moved_v = move(V, g, factor, exponent, new_V, new_v)
            finite, moved = finite and finite_v, moved or moved_v
        if not (finite and moved):
            return made, STATIONARY if finite else NONFINITE
        U[:], w[:] = new_U, new_w
        if train_head:
            V[:], v[:] = new_V, new_v
            for i in range(len(X)):
                work.own[i] = score(work.offsets[i], X[i, work.alpha[i]], y[i], v, work.gains[i])
    return steps, RUNNING


@_compile
def run_trials(
    problem: Any, weights: Any, head: Any, rates: Any, switches: Any, steps: int, updates: Any, status: Any
) -> None:
    """:func:`run_trial` for each running one of a batch, whose arrays lead with it.

    rates (1/(p−1), q, lr, lr_v), each (B,); switches (loss, normalize, train_head).
    """
    (X, y, z, mask), (W, U), (v, V) = problem, weights, head
    exponent, q, lr, lr_v = rates
    loss, normalize, train_head = switches
    for k in range(len(X)):
        if status[k] == RUNNING:
            rule = (exponent[k], q[k], lr[k], lr_v[k], loss, normalize, train_head)
            made, status[k] = run_trial((X[k], y[k], z[k], mask[k]), (W[k], U[k]), (v[k], V[k]), rule, steps)
            updates[k] += made
