"""How long the SVM solvers take, against cvxpy with Clarabel, and how that grows.

Run ``python -m mirrormax.bench.svm``. One thread; the two take turns and only ratios within a round are
believed; the peer builds its problem with vectorised constraints, A W ≥ 1 as one expression, and solves it.
"""

from __future__ import annotations

import importlib
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
import tracemalloc
import warnings
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.bench.timing import Show, say_nothing
from mirrormax.data import Problem, sphere_problem
from mirrormax.svm import att_svm, lp_svm

Array = npt.NDArray[np.float64]
Ratios = dict[str, float]

PEER_LIMIT = 120.0  # seconds for one solve of the peer
BATCH_GOALS = {1.1: 60.0, 1.75: 60.0, 2.0: None, 3.0: 30.0, 6.0: 30.0}
NORM_GOALS: dict[Any, float | None] = {"spectral": 10.0, "nuclear": None, "l1": None, "linf": None, "rows-max": None}
SINGLE_GOAL = 5.0
MIDDLE_GOAL = 500.0
LARGE_GOAL = 1.5
QUERY_GOAL = 20.0
QUERY_EXPONENTS, QUERY_TOL = (1.5, 2.0, 3.0), 1e-6
EXPONENTS = (1.1, 1.75, 2.0, 3.0, 6.0)


def main(show: Show = say_nothing) -> Ratios:
    """Print every table, each in a process of its own if this one may use several threads; return the ratios."""
    importlib.import_module("cvxpy")  # is missed before anything is measured, and in the process that says so
    single = dict.fromkeys(("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"), "1")
    is_single = all(os.environ.get(name) == "1" for name in single)
    ratios: Ratios = {}
    for k, (name, part) in enumerate(PARTS.items()):
        show(name, k, len(PARTS))
        ratios |= (
            run_part(part) if is_single else _elsewhere(name, {**os.environ, **single, "PYTHONIOENCODING": "utf-8"})
        )
    return ratios


def run_part(part: Callable[[], Ratios]) -> Ratios:
    """The ratios of one table, printed."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # the peer warns about its own accuracy
        return part()


def _elsewhere(name: str, environment: dict[str, str]) -> Ratios:
    """The same in a new process, whose ratios come back through a file and whose table is printed as it grows."""
    with tempfile.TemporaryDirectory() as folder:
        returned = Path(folder) / "ratios.json"
        command = [sys.executable, "-m", "mirrormax.bench.svm", name, str(returned)]
        with subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, encoding="utf-8") as process:
            assert process.stdout is not None
            for line in process.stdout:
                print(line, end="", flush=True)
        if process.returncode:
            raise subprocess.CalledProcessError(process.returncode, command)
        ratios: Ratios = json.loads(returned.read_text(encoding="utf-8"))
    return ratios


def batches() -> Ratios:
    """100 problems of the paper's size in one call; the peer solves 20 of them a round, times 5."""
    problems = [sphere_problem(seed) for seed in range(100)]
    X, z = np.stack([p.X for p in problems]), np.stack([p.z for p in problems])
    alpha = np.stack([p.best_tokens() for p in problems])
    ratios: Ratios = {}
    _title("100 problems, n=6 T=8 d=10, one call", "p", "ms", "peer ms", "ratio", "goal", "largest gap")
    for p, goal in BATCH_GOALS.items():
        solution = att_svm(X, z, alpha, p=p)

        def theirs(p: float = p) -> None:
            for k in range(20):
                peer(rows(problems[k], alpha[k]), p)

        mine, other = _turns(partial(att_svm, X, z, alpha, p=p), theirs, rounds=5)
        ratio = statistics.median(5 * b / a for a, b in zip(mine, other, strict=True))
        _row(p, 1e3 * statistics.median(mine), 5e3 * statistics.median(other), ratio, goal, solution.gap.max())
        ratios[f"100 problems p={p:g}"] = ratio
    return ratios


