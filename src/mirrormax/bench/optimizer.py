"""How long a step of our optimizers takes, against torch's fused ones and the plain update."""

from __future__ import annotations

import math
import os
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from typing import Any

import torch

from mirrormax.bench.plain import plain_step
from mirrormax.bench.timing import Show, median_ratio, print_ratio, say_nothing, take_turns
from mirrormax.optim import MirrorAdamW, MirrorDescent

LARGE = [(3072, 768)] * 4  # the feed-forward matrices of two BERT-base layers
MIDDLE = [(64, 64)] * 200
TINY = [(16 + (97 * k) % 241,) for k in range(2000)]  # 16 to 256 entries
SHAPES: dict[str, Sequence[tuple[int, ...]]] = {
    "4 x 3072 x 768": LARGE,
    "200 x 64 x 64": MIDDLE,
    "2000 x 16 to 256": TINY,
}

# GPT-2-small, 124 million numbers.
REAL = [(50257, 768), (1024, 768), *[(768, 2304), (768, 768), (768, 3072), (3072, 768)] * 12]
PARTS = [*[(512, 1536)] * 6, *[(512, 512)] * 18]
REAL_GOALS = {1.1: 2.0, 1.25: 2.0, 1.5: 2.0, 1.75: 4.0, 3.0: 4.0}
HALF_GOAL, PEAK_GOAL, TARGET_GOAL = 2.5, 6.5, 1.3
FIRST_GOALS = {"warm": 1.0, "cold": 5.0}

LR = 1e-4
BASE = "SGD momentum (fused)"
ADAMW = "AdamW (fused)"
CLIPPED = "clip_grad_norm_, AdamW (fused)"
PLAIN = "plain p=1.1"
EAGER_GOALS = {1.1: 2.5, 1.25: 2.5, 1.5: 2.5, 2.0: 2.5, 3.0: 3.5, 1.75: 6.0, 2.5: 6.0, 6.0: 6.0}
BEYOND_GOALS = (1.01, 10.0, 50.0)  # dual variables in float64 above p = 7
COMPILED_GOALS = {1.1: 1.3, 1.25: 1.3, 1.5: 1.3, 2.0: 1.3, 3.0: 1.3, 1.75: None}
SPEEDUP_GOALS = {"eager": 12.0, "compiled": 22.0}
ADAMW_GOALS = {"4 x 3072 x 768": (1.5, 1.0), "200 x 64 x 64": (1.5, 1.5), "2000 x 16 to 256": (2.0, 1.5)}
NORMALIZE_GOAL = 1.3
TENSOR: dict[str, Any] = {"moments": "tensor"}
VARIANTS: dict[str, dict[str, Any]] = {
    "": TENSOR,
    " compiled": TENSOR | {"compile": True},
    " clip=None": TENSOR | {"clip": None},
    " compiled clip=None": TENSOR | {"compile": True, "clip": None},
    " entry": {},
    " entry clip=None": {"clip": None},
}


def parameters(
    shapes: Sequence[tuple[int, ...]] = LARGE, dtype: torch.dtype = torch.float32
) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter((0.05 * torch.randn(shape)).to(dtype)) for shape in shapes]
    for param in params:
        param.grad = 1e-3 * torch.randn_like(param)
    return params


def contestants() -> dict[str, Callable[[], object]]:
    """MirrorDescent at many p on large matrices."""
    runs: dict[str, Callable[[], object]] = {
        BASE: torch.optim.SGD(parameters(), lr=LR, momentum=0.9, fused=True).step,
        "Adam (fused)": torch.optim.Adam(parameters(), lr=LR, fused=True).step,
    }
    for p in (*EAGER_GOALS, *BEYOND_GOALS):
        runs[f"eager p={p:g}"] = MirrorDescent(parameters(), lr=LR, p=p).step
    runs["eager p=1.1 momentum"] = MirrorDescent(parameters(), lr=LR, p=1.1, momentum=0.9).step
    for p in COMPILED_GOALS:
        runs[f"compiled p={p:g}"] = MirrorDescent(parameters(), lr=LR, p=p, compile=True).step
    runs[PLAIN] = plain_step(parameters(), 1.1, LR)
    runs["compiled p=1.1 momentum"] = MirrorDescent(parameters(), lr=LR, p=1.1, momentum=0.9, compile=True).step
    return runs


