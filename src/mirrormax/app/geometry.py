"""The Geometry page's answer: train on a problem, solve its attention SVM, and say where everything is drawn."""

from __future__ import annotations

from base64 import b64encode
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax.app.planes import WeightPlane, entries_plane, size_of, start_plane, token_planes
from mirrormax.app.question import RULES, STARTS, Question
from mirrormax.attention import is_locally_optimal, leads, optimal_tokens
from mirrormax.dynamics import SimulationOptions, Trajectory, simulate
from mirrormax.geometry import directional_divergence
from mirrormax.problem import Problem
from mirrormax.svm import Solution, att_svm
from mirrormax.theory import SMALLEST_STEP, rate

Array = npt.NDArray[np.float64]

FRAMES = 50
COARSER = 3
"""While something is dragged, one frame of so many is made."""
DIGITS = 5
SMALLEST_SHARE = 0.01
STRIP = (1.05, 1.1, 1.25, 1.5, 1.75, 2.0, 3.0, 4.0, 6.0)
"""The exponents of the film strip of solutions."""


@dataclass(frozen=True, eq=False)
class Track:
    """Training by a p or a rule, and where it goes."""

    p: float
    norm: float | str
    run: Trajectory
    alpha: npt.NDArray[np.int64]  # the tokens that its SVM is asked about
    solution: Solution | None  # None where nothing separates these
    target: Array  # the solution, or else the last weights
    way: Array | None  # how far from its own solution it is at every frame
    directions: Array  # W(k)/‖W(k)‖ at every frame
    unit: Array  # the direction of the target


def geometry(problem: Problem, question: Question, backend: str) -> dict[str, Any]:
    """Everything that the page draws for one question, as plain data.

    While a token is dragged in more than two dimensions the other p are left out (``others`` is None), as each would
    take as long as the one that is looked at.

    Frame 0 is the start, before any step. A problem whose head is zero has no scores yet: its head is trained too
    (ℓp-JointGD).
    """
    problem = question.moved(problem)
    own = track(problem, question, question.p, backend)
    same = replace(question, rule="mirror", p=2.0, others=(), held=None)  # all that the paths of other p depend on
    others = None if question.held is not None else [_kept_track(problem, same, p, backend) for p in question.others]
    plain = own.solution if own.norm == 2 else solve(problem, own.alpha, 2.0)  # gradient descent's, to tell apart from
    if problem.X.shape[-1] == 2:  # two entries of W, between which the ball looks as one knows it
        plane = entries_plane(own.unit, own.norm, own.target if plain is None else np.asarray(plain.W))
    else:  # two entries out of many show little of the first step and of the solution
        plane = start_plane(own.unit, own.norm, np.asarray(own.run.W[1]))
    from_plain = None
    if plain is not None and own.norm != 2 and not isinstance(own.norm, str):
        from_plain = away(problem, own.run.W, own.alpha, plain, own.norm)
    return {
        "p": question.p,
        "lr": question.lr,
        "rule": question.rule,
        "potential": question.potential,
        "norm": own.norm,
        "steps": own.run.steps.tolist(),
        "joint": own.run.v is not None,
        "shape": dict(zip("nTd", problem.X.shape, strict=True)),
        "alpha": own.alpha.tolist(),
        "trained": own.run.alpha.tolist(),
        "labels": problem.y.astype(int).tolist(),
        "tokens": _tokens(problem, own, question),
        "weights": _weights(problem, own, plane),
        "divergence": {"own": plain_list(own.way), "plain": plain_list(from_plain)},
        "rate": None if question.draft is not None else _rate(own),  # a few frames would draw it too low
        "solution": _facts(problem, own),
        "mass": plain_list(own.run.mass),
        "norms": plain_list(own.run.norm),
        "heat": heat(own.run.W),
        "strip": None if question.draft is not None else strip(problem, own.alpha),
        "others": None if others is None else [_other(other, plane) for other in others],
        "backend": backend,
    }


def track(problem: Problem, question: Question, p: float, backend: str) -> Track:
    """Train by one p and solve the SVM of the tokens asked for; ValueError if training takes no step."""
    W0 = STARTS[question.start](problem.X.shape[-1], 0)
    run = simulated(problem, question, p, W0, frames(question.steps, question.draft), backend)
    if len(run.steps) < 2:
        why = "does not move" if run.status == "stationary" else "grows beyond all numbers"
        raise ValueError(
            f"training {why} from the {question.start} start at p = {p:g} and step size {question.lr:g}; "
            "change one of these."
        )
    alpha, norm = chosen_tokens(problem, run, question.alpha), question.norm(p)
    solution = solve(problem, alpha, norm)
    target = np.asarray(run.W[-1] if solution is None else solution.W)
    way = None if solution is None else away(problem, run.W, alpha, solution, norm)
    directions = _divided(run.W, size_of(run.W, norm)[:, None, None])
    return Track(p, norm, run, alpha, solution, target, way, directions, _divided(target, size_of(target, norm)))


_kept_track = lru_cache(maxsize=16)(track)
"""Dragging p changes no other path."""


