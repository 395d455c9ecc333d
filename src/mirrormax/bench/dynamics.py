"""All of Fig 4's training (100 trials, p = 1.75, 2, 3) against one trial at a time with autograd; heads and classes."""

from __future__ import annotations

import time
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import torch

from mirrormax.attention import Attention, as_loss
from mirrormax.bench.ratios import Show, median_ratio, say_nothing, take_turns
from mirrormax.data import class_problem, sphere_problem
from mirrormax.dynamics import SimulationOptions, simulate, simulate_heads
from mirrormax.optim import reference_dual_norm, reference_step

STEPS = {1.75: 1500, 2.0: 2000, 3.0: 20000}
TRIALS, LR = 100, 0.1
KERNEL = SimulationOptions(backend="numba")
SAMPLE = 400  # steps of the plain loop for each p and round
ROUNDS = 3
GOAL = 600
SHAPES = ((1, 3), (2, 2), (2, 3), (4, 10))  # heads and classes
SEVERAL_STEPS, SEVERAL_ROUNDS, SEVERAL_GOAL = 500, 5, 3


def plain_loop(p: float, steps: int) -> None:
    """What one writes first: a module, its loss, backward, and the paper's update of the weights."""
    problem = sphere_problem(0)
    X, y, z, v = (torch.from_numpy(a) for a in (problem.X, problem.y, problem.z, problem.v))
    model, loss = Attention(X.shape[-1], readout=v, train_readout=False), as_loss("logistic")
    for _ in range(steps):
        model.zero_grad()
        loss(y * model(X, z)).mean().backward()
        with torch.no_grad():
            g = model.W.grad
            assert g is not None
            model.W.copy_(reference_step(model.W, g / (reference_dual_norm(g, p) + 2.2e-16), LR, p))


def fig4() -> None:
    """Every step of every trial, recorded on the usual grid."""
    problems = fig4_problems()
    for p, steps in STEPS.items():
        simulate(*problems, p=p, lr=LR, steps=steps, options=KERNEL)


def fig4_problems() -> tuple[Any, ...]:
    """X, y, z, v of its trials."""
    problems = [sphere_problem(seed) for seed in range(TRIALS)]
    return tuple(np.stack([getattr(problem, name) for problem in problems]) for name in ("X", "y", "z", "v"))


def time_of(run: Callable[[], object]) -> Any:
    """Seconds on the wall, and of all cores together."""
    wall, cpu = time.perf_counter(), time.process_time()
    run()
    return np.array([time.perf_counter() - wall, time.process_time() - cpu])


def plain_time(threads: int) -> Any:
    """What the plain loop would take for all of Fig 4, from a sample of its steps for each p."""
    torch.set_num_threads(1)  # the loop is too small for a second thread to do it any good
    whole = [time_of(partial(plain_loop, p, SAMPLE)) * TRIALS * steps / SAMPLE for p, steps in STEPS.items()]
    torch.set_num_threads(threads)
    return sum(whole)


def main(show: Show = say_nothing) -> dict[str, float]:
    """Print both times and their ratio, round by round; return the median ratios."""
    total, threads = TRIALS * sum(STEPS.values()), torch.get_num_threads()
    print(f"Fig 4 whole: {TRIALS} trials, {total:,} steps; {threads} threads.")
    first = time_of(partial(simulate, sphere_problem(0), steps=1, options=KERNEL))  # so that no round compiles
    print(f"First call of the kernel (compiling, or loading from the cache): {first[0]:.1f} s\n")
    print(f"{'round':>5s} {'plain, ms/step':>17s} {'kernel, s':>10s} {'us/step':>10s} {'ratio':>7s} {'per core':>8s}")
    ratios = []
    for k in range(ROUNDS):
        show("the plain loop", 2 * k, 2 * ROUNDS)
        plain = plain_time(threads)
        show("the kernel", 2 * k + 1, 2 * ROUNDS)
        fast = time_of(fig4)
        ratios.append(plain / fast)
        steps = f"{plain[0] / total * 1e3:17.3f} {fast[0]:10.2f} {fast[0] / total * 1e6:10.2f}"
        print(f"{k:5d} {steps} {ratios[-1][0]:7.0f} {ratios[-1][1]:8.0f}")
    wall, core = np.median(ratios, axis=0)
    print(f"\nThe kernel is {wall:.0f} times as fast as the plain loop on {threads} threads (goal {GOAL}),")
    print(f"and does {core:.0f} times as much in a second of one core, which other work on the machine disturbs less.")
    return {f"kernel, {threads} threads": float(wall), "kernel, per core": float(core), **several(show)}


def several(show: Show = say_nothing) -> dict[str, float]:
    """Print how long runs of Fig 4's size with several heads and classes take, as multiples of the binary kernel."""
    contestants: dict[str, Callable[[], object]] = {"binary": partial(sample, simulate, fig4_problems())}
    names = {f"{heads} head{'s' * (heads > 1)}, {classes} classes": (heads, classes) for heads, classes in SHAPES}
    for name, (heads, classes) in names.items():
        made = [class_problem(seed, classes=classes, heads=heads) for seed in range(TRIALS)]
        problems = tuple(np.stack(part) for part in zip(*made, strict=True))
        contestants[name] = partial(sample, simulate_heads, problems)
    seconds = take_turns(contestants, SEVERAL_ROUNDS, warmup=1, show=show, clock=time.process_time)
    title = f"Several heads and classes, {SEVERAL_STEPS} steps for each p, times of all cores over those of `simulate`"
    print(f"\n{title}:\n")
    print(f"{'':>22s} {'ratio':>7s} {'per head':>9s} {'per head and class':>19s}")
    ratios = {}
    for name, (heads, classes) in names.items():
        ratio = median_ratio(seconds, name, "binary")
        ratios[f"{name}, per head and class"] = ratio / heads / classes
        print(f"{name:>22s} {ratio:7.2f} {ratio / heads:9.2f} {ratio / heads / classes:19.2f}")
    print(f"\nThe goal is at most {SEVERAL_GOAL} per head and class.")
    return ratios


def sample(run: Callable[..., object], problems: tuple[Any, ...]) -> None:
    """The first steps of every trial, for each p of Fig 4."""
    for p in STEPS:
        run(*problems, p=p, lr=LR, steps=SEVERAL_STEPS, record=1, options=KERNEL)
