"""The loop of :mod:`mirrormax.dynamics.engine` for ℓp potentials, compiled: a block of trials in lockstep.

Per sample, relative to the selected token α, with r_t = (x_t − x_α)ᵀWz and D_t = y vᵀ(x_t − x_α), m the
largest r_t of those with D_t ≠ 0 (the others pull nothing, however much attention they hold),

    e_t = exp(r_t − m),   s_t = e_t e^m / (1 + rest),   rest = Σ_t e^{r_t},
    pulls_t = e_t D_t e^{c − scale},   c = log(−l') + m − log(1 + rest),   scale = max_i c_i,

so that the gradient is that of :func:`mirrormax.attention.scaled_gradient` at one exponential a token.
Offsets x_t − x_α and D are kept until the selection changes, which is rare.

The last dimension of every array is the trial, of which a block has L, all with the same p: inner loops
run over it, without branches, and fill the vector registers whatever n, T and d are.
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any

import numpy as np

from mirrormax.dynamics import elementary
from mirrormax.dynamics.block import Block
from mirrormax.dynamics.elementary import compiled, exactly, exp, kept, log, signed_power

LOGISTIC, EXPONENTIAL, CORRELATION = range(3)
RUNNING, NONFINITE, STATIONARY = 0, 4, 5  # as in the engine; a test holds them equal


@compiled
def choose(block: Block, i: int, lane: int, alpha: int) -> None:
    """Make ``alpha`` the selected token of sample i in one trial."""
    _, T, d, _ = block.X.shape
    block.alpha[i, lane] = alpha
    for a in range(d):
        block.chosen[i, a, lane] = block.X[i, alpha, a, lane]
    for t in range(T):
        block.absent[i, t, lane] = 0.0 if block.present[i, t, lane] and t != alpha else -math.inf
        for a in range(d):
            block.offsets[i, t, a, lane] = block.X[i, t, a, lane] - block.X[i, alpha, a, lane]


@compiled
def score(block: Block, v: Any, i: int) -> None:
    """D_t = y vᵀ(x_t − x_α) and y vᵀx_α of sample i in every trial."""
    _, T, d, L = block.X.shape
    block.own[i] = 0.0
    for a in range(d):
        for k in range(L):
            block.own[i, k] += block.y[i, k] * block.chosen[i, a, k] * v[a, k]
    block.gains[i] = 0.0
    zeros = 0
    for t in range(T):
        for a in range(d):
            for k in range(L):
                block.gains[i, t, k] += block.y[i, k] * block.offsets[i, t, a, k] * v[a, k]
        for k in range(L):
            zeros += block.gains[i, t, k] == 0.0 and block.absent[i, t, k] == 0.0
    block.weightless[i] = zeros > 0


@compiled
def logits(block: Block, W: Any, i: int) -> None:
    """r_t = (x_t − x_α)ᵀWz of sample i into ``tokens``, −inf at α and at padding."""
    _, T, d, L = block.X.shape
    query, r = block.features, block.tokens
    query[:] = 0.0
    for a in range(d):
        for b in range(d):
            for k in range(L):
                query[a, k] += W[a * d + b, k] * block.z[i, b, k]
    for t in range(T):
        for k in range(L):
            r[t, k] = block.absent[i, t, k]
        for a in range(d):
            for k in range(L):
                r[t, k] += block.offsets[i, t, a, k] * query[a, k]


@compiled
def reselect(block: Block, i: int) -> bool:
    """Select the leading token where another one leads; whether that happened in any trial."""
    T, L = block.tokens.shape
    r, lead = block.tokens, block.lanes[0]
    lead[:] = 0.0
    for t in range(T):
        for k in range(L):
            lead[k] = max(lead[k], r[t, k])
    changed = False
    for k in range(L):
        if lead[k] > 0.0:
            leader = 0
            while not (r[leader, k] == lead[k] or leader == T - 1):
                leader += 1
            choose(block, i, k, leader)
            changed = True
    return changed


@compiled
def attend(block: Block, i: int) -> None:
    """e_t and s_t of sample i from its logits; m and rest into ``lanes``."""
    T, L = block.tokens.shape
    r, m, rest, boost = block.tokens, block.lanes[0], block.lanes[1], block.lanes[2]
    m[:], rest[:] = -math.inf, 0.0
    for t in range(T):
        for k in range(L):
            pulls = r[t, k] if block.gains[i, t, k] != 0.0 else -math.inf
            m[k] = pulls if not pulls <= m[k] else m[k]
    for k in range(L):
        boost[k] = exp(m[k])
    for t in range(T):
        for k in range(L):
            top = m[k] if m[k] != -math.inf else 0.0
            e = exp(r[t, k] - top) if block.gains[i, t, k] != 0.0 else 0.0
            block.e[i, t, k] = e
            block.s[i, t, k] = e * boost[k]
            rest[k] += block.s[i, t, k]
    if block.weightless[i]:
        for t in range(T):
            for k in range(L):
                if block.gains[i, t, k] == 0.0:
                    block.s[i, t, k] = exp(r[t, k])
                    rest[k] += block.s[i, t, k]


@compiled
def weigh(block: Block, i: int, loss: int) -> None:
    """Scale s_t to sum to 1 with s_α, and log(−l') and c of sample i, from what :func:`attend` left."""
    T, L = block.tokens.shape
    m, rest, share, drift = block.lanes[0], block.lanes[1], block.lanes[2], block.lanes[3]
    drift[:] = 0.0
    for k in range(L):
        share[k] = 1.0 / (1.0 + rest[k])
    for t in range(T):
        for k in range(L):
            block.s[i, t, k] *= share[k]
            drift[k] += block.s[i, t, k] * block.gains[i, t, k]
    for k in range(L):
        x = block.own[i, k] + drift[k]
        if loss == LOGISTIC:
            slope = -log(1.0 + exp(-abs(x))) - max(x, 0.0)
        else:
            slope = -x if loss == EXPONENTIAL else 0.0 * x
        block.slopes[i, k] = slope
        block.c[i, k] = slope + m[k] - log(1.0 + rest[k])


@compiled
def evaluate(block: Block, W: Any, v: Any, loss: int) -> None:
    """The model at W (d·d, L) and v (d, L) into the block."""
    for i in range(len(block.X)):
        logits(block, W, i)
        if reselect(block, i):
            score(block, v, i)
            logits(block, W, i)
        attend(block, i)
        weigh(block, i, loss)


@compiled
def scale_of(logs: Any, scale: Any) -> None:
    """The largest of each trial, NaN if there is one, and 0 for −inf: the gradient is zero then."""
    n, L = logs.shape
    scale[:] = -math.inf
    for i in range(n):
        for k in range(L):
            scale[k] = logs[i, k] if not logs[i, k] <= scale[k] else scale[k]
    for k in range(L):
        scale[k] = scale[k] if scale[k] != -math.inf else 0.0


@compiled
def weight_gradient(block: Block, G: Any, scale: Any) -> None:
    """∇_W L / e^scale into G (d·d, L)."""
    n, T, d, L = block.X.shape
    weights, pull, total, factor = block.tokens, block.features, block.lanes[0], block.lanes[1]
    scale_of(block.c, scale)
    G[:] = 0.0
    for i in range(n):
        total[:], pull[:] = 0.0, 0.0
        for k in range(L):
            factor[k] = exp(block.c[i, k] - scale[k]) / -n
        for t in range(T):
            for k in range(L):
                weights[t, k] = factor[k] * block.e[i, t, k] * block.gains[i, t, k]
                total[k] += weights[t, k]
        for t in range(T):
            for k in range(L):
                weights[t, k] -= block.s[i, t, k] * total[k]
            for a in range(d):
                for k in range(L):
                    pull[a, k] += weights[t, k] * block.offsets[i, t, a, k]
        for a in range(d):
            for b in range(d):
                for k in range(L):
                    G[a * d + b, k] += pull[a, k] * block.z[i, b, k]


@compiled
def head_gradient(block: Block, g: Any, scale: Any) -> None:
    """∇_v L / e^scale into g (d, L)."""
    n, T, d, L = block.X.shape
    weight, attended = block.lanes[0], block.features
    scale_of(block.slopes, scale)
    g[:] = 0.0
    for i in range(n):
        for k in range(L):
            weight[k] = -block.y[i, k] * exp(block.slopes[i, k] - scale[k]) / n
        attended[:] = block.chosen[i]
        for t in range(T):
            for a in range(d):
                for k in range(L):
                    attended[a, k] += block.s[i, t, k] * block.offsets[i, t, a, k]
        for a in range(d):
            for k in range(L):
                g[a, k] += weight[k] * attended[a, k]


@compiled
def dual_norm(block: Block, g: Any, q: float, norm: Any) -> None:
    """‖g‖_q of each trial, for g (N, L), with the largest entry divided out first."""
    N, L = g.shape
    largest, inverse = block.lanes[3], block.lanes[1]
    largest[:] = 0.0
    for j in range(N):
        for k in range(L):
            a = abs(g[j, k])
            largest[k] = a if not a <= largest[k] else largest[k]
    for k in range(L):
        inverse[k] = 1.0 / largest[k] if largest[k] != 0.0 else 0.0
    add_powers(block, g, q, inverse, norm)
    for k in range(L):
        norm[k] = largest[k] * norm[k] ** (1.0 / q)


@compiled
def add_powers(block: Block, g: Any, q: float, factor: Any, total: Any) -> None:
    """total = Σ_j (|g_j| factor)^q of each trial; in one pass for the q of p = 2 and 3."""
    N, L = g.shape
    total[:] = 0.0
    if q == 2.0:
        for j in range(N):
            for k in range(L):
                total[k] += (g[j, k] * factor[k]) ** 2
    elif q == 1.5:
        for j in range(N):
            for k in range(L):
                a = abs(g[j, k]) * factor[k]
                total[k] += a * math.sqrt(a)
    else:
        for j in range(N):
            for k in range(L):
                block.entries[j, k] = abs(g[j, k]) * factor[k]
        signed_power(block.entries.reshape(-1)[: N * L], block.powers.reshape(-1)[: N * L], q)
        for j in range(N):
            for k in range(L):
                total[k] += block.powers[j, k]


@compiled
def step(block: Block, u: Any, g: Any, lr: Any, scale: Any, rule: Any, new: Any, flags: Any) -> None:
    """new = (weights, dual variables) after a step from u along g (N, L); flags (2, L) add up what moved and broke."""
    exponent, q, normalize = rule
    N, L = g.shape
    new_w, new_u = new
    factor = block.lanes[2]
    if normalize:
        dual_norm(block, g, q, factor)
        for k in range(L):
            factor[k] = lr[k] / factor[k] if factor[k] != 0.0 else 0.0
    else:
        for k in range(L):
            factor[k] = lr[k] * math.exp(scale[k])
    for j in range(N):
        for k in range(L):
            change = factor[k] * g[j, k]
            flags[0, k] += abs(change)
            new_u[j, k] = u[j, k] - change
    signed_power(new_u.reshape(N * L), new_w.reshape(N * L), exponent)
    add_breaks(new_w, flags)


@exactly
def add_breaks(w: Any, flags: Any) -> None:
    """Add zero to the second flag of each trial, or NaN where an entry of w (N, L) is not finite."""
    for j in range(w.shape[0]):
        for k in range(w.shape[1]):
            flags[1, k] += w[j, k] - w[j, k]


@compiled
def settle(flags: Any, status: Any, updates: Any) -> int:
    """Count the step for the trials that took it, and stop those that did not; how many did not."""
    still = 0
    for k in range(status.size):
        if status[k] == RUNNING:
            if flags[1, k] != 0.0:
                status[k] = NONFINITE
            elif flags[0, k] == 0.0:
                status[k] = STATIONARY
            else:
                updates[k] += 1
        still += status[k] != RUNNING
    return still


@compiled
def restore(new: Any, old: Any, status: Any) -> None:
    """Put back what a stopped trial had."""
    for k in range(status.size):
        if status[k] != RUNNING:
            for part in range(2):
                new[part][:, k] = old[part][:, k]


def _kernel(sources: str) -> Any:
    """The kernel, kept on disk under ``sources`` too: a change in this file is noticed anyway, in another it is not."""

    @kept
    def run_block(block: Block, weights: Any, head: Any, rule: Any, switches: Any, rates: Any, steps: int,
                  status: Any, updates: Any) -> None:  # fmt: skip
        """Up to ``steps`` steps of a block of trials, in place.

        weights (W, U) of shape (d·d, L) and head (v, V) of shape (d, L) with their dual variables; rule (1/(p−1), q,
        normalize); switches (loss, train_head); rates (lr, lr_v), each (L,).
        """
        if not sources:  # part of the key of the kept code, but only if it is looked at
            return
        old, old_head = weights, head
        loss, train_head = switches
        new = np.empty_like(weights[0]), np.empty_like(weights[1])
        new_head = np.empty_like(head[0]), np.empty_like(head[1])
        G, g = np.empty_like(weights[0]), np.empty_like(head[0])
        scale, flags = np.empty(status.size), np.empty((2, status.size))
        for i in range(len(block.X)):
            score(block, head[0], i)
        for _ in range(steps):
            evaluate(block, old[0], old_head[0], loss)
            flags[:] = 0.0
            weight_gradient(block, G, scale)
            step(block, old[1], G, rates[0], scale, rule, new, flags)
            if train_head:
                head_gradient(block, g, scale)
                step(block, old_head[1], g, rates[1], scale, rule, new_head, flags)
            still = settle(flags, status, updates)
            if still:
                restore(new, old, status)
                if train_head:
                    restore(new_head, old_head, status)
            old, new = new, old
            if train_head:
                old_head, new_head = new_head, old_head
                for i in range(len(block.X)):
                    score(block, old_head[0], i)
            if still == status.size:
                break
        for part in range(2):
            weights[part][:] = old[part]
            head[part][:] = old_head[part]

    return run_block


run_block = _kernel(hashlib.sha256(Path(elementary.__file__).read_bytes()).hexdigest())