def norms() -> Ratios:
    """100 problems of the paper's size in norms without p, one call; the peer solves 10 of them a round, times 10."""
    problems = [sphere_problem(seed) for seed in range(100)]
    X, z = np.stack([p.X for p in problems]), np.stack([p.z for p in problems])
    alpha = np.stack([p.best_tokens() for p in problems])
    ratios: Ratios = {}
    _title("100 problems, n=6 T=8 d=10, one call", "norm", "ms", "peer ms", "ratio", "goal", "largest gap")
    for norm, goal in NORM_GOALS.items():
        solution = att_svm(X, z, alpha, norm=norm)

        def theirs(norm: Any = norm) -> None:
            for k in range(10):
                peer_in(norm, rows(problems[k], alpha[k]), 10)

        mine, other = _turns(partial(att_svm, X, z, alpha, norm=norm), theirs, rounds=3)
        ratio = statistics.median(10 * b / a for a, b in zip(mine, other, strict=True))
        _row(norm, 1e3 * statistics.median(mine), 1e4 * statistics.median(other), ratio, goal, solution.gap.max())
        ratios[f"100 problems {norm}"] = ratio
    return ratios


def singles() -> Ratios:
    """One problem of the paper's size."""
    problems = [sphere_problem(seed) for seed in range(20)]
    chosen = [problem.best_tokens() for problem in problems]
    ratios: Ratios = {}
    _title("one problem, n=6 T=8 d=10 (mean of 20)", "p", "ms", "peer ms", "ratio", "goal", "largest gap")
    for p in EXPONENTS:
        gap = max(float(att_svm(a.X, a.z, c, p=p).gap) for a, c in zip(problems, chosen, strict=True))

        def ours(p: float = p) -> None:
            for problem, alpha in zip(problems, chosen, strict=True):
                att_svm(problem.X, problem.z, alpha, p=p)

        def theirs(p: float = p) -> None:
            for problem, alpha in zip(problems, chosen, strict=True):
                peer(rows(problem, alpha), p)

        mine, other = _turns(ours, theirs, rounds=5)
        ratio = statistics.median(b / a for a, b in zip(mine, other, strict=True))
        _row(p, 50 * statistics.median(mine), 50 * statistics.median(other), ratio, SINGLE_GOAL, gap)
        ratios[f"one problem p={p:g}"] = ratio
    return ratios


def middle() -> Ratios:
    """n=30, T=16, d=50: the peer runs once, it takes many seconds."""
    problem = sphere_problem(0, 30, 16, 50)
    alpha = problem.best_tokens()
    ratios: Ratios = {}
    _title("one problem, n=30 T=16 d=50", "p", "ms", "peer ms", "ratio", "goal", "largest gap")
    for p, goal in ((1.75, MIDDLE_GOAL), (2.0, None)):
        mine = [_seconds(partial(att_svm, problem.X, problem.z, alpha, p=p)) for _ in range(7)]
        other = _seconds(lambda p=p: peer(rows(problem, alpha), p))  # type: ignore[misc]
        gap = float(att_svm(problem.X, problem.z, alpha, p=p).gap)
        ratio = other / statistics.median(mine)
        _row(p, 1e3 * statistics.median(mine), 1e3 * other, ratio, goal, gap)
        ratios[f"n=30 T=16 d=50 p={p:g}"] = ratio
    return ratios


def large() -> Ratios:
    """Sizes at which the peer gave no answer in 160 s; it is not run. Memory is this package's peak."""
    for n, T, d, goal in ((60, 32, 100, LARGE_GOAL), (200, 64, 200, None)):
        problem = sphere_problem(0, n, T, d)
        alpha = problem.best_tokens()
        written_out = 8e-6 * n * (T - 1) * d * d
        title = f"one problem, n={n} T={T} d={d} (peer not run; A written out would be {written_out:.0f} MB)"
        _title(title, "p", "s", "goal s", "peak MB", "gap", "status")
        for p in EXPONENTS:
            start = time.perf_counter()
            solution = att_svm(problem.X, problem.z, alpha, p=p, throw=False)
            seconds = time.perf_counter() - start
            tracemalloc.start()
            att_svm(problem.X, problem.z, alpha, p=p, throw=False)
            peak = tracemalloc.get_traced_memory()[1] / 1e6
            tracemalloc.stop()
            _row(p, seconds, goal, peak, solution.gap, str(solution.status)[:40])
    return {}


