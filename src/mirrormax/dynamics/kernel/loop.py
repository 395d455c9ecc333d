"""The loop of :mod:`mirrormax.dynamics.engine` for ℓp potentials, compiled: a block of trials in lockstep.

Every head has a block of memory of its own, with its tokens, weights and gradients; what is of the whole trial, outputs
and labels above all, is in that of the first. Per sample and relative to the selected token α, with r_t =
(x_t − x_α)ᵀW_h z, top = max_t r_t and the readout's scores V_h(x_t − x_α), a step goes over all heads once for their
attention and what it adds to the outputs,

    e_t = exp(r_t − top),   s_t = e_t e^top/(1 + rest),   rest = Σ_t e^{r_t},   f += V_h x_α + Σ_t s_t V_h(x_t − x_α),

and, when the labels have turned f into ``pull`` (y, or e_y − q) and log(−l'), once more for the gradients: with
D_t = pullᵀV_h(x_t − x_α) and m the largest r_t of those with D_t ≠ 0 (the others pull nothing, however much attention
they hold; m = top nearly always, and then e_t serves twice),

    pulls_t = e^{c − scale} (e_t D_t − s_t Σ_u e_u D_u),   c = log(−l') + m − log(1 + rest),   scale = max_i c_i,

the gradient of :mod:`mirrormax.attention.gradients` at one exponential per token. Offsets x_t − x_α and scores are kept
until the selection changes, which is rare, or the readout moves.

WIDTH trials with the same p are a block, and every number below that is loaded from its memory is a vector
of :mod:`mirrormax.dynamics.kernel.lanes`, one entry per trial. ``memory`` points to a block of a head, laid out as
``at`` says (:class:`mirrormax.dynamics.kernel.engine.Layout`).
"""

from __future__ import annotations

import math
from typing import Any

from mirrormax.dynamics.engine import NONFINITE, RUNNING, STATIONARY
from mirrormax.dynamics.kernel.lanes import (
    GENERAL,
    WIDTH,
    all_less,
    any_less,
    compiled,
    exp,
    if_equal,
    kept,
    larger,
    lift,
    load,
    log,
    pointer,
    power,
    power_plan,
    signed,
    size,
    store,
)

LOGISTIC, EXPONENTIAL, CORRELATION, CROSS_ENTROPY = range(4)


@compiled
def dot(left: Any, a: int, right: Any, b: int, count: int, a_step: int = 1, b_step: int = 1) -> Any:
    """The sum over ``count`` rows, from a of the one memory times from b of the other."""
    total = lift(0.0)
    for j in range(count):
        total = total + load(left, a + j * a_step) * load(right, b + j * b_step)
    return total


@compiled
def score(memory: Any, at: Any, i: int) -> None:
    """V x_α and V(x_t − x_α) of sample i."""
    for k in range(at.R):
        v = at.V + k * at.d
        store(memory, at.own + i * at.R + k, dot(memory, at.chosen + i * at.d, memory, v, at.d))
        for t in range(at.T):
            row = i * at.T + t
            store(memory, at.scores + row * at.R + k, dot(memory, at.offsets + row * at.d, memory, v, at.d))


@compiled
def logits(memory: Any, at: Any, i: int) -> bool:
    """r_t = (x_t − x_α)ᵀWz of sample i into ``r``, −inf at α and at padding; whether another token leads."""
    for a in range(at.d):
        store(memory, at.query + a, dot(memory, at.W + a * at.d, memory, at.z + i * at.d, at.d))
    lead = lift(0.0)
    for t in range(at.T):
        row = i * at.T + t
        r = load(memory, at.absent + row) + dot(memory, at.offsets + row * at.d, memory, at.query, at.d)
        store(memory, at.r + row, r)
        lead = larger(lead, r)
    leads: bool = any_less(lift(0.0), lead)
    return leads


@compiled
def reselect(memory: Any, at: Any, i: int) -> None:
    """Make the leading token of sample i the selected one, in the trials where another one leads."""
    for lane in range(WIDTH):
        leader, lead = 0, 0.0
        for t in range(at.T):
            r = memory[(at.r + i * at.T + t) * WIDTH + lane]
            if r > lead:
                leader, lead = t, r
        if lead == 0.0:
            continue
        for t in range(at.T):
            row = i * at.T + t
            rival = -math.inf if t == leader else memory[(at.padding + row) * WIDTH + lane]
            memory[(at.absent + row) * WIDTH + lane] = rival
            for a in range(at.d):
                x_alpha = memory[(at.X + (i * at.T + leader) * at.d + a) * WIDTH + lane]
                x_t = memory[(at.X + row * at.d + a) * WIDTH + lane]
                memory[(at.chosen + i * at.d + a) * WIDTH + lane] = x_alpha
                memory[(at.offsets + row * at.d + a) * WIDTH + lane] = x_t - x_alpha