def simulated(
    problem: Problem, question: Question, p: float, W0: Array, record: int | list[int], backend: str
) -> Trajectory:
    """The training of a question from W0, by the backend if its kernel knows this training."""
    compiles = question.rule == "mirror" and question.potential == "Lp"
    return simulate(
        problem,
        p=question.mirror(p),
        rule=RULES[question.rule][0] if question.rule in RULES else "mirror",
        lr=question.lr,
        steps=question.steps,
        W0=W0,
        train_readout=not problem.v.any(),
        record=record,
        options=SimulationOptions(backend=backend if compiles else "tensor"),
    )


def frames(steps: int, shown: int | None) -> list[int]:
    """The steps to record: ``FRAMES`` at equal ratios; or, while something is dragged, every third of these with the
    step that is ``shown`` and the first, which spans the planes. What is drawn of a step is the same either way; what
    depends on all of them, Theorem 4's line, is left out meanwhile."""
    every = np.unique(np.rint(np.geomspace(1, steps, FRAMES)).astype(int)).tolist()
    return every if shown is None else sorted({1, shown, *every[::-COARSER]})


def chosen_tokens(problem: Problem, run: Trajectory, choice: str | tuple[int, ...]) -> npt.NDArray[np.int64]:
    """One token per sample: those that training selected, those of the highest scores, or those that were named."""
    if choice == "trained":
        return np.asarray(run.alpha)
    if isinstance(choice, str):  # "optimal"
        head = problem.v if run.v is None else run.v[-1]
        return np.asarray(optimal_tokens(X=problem.X, y=problem.y, v=head, mask=problem.mask).alpha)
    n, T, _ = problem.X.shape
    present = _present(problem)
    if len(choice) != n or not all(t < T and present[i, t] for i, t in enumerate(choice)):
        raise ValueError(f"alpha must name one of {T} tokens for each of {n} samples, got {list(choice)}.")
    return np.array(choice, dtype=np.int64)


def solve(problem: Problem, alpha: Any, norm: float | str) -> Solution | None:
    """The attention SVM of these tokens in ℓp or a norm with a name, or None if nothing separates them."""
    return _kept_solution(problem, tuple(np.asarray(alpha).tolist()), norm)


@lru_cache(maxsize=256)
def _kept_solution(problem: Problem, alpha: tuple[int, ...], norm: float | str) -> Solution | None:
    settings: Any = {"norm": norm} if isinstance(norm, str) else {"p": norm}
    solution = att_svm(problem, np.array(alpha), throw=False, **settings)
    return solution if solution.optimal else None


def away(problem: Problem, W: Any, alpha: Any, solution: Solution, norm: float | str) -> Array:
    """How far weights (K, d, d) are from a solution: D(W_mm/‖W_mm‖, W/‖W‖), and in a norm in which there may be other
    solutions by how much their margin falls short of the largest."""
    if not isinstance(norm, str):
        return np.asarray(directional_divergence(np.asarray(solution.W), W, norm))
    reached = np.asarray(leads(problem, W=W, alpha=alpha)).min((-2, -1))
    with np.errstate(invalid="ignore", divide="ignore"):
        return np.asarray(1 - reached / (size_of(W, norm) * float(solution.margin)))


def _tokens(problem: Problem, own: Track, question: Question) -> dict[str, Any]:
    """Tokens, queries, and the directions W z_i of the solution and of every frame, on each sample's plane."""
    W, d = np.asarray(own.run.W), problem.X.shape[-1]
    aims = problem.z @ own.target.T
    turning = np.einsum("kij,nj->kni", W, problem.z)
    planes = token_planes(problem.X, aims, turning[1])
    if question.held is not None and d > 2:
        (sample,), axes = question.held
        if sample >= len(planes) or len(axes) != 2 * d:
            raise ValueError(f"held must name one of {len(planes)} samples and {2 * d} numbers.")
        planes[sample] = np.reshape(axes, (2, d))
    logits = np.where(_present(problem), np.einsum("ntd,knd->knt", problem.X, turning), -np.inf)
    attention = np.exp(logits - logits.max(-1, keepdims=True))
    aimed, turned = (_divided(v, np.linalg.norm(v, axis=-1, keepdims=True)) for v in (aims, turning))
    return {
        "direct": d == 2,
        "axes": None if d == 2 else plain_list(planes),
        "places": plain_list(np.einsum("npd,ntd->ntp", planes, problem.X)),
        "queries": plain_list(np.einsum("npd,nd->np", planes, problem.z)),
        "present": _present(problem).tolist(),
        "aim": plain_list(np.einsum("npd,nd->np", planes, aimed)),
        "turning": plain_list(np.einsum("npd,knd->knp", planes, turned)),
        "attention": plain_list(attention / attention.sum(-1, keepdims=True)),
    }


