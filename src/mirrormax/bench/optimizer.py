"""How long a step of our optimizers takes, against torch's fused ones and the plain update."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

import torch

from mirrormax.bench.plain import plain_step
from mirrormax.bench.timing import Show, median_ratio, say_nothing, take_turns
from mirrormax.optim import MirrorAdamW, MirrorDescent

LARGE = [(3072, 768)] * 4  # the feed-forward matrices of two BERT-base layers
MIDDLE = [(64, 64)] * 200
TINY = [(16 + (97 * k) % 241,) for k in range(2000)]  # 16 to 256 entries
SHAPES: dict[str, Sequence[tuple[int, ...]]] = {
    "4 x 3072 x 768": LARGE,
    "200 x 64 x 64": MIDDLE,
    "2000 x 16 to 256": TINY,
}

LR = 1e-4
BASE = "SGD momentum (fused)"
ADAMW = "AdamW (fused)"
PLAIN = "plain p=1.1"
EAGER_GOALS = {1.1: 2.5, 1.25: 2.5, 1.5: 2.5, 2.0: 2.5, 3.0: 3.5, 1.75: 6.0, 2.5: 6.0, 6.0: 6.0}
BEYOND_GOALS = (1.01, 10.0, 50.0)  # dual variables in float64 above p = 7
COMPILED_GOALS = {1.1: 1.3, 1.25: 1.3, 1.5: 1.3, 2.0: 1.3, 3.0: 1.3, 1.75: None}
SPEEDUP_GOALS = {"eager": 12.0, "compiled": 22.0}
ADAMW_GOALS = {"4 x 3072 x 768": (1.5, 1.0), "200 x 64 x 64": (1.5, 1.5), "2000 x 16 to 256": (2.0, 1.5)}
NORMALIZE_GOAL = 1.3


def parameters(shapes: Sequence[tuple[int, ...]] = LARGE) -> list[torch.nn.Parameter]:
    torch.manual_seed(0)
    params = [torch.nn.Parameter(0.05 * torch.randn(shape)) for shape in shapes]
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
    """MirrorAdamW with all that is on by default, and MirrorDescent, on tensors of any shapes."""
    runs: dict[str, Callable[[], object]] = {
        ADAMW: torch.optim.AdamW(parameters(shapes), lr=LR, fused=True).step,
        BASE: torch.optim.SGD(parameters(shapes), lr=LR, momentum=0.9, fused=True).step,
    }
    for p in (1.1, 1.5, 2.0):
        runs[f"MirrorAdamW p={p:g}"] = MirrorAdamW(parameters(shapes), lr=LR, p=p).step
        runs[f"MirrorAdamW p={p:g} compiled"] = MirrorAdamW(parameters(shapes), lr=LR, p=p, compile=True).step
    runs["MirrorDescent p=1.1"] = MirrorDescent(parameters(shapes), lr=LR, p=1.1).step
    runs["MirrorDescent p=1.1 normalize"] = MirrorDescent(parameters(shapes), lr=LR, p=1.1, normalize="tensor").step
    return runs


def main(show: Show = say_nothing) -> dict[str, float]:
    """Print the tables of ratios, and return these by name."""
    torch.set_num_threads(1)
    ratios = _print_many_p(show)
    for name, shapes in SHAPES.items():
        ratios |= _print_against_adamw(name, shapes, show)
    return ratios


def _print_many_p(show: Show) -> dict[str, float]:
    seconds = take_turns(contestants(), rounds=25, show=show, clock=time.thread_time)
    size = sum(a * b for a, b in LARGE)
    base = statistics.median(seconds[BASE]) * 1e3
    print(f"One step on {size / 1e6:.1f}M float32 parameters, one thread; median over rounds of the ratio of")
    print(f"processor times to {BASE}, which took {base:.1f} ms here.\n")
    print(f"{'step':28s} {'ratio':>7s} {'goal':>7s}")
    goals = {f"eager p={p:g}": goal for p, goal in EAGER_GOALS.items()}
    goals |= {f"compiled p={p:g}": goal for p, goal in COMPILED_GOALS.items() if goal}
    ratios = {name: median_ratio(seconds, name, BASE) for name in seconds}
    for name, ratio in ratios.items():
        limit = f"<= {goals[name]:g}" if name in goals else ""
        print(f"{name:28s} {ratio:7.2f} {limit:>7s}")
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
    print(f"\nTensors {name}: ratio to {ADAMW}, which took {statistics.median(seconds[ADAMW]) * 1e3:.1f} ms here.\n")
    ratios = {step: median_ratio(seconds, step, ADAMW) for step in seconds}
    for step, ratio in ratios.items():
        goal = compiled if step.endswith("compiled") else eager
        limit = f"<= {goal:g}" if step.startswith("MirrorAdamW") else ""
        print(f"{step:30s} {ratio:7.2f} {limit:>7s}")
    normalize = median_ratio(seconds, "MirrorDescent p=1.1 normalize", "MirrorDescent p=1.1")
    print(f"normalize costs {normalize:.2f} times the plain step (goal {NORMALIZE_GOAL:g}).")
    return {f"{name}, {step}": ratio for step, ratio in ratios.items()} | {f"{name}, normalize": normalize}