@compiled
def attend(memory: Any, at: Any, outputs: Any) -> None:
    """The attention of one head, and what it adds to the outputs."""
    zero, nowhere = lift(0.0), lift(-math.inf)
    for i in range(at.n):
        if logits(memory, at, i):
            reselect(memory, at, i)
            score(memory, at, i)
            logits(memory, at, i)
        top, total = nowhere, zero
        for t in range(at.T):
            top = larger(top, load(memory, at.r + i * at.T + t))
        safe = if_equal(top, nowhere, zero, top)
        for t in range(at.T):
            e = exp(load(memory, at.r + i * at.T + t) - safe)
            store(memory, at.e + i * at.T + t, e)
            total = total + e
        boost = exp(top)
        rest = total * boost + 1.0
        boost = boost / rest
        store(memory, at.top + i, top)
        store(memory, at.boost + i, boost)
        store(memory, at.c + i, zero - log(rest))
        for k in range(at.R):
            drive = dot(memory, at.e + i * at.T, memory, at.scores + i * at.T * at.R + k, at.T, b_step=at.R)
            f = load(memory, at.own + i * at.R + k) + boost * drive
            store(outputs, at.f + i * at.R + k, load(outputs, at.f + i * at.R + k) + f)


@compiled
def label(outputs: Any, at: Any, loss: int) -> None:
    """From outputs f to ``pull`` in their place, y or e_y − q, and log(−l')."""
    for i in range(at.n):
        if loss == CROSS_ENTROPY:
            label_classes(outputs, at, i)
        else:
            y = load(outputs, at.labels + i)
            store(outputs, at.slopes + i, log_slope(y * load(outputs, at.f + i), loss))
            store(outputs, at.f + i, y)


@compiled
def log_slope(x: Any, loss: int) -> Any:
    """log(−l'(x))."""
    zero = lift(0.0)
    if loss == LOGISTIC:
        return zero - log(exp(zero - size(x)) + 1.0) - larger(zero, x)
    return zero - x if loss == EXPONENTIAL else x * 0.0


@compiled
def label_classes(outputs: Any, at: Any, i: int) -> None:
    """e_y − q, and log(1 − π_y) = −log(1 + e^{−φ}) with φ the logsumexp of f_k − f_y, k ≠ y."""
    zero, one, nowhere = lift(0.0), lift(1.0), lift(-math.inf)
    f, right = at.f + i * at.R, at.labels + i * at.R
    own, top, total = dot(outputs, right, outputs, f, at.R), nowhere, zero
    for k in range(at.R):
        behind = if_equal(load(outputs, right + k), one, nowhere, load(outputs, f + k) - own)
        store(outputs, f + k, behind)
        top = larger(top, behind)
    for k in range(at.R):
        weight = exp(load(outputs, f + k) - top)
        store(outputs, f + k, weight)
        total = total + weight
    for k in range(at.R):
        store(outputs, f + k, load(outputs, right + k) - load(outputs, f + k) / total)
    phi = top + log(total)
    store(outputs, at.slopes + i, zero - log(exp(zero - size(phi)) + 1.0) - larger(zero, zero - phi))


@compiled
def pull_sample(memory: Any, at: Any, outputs: Any, i: int) -> None:
    """Σ_t (e_t D_t − s_t Σ_u e_u D_u)(x_t − x_α) of sample i into ``pulls``, and the log of its weight into c."""
    zero, nowhere, m, drive = lift(0.0), lift(-math.inf), lift(-math.inf), lift(0.0)
    top, boost = load(memory, at.top + i), load(memory, at.boost + i)
    for t in range(at.T):
        row = i * at.T + t
        gain = dot(outputs, at.f + i * at.R, memory, at.scores + row * at.R, at.R)
        m = larger(m, if_equal(gain, zero, nowhere, load(memory, at.r + row)))
        pull = load(memory, at.e + row) * gain
        store(memory, at.gains + t, gain)
        store(memory, at.tokens + t, pull)
        drive = drive + pull
    if any_less(m, top):  # the leading rival pulls nothing: what is beside it may need another scale
        drive = rescaled(memory, at, i, if_equal(m, nowhere, zero, m))
    for t in range(at.T):
        s = load(memory, at.e + i * at.T + t) * boost
        store(memory, at.tokens + t, load(memory, at.tokens + t) - s * drive)
    for a in range(at.d):
        pull = dot(memory, at.tokens, memory, at.offsets + i * at.T * at.d + a, at.T, b_step=at.d)
        store(memory, at.pulls + i * at.d + a, pull)
    store(memory, at.c + i, load(memory, at.c + i) + load(outputs, at.slopes + i) + m)


