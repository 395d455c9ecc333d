"""How long a step of our optimizers takes, against torch's fused ones and the plain update."""

from __future__ import annotations

import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch
from torch import Tensor

from mirrormax.bench.ratios import Ratios, Show, median_ratio, print_ratios, say_nothing, take_turns
from mirrormax.optim import MirrorAdamW, MirrorDescent

Shapes = Sequence[tuple[int, ...]]
Steps = dict[str, Callable[[], object]]
LARGE = [(3072, 768)] * 4  # the feed-forward matrices of two BERT-base layers
SHAPES: dict[str, Shapes] = {
    "4 x 3072 x 768": LARGE,
    "200 x 64 x 64": [(64, 64)] * 200,
    "2000 x 16 to 256": [(16 + (97 * k) % 241,) for k in range(2000)],
}
PARTS = [*[(512, 1536)] * 6, *[(512, 512)] * 18]
# GPT-2-small, 124 million numbers.
REAL = [(50257, 768), (1024, 768), *[(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 12]

LR = 1e-4
BASE = "SGD momentum (fused)"
ADAMW = "AdamW (fused)"
CLIPPED = "clip_grad_norm_, AdamW (fused)"
EAGER_GOALS = {1.1: 2.5, 1.25: 2.5, 1.5: 2.5, 2.0: 2.5, 3.0: 3.5, 1.75: 6.0, 10.0: None}  # of 10 in float64
COMPILED_GOALS = {1.1: 1.3, 1.25: 1.3, 1.5: 1.3, 2.0: 1.3, 3.0: 1.3, 1.75: None}
ADAMW_GOALS = {"4 x 3072 x 768": 1.5, "200 x 64 x 64": 1.5, "2000 x 16 to 256": 2.0}
REAL_GOALS = {1.1: 2.0, 1.25: 2.0, 1.5: 2.0, 1.75: 4.0, 3.0: 4.0}
HALF_GOAL, PEAK_GOAL, TARGET_GOAL, NORMALIZE_GOAL = 2.5, 6.5, 1.3, 1.3
FIRST_GOALS = {"warm": 1.0, "cold": 5.0}
VARIANTS: dict[str, dict[str, Any]] = {
    "": {"moments": "tensor"},
    " clip=None": {"moments": "tensor", "clip": None},
    " entry": {},
    " entry clip=None": {"clip": None},
}


def main(show: Show = say_nothing) -> Ratios:
    """Print the tables of ratios, and return these by name."""
    torch.set_num_threads(1)
    ratios = many_p(show)
    for name, shapes in SHAPES.items():
        ratios |= beside_adamw(name, shapes, show)
    return ratios | parts(show) | real_size(show) | first_steps()


def parameters(shapes: Shapes = LARGE, dtype: torch.dtype = torch.float32) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter((0.05 * torch.randn(shape)).to(dtype)) for shape in shapes]
    for param in params:
        param.grad = 1e-3 * torch.randn_like(param)
    return params


def many_p(show: Show) -> Ratios:
    """MirrorDescent at many p on large matrices, and the paper's update written plainly."""
    runs: Steps = {BASE: torch.optim.SGD(parameters(), lr=LR, momentum=0.9, fused=True).step}
    runs |= {f"eager p={p:g}": MirrorDescent(parameters(), lr=LR, p=p).step for p in EAGER_GOALS}
    runs |= {f"compiled p={p:g}": MirrorDescent(parameters(), lr=LR, p=p, compile=True).step for p in COMPILED_GOALS}
    runs["plain p=1.1"] = plain_step(parameters(), 1.1, LR)
    seconds = take_turns(runs, rounds=25, show=show, clock=time.thread_time)
    ratios = {name: median_ratio(seconds, name, BASE) for name in runs}
    goals = {f"eager p={p:g}": goal for p, goal in EAGER_GOALS.items()}
    goals |= {f"compiled p={p:g}": goal for p, goal in COMPILED_GOALS.items()}
    print("One step, processor time of one thread; medians over rounds of the ratios.")
    return print_ratios(f"4 x 3072 x 768, float32: ratio to {BASE}", ratios, goals)


def plain_step(params: Iterable[torch.nn.Parameter], p: float, lr: float) -> Callable[[], None]:
    """The paper's update written as it stands there: powers to the dual and back on the weights."""
    params = list(params)

    def power(x: Tensor, exponent: float) -> Tensor:
        return x.sign() * x.abs() ** exponent

    @torch.no_grad()
    def step() -> None:
        for param in params:
            if param.grad is not None:
                param.copy_(power(power(param, p - 1) - lr * param.grad, 1 / (p - 1)))

    return step


def adamw_steps(shapes: Shapes) -> Steps:
    """MirrorAdamW with one moment per tensor and per entry, and MirrorDescent, on tensors of any shapes.

    Each with the clipping that is on by default, and without; AdamW alone, and after ``clip_grad_norm_`` as trainers
    call it.
    """
    runs: Steps = {
        ADAMW: torch.optim.AdamW(parameters(shapes), lr=LR, fused=True).step,
        CLIPPED: clipped_step(parameters(shapes)),
    }
    for p in (1.1, 1.5, 2.0):
        for note, options in VARIANTS.items():
            runs[f"MirrorAdamW p={p:g}{note}"] = MirrorAdamW(parameters(shapes), lr=LR, p=p, **options).step
    runs["MirrorDescent p=1.1"] = MirrorDescent(parameters(shapes), lr=LR, p=1.1).step
    runs["MirrorDescent p=1.1 normalize"] = MirrorDescent(parameters(shapes), lr=LR, p=1.1, normalize="tensor").step
    return runs


def clipped_step(params: list[torch.nn.Parameter]) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(params, lr=LR, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    return step


def beside_adamw(name: str, shapes: Shapes, show: Show = say_nothing, rounds: int = 15) -> Ratios:
    """Ratios to AdamW, and of what clips also to AdamW that clips; the cost of normalising."""
    seconds = take_turns(adamw_steps(shapes), rounds=rounds, show=show, clock=time.thread_time)
    ratios = {step: median_ratio(seconds, step, ADAMW) for step in seconds}
    goals: dict[str, float | None] = {f"MirrorAdamW p={p:g}": ADAMW_GOALS[name] for p in (1.1, 1.5, 2.0)}
    for step in seconds:
        if step.startswith("MirrorAdamW") and "clip=None" not in step:
            ratios[f"{step} (both clip)"] = median_ratio(seconds, step, CLIPPED)
    ratios["normalize"] = median_ratio(seconds, "MirrorDescent p=1.1 normalize", "MirrorDescent p=1.1")
    goals["normalize"] = NORMALIZE_GOAL
    print_ratios(f"{name}: ratio to {ADAMW}; where both clip, to {CLIPPED}", ratios, goals)
    return {f"{name}, {step}": ratio for step, ratio in ratios.items()}


def parts(show: Show) -> Ratios:
    """MirrorDescent on tensors of a middle size."""
    runs: Steps = {
        BASE: torch.optim.SGD(parameters(PARTS), lr=LR, momentum=0.9, fused=True).step,
        "MirrorDescent": MirrorDescent(parameters(PARTS), lr=LR, p=1.1).step,
        "MirrorDescent compile=True": MirrorDescent(parameters(PARTS), lr=LR, p=1.1, compile=True).step,
    }
    seconds = take_turns(runs, show=show, clock=time.thread_time)
    ratios = {f"6 of 512 x 1536, 18 of 512 x 512, {name}": median_ratio(seconds, name, BASE) for name in runs}
    return print_ratios(f"p = 1.1: ratio to {BASE}", ratios)


def real_size(show: Show = say_nothing, shapes: Shapes = REAL, rounds: int = 5) -> Ratios:
    """GPT-2-small: one pair of contestants at a time, as each takes gigabytes."""
    ratios: Ratios = {}
    goals: dict[str, float | None] = {}

    def contest(
        name: str, goal: float | None, ours: dict[str, Any], theirs: dict[str, Any], dtype: torch.dtype = torch.float32
    ) -> None:
        kind = MirrorAdamW if "p" in theirs else torch.optim.AdamW
        runs: Steps = {
            "ours": MirrorAdamW(parameters(shapes, dtype), lr=LR, **ours).step,
            "theirs": kind(parameters(shapes, dtype), lr=LR, **theirs).step,
        }
        seconds = take_turns(runs, rounds=rounds, show=show, clock=time.thread_time)
        ratios[f"{count}, {name}"], goals[f"{count}, {name}"] = median_ratio(seconds, "ours", "theirs"), goal

    count = f"{sum(math.prod(shape) for shape in shapes) / 1e6:.0f}M"
    fused, plain = {"fused": True}, {"p": 1.1, "clip": None}
    for p, goal in REAL_GOALS.items():
        contest(f"MirrorAdamW p={p:g}", goal, {"p": p, "clip": None}, fused)
    contest("MirrorAdamW p=1.1 bfloat16", HALF_GOAL, plain, fused, torch.bfloat16)
    contest("MirrorAdamW p=1.1 fused=False", None, plain | {"fused": False}, fused)
    for p in (1.5, 1.1, 2.0):  # beside MirrorAdamW without a target
        contest(f"sparsity=0.8 to p={p:g}", TARGET_GOAL, {"p": 2.0, "sparsity": 0.8, "total_steps": 10_000}, {"p": p})
    # Bytes at the peak of two steps over those of the weights, gradients and weights not counted; the state takes 6.
    ratios[f"{count}, bfloat16, peak memory"] = float(in_new_process(PEAK.format(shapes=shapes)))
    goals[f"{count}, bfloat16, peak memory"] = PEAK_GOAL
    return print_ratios(f"GPT-2-small's tensors: ratio to {ADAMW} in the same type", ratios, goals)


PEAK = """
import torch, mirrormax as mm
torch.set_num_threads(1)
def peak():
    return next(int(line.split()[1]) for line in open("/proc/self/status") if line.startswith("VmHWM"))
def step(shapes):
    params = [torch.nn.Parameter(torch.full(shape, .05, dtype=torch.bfloat16)) for shape in shapes]
    for param in params: param.grad = torch.full_like(param, 1e-3)
    before = peak()
    optimizer = mm.MirrorAdamW(params, lr=1e-4, p=1.1)
    optimizer.step(); optimizer.step()
    held = peak() - before
    return held * 1024 / sum(2 * param.numel() for param in params)
step([(8, 8)])
print(step({shapes}))
"""

FIRST = """
import time, torch, mirrormax as mm
torch.set_num_threads(1)
model = torch.nn.TransformerEncoderLayer(64, 2)
optimizer = mm.MirrorAdamW(model, lr=1e-3)
for param in model.parameters(): param.grad = torch.ones_like(param)
start = time.process_time()
optimizer.step()
print(time.process_time() - start)
"""


def first_steps() -> Ratios:
    """Seconds of processor time of the first step after an import, without kernels on disk and with them."""
    with tempfile.TemporaryDirectory() as folder:
        seconds = {kind: float(in_new_process(FIRST, NUMBA_CACHE_DIR=folder)) for kind in ("cold", "warm")}
    print_ratios("The first step of MirrorAdamW(model) after an import, seconds", seconds, FIRST_GOALS)
    return {f"first step, {kind}, seconds": value for kind, value in seconds.items()}


def in_new_process(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return done.stdout.strip().splitlines()[-1]
