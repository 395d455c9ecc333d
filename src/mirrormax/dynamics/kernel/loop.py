"""The loop of :mod:`mirrormax.dynamics.engine` for ℓp potentials, compiled: a block of trials in lockstep.

Per sample, relative to the selected token α, with r_t = (x_t − x_α)ᵀWz and D_t = y vᵀ(x_t − x_α), m the
largest r_t of those with D_t ≠ 0 (the others pull nothing, however much attention they hold),

    e_t = exp(r_t − m),   s_t = e_t e^m / (1 + rest),   rest = Σ_t e^{r_t},   drive = Σ_t e_t D_t,
    pulls_t = e^{c − scale} (e_t D_t − s_t drive),   c = log(−l') + m − log(1 + rest),   scale = max_i c_i,

so that the gradient is that of :func:`mirrormax.attention.scaled_gradient` at one exponential per token.
Offsets x_t − x_α and D are kept until the selection changes, which is rare.

WIDTH trials with the same p are a block, and every number below that is loaded from its memory is a vector
of :mod:`mirrormax.dynamics.kernel.lanes`, one entry per trial. ``memory`` points to a block, laid out as ``at`` says
(:class:`mirrormax.dynamics.kernel.engine.Layout`).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import TYPE_CHECKING, Any

from mirrormax.dynamics.kernel import lanes
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

if TYPE_CHECKING:
    from mirrormax.dynamics.kernel.engine import Layout

LOGISTIC, EXPONENTIAL, CORRELATION = range(3)
RUNNING, NONFINITE, STATIONARY = 0, 4, 5  # as in the engine; a test holds them equal


@compiled
def choose(memory: Any, at: Layout, i: int, lane: int, alpha: int) -> None:
    """Make ``alpha`` the selected token of sample i in one trial."""
    for t in range(at.T):
        row = i * at.T + t
        rival = -math.inf if t == alpha else memory[(at.padding + row) * WIDTH + lane]
        memory[(at.absent + row) * WIDTH + lane] = rival
        for a in range(at.d):
            x_alpha = memory[(at.X + (i * at.T + alpha) * at.d + a) * WIDTH + lane]
            x_t = memory[(at.X + row * at.d + a) * WIDTH + lane]
            memory[(at.chosen + i * at.d + a) * WIDTH + lane] = x_alpha
            memory[(at.offsets + row * at.d + a) * WIDTH + lane] = x_t - x_alpha


@compiled
def score(memory: Any, at: Layout, v: int, i: int) -> None:
    """D_t = y vᵀ(x_t − x_α) and y vᵀx_α of sample i."""
    y, zero, nowhere, own = load(memory, at.y + i), lift(0.0), lift(-math.inf), lift(0.0)
    for a in range(at.d):
        own = own + load(memory, at.chosen + i * at.d + a) * load(memory, v + a)
    store(memory, at.own + i, y * own)
    weightless = False
    for t in range(at.T):
        row, gain = i * at.T + t, zero
        for a in range(at.d):
            gain = gain + load(memory, at.offsets + row * at.d + a) * load(memory, v + a)
        store(memory, at.gains + row, y * gain)
        weightless |= any_less(nowhere, if_equal(gain, zero, load(memory, at.absent + row), nowhere))
    memory[(at.weightless + i) * WIDTH] = 1.0 if weightless else 0.0


@compiled
def logits(memory: Any, at: Layout, W: int, i: int) -> bool:
    """r_t = (x_t − x_α)ᵀWz of sample i into ``tokens``, −inf at α and at padding; whether another token leads."""
    for a in range(at.d):
        entry = lift(0.0)
        for b in range(at.d):
            entry = entry + load(memory, W + a * at.d + b) * load(memory, at.z + i * at.d + b)
        store(memory, at.query + a, entry)
    lead = lift(0.0)
    for t in range(at.T):
        r = load(memory, at.absent + i * at.T + t)
        for a in range(at.d):
            r = r + load(memory, at.offsets + (i * at.T + t) * at.d + a) * load(memory, at.query + a)
        store(memory, at.tokens + t, r)
        lead = larger(lead, r)
    leads: bool = any_less(lift(0.0), lead)
    return leads


@compiled
def reselect(memory: Any, at: Layout, i: int) -> None:
    """Select the leading token where another one leads."""
    for lane in range(WIDTH):
        leader, lead = 0, 0.0
        for t in range(at.T):
            r = memory[(at.tokens + t) * WIDTH + lane]
            if r > lead:
                leader, lead = t, r
        if lead > 0.0:
            choose(memory, at, i, lane, leader)


@compiled
def attend(memory: Any, at: Layout, i: int, loss: int) -> None:
    """All of sample i that the gradients need, from its logits."""
    zero, nowhere = lift(0.0), lift(-math.inf)
    m, total, drive = nowhere, zero, zero
    for t in range(at.T):
        m = larger(m, if_equal(load(memory, at.gains + i * at.T + t), zero, nowhere, load(memory, at.tokens + t)))
    top, boost = if_equal(m, nowhere, zero, m), exp(m)
    for t in range(at.T):
        gain = load(memory, at.gains + i * at.T + t)
        e = if_equal(gain, zero, zero, exp(load(memory, at.tokens + t) - top))
        store(memory, at.e + i * at.T + t, e)
        total, drive = total + e, drive + e * gain
    rest = total * boost
    if memory[(at.weightless + i) * WIDTH] != 0.0:
        rest = rest + weightless_rest(memory, at, i)
    share = 1.0 / (rest + 1.0)
    slope = log_slope(load(memory, at.own + i) + drive * boost * share, loss)
    store(memory, at.drive + i, drive)
    store(memory, at.boost + i, boost * share)
    store(memory, at.share + i, share)
    store(memory, at.slopes + i, slope)
    store(memory, at.c + i, slope + m - log(rest + 1.0))


@compiled
def weightless_rest(memory: Any, at: Layout, i: int) -> Any:
    """Σ e^{r_t} over the t with D_t = 0, each kept as ``unmoved``."""
    zero, rest = lift(0.0), lift(0.0)
    for t in range(at.T):
        weight = exp(load(memory, at.tokens + t))
        weight = if_equal(load(memory, at.gains + i * at.T + t), zero, weight, zero)
        store(memory, at.unmoved + i * at.T + t, weight)
        rest = rest + weight
    return rest


@compiled
def log_slope(x: Any, loss: int) -> Any:
    """log(−l'(x))."""
    zero = lift(0.0)
    if loss == LOGISTIC:
        return zero - log(exp(zero - size(x)) + 1.0) - larger(zero, x)
    return zero - x if loss == EXPONENTIAL else x * 0.0


@compiled
def attention_to(memory: Any, at: Layout, i: int, t: int) -> Any:
    """s_t of sample i."""
    s = load(memory, at.e + i * at.T + t) * load(memory, at.boost + i)
    if memory[(at.weightless + i) * WIDTH] != 0.0:
        s = s + load(memory, at.unmoved + i * at.T + t) * load(memory, at.share + i)
    return s


@compiled
def evaluate(memory: Any, at: Layout, W: int, v: int, loss: int) -> None:
    """The model at the weights of row W and the head of row v."""
    for i in range(at.n):
        if logits(memory, at, W, i):
            reselect(memory, at, i)
            score(memory, at, v, i)
            logits(memory, at, W, i)
        attend(memory, at, i, loss)


@compiled
def scale_of(memory: Any, at: Layout, logs: int) -> Any:
    """The largest of the n rows from ``logs``, and 0 for −inf: the gradient is zero then."""
    scale = lift(-math.inf)
    for i in range(at.n):
        scale = larger(scale, load(memory, logs + i))
    return if_equal(scale, lift(-math.inf), lift(0.0), scale)


@compiled
def weight_gradient(memory: Any, at: Layout) -> None:
    """∇_W L / e^scale into ``G``, with its scale and its largest entry."""
    scale = scale_of(memory, at, at.c)
    for i in range(at.n):
        factor = exp(load(memory, at.c + i) - scale) / (-1.0 * at.n)
        drive = load(memory, at.drive + i)
        for t in range(at.T):
            row = i * at.T + t
            pull = load(memory, at.e + row) * load(memory, at.gains + row) - attention_to(memory, at, i, t) * drive
            store(memory, at.tokens + t, factor * pull)
        add_pulls(memory, at, i)
    store(memory, at.scale, scale)
    store(memory, at.largest, pulls_times_queries(memory, at))


@compiled
def add_pulls(memory: Any, at: Layout, i: int) -> None:
    """Σ_t pulls_t (x_t − x_α) of sample i into ``pulls``, from the pulls_t in ``tokens``."""
    for a in range(at.d):
        pull = lift(0.0)
        for t in range(at.T):
            pull = pull + load(memory, at.tokens + t) * load(memory, at.offsets + (i * at.T + t) * at.d + a)
        store(memory, at.pulls + i * at.d + a, pull)


@compiled
def pulls_times_queries(memory: Any, at: Layout) -> Any:
    """Σ_i pulls_i z_iᵀ into ``G``; the size of its largest entry."""
    largest = lift(0.0)
    for a in range(at.d):
        for b in range(at.d):
            entry = lift(0.0)
            for i in range(at.n):
                entry = entry + load(memory, at.pulls + i * at.d + a) * load(memory, at.z + i * at.d + b)
            store(memory, at.G + a * at.d + b, entry)
            largest = larger(largest, size(entry))
    return largest


@compiled
def head_gradient(memory: Any, at: Layout) -> None:
    """∇_v L / e^scale into ``g``, with its scale and its largest entry."""
    scale, largest = scale_of(memory, at, at.slopes), lift(0.0)
    for i in range(at.n):
        factor = exp(load(memory, at.slopes + i) - scale) / (-1.0 * at.n)
        store(memory, at.pulls + i, factor * load(memory, at.y + i))
    for a in range(at.d):
        entry = lift(0.0)
        for i in range(at.n):
            attended = load(memory, at.chosen + i * at.d + a)
            for t in range(at.T):
                offset = load(memory, at.offsets + (i * at.T + t) * at.d + a)
                attended = attended + attention_to(memory, at, i, t) * offset
            entry = entry + load(memory, at.pulls + i) * attended
        store(memory, at.g + a, entry)
        largest = larger(largest, size(entry))
    store(memory, at.scale, scale)
    store(memory, at.largest, largest)


@compiled
def dual_norm(memory: Any, g: int, count: int, q: float, largest: Any) -> Any:
    """‖g‖_q of the ``count`` rows from g, with the largest entry divided out first."""
    plan, zero, total = power_plan(q), lift(0.0), lift(0.0)
    inverse = if_equal(largest, zero, zero, 1.0 / largest)
    for j in range(count):
        total = total + power(size(load(memory, g + j)) * inverse, q, plan)
    return largest * power(total, 1.0 / q, power_plan(1.0 / q))


@compiled
def step(memory: Any, at: Layout, rate: int, g: int, old: int, new: int, count: int, rule: Any) -> None:
    """From the weights of row ``old``, and their dual variables after them, to those of row ``new``, along g."""
    exponent, q, normalize = rule
    largest, zero, top = load(memory, at.largest), lift(0.0), lift(1e300)
    if normalize:
        norm = dual_norm(memory, g, count, q, largest)
        factor = if_equal(norm, zero, zero, load(memory, rate) / norm)
    else:
        factor = load(memory, rate) * exp(load(memory, at.scale))
    plan, breaks, usual = power_plan(exponent), load(memory, at.breaks), True
    for j in range(count):
        u = load(memory, old + count + j) - factor * load(memory, g + j)
        w = signed(power(size(u), exponent, plan), u)
        store(memory, new + count + j, u)
        store(memory, new + j, w)
        breaks = breaks + (w - w)  # zero, or NaN where it is not finite
        if plan[0] == GENERAL:
            usual &= all_less(size(u), top) and all_less(size(w), top)
    store(memory, at.breaks, breaks)
    store(memory, at.moved, load(memory, at.moved) + factor * largest)
    if not usual:
        careful_powers(memory, at, new, count, exponent)


@compiled
def careful_powers(memory: Any, at: Layout, new: int, count: int, exponent: float) -> None:
    """The weights from their dual variables once more, beyond the range of the fast functions, or NaN."""
    for j in range(new * WIDTH, (new + count) * WIDTH):
        u = memory[j + count * WIDTH]
        w = math.copysign(abs(u) ** exponent, u)
        memory[j] = w
        memory[at.breaks * WIDTH + j % WIDTH] += w - w


@compiled
def settle(memory: Any, at: Layout, status: Any, updates: Any) -> int:
    """Count the step for the trials that took it, and stop those that did not; how many did not."""
    still = 0
    for k in range(WIDTH):
        if status[k] == RUNNING:
            if memory[at.breaks * WIDTH + k] != 0.0:
                status[k] = NONFINITE
            elif memory[at.moved * WIDTH + k] == 0.0:
                status[k] = STATIONARY
            else:
                updates[k] += 1
        still += status[k] != RUNNING
    return still


@compiled
def restore(memory: Any, new: int, old: int, count: int, status: Any) -> None:
    """Put back what a stopped trial had."""
    for k in range(WIDTH):
        if status[k] != RUNNING:
            for j in range(count):
                memory[(new + j) * WIDTH + k] = memory[(old + j) * WIDTH + k]


@compiled
def score_all(memory: Any, at: Layout, v: int) -> None:
    """Scores of every sample under the head of row v."""
    for i in range(at.n):
        score(memory, at, v, i)


@compiled
def run_block(memory: Any, at: Layout, rule: Any, switches: Any, steps: int, status: Any, updates: Any) -> None:
    """Up to ``steps`` steps of one block: rule (1/(p−1), q, normalize), switches (loss, train_head)."""
    loss, train_head = switches
    W, new_W, v, new_v = at.W, at.new_W, at.v, at.new_v
    N, d = at.d * at.d, at.d
    score_all(memory, at, v)
    for _ in range(steps):
        evaluate(memory, at, W, v, loss)
        store(memory, at.moved, lift(0.0))
        store(memory, at.breaks, lift(0.0))
        weight_gradient(memory, at)
        step(memory, at, at.lr, at.G, W, new_W, N, rule)
        if train_head:
            head_gradient(memory, at)
            step(memory, at, at.lr_v, at.g, v, new_v, d, rule)
        still = settle(memory, at, status, updates)
        if still:
            restore(memory, new_W, W, 2 * N, status)
            if train_head:
                restore(memory, new_v, v, 2 * d, status)
        W, new_W = new_W, W
        if train_head:
            v, new_v = new_v, v
            score_all(memory, at, v)
        if still == WIDTH:
            break
    for j in range(2 * N):
        store(memory, at.W + j, load(memory, W + j))
    for j in range(2 * d):
        store(memory, at.v + j, load(memory, v + j))


def _kernel(sources: str) -> Any:
    """The kernel, kept on disk under ``sources`` too: a change in this file is noticed anyway, in another it is not."""

    @kept
    def run_blocks(rows: Any, at: Layout, rule: Any, switches: Any, steps: int, status: Any, updates: Any) -> None:
        """Up to ``steps`` steps of the blocks in ``rows``, in place, one after the other."""
        if not sources:  # part of the key of the kept code, but only if it is looked at
            return
        for block in range(len(rows)):
            run_block(pointer(rows[block]), at, rule, switches, steps, status[block], updates[block])

    return run_blocks


run_blocks = _kernel(hashlib.sha256(Path(lanes.__file__).read_bytes()).hexdigest())
