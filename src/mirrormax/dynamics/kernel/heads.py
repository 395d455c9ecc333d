"""The loop of :mod:`mirrormax.dynamics.heads` compiled, with the vectors and the parts of :mod:`.loop`.

Every head has a block of memory of its own, with its tokens, weights and gradients; outputs and labels are in that of
the first. A step goes over all heads twice: once for their attention and what it adds to the outputs,

    s_t = e^{r_t}/(1 + Σ e^r),    a = x_α + Σ_t s_t (x_t − x_α),    f += V_h a,

and, when the labels have turned f into e_y − q and log(1 − π_y), once for the gradients, as in :mod:`.loop` with
D_t = (e_y − q)ᵀV_h(x_t − x_α).
"""

from __future__ import annotations

import hashlib
import math
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from mirrormax.dynamics.heads import HeadsEngine, Normalize
from mirrormax.dynamics.kernel import lanes, loop
from mirrormax.dynamics.kernel.engine import Memory, SharedOut, first_rows, run_counted, share_out
from mirrormax.dynamics.kernel.lanes import (
    WIDTH,
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
    size,
    store,
)
from mirrormax.dynamics.setup import Setup
from mirrormax.geometry import dual_exponent

PLAIN, OF_HEAD, OF_ALL = range(3)
OVER = {False: PLAIN, "tensor": OF_HEAD, "global": OF_ALL}


class HeadLayout(NamedTuple):
    """The sizes of a problem, and the first row of each array of a head; names as in :class:`.engine.Layout`."""

    n: int
    T: int
    d: int
    C: int
    X: int  # (n, T, d)
    z: int  # (n, d)
    padding: int  # (n, T)
    chosen: int  # (n, d)
    offsets: int  # (n, T, d)
    absent: int  # (n, T)
    r: int  # (n, T)         logits relative to the selected token
    s: int  # (n, T)         attention
    c: int  # (n,)           −log(1 + Σ e^r), and then the log of what a sample weighs
    attended: int  # (n, d)
    direction: int  # (d,)   V_hᵀ(e_y − q)
    gains: int  # (T,)
    tokens: int  # (T,)
    query: int  # (d,)
    pulls: int  # (n, d)
    scale: int
    largest: int
    moved: int
    breaks: int
    lr: int
    lr_V: int
    W: int  # (2, d, d)
    new_W: int  # (2, d, d)
    G: int  # (d, d)
    V: int  # (2, C, d)
    new_V: int  # (2, C, d)
    g: int  # (C, d)
    right: int  # (n, C)     1 at the label's class: of the first head, as all that follows
    f: int  # (n, C)         outputs, and then e_y − q
    slopes: int  # (n,)      log(1 − π_y)
    rows: int


def layout_of(n: int, T: int, d: int, C: int) -> HeadLayout:
    """One array after the other."""
    shapes = {
        **dict.fromkeys(("X", "offsets"), n * T * d),
        **dict.fromkeys(("z", "chosen", "attended", "pulls"), n * d),
        **dict.fromkeys(("padding", "absent", "r", "s"), n * T),
        **dict.fromkeys(("c", "slopes"), n),
        **dict.fromkeys(("direction", "query"), d),
        **dict.fromkeys(("gains", "tokens"), T),
        **dict.fromkeys(("scale", "largest", "moved", "breaks", "lr", "lr_V"), 1),
        **dict.fromkeys(("W", "new_W"), 2 * d * d),
        **dict.fromkeys(("V", "new_V"), 2 * C * d),
        **dict.fromkeys(("right", "f"), n * C),
        "G": d * d,
        "g": C * d,
    }
    starts, rows = first_rows(HeadLayout._fields[4:-1], shapes)
    return HeadLayout(n, T, d, C, **starts, rows=rows)