def _weights(problem: Problem, own: Track, plane: WeightPlane) -> dict[str, Any]:
    """A plane through the solution: the unit ball, the region of its margin, and the path."""
    drawn: dict[str, Any] = {
        "entries": plane.entries,
        "ball": plain_list(plane.ball),
        "solution": None,
        "half_planes": [],
        "path": plain_list(plane.place(own.directions)),
    }
    if own.solution is not None:
        others = _present(problem)
        others[np.arange(len(own.alpha)), own.alpha] = False
        sample, token = np.nonzero(others)
        x, z = problem.X[sample, own.alpha[sample]] - problem.X[sample, token], problem.z[sample]
        margin = np.einsum("md,md->m", x, z @ own.unit.T)
        drawn["solution"] = plain_list(plane.place(own.unit))
        drawn["half_planes"] = plain_list(plane.half_planes(x, z, margin))
    return drawn


def _other(other: Track, plane: WeightPlane) -> dict[str, Any]:
    """The path of another p on the same plane, its way to its own solution, and its weights."""
    ball = None
    if plane.entries is not None:  # along the same two entries, the others as in that p's solution
        ball = plain_list(entries_plane(other.unit, other.norm, np.abs(plane.axes).sum(0)).ball)
    return {
        "p": other.p,
        "steps": other.run.steps.tolist(),
        "alpha": other.alpha.tolist(),
        "path": plain_list(plane.place(other.directions)),
        "ball": ball,
        "solution": None if other.solution is None else plain_list(plane.place(other.unit)),
        "divergence": plain_list(other.way),
        "mass": plain_list(other.run.mass),
        "large": large_entries(other.target),
        "heat": heat(other.run.W),
    }


def _rate(own: Track) -> list[float | None] | None:
    """Theorem 4's rate at the frames, times the smallest constant that keeps it above this run; None before e^e."""
    if own.way is None or isinstance(own.norm, str):
        return None
    steps, D = np.asarray(own.run.steps, float), own.way
    rated = (steps >= SMALLEST_STEP) & np.isfinite(D) & (D > 0)
    if not rated.any():
        return None
    known = rate(own.norm, np.maximum(steps, SMALLEST_STEP))
    bound = known * (D[rated] / known[rated]).max()
    return list(plain_list(np.where(steps >= SMALLEST_STEP, bound, np.nan)))


def _facts(problem: Problem, own: Track) -> dict[str, Any] | None:
    solution = own.solution
    if solution is None:
        return None
    return {
        "margin": float(solution.margin),
        "gap": float(solution.gap),
        "violation": float(solution.violation),
        "support": np.asarray(solution.support).tolist(),
        "locally_optimal": locally_optimal(problem, own.run.v, own.alpha, solution),
        "large_entries": large_entries(solution.W),
        "all_entries": int(np.size(solution.W)),
    }


def locally_optimal(problem: Problem, readouts: Any, alpha: Any, solution: Solution) -> bool:
    """Whether the tokens are locally optimal by the problem's readout, or by the last of those that were trained."""
    v: Any = problem.v if readouts is None else readouts[-1]
    arrays: dict[str, Any] = {"X": problem.X, "y": problem.y, "z": problem.z, "mask": problem.mask}
    return bool(is_locally_optimal(**arrays, v=v, alpha=alpha, support=solution.support).optimal)


def strip(problem: Problem, alpha: Any) -> dict[str, Any] | None:
    """The solutions for these tokens over p: their weights and how many of them are large; None without a solution."""
    solutions = [solve(problem, alpha, p) for p in STRIP]
    weights = [solution.W for solution in solutions if solution is not None]
    if len(weights) < len(STRIP):
        return None
    return {"p": list(STRIP), "heat": heat(np.stack(weights)), "large": [large_entries(W) for W in weights]}


def large_entries(W: Any) -> int:
    """How many entries are at least 1 % of the largest."""
    size = np.abs(W)
    return int((size >= SMALLEST_SHARE * size.max()).sum())


def heat(W: Any) -> str:
    """Frames (K, d, d), each divided by its largest |entry|, as bytes from −127 to 127 in base64."""
    W = np.asarray(W)
    scaled = np.rint(_divided(127 * W, np.abs(W).max((-2, -1), keepdims=True)))
    return b64encode(scaled.astype(np.int8).tobytes()).decode()


def _divided(arrays: Any, sizes: Array) -> Array:
    """Arrays by their sizes; zero has no direction, and stays zero."""
    return np.asarray(np.asarray(arrays) / np.where(sizes > 0, sizes, 1.0))


def _present(problem: Problem) -> npt.NDArray[np.bool_]:
    """Which tokens (n, T) a problem has, to be changed."""
    return np.ones(problem.X.shape[:2], bool) if problem.mask is None else np.array(problem.mask)


def plain_list(array: Any) -> Any:
    """Nested lists of numbers with a few digits; None for what is not finite, and for None itself."""
    if array is None:
        return None
    array = np.asarray(array, dtype=np.float64)
    known = np.isfinite(array)
    size = np.where(known & (array != 0), np.abs(array), 1.0)
    scale = 10.0 ** (DIGITS - 1 - np.floor(np.log10(size)).clip(-290, 290))
    rounded = np.rint(np.where(known, array, 0.0) * scale) / scale
    if known.all():
        return rounded.tolist()
    holes = rounded.astype(object)
    holes[~known] = None
    return holes.tolist()
