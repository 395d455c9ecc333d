"""The Geometry page's answer: train on a problem, solve its attention SVM, and say where everything is drawn."""

from __future__ import annotations

import time
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.app.planes import slice_through, token_planes
from mirrormax.attention import is_locally_optimal
from mirrormax.data import Problem
from mirrormax.dynamics import Trajectory, simulate
from mirrormax.geometry import direction
from mirrormax.svm import Solution, att_svm

Array = npt.NDArray[np.float64]

FRAMES = 50
DIGITS = 5
SMALLEST_SHARE = 0.01


def geometry(problem: Problem, p: float, lr: float, steps: int, backend: str) -> dict[str, Any]:
    """Everything that the page draws for one p, as plain data.

    A problem whose head is zero has no scores yet: its head is trained too (ℓp-JointGD).
    """
    began = time.perf_counter()
    run = _train(problem, p, lr, steps, backend)
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
        "loss": _plain(run.loss[1:]),
        "milliseconds": round(1000 * (time.perf_counter() - began)),
    }


def _train(problem: Problem, p: float, lr: float, steps: int, backend: str) -> Trajectory:
    run = simulate(
        problem.X,
        problem.y,
        problem.z,
        problem.v,
        p=p,
        lr=lr,
        steps=steps,
        mask=problem.mask,
        train_head=not problem.v.any(),
        record=FRAMES,
        backend=backend,
    )
    if len(run.steps) < 2 or not np.isfinite(run.W).all():
        raise ValueError(f"training ended at once ({run.status}) at p = {p:g} and step size {lr:g}; try smaller steps.")
    return run


def _solve(problem: Problem, alpha: Any, p: float) -> Solution | None:
    """The attention SVM of the tokens that were selected, or None if nothing separates them."""
    solution = att_svm(problem.X, problem.z, alpha, p, problem.mask, throw=False)
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
    """The slice of the unit ball through the solution, the region of its margin, and the path."""
    unit = _direction(target, p)
    cut = slice_through(unit, p, ranking)
    found: dict[str, Any] = {
        "entries": [[row + 1, column + 1] for row, column in cut.entries],
        "radius": _plain(np.array(cut.radius)),
        "solution": None,
        "half_planes": [],
        "path": _plain(cut.of(_direction(run.W[1:], p))),
    }
    if solution is not None:
        x, z = _constraints(problem, run.alpha)
        margin = np.einsum("md,de,me->m", x, unit, z)
        found["solution"] = _plain(cut.centre)
        found["half_planes"] = _plain(cut.half_planes(x, z, margin))
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
    if np.ndim(array):
        return [_plain(part) for part in array]
    return float(f"{array:.{DIGITS}g}") if np.isfinite(array) else None