def against_adamw(shapes: Sequence[tuple[int, ...]]) -> dict[str, Callable[[], object]]:
    """MirrorAdamW with one moment per tensor and per entry, and MirrorDescent, on tensors of any shapes.

    Each with the clipping that is on by default, and without; AdamW alone, and after ``clip_grad_norm_`` as trainers
    call it.
    """
    runs: dict[str, Callable[[], object]] = {
        ADAMW: torch.optim.AdamW(parameters(shapes), lr=LR, fused=True).step,
        CLIPPED: _clipped(parameters(shapes)),
        BASE: torch.optim.SGD(parameters(shapes), lr=LR, momentum=0.9, fused=True).step,
    }
    for p in (1.1, 1.5, 2.0):
        for note, options in VARIANTS.items():
            runs[f"MirrorAdamW p={p:g}{note}"] = MirrorAdamW(parameters(shapes), lr=LR, p=p, **options).step
    runs["MirrorDescent p=1.1"] = MirrorDescent(parameters(shapes), lr=LR, p=1.1).step
    runs["MirrorDescent p=1.1 normalize"] = MirrorDescent(parameters(shapes), lr=LR, p=1.1, normalize="tensor").step
    return runs


def _clipped(params: list[torch.nn.Parameter]) -> Callable[[], object]:
    optimizer = torch.optim.AdamW(params, lr=LR, fused=True)

    def step() -> None:
        torch.nn.utils.clip_grad_norm_(params, 1.0)
        optimizer.step()

    return step


def main(show: Show = say_nothing) -> dict[str, float]:
    """Print the tables of ratios, and return these by name."""
    torch.set_num_threads(1)
    ratios = _print_many_p(show)
    for name, shapes in SHAPES.items():
        ratios |= _print_against_adamw(name, shapes, show)
    ratios |= _print_parts(show)
    ratios |= _print_real_size(show)
    return ratios | _print_first_steps()


def _print_many_p(show: Show) -> dict[str, float]:
    seconds = take_turns(contestants(), rounds=25, show=show, clock=time.thread_time)
    size = sum(a * b for a, b in LARGE)
    base = statistics.median(seconds[BASE]) * 1e3
    print(f"One step on {size / 1e6:.1f}M float32 parameters, one thread; median over rounds of the ratio of")
    print(f"processor times to {BASE}, which took {base:.1f} ms here.\n")
    goals: dict[str, float | None] = {f"eager p={p:g}": goal for p, goal in EAGER_GOALS.items()}
    goals |= {f"compiled p={p:g}": goal for p, goal in COMPILED_GOALS.items()}
    ratios = {name: median_ratio(seconds, name, BASE) for name in seconds}
    for name, ratio in ratios.items():
        print_ratio(name, ratio, goals.get(name))
    print()
    for kind, goal in SPEEDUP_GOALS.items():
        times = median_ratio(seconds, PLAIN, f"{kind} p=1.1")
        print(f"{kind} p=1.1 is {times:.1f} times as fast as the plain update (goal {goal:g}).")
    return ratios


def _print_against_adamw(
    name: str, shapes: Sequence[tuple[int, ...]], show: Show = say_nothing, rounds: int = 15
) -> dict[str, float]:
    seconds = take_turns(against_adamw(shapes), rounds=rounds, show=show, clock=time.thread_time)
    eager, compiled = ADAMW_GOALS[name]
    print(f"\nTensors {name}: ratio to {ADAMW}, which took {statistics.median(seconds[ADAMW]) * 1e3:.1f} ms here, and")
    print(f"of what clips to {CLIPPED}. MirrorAdamW has one moment per tensor, or per entry.\n")
    print(f"{'step':36s} {'to AdamW':>9s} {'goal':>7s} {'both clip':>10s}")
    ratios = {step: median_ratio(seconds, step, ADAMW) for step in seconds}
    both = {step: median_ratio(seconds, step, CLIPPED) for step in seconds if _clips(step)}
    for step, ratio in ratios.items():
        goal = compiled if "compiled" in step else eager
        limit = f"<= {goal:g}" if step.startswith("MirrorAdamW") and "entry" not in step else ""
        print(f"{step:36s} {ratio:9.2f} {limit:>7s} {f'{both[step]:.2f}' if step in both else '':>10s}")
    normalize = median_ratio(seconds, "MirrorDescent p=1.1 normalize", "MirrorDescent p=1.1")
    print(f"normalize costs {normalize:.2f} times the plain step (goal {NORMALIZE_GOAL:g}).")
    measured = {f"{name}, {step}": ratio for step, ratio in ratios.items()} | {f"{name}, normalize": normalize}
    return measured | {f"{name}, {step} (both clip)": ratio for step, ratio in both.items()}