@compiled
def rescaled(memory: Any, at: Any, i: int, m: Any) -> Any:
    """e^{r_t − m} D_t of sample i into ``tokens``, and their sum."""
    zero, drive = lift(0.0), lift(0.0)
    for t in range(at.T):
        gain = load(memory, at.gains + t)
        pull = if_equal(gain, zero, zero, exp(load(memory, at.r + i * at.T + t) - m) * gain)
        store(memory, at.tokens + t, pull)
        drive = drive + pull
    return drive


@compiled
def scale_of(memory: Any, at: Any, logs: int) -> Any:
    """The largest of the n rows from ``logs``, and 0 for −inf: the gradient is zero then."""
    scale = lift(-math.inf)
    for i in range(at.n):
        scale = larger(scale, load(memory, logs + i))
    return if_equal(scale, lift(-math.inf), lift(0.0), scale)


@compiled
def weight_gradient(memory: Any, at: Any, outputs: Any) -> None:
    """∇_{W_h} L / e^scale into ``G``, with its scale and its largest entry; a gradient of zero has the scale −inf."""
    for i in range(at.n):
        pull_sample(memory, at, outputs, i)
    scale, largest = scale_of(memory, at, at.c), lift(0.0)
    for i in range(at.n):
        factor = exp(load(memory, at.c + i) - scale) / (-1.0 * at.n)
        for a in range(at.d):
            store(memory, at.pulls + i * at.d + a, factor * load(memory, at.pulls + i * at.d + a))
    for a in range(at.d):
        for b in range(at.d):
            entry = dot(memory, at.pulls + a, memory, at.z + b, at.n, at.d, at.d)
            store(memory, at.G + a * at.d + b, entry)
            largest = larger(largest, size(entry))
    store(memory, at.scale, if_equal(largest, lift(0.0), lift(-math.inf), scale))
    store(memory, at.largest, largest)


@compiled
def readout_gradient(memory: Any, at: Any, outputs: Any) -> None:
    """∇_{V_h} L / e^scale into ``g``, with its scale and its largest entry; a gradient of zero has the scale −inf."""
    scale, largest = scale_of(outputs, at, at.slopes), lift(0.0)
    for j in range(at.R * at.d):
        store(memory, at.g + j, lift(0.0))
    for i in range(at.n):
        factor = exp(load(outputs, at.slopes + i) - scale) / (-1.0 * at.n)
        boost = load(memory, at.boost + i)
        for a in range(at.d):
            attended = dot(memory, at.e + i * at.T, memory, at.offsets + i * at.T * at.d + a, at.T, b_step=at.d)
            attended = factor * (load(memory, at.chosen + i * at.d + a) + boost * attended)
            for k in range(at.R):
                entry = load(memory, at.g + k * at.d + a) + attended * load(outputs, at.f + i * at.R + k)
                store(memory, at.g + k * at.d + a, entry)
    for j in range(at.R * at.d):
        largest = larger(largest, size(load(memory, at.g + j)))
    store(memory, at.scale, if_equal(largest, lift(0.0), lift(-math.inf), scale))
    store(memory, at.largest, largest)


@compiled
def norm_of(heads: Any, first: int, last: int, at: Any, g: int, count: int, q: float) -> Any:
    """The largest scale of the gradients g of these heads, 0 for −inf, and ‖(g_first, …)‖_q / e^scale.

    The largest entry is divided out first.
    """
    plan, zero, scale, largest, total = power_plan(q), lift(0.0), lift(-math.inf), lift(0.0), lift(0.0)
    for h in range(first, last):
        scale = larger(scale, load(pointer(heads[h]), at.scale))
    scale = if_equal(scale, lift(-math.inf), zero, scale)
    for h in range(first, last):
        memory = pointer(heads[h])
        largest = larger(largest, exp(load(memory, at.scale) - scale) * load(memory, at.largest))
    inverse = if_equal(largest, zero, zero, 1.0 / largest)
    for h in range(first, last):
        memory = pointer(heads[h])
        factor = exp(load(memory, at.scale) - scale) * inverse
        for j in range(count):
            total = total + power(size(load(memory, g + j)) * factor, q, plan)
    return scale, largest * power(total, 1.0 / q, power_plan(1.0 / q))