@compiled
def attend(memory: Any, at: HeadLayout, W: int, V: int, outputs: Any) -> None:
    """The attention of one head, and what it adds to the outputs."""
    for i in range(at.n):
        if loop.logits(memory, at, W, i):
            loop.reselect(memory, at, i)
            loop.logits(memory, at, W, i)
        total = lift(0.0)
        for t in range(at.T):
            r = load(memory, at.tokens + t)
            weight = exp(r)
            store(memory, at.r + i * at.T + t, r)
            store(memory, at.s + i * at.T + t, weight)
            total = total + weight
        share = 1.0 / (total + 1.0)
        store(memory, at.c + i, lift(0.0) - log(total + 1.0))
        for t in range(at.T):
            store(memory, at.s + i * at.T + t, load(memory, at.s + i * at.T + t) * share)
        for a in range(at.d):
            entry = load(memory, at.chosen + i * at.d + a)
            for t in range(at.T):
                row = i * at.T + t
                entry = entry + load(memory, at.s + row) * load(memory, at.offsets + row * at.d + a)
            store(memory, at.attended + i * at.d + a, entry)
        for c in range(at.C):
            f = load(outputs, at.f + i * at.C + c)
            for a in range(at.d):
                f = f + load(memory, V + c * at.d + a) * load(memory, at.attended + i * at.d + a)
            store(outputs, at.f + i * at.C + c, f)


@compiled
def label(outputs: Any, at: HeadLayout) -> None:
    """From outputs f to e_y − q, and log(1 − π_y): −log(1 + e^{−φ}) with φ the logsumexp of f_c − f_y, c ≠ y."""
    zero, one, nowhere = lift(0.0), lift(1.0), lift(-math.inf)
    for i in range(at.n):
        f, right = at.f + i * at.C, at.right + i * at.C
        own, top, total = zero, nowhere, zero
        for c in range(at.C):
            own = own + load(outputs, right + c) * load(outputs, f + c)
        for c in range(at.C):
            behind = if_equal(load(outputs, right + c), one, nowhere, load(outputs, f + c) - own)
            store(outputs, f + c, behind)
            top = larger(top, behind)
        for c in range(at.C):
            weight = exp(load(outputs, f + c) - top)
            store(outputs, f + c, weight)
            total = total + weight
        for c in range(at.C):
            store(outputs, f + c, load(outputs, right + c) - load(outputs, f + c) / total)
        phi = top + log(total)
        store(outputs, at.slopes + i, zero - log(exp(zero - size(phi)) + 1.0) - larger(zero, zero - phi))


@compiled
def pull_sample(memory: Any, at: HeadLayout, outputs: Any, i: int) -> None:
    """Σ_t (e_t D_t − s_t Σ_u e_u D_u)(x_t − x_α) of sample i, e_t = e^{r_t − m}, into ``pulls``, log weight in c."""
    zero, nowhere, m, drive = lift(0.0), lift(-math.inf), lift(-math.inf), lift(0.0)
    for t in range(at.T):
        row, gain = i * at.T + t, zero
        for a in range(at.d):
            gain = gain + load(memory, at.offsets + row * at.d + a) * load(memory, at.direction + a)
        store(memory, at.gains + t, gain)
        m = larger(m, if_equal(gain, zero, nowhere, load(memory, at.r + row)))
    top = if_equal(m, nowhere, zero, m)
    for t in range(at.T):
        gain = load(memory, at.gains + t)
        pull = if_equal(gain, zero, zero, exp(load(memory, at.r + i * at.T + t) - top) * gain)
        store(memory, at.tokens + t, pull)
        drive = drive + pull
    for t in range(at.T):
        pull = load(memory, at.tokens + t) - load(memory, at.s + i * at.T + t) * drive
        store(memory, at.tokens + t, pull)
    loop.add_pulls(memory, at, i)
    store(memory, at.c + i, load(memory, at.c + i) + load(outputs, at.slopes + i) + m)


@compiled
def weight_gradient(memory: Any, at: HeadLayout, V: int, outputs: Any) -> None:
    """∇_{W_h} L / e^scale into ``G``, with its scale and its largest entry."""
    for i in range(at.n):
        for a in range(at.d):
            entry = lift(0.0)
            for c in range(at.C):
                entry = entry + load(outputs, at.f + i * at.C + c) * load(memory, V + c * at.d + a)
            store(memory, at.direction + a, entry)
        pull_sample(memory, at, outputs, i)
    scale = loop.scale_of(memory, at, at.c)
    for i in range(at.n):
        factor = exp(load(memory, at.c + i) - scale) / (-1.0 * at.n)
        for a in range(at.d):
            store(memory, at.pulls + i * at.d + a, factor * load(memory, at.pulls + i * at.d + a))
    store(memory, at.scale, scale)
    store(memory, at.largest, loop.pulls_times_queries(memory, at))


