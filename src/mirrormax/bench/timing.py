"""Timing on a noisy machine: contestants take turns, and only ratios within a round are believed."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Mapping


def take_turns(
    contestants: Mapping[str, Callable[[], object]], rounds: int = 15, warmup: int = 2
) -> dict[str, list[float]]:
    """Seconds of each contestant in each round; every round runs all of them, one after another."""
    for _ in range(warmup):
        for run in contestants.values():
            run()
    seconds: dict[str, list[float]] = {name: [] for name in contestants}
    for _ in range(rounds):
        for name, run in contestants.items():
            start = time.perf_counter()
            run()
            seconds[name].append(time.perf_counter() - start)
    return seconds


def median_ratio(seconds: Mapping[str, list[float]], name: str, base: str) -> float:
    """The median over rounds of how many times as long ``name`` took as ``base``."""
    return statistics.median(a / b for a, b in zip(seconds[name], seconds[base], strict=True))