def _print_parts(show: Show, rounds: int = 15) -> dict[str, float]:
    runs = {
        BASE: torch.optim.SGD(parameters(PARTS), lr=LR, momentum=0.9, fused=True).step,
        "MirrorDescent": MirrorDescent(parameters(PARTS), lr=LR, p=1.1).step,
        "MirrorDescent compile=True": MirrorDescent(parameters(PARTS), lr=LR, p=1.1, compile=True).step,
    }
    seconds = take_turns(runs, rounds=rounds, show=show, clock=time.thread_time)
    ratios = {name: median_ratio(seconds, name, BASE) for name in runs}
    print(f"\nSix tensors of 512 x 1536 and 18 of 512 x 512, p = 1.1: ratio to {BASE}.\n")
    for name, ratio in ratios.items():
        print_ratio(name, ratio)
    return {f"6 of 512 x 1536, 18 of 512 x 512, {name}": ratio for name, ratio in ratios.items()}


def _print_real_size(
    show: Show = say_nothing, shapes: Sequence[tuple[int, ...]] = REAL, rounds: int = 5
) -> dict[str, float]:
    """One pair of contestants at a time, as each takes gigabytes."""
    ratios: dict[str, float] = {}

    def contest(
        name: str, goal: float | None, dtype: torch.dtype, ours: dict[str, Any], theirs: dict[str, Any]
    ) -> None:
        made = MirrorAdamW(parameters(shapes, dtype), lr=LR, **ours)
        kind = MirrorAdamW if "p" in theirs else torch.optim.AdamW
        runs = {"ours": made.step, "theirs": kind(parameters(shapes, dtype), lr=LR, **theirs).step}
        seconds = take_turns(runs, rounds=rounds, show=show, clock=time.thread_time)
        ratios[name] = median_ratio(seconds, "ours", "theirs")
        print_ratio(name, ratios[name], goal)

    count = f"{sum(math.prod(shape) for shape in shapes) / 1e6:.0f}M"
    print(f"\nGPT-2-small's tensors, {count} parameters: ratio to AdamW (fused) in the same type.\n")
    fused = {"fused": True}
    for p, goal in REAL_GOALS.items():
        contest(f"MirrorAdamW p={p:g}", goal, torch.float32, {"p": p, "clip": None}, fused)
    plain: dict[str, Any] = {"p": 1.1, "clip": None}
    contest("MirrorAdamW p=1.1 bfloat16", HALF_GOAL, torch.bfloat16, plain, fused)
    contest("MirrorAdamW p=1.1 fused=False", None, torch.float32, plain | {"fused": False}, fused)
    print("\nWith sparsity=0.8, ratio to MirrorAdamW without:\n")
    aim = {"p": 2.0, "sparsity": 0.8, "total_steps": 10_000}
    for p in (1.5, 1.1, 2.0):
        contest(f"sparsity=0.8 to p={p:g}", TARGET_GOAL, torch.float32, aim, {"p": p})
    ratios["bfloat16, peak memory"] = peak = float(_in_new_process(PEAK.format(shapes=shapes)))
    print(
        f"With bfloat16 weights two steps take {peak:.2f} times the bytes of the weights at their peak, gradients and"
    )
    print(f"weights not counted (goal {PEAK_GOAL:g}; the state takes 6).")
    return {f"{count}, {name}": ratio for name, ratio in ratios.items()}


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


def _print_first_steps() -> dict[str, float]:
    seconds_of: dict[str, float] = {}
    print("\nThe first step of MirrorAdamW(model) after an import, in seconds of processor time:")
    with tempfile.TemporaryDirectory() as folder:
        for kind in ("cold", "warm"):
            seconds_of[kind] = float(_in_new_process(FIRST, NUMBA_CACHE_DIR=folder))
    for kind, goal in FIRST_GOALS.items():
        print_ratio(kind, seconds_of[kind], goal)
    return {f"first step, {kind}, seconds": seconds for kind, seconds in seconds_of.items()}


def _in_new_process(code: str, **environment: str) -> str:
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, **environment})
    return done.stdout.strip().splitlines()[-1]


def _clips(step: str) -> bool:
    return step.startswith("MirrorAdamW") and "clip=None" not in step
