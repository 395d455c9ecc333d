"""How long the SVM solvers take, against cvxpy with Clarabel, and how that grows.

One thread; the two take turns and only ratios within a round are believed; the peer builds its problem with
vectorised constraints, A W ≥ 1 as one expression, and solves it.
"""

from __future__ import annotations

import importlib
import math
import statistics
import time
import warnings
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._parallel import on_one_thread
from mirrormax.bench.ratios import Ratios, Show, median_ratio, say_nothing, take_turns
from mirrormax.data import sphere_problem
from mirrormax.svm import att_svm

Array = npt.NDArray[np.float64]

PEER_LIMIT = 120.0  # seconds for one solve of the peer
GROWING = (
    ((130, 260, 520, 560, 1000), 32, 64, (2.0,), None),
    ((125, 250, 500, 1000, 2000), 48, 577, (1.5, 2.0, 3.0), 1e-6),  # the goal at 2000 is 20 s
)
"""Samples, tokens, sizes of queries, p and tolerance."""


@dataclass(frozen=True)
class Contest:
    """Random problems that ours solves, in one call or one by one, and some of which the peer solves, a round; for each
    p or norm, with its goal if there is one."""

    title: str
    name: str  # of its ratios
    goals: Mapping[Any, float | None]
    problems: int
    peer_solves: int
    one_call: bool = False
    size: tuple[int, int, int] = (6, 8, 10)
    rounds: int = 5
    warmup: int = 1

    def run(self) -> Ratios:
        """A row for each p or norm, printed: milliseconds of a call, of as much by the peer, and the median ratio."""
        made = [sphere_problem(seed, *self.size) for seed in range(self.problems)]
        calls = [(problem.X, problem.z, problem.best_tokens()) for problem in made]
        matrices = [rows(*call) for call in calls[: self.peer_solves]]
        if self.one_call:
            X, z, alpha = (np.stack(part) for part in zip(*calls, strict=True))
            calls = [(X, z, alpha)]
        times, ratios = self.problems / self.peer_solves, {}
        _title(self.title, "p or norm", "ms", "peer ms", "ratio", "goal", "largest gap")
        for size, goal in self.goals.items():
            ours, theirs = partial(_largest_gap, calls, size), partial(_each, matrices, size)
            gap = ours()
            seconds = take_turns({"ours": ours, "theirs": theirs}, self.rounds, self.warmup, clock=time.process_time)
            mine, other = (1e3 / len(calls) * statistics.median(column) for column in seconds.values())
            ratio = times * median_ratio(seconds, "theirs", "ours")
            _row(size, mine, times * other, ratio, goal, gap)
            ratios[f"{self.name} {size if isinstance(size, str) else f'p={size:g}'}"] = ratio
        return ratios


HUNDRED = "100 problems, n=6 T=8 d=10, one call"
SINGLES = dict.fromkeys((1.1, 1.75, 2.0, 3.0, 6.0), 5.0)
BATCHES = {1.1: 60.0, 1.75: 60.0, 2.0: None, 3.0: 30.0, 6.0: 30.0}
NORMS = {"spectral": 10.0, **dict.fromkeys(("nuclear", "l1", "linf", "rows-max"))}
MIDDLE = {1.75: 500.0, 2.0: None}  # the peer runs once, it takes many seconds