@compiled
def value_gradient(memory: Any, at: HeadLayout, outputs: Any) -> None:
    """∇_{V_h} L / e^scale into ``g``, with its scale and its largest entry."""
    scale, largest = loop.scale_of(outputs, at, at.slopes), lift(0.0)
    for i in range(at.n):
        store(memory, at.c + i, exp(load(outputs, at.slopes + i) - scale) / (-1.0 * at.n))
    for c in range(at.C):
        for a in range(at.d):
            entry = lift(0.0)
            for i in range(at.n):
                weight = load(memory, at.c + i) * load(outputs, at.f + i * at.C + c)
                entry = entry + weight * load(memory, at.attended + i * at.d + a)
            store(memory, at.g + c * at.d + a, entry)
            largest = larger(largest, size(entry))
    store(memory, at.scale, scale)
    store(memory, at.largest, largest)


@compiled
def share_norm(heads: Any, at: HeadLayout, g: int, count: int, q: float) -> None:
    """Divide the gradients of all heads by their norm together, ‖(g_1, …, g_H)‖_q, and set their scales to 0."""
    zero, top, largest, total = lift(0.0), lift(-math.inf), lift(0.0), lift(0.0)
    for h in range(len(heads)):
        memory = pointer(heads[h])
        some = load(memory, at.largest)
        top = larger(top, if_equal(some, zero, lift(-math.inf), load(memory, at.scale)))
    top = if_equal(top, lift(-math.inf), zero, top)
    for h in range(len(heads)):
        memory = pointer(heads[h])
        factor = exp(load(memory, at.scale) - top)
        factor = if_equal(load(memory, at.largest), zero, zero, factor)
        store(memory, at.scale, factor)
        largest = larger(largest, factor * load(memory, at.largest))
    plan = power_plan(q)
    inverse = if_equal(largest, zero, zero, 1.0 / largest)
    for h in range(len(heads)):
        memory = pointer(heads[h])
        factor = load(memory, at.scale) * inverse
        for j in range(count):
            total = total + power(size(load(memory, g + j)) * factor, q, plan)
    norm = power(total, 1.0 / q, power_plan(1.0 / q))
    for h in range(len(heads)):
        memory = pointer(heads[h])
        factor = if_equal(norm, zero, zero, load(memory, at.scale) * inverse / norm)
        for j in range(count):
            store(memory, g + j, factor * load(memory, g + j))
        store(memory, at.largest, factor * load(memory, at.largest))
        store(memory, at.scale, zero)


@compiled
def step_all(
    heads: Any, at: HeadLayout, rate: int, g: int, old: int, new: int, count: int, rule: Any, over: int
) -> None:
    """The step of every head along its gradient g."""
    if over == OF_ALL:
        share_norm(heads, at, g, count, rule[1])
    own = (rule[0], rule[1], over == OF_HEAD)
    for h in range(len(heads)):
        loop.step(pointer(heads[h]), at, rate, g, old, new, count, own)


@compiled
def settle(heads: Any, at: HeadLayout, status: Any, updates: Any) -> int:
    """That of :mod:`.loop` for all heads of a trial together: it stops where one is not finite, or none has moved."""
    first = pointer(heads[0])
    for h in range(1, len(heads)):
        memory = pointer(heads[h])
        store(first, at.moved, load(first, at.moved) + load(memory, at.moved))
        store(first, at.breaks, load(first, at.breaks) + load(memory, at.breaks))
    still: int = loop.settle(first, at, status, updates)
    return still


@compiled
def evaluate(heads: Any, at: HeadLayout, W: int, V: int) -> None:
    """The model at the weights of rows W and V."""
    outputs = pointer(heads[0])
    for j in range(at.n * at.C):
        store(outputs, at.f + j, lift(0.0))
    for h in range(len(heads)):
        memory = pointer(heads[h])
        store(memory, at.moved, lift(0.0))
        store(memory, at.breaks, lift(0.0))
        attend(memory, at, W, V, outputs)
    label(outputs, at)


@compiled
def restore(heads: Any, new: int, old: int, count: int, status: Any) -> None:
    """Put back what a stopped trial had, in every head."""
    for h in range(len(heads)):
        loop.restore(pointer(heads[h]), new, old, count, status)


@compiled
def put(heads: Any, to: int, row: int, count: int) -> None:
    """Copy ``count`` rows of every head."""
    for h in range(len(heads)):
        memory = pointer(heads[h])
        for j in range(count):
            store(memory, to + j, load(memory, row + j))


