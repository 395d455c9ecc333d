"""The Geometry page's answer: train on a problem, solve its attention SVM, and say where everything is drawn."""

from __future__ import annotations

import time
from collections.abc import Callable
from math import isfinite
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.app.planes import entries_plane, start_plane, token_planes
from mirrormax.attention import is_locally_optimal
from mirrormax.data import Problem
from mirrormax.dynamics import Trajectory, simulate
from mirrormax.geometry import direction
from mirrormax.svm import Solution, att_svm

Array = npt.NDArray[np.float64]

FRAMES = 50
DIGITS = 5
SMALLEST_SHARE = 0.01
# The paper's two: at zero, and with entries from N(0, 1).
STARTS: dict[str, Callable[[int], Array]] = {
    "random": lambda d: np.random.default_rng(0).standard_normal((d, d)),
    "zero": lambda d: np.zeros((d, d)),
}


def geometry(problem: Problem, p: float, lr: float, steps: int, start: str, backend: str) -> dict[str, Any]:
    """Everything that the page draws for one p, as plain data.

    ``start`` is one of ``STARTS``. A problem whose head is zero has no scores yet: its head is trained too
    (ℓp-JointGD).
    """
    began = time.perf_counter()
    run = _train(problem, p, lr, steps, start, backend)
    solution = _solve(problem, run.alpha, p)
    plain = _solve(problem, run.alpha, 2.0)  # gradient descent's, to tell apart from
    target = run.W[-1] if solution is None else solution.W
    ranking = target if plain is None else plain.W
    return {
        "p": p,
        "lr": lr,
        "steps": run.steps[1:].tolist(),
        "joint": run.v is not None,
        "shape": dict(zip("nTd", problem.X.shape, strict=True)),
        "alpha": run.alpha.tolist(),
        "labels": problem.y.astype(int).tolist(),
        "tokens": _tokens(problem, run, target),
        "weights": _weights(problem, run, solution, target, ranking, p),
        "divergence": {
            "own": None if solution is None else _plain(run.divergence_to(solution.W)[1:]),
            "plain": None if plain is None or p == 2 else _plain(run.divergence_to(plain.W)[1:]),
        },
        "solution": _facts(problem, run, solution),
        "mass": _plain(run.mass[1:]),
        "norm": _plain(run.norm[1:]),
        "backend": backend,
        "milliseconds": round(1000 * (time.perf_counter() - began)),
    }


def _train(problem: Problem, p: float, lr: float, steps: int, start: str, backend: str) -> Trajectory:
    d = problem.X.shape[-1]
    run = simulate(
        problem.X,
        problem.y,
        problem.z,
        problem.v,
        p=p,
        lr=lr,
        steps=steps,
        W0=STARTS[start](d),
        mask=problem.mask,
        train_head=not problem.v.any(),
        record=FRAMES,
        backend=backend,
    )
    if len(run.steps) < 2:
        why = "does not move" if run.status == "stationary" else "grows beyond all numbers"
        raise ValueError(
            f"training {why} from the {start} start at p = {p:g} and step size {lr:g}; change one of these."
        )
    return run


def _solve(problem: Problem, alpha: Any, p: float) -> Solution | None:
    """The attention SVM of the tokens that were selected, or None if nothing separates them."""
    solution = att_svm(problem, alpha, p=p, throw=False)
    return solution if solution.optimal else None


def _tokens(problem: Problem, run: Trajectory, target: Array) -> dict[str, Any]:
    """Tokens, and the directions W z_i of the solution and of every frame, on each sample's plane."""
    W = run.W[1:]
    aims = problem.z @ target.T
    turning = np.einsum("kij,nj->kni", W, problem.z)
    planes = token_planes(problem.X, aims, turning[0])
    logits = np.einsum("ntd,knd->knt", problem.X, turning)
    if problem.mask is not None:
        logits = np.where(problem.mask, logits, -np.inf)
    attention = np.exp(logits - logits.max(-1, keepdims=True))
    return {
        "direct": problem.X.shape[-1] == 2,
        "places": _plain(np.einsum("npd,ntd->ntp", planes, problem.X)),
        "present": np.ones(problem.X.shape[:2], bool).tolist() if problem.mask is None else problem.mask.tolist(),
        "aim": _plain(np.einsum("npd,nd->np", planes, _unit(aims))),
        "turning": _plain(np.einsum("npd,knd->knp", planes, _unit(turning))),
        "attention": _plain(attention / attention.sum(-1, keepdims=True)),
    }


def _weights(
    problem: Problem, run: Trajectory, solution: Solution | None, target: Array, ranking: Array, p: float
) -> dict[str, Any]:
    """A plane through the solution: the unit ball, the region of its margin, and the path.

    In two dimensions a plane of two entries of W, in which the ball looks as one knows it; in more dimensions that
    of the first step and the solution, since two entries out of many show little of either.
    """
    unit = _direction(target, p)
    few = problem.X.shape[-1] == 2
    plane = entries_plane(unit, p, ranking) if few else start_plane(unit, p, run.W[1])
    found: dict[str, Any] = {
        "entries": plane.entries,
        "ball": _plain(plane.ball),
        "solution": None,
        "half_planes": [],
        "path": _plain(plane.place(_direction(run.W[1:], p))),
    }
    if solution is not None:
        x, z = _constraints(problem, run.alpha)
        margin = np.einsum("md,de,me->m", x, unit, z)
        found["solution"] = _plain(plane.solution)
        found["half_planes"] = _plain(plane.half_planes(x, z, margin))
    return found


def _constraints(problem: Problem, alpha: Any) -> tuple[Array, Array]:
    """The leads x_iα − x_it of the chosen tokens, and their queries z_i: (m, d) each."""
    n, T, _ = problem.X.shape
    others = np.ones((n, T), bool) if problem.mask is None else problem.mask.copy()
    others[np.arange(n), alpha] = False
    sample, token = np.nonzero(others)
    return problem.X[sample, alpha[sample]] - problem.X[sample, token], problem.z[sample]


def _facts(problem: Problem, run: Trajectory, solution: Solution | None) -> dict[str, Any] | None:
    if solution is None:
        return None
    head = problem.v if run.v is None else run.v[-1]
    arrays: dict[str, Any] = {"X": problem.X, "y": problem.y, "z": problem.z, "v": head, "mask": problem.mask}
    verdict = is_locally_optimal(**arrays, alpha=run.alpha, support=solution.support)
    size = np.abs(solution.W)
    return {
        "margin": float(solution.margin),
        "gap": float(solution.gap),
        "support": np.asarray(solution.support).tolist(),
        "locally_optimal": bool(verdict.optimal),
        "large_entries": int((size >= SMALLEST_SHARE * size.max()).sum()),
        "all_entries": int(size.size),
    }


def _direction(weights: Any, p: float) -> Array:
    return np.asarray(direction(weights, p))


def _unit(vectors: Array) -> Array:
    length = np.linalg.norm(vectors, axis=-1, keepdims=True)
    return np.asarray(vectors / np.where(length > 0, length, 1.0))


def _plain(array: Any) -> Any:
    """Nested lists of numbers with a few digits; None for what is not finite."""
    array = np.asarray(array, dtype=np.float64)
    numbers = [float(f"{x:.{DIGITS}g}") if isfinite(x) else None for x in array.ravel().tolist()]
    return np.array(numbers, dtype=object).reshape(array.shape).tolist()
