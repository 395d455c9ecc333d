"""Timing on a noisy machine: contestants take turns, and only ratios within a round are believed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping

Ratios = dict[str, float]
Show = Callable[[str, float, float | None], None]
"""How far a benchmark is: the name of the part, how much of it is done, and of how much."""


def say_nothing(part: str, done: float, total: float | None) -> None:
    """The ``show`` of whoever does not want to know."""


def take_turns(
    contestants: Mapping[str, Callable[[], object]],
    rounds: int = 15,
    warmup: int = 2,
    show: Show = say_nothing,
    clock: Callable[[], float] = time.perf_counter,
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every round runs all of them, one after another.

    For contestants of one thread, ``clock=time.thread_time`` leaves out the time in which others had the processor.
    """
    turns = (warmup + rounds) * len(contestants)
    for k in range(warmup):
        for j, run in enumerate(contestants.values()):
            show("warming up", k * len(contestants) + j, turns)
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for k in range(rounds):
        show("rounds", (warmup + k) * len(contestants), turns)
        for name, run in contestants.items():
            start = clock()
            run()
            seconds[name].append(clock() - start)
    return seconds


def median_ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of how many times as long ``name`` took as ``base``."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))


def print_ratios(title: str, ratios: Ratios, goals: Mapping[str, float | None] | None = None) -> Ratios:
    """Print a table with the goals where there are some, and return its ratios."""
    print(f"\n{title}\n")
    for name, ratio in ratios.items():
        goal = (goals or {}).get(name)
        print(f"{name:48s} {ratio:9.2f} {'' if goal is None else f'<= {goal:g}':>7s}", flush=True)
    return ratios