@compiled
def run_block(heads: Any, at: HeadLayout, rule: Any, switches: Any, steps: int, status: Any, updates: Any) -> None:
    """Up to ``steps`` steps of a block of trials, its heads the rows of ``heads``: switches (over, train_values)."""
    over, train_values = switches
    W, new_W, V, new_V = at.W, at.new_W, at.V, at.new_V
    N, M = at.d * at.d, at.C * at.d
    for _ in range(steps):
        evaluate(heads, at, W, V)
        for h in range(len(heads)):
            weight_gradient(pointer(heads[h]), at, V, pointer(heads[0]))
        step_all(heads, at, at.lr, at.G, W, new_W, N, rule, over)
        if train_values:
            for h in range(len(heads)):
                value_gradient(pointer(heads[h]), at, pointer(heads[0]))
            step_all(heads, at, at.lr_V, at.g, V, new_V, M, rule, over)
        still = settle(heads, at, status, updates)
        if still:
            restore(heads, new_W, W, 2 * N, status)
            if train_values:
                restore(heads, new_V, V, 2 * M, status)
        W, new_W = new_W, W
        if train_values:
            V, new_V = new_V, V
        if still == WIDTH:
            break
    put(heads, at.W, W, 2 * N)
    put(heads, at.V, V, 2 * M)


def _kernel(sources: str) -> Any:
    """The kernel, kept on disk under ``sources`` too, as :mod:`.loop` does."""

    @kept
    def run_blocks(rows: Any, at: HeadLayout, rule: Any, switches: Any, steps: int, status: Any, updates: Any) -> None:
        """Up to ``steps`` steps of the blocks in ``rows`` (blocks, H, rows, WIDTH), in place, one after the other."""
        if not sources:  # part of the key of the kept code, but only if it is looked at
            return
        for block in range(len(rows)):
            run_block(rows[block], at, rule, switches, steps, status[block], updates[block])

    return run_blocks


_files = (lanes.__file__, loop.__file__)
run_blocks = _kernel(hashlib.sha256(b"".join(Path(file).read_bytes() for file in _files)).hexdigest())


class CompiledHeadsEngine(SharedOut, HeadsEngine):
    """:class:`HeadsEngine` on the CPU in the compiled kernel, blocks of trials shared out among threads."""

    def __init__(self, setup: Setup, over: Normalize) -> None:
        super().__init__(setup, over)
        self._switches = (OVER[over], "V" in self.primal)
        self.shares = list(share_out(setup, lambda part, p: _Share(self, part, p)))


class _Share:
    """Some trials of one p, in the memory of the kernel, head by head."""

    def __init__(self, engine: CompiledHeadsEngine, part: slice, p: float) -> None:
        setup = engine.setup
        X, z = setup.X[part].numpy(), setup.z[part].numpy()
        mask = np.ones(X.shape[:-1], dtype=bool) if setup.mask is None else setup.mask[part].numpy()
        heads, classes = setup.v.shape[1:3]
        self.part, self.rule = part, (1 / (p - 1), dual_exponent(p))
        n, T, d = X.shape[1:]
        self.layout = layout_of(n, T, d, classes)
        self.rows = np.zeros((-(-len(X) // WIDTH), heads, self.layout.rows, WIDTH))
        self.heads = [Memory(X, z, mask, self.layout, self.rows[:, h]) for h in range(heads)]
        self.heads[0].write("right", np.eye(classes)[setup.y[part].numpy()])
        for h, memory in enumerate(self.heads):
            memory.write("V", setup.v[part, h].numpy())
            for name, w in engine.primal.items():
                memory.write("lr_V" if name == "V" else "lr", setup.rates[name].reshape(-1)[part].numpy())
                memory.write(name, w[part, h].numpy())
                memory.write(name, engine.dual[name][part, h].numpy(), part=1)

    def advance(self, steps: int, engine: CompiledHeadsEngine) -> None:
        """Run the kernel, and show the engine the weights it came to."""
        part, given = self.part, (self.rows, self.layout, self.rule, engine._switches, steps)
        run_counted(self.heads[0], engine, part, lambda *counts: run_blocks(*given, *counts))
        for h, memory in enumerate(self.heads):
            for name in engine.primal:
                for place, kept_in in enumerate((engine.primal[name], engine.dual[name])):
                    kept_in[part, h] = torch.from_numpy(memory.read(name, kept_in[part, h].numpy(), place))