@compiled
def step(
    memory: Any, at: Any, trial: Any, factor: Any, g: int, old: int, new: int, count: int, exponent: float
) -> None:
    """From the weights of row ``old``, and their dual variables after them, to those of row ``new``, along g."""
    plan, top, breaks, usual = power_plan(exponent), lift(1e300), load(trial, at.breaks), True
    for j in range(count):
        u = load(memory, old + count + j) - factor * load(memory, g + j)
        w = signed(power(size(u), exponent, plan), u)
        store(memory, new + count + j, u)
        store(memory, new + j, w)
        breaks = breaks + (w - w)  # zero, or NaN where it is not finite
        if plan[0] == GENERAL:
            usual &= all_less(size(u), top) and all_less(size(w), top)
    store(trial, at.breaks, breaks)
    store(trial, at.moved, load(trial, at.moved) + factor * load(memory, at.largest))
    if not usual:
        careful_powers(memory, at, trial, new, count, exponent)


@compiled
def careful_powers(memory: Any, at: Any, trial: Any, new: int, count: int, exponent: float) -> None:
    """The weights from their dual variables once more, beyond the range of the fast functions, or NaN."""
    for j in range(new * WIDTH, (new + count) * WIDTH):
        u = memory[j + count * WIDTH]
        w = math.copysign(abs(u) ** exponent, u)
        memory[j] = w
        trial[at.breaks * WIDTH + j % WIDTH] += w - w


@compiled
def step_all(heads: Any, at: Any, rate: int, g: int, old: int, new: int, count: int, rule: Any) -> None:
    """The step of every head along its gradient g, divided by the norm of the gradients of ``together`` heads."""
    exponent, q, together = rule
    zero, several = lift(0.0), max(together, 1)
    for first in range(0, len(heads), several):
        scale, norm = zero, lift(1.0)
        if together > 0:
            scale, norm = norm_of(heads, first, first + several, at, g, count, q)
        for h in range(first, first + several):
            memory = pointer(heads[h])
            length = load(memory, rate) * exp(load(memory, at.scale) - scale)
            factor = if_equal(norm, zero, zero, length / norm)
            step(memory, at, pointer(heads[0]), factor, g, old, new, count, exponent)


@compiled
def settle(trial: Any, at: Any, status: Any, updates: Any) -> int:
    """Count the step for the trials that took it, and stop those where a head is not finite or none has moved.

    How many have stopped.
    """
    still = 0
    for lane in range(WIDTH):
        if status[lane] == RUNNING:
            if trial[at.breaks * WIDTH + lane] != 0.0:
                status[lane] = NONFINITE
            elif trial[at.moved * WIDTH + lane] == 0.0:
                status[lane] = STATIONARY
            else:
                updates[lane] += 1
        trial[at.going * WIDTH + lane] = status[lane] == RUNNING
        still += status[lane] != RUNNING
    return still


@compiled
def take(heads: Any, at: Any, old: int, new: int, count: int) -> None:
    """The new rows in the place of the old ones, in the trials that go on."""
    going = load(pointer(heads[0]), at.going)
    for h in range(len(heads)):
        memory = pointer(heads[h])
        for j in range(count):
            kept = if_equal(going, lift(1.0), load(memory, new + j), load(memory, old + j))
            store(memory, old + j, kept)


@compiled
def score_all(heads: Any, at: Any) -> None:
    """Scores of every sample."""
    for h in range(len(heads)):
        memory = pointer(heads[h])
        for i in range(at.n):
            score(memory, at, i)


@kept
def run_blocks(rows: Any, at: Any, rule: Any, switches: Any, steps: int, status: Any, updates: Any) -> None:
    """Up to ``steps`` steps of the blocks in ``rows`` (blocks, H, rows, WIDTH), in place, one after the other.

    rule: (1/(p − 1), q, of how many heads' gradients together the norm is that they are divided by, 0 for none);
    switches: (loss, whether readouts are trained).
    """
    loss, train_readout = switches
    N, M = at.d * at.d, at.R * at.d
    for block in range(len(rows)):
        heads, outputs = rows[block], pointer(rows[block, 0])
        score_all(heads, at)
        for _ in range(steps):
            for j in range(at.n * at.R):
                store(outputs, at.f + j, lift(0.0))
            store(outputs, at.moved, lift(0.0))
            store(outputs, at.breaks, lift(0.0))
            for h in range(len(heads)):
                attend(pointer(heads[h]), at, outputs)
            label(outputs, at, loss)
            for h in range(len(heads)):
                weight_gradient(pointer(heads[h]), at, outputs)
            step_all(heads, at, at.lr, at.G, at.W, at.new_W, N, rule)
            if train_readout:
                for h in range(len(heads)):
                    readout_gradient(pointer(heads[h]), at, outputs)
                step_all(heads, at, at.lr_v, at.g, at.V, at.new_V, M, rule)
            still = settle(outputs, at, status[block], updates[block])
            take(heads, at, at.W, at.new_W, 2 * N)
            if train_readout:
                take(heads, at, at.V, at.new_V, 2 * M)
                score_all(heads, at)
            if still == WIDTH:
                break