def classifier() -> Ratios:
    """lp_svm with many more points than features."""
    rng = np.random.default_rng(0)
    v = rng.standard_normal(50)
    X = rng.standard_normal((5000, 50))
    y = np.sign(X @ v)
    X = X + 0.3 * y[:, None] * v / np.linalg.norm(v)
    ratios: Ratios = {}
    _title("lp_svm, n=5000 d=50", "p", "ms", "peer ms", "ratio", "goal", "gap")
    for p in EXPONENTS:
        gap = lp_svm(X, y, p=p).gap
        mine, other = _turns(partial(lp_svm, X, y, p=p), partial(peer, y[:, None] * X, p), 3)
        ratio = statistics.median(b / a for a, b in zip(mine, other, strict=True))
        _row(p, 1e3 * statistics.median(mine), 1e3 * statistics.median(other), ratio, 1.0, gap)
        ratios[f"lp_svm n=5000 d=50 p={p:g}"] = ratio
    return ratios


def growth() -> Ratios:
    """Seconds as n, T and d double, one at a time, from n=T=d=16."""
    _title("growth, ms (median of 3)", "n", "T", "d", "p=1.1", "p=1.75", "p=3", "p=6")
    sizes = [(16, 16, 16)]
    for factor in (2, 4):
        sizes += [(16 * factor, 16, 16), (16, 16 * factor, 16), (16, 16, 16 * factor)]
    sizes.append((64, 64, 64))
    for n, T, d in sizes:
        problem = sphere_problem(1, n, T, d)
        alpha = problem.best_tokens()
        cells: list[object] = [n, T, d]
        for p in (1.1, 1.75, 3.0, 6.0):
            solution = att_svm(problem.X, problem.z, alpha, p=p, throw=False)
            run = partial(att_svm, problem.X, problem.z, alpha, p=p, throw=False)
            milliseconds = 1e3 * statistics.median(_seconds(run) for _ in range(3))
            cells.append(milliseconds if solution.optimal else f"{milliseconds:.3g} {str(solution.status)[:10]}")
        _row(*cells)
    return {}


def across_the_switch() -> Ratios:
    """CPU seconds as samples grow past the number of weights; tokens, queries and weights that choose are Gaussian."""
    _title("T=32 d=64 p=2, Gaussian, one run each: CPU s", "n", "rows/weights", "s", "gap")
    for n in (130, 260, 520, 560, 1000):
        rng = np.random.default_rng(0)
        X, z, W = (rng.standard_normal(shape) for shape in ((n, 32, 64), (n, 64), (64, 64)))
        alpha = np.einsum("ntd,de,ne->nt", X, W, z, optimize=True).argmax(axis=1)
        start = time.process_time()
        solution = att_svm(X, z, alpha, p=2, throw=False)
        _row(n, n * 31 / 64**2, time.process_time() - start, solution.gap)
    return {}


def query_form() -> Ratios:
    """All rivals of ever more samples of one decoder head: tokens in 64 dimensions, queries in 577, T=48.

    Gaussian, chosen by Gaussian weights: some 13,000 rows are active at n=2000, where heads of trained models have
    hundreds. CPU seconds of one thread at the audit's tolerance, certificate included; the peer cannot take these sizes
    (A written out would have 3e9 entries). Memory at p=2 is the peak beside the data, per row.
    """
    title = "query form, d=64 e=577 T=48, Gaussian, tol=1e-6, one run each: CPU s"
    _title(title, "n", "rows", *(f"p={p:g}" for p in QUERY_EXPONENTS), "goal s", "largest gap", "kB/row")
    for n in (125, 250, 500, 1000, 2000):
        X, z, alpha = _queries(n, 48, 64, 577)
        seconds, gaps = [], []
        for p in QUERY_EXPONENTS:
            start = time.process_time()
            gaps.append(float(att_svm(X, z, alpha, p=p, tol=QUERY_TOL, throw=False).gap))
            seconds.append(time.process_time() - start)
        tracemalloc.start()
        att_svm(X, z, alpha, p=2, tol=0.1, throw=False)
        peak = tracemalloc.get_traced_memory()[1] / 1e3
        tracemalloc.stop()
        _row(n, n * 47, *seconds, QUERY_GOAL if n == 2000 else None, max(gaps), peak / (n * 47))
    X, z, alpha = _queries(60, 12, 8, 36)
    _title("query form, n=60 T=12 d=8 e=36, where the peer ends", "p", "ms", "peer ms", "ratio", "goal", "gap")
    ratios: Ratios = {}
    others = np.arange(12) != alpha[:, None]
    matrix = ((X[np.arange(60), alpha][:, None] - X)[..., None] * z[:, None, None, :])[others].reshape(-1, 8 * 36)
    for p in QUERY_EXPONENTS:
        gap = att_svm(X, z, alpha, p=p).gap
        mine, other = _turns(partial(att_svm, X, z, alpha, p=p), partial(peer, matrix, p), 3)
        ratio = statistics.median(b / a for a, b in zip(mine, other, strict=True))
        _row(p, 1e3 * statistics.median(mine), 1e3 * statistics.median(other), ratio, 1.0, gap)
        ratios[f"query form n=60 p={p:g}"] = ratio
    return ratios


