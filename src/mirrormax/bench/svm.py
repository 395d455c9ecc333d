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
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._parallel import on_one_thread
from mirrormax.bench.timing import Ratios, Show, median_ratio, say_nothing, take_turns
from mirrormax.data import sphere_problem
from mirrormax.svm import att_svm

Array = npt.NDArray[np.float64]

PEER_LIMIT = 120.0  # seconds for one solve of the peer
BATCH_GOALS = {1.1: 60.0, 1.75: 60.0, 2.0: None, 3.0: 30.0, 6.0: 30.0}
NORM_GOALS: dict[Any, float | None] = {"spectral": 10.0, "nuclear": None, "l1": None, "linf": None, "rows-max": None}
SINGLE_GOAL = 5.0
MIDDLE_GOAL = 500.0
GROWING = (
    ((130, 260, 520, 560, 1000), 32, 64, (2.0,), None),
    ((125, 250, 500, 1000, 2000), 48, 577, (1.5, 2.0, 3.0), 1e-6),  # the goal at 2000 is 20 s
)
"""Samples, tokens, sizes of queries, p and tolerance."""
EXPONENTS = (1.1, 1.75, 2.0, 3.0, 6.0)


def main(show: Show = say_nothing) -> Ratios:
    """Print every table and return the ratios."""
    ratios: Ratios = {}
    for k, (name, part) in enumerate(PARTS.items()):
        show(name, k, len(PARTS))
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # the peer warns about its own accuracy
            ratios |= on_one_thread(lambda make: make(), part)
    return ratios


def batches() -> Ratios:
    """100 problems of the paper's size in one call; the peer solves 20 of them a round, times 5."""
    return _in_one_call("p", {p: ({"p": p}, goal) for p, goal in BATCH_GOALS.items()}, peer_solves=20, rounds=5)


def norms() -> Ratios:
    """100 problems of the paper's size in norms without p, one call; the peer solves 10 of them a round, times 10."""
    cases = {norm: ({"norm": norm}, goal) for norm, goal in NORM_GOALS.items()}
    return _in_one_call("norm", cases, peer_solves=10, rounds=3)


def _in_one_call(
    column: str, cases: dict[Any, tuple[dict[str, Any], float | None]], peer_solves: int, rounds: int
) -> Ratios:
    problems = [sphere_problem(seed) for seed in range(100)]
    X, z = np.stack([p.X for p in problems]), np.stack([p.z for p in problems])
    alpha = np.stack([p.best_tokens() for p in problems])
    matrices = [rows(X[k], z[k], alpha[k]) for k in range(peer_solves)]
    ratios: Ratios = {}
    _title("100 problems, n=6 T=8 d=10, one call", column, "ms", "peer ms", "ratio", "goal", "largest gap")
    for name, (options, goal) in cases.items():
        ours = partial(att_svm, X, z, alpha, **options)
        gap = ours().gap.max()
        label = f"p={name:g}" if column == "p" else name
        theirs = partial(_each, matrices, name)
        ratios[f"100 problems {label}"] = _compare(name, ours, theirs, rounds, goal, gap, times=100 / peer_solves)
    return ratios


def singles() -> Ratios:
    """One problem of the paper's size."""
    problems = [sphere_problem(seed) for seed in range(20)]
    chosen = [problem.best_tokens() for problem in problems]
    matrices = [rows(problem.X, problem.z, alpha) for problem, alpha in zip(problems, chosen, strict=True)]
    ratios: Ratios = {}
    _title("one problem, n=6 T=8 d=10 (mean of 20)", "p", "ms", "peer ms", "ratio", "goal", "largest gap")
    for p in EXPONENTS:

        def ours(p: float = p) -> float:
            return max(float(att_svm(a.X, a.z, c, p=p).gap) for a, c in zip(problems, chosen, strict=True))

        theirs = partial(_each, matrices, p)
        ratios[f"one problem p={p:g}"] = _compare(p, ours, theirs, 5, SINGLE_GOAL, ours(), of=20)
    return ratios


def middle() -> Ratios:
    """n=30, T=16, d=50: the peer runs once, it takes many seconds."""
    problem = sphere_problem(0, 30, 16, 50)
    alpha = problem.best_tokens()
    ratios: Ratios = {}
    _title("one problem, n=30 T=16 d=50", "p", "ms", "peer ms", "ratio", "goal", "largest gap")
    for p, goal in ((1.75, MIDDLE_GOAL), (2.0, None)):
        ours = partial(att_svm, problem.X, problem.z, alpha, p=p)
        theirs = partial(peer, rows(problem.X, problem.z, alpha), p)
        ratios[f"n=30 T=16 d=50 p={p:g}"] = _compare(p, ours, theirs, 1, goal, ours().gap, warmup=0)
    return ratios


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


def _compare(
    cell: object,
    ours: Callable[[], object],
    theirs: Callable[[], object],
    rounds: int,
    goal: float | None,
    gap: object,
    times: float = 1.0,
    of: int = 1,
    warmup: int = 1,
) -> float:
    """The median ratio of one row, printed; the peer does 1/``times`` of the work, which is that of ``of`` problems."""
    seconds = take_turns({"ours": ours, "theirs": theirs}, rounds, warmup, clock=time.process_time)
    ratio = times * median_ratio(seconds, "theirs", "ours")
    mine, other = (1e3 / of * statistics.median(column) for column in seconds.values())
    _row(cell, mine, times * other, ratio, goal, gap)
    return ratio


def _title(title: str, *columns: str) -> None:
    print(f"\n{title}\n" + "".join(f"{name:>14}" for name in columns), flush=True)


def _row(*cells: object) -> None:
    shown = ("-" if c is None else f"{c:.3g}" if isinstance(c, (float, np.floating)) else str(c) for c in cells)
    print("".join(f"{cell:>14}" for cell in shown), flush=True)


PARTS: dict[str, Callable[[], Ratios]] = {part.__name__: part for part in (batches, norms, singles, middle, growth)}