def main(show: Show = say_nothing) -> Ratios:
    """Print every table and return the ratios."""
    ratios: Ratios = {}
    for k, (name, part) in enumerate(PARTS.items()):
        show(name, k, len(PARTS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peer warns about its own accuracy
            ratios |= on_one_thread(lambda make: make(), part)
    return ratios


def _largest_gap(calls: list[tuple[Any, ...]], size: float | str) -> float:
    """The largest duality gap of all answers."""
    options: Any = {"norm": size} if isinstance(size, str) else {"p": size}
    return max(float(np.max(att_svm(*call, **options).gap)) for call in calls)


def growth() -> Ratios:
    """CPU seconds as samples grow past the number of weights, and as a decoder head's do, with all their rivals.

    Tokens, queries and the weights that choose are Gaussian. Of the head, with queries in 577 dimensions and at the
    audit's tolerance, some 13,000 rows are active at n=2000, where heads of trained models have hundreds. The peer
    cannot take these sizes: A written out would have 3e9 entries.
    """
    for sizes, T, e, exponents, tol in GROWING:
        title = f"T={T} d=64 e={e}, Gaussian, one run each: CPU s"
        _title(title, "n", "rows", "rows/weights", *(f"p={p:g}" for p in exponents), "largest gap")
        for n in sizes:
            rng = np.random.default_rng(0)
            X, z, W = (rng.standard_normal(shape) for shape in ((n, T, 64), (n, e), (64, e)))
            alpha = np.einsum("ntd,nd->nt", X, z @ W.T).argmax(axis=1)
            seconds, gaps = [], []
            for p in exponents:
                start = time.process_time()
                gaps.append(float(att_svm(X, z, alpha, p=p, tol=tol, throw=False).gap))
                seconds.append(time.process_time() - start)
            _row(n, n * (T - 1), n * (T - 1) / (64 * e), *seconds, max(gaps))
    return {}


def rows(X: Array, z: Array, alpha: npt.NDArray[np.intp]) -> Array:
    """A written out, (n (T−1), d e), as the peer takes it."""
    others = np.arange(X.shape[1]) != alpha[:, None]
    differences = X[np.arange(len(X)), alpha][:, None] - X
    return np.asarray((differences[..., None] * z[:, None, None, :])[others].reshape(others.sum(), -1))


def peer(matrix: Array, size: float | str) -> float:
    """min ‖w‖ s.t. matrix w ≥ 1 with cvxpy and Clarabel, in ℓp or in a norm of square matrices by its name."""
    cp: Any = importlib.import_module("cvxpy")  # a peer for the bench alone, not needed otherwise
    w = cp.Variable(matrix.shape[1])
    d = math.isqrt(matrix.shape[1])
    sizes = {
        "spectral": lambda: cp.sigma_max(cp.reshape(w, (d, d), order="C")),
        "nuclear": lambda: cp.normNuc(cp.reshape(w, (d, d), order="C")),
        "l1": lambda: cp.norm1(w),
        "linf": lambda: cp.norm_inf(w),
        "rows-max": lambda: cp.max(cp.norm(cp.reshape(w, (d, d), order="C"), 2, axis=1)),
    }
    goal = sizes[size]() if isinstance(size, str) else cp.pnorm(w, size)
    problem = cp.Problem(cp.Minimize(goal), [matrix @ w >= 1])
    problem.solve(solver=cp.CLARABEL, time_limit=PEER_LIMIT)
    return float(problem.value)


def _each(matrices: list[Array], size: float | str) -> None:
    for matrix in matrices:
        peer(matrix, size)


def _title(title: str, *columns: str) -> None:
    print(f"\n{title}\n" + "".join(f"{name:>14}" for name in columns), flush=True)


def _row(*cells: object) -> None:
    shown = ("-" if c is None else f"{c:.3g}" if isinstance(c, (float, np.floating)) else str(c) for c in cells)
    print("".join(f"{cell:>14}" for cell in shown), flush=True)


PARTS: dict[str, Callable[[], Ratios]] = {
    "batches": Contest(HUNDRED, "100 problems", BATCHES, 100, 20, one_call=True).run,
    "norms": Contest(HUNDRED, "100 problems", NORMS, 100, 10, one_call=True, rounds=3).run,
    "singles": Contest("one problem, n=6 T=8 d=10 (mean of 20)", "one problem", SINGLES, 20, 20).run,
    "middle": Contest(
        "one problem, n=30 T=16 d=50", "n=30 T=16 d=50", MIDDLE, 1, 1, size=(30, 16, 50), rounds=1, warmup=0
    ).run,
    "growth": growth,
}