def _queries(n: int, T: int, d: int, e: int) -> tuple[Array, Array, npt.NDArray[np.intp]]:
    rng = np.random.default_rng(0)
    X, z, W = (rng.standard_normal(shape) for shape in ((n, T, d), (n, e), (d, e)))
    return X, z, np.einsum("ntd,nd->nt", X, z @ W.T).argmax(axis=1)


def rows(problem: Problem, alpha: npt.NDArray[np.intp]) -> Array:
    """A written out, (n (T−1), d²), as the peer takes it."""
    n, T, d = problem.X.shape
    others = np.arange(T) != alpha[:, None]
    differences = problem.X[np.arange(n), alpha][:, None] - problem.X
    return np.asarray((differences[..., None] * problem.z[:, None, None, :])[others].reshape(-1, d * d))


def peer_in(norm: str, matrix: Array, d: int) -> float:
    """min ‖W‖ s.t. matrix vec(W) ≥ 1 in another norm, with cvxpy and Clarabel."""
    cp: Any = importlib.import_module("cvxpy")
    W = cp.Variable((d, d))
    sizes = {
        "spectral": cp.sigma_max,
        "nuclear": cp.normNuc,
        "l1": lambda w: cp.norm1(cp.vec(w, order="C")),
        "linf": lambda w: cp.norm_inf(cp.vec(w, order="C")),
        "rows-max": lambda w: cp.max(cp.norm(w, 2, axis=1)),
    }
    problem = cp.Problem(cp.Minimize(sizes[norm](W)), [matrix @ cp.vec(W, order="C") >= 1])
    problem.solve(solver="CLARABEL")
    return float(problem.value)


def peer(matrix: Array, p: float) -> float:
    """min ‖w‖_p s.t. matrix w ≥ 1 with cvxpy and Clarabel."""
    cp: Any = importlib.import_module("cvxpy")  # a peer for the bench alone, not needed otherwise
    w = cp.Variable(matrix.shape[1])
    problem = cp.Problem(cp.Minimize(cp.pnorm(w, p)), [matrix @ w >= 1])
    problem.solve(solver=cp.CLARABEL, time_limit=PEER_LIMIT)
    return float(problem.value)


def _turns(ours: Callable[[], object], theirs: Callable[[], object], rounds: int) -> tuple[list[float], list[float]]:
    ours(), theirs()  # the first of each pays for imports and caches
    pairs = [(_seconds(ours), _seconds(theirs)) for _ in range(rounds)]
    return [a for a, _ in pairs], [b for _, b in pairs]


def _seconds(run: Callable[[], object]) -> float:
    start = time.perf_counter()
    run()
    return time.perf_counter() - start


def _title(title: str, *columns: str) -> None:
    print(f"\n{title}\n" + "".join(f"{name:>14}" for name in columns), flush=True)


def _row(*cells: object) -> None:
    shown = ("-" if c is None else f"{c:.3g}" if isinstance(c, (float, np.floating)) else str(c) for c in cells)
    print("".join(f"{cell:>14}" for cell in shown), flush=True)


PARTS: dict[str, Callable[[], Ratios]] = {
    part.__name__: part
    for part in (batches, norms, singles, middle, large, classifier, growth, across_the_switch, query_form)
}


if __name__ == "__main__":
    if len(sys.argv) == 3:
        Path(sys.argv[2]).write_text(json.dumps(run_part(PARTS[sys.argv[1]])), encoding="utf-8")
    else:
        main()
