"""What the Geometry page asks: a problem, how to train on it, and what to compare with; checked once, plain data.

The problems are the paper's, random ones, and files that were uploaded.
"""

from __future__ import annotations

import hashlib
import io
import json
import tempfile
import zipfile
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from mirrormax._checks import count, integer, number, one_of, several, within
from mirrormax.data import example1, example2, load_problem, sphere_problem
from mirrormax.dynamics import Muon
from mirrormax.geometry import Hypentropy, Lp, Potential, SquaredLp
from mirrormax.problem import Problem

Array = npt.NDArray[np.float64]

MOST_TOKENS, MOST_DIMENSIONS = 400, 32
"""n·T and d of the largest problem that is answered while a slider moves."""
LARGEST_CONTENT = 8_000_000
KEPT_UPLOADS = 8

# Nobody writes into these: one who drags p asks for the same problem with every move.
EXAMPLES = {"example1": cache(example1), "example2": cache(example2)}
_sphere = lru_cache(maxsize=16)(sphere_problem)
SPHERE_BOUNDS = {"seed": (0, 999_999), "n": (1, 40), "T": (2, 40), "d": (2, MOST_DIMENSIONS)}

STEPS = (100, 300, 1500, 6000)
POTENTIALS: dict[str, Callable[[float], Potential]] = {"Lp": Lp, "SquaredLp": SquaredLp, "Hypentropy": Hypentropy}
RULES: dict[str, tuple[Any, str]] = {
    "sign": ("sign", "linf"),
    "adam": ("adam", "linf"),
    "muon": (Muon(weight_decay=0.0), "spectral"),
}
"""Beside mirror descent: rules for steps, and the norm in which each is steepest, or nearly."""
NEAR_ONE = 1.01
"""Hypentropy grows like |w| log|w|, so that its horizon is the ℓ1 ball; the SVM is asked at this p in its place."""
MOST_OTHERS, MOST_MOVES, FARTHEST = 4, 40, 1e3
check_exponent, check_place = within(at_least=1.01, below=12.0), count(0, at_most=MOST_TOKENS)
Move = tuple[tuple[int, ...], tuple[float, ...]]

STARTS: dict[str, Callable[[int, int], Array]] = {
    "random": lambda d, seed: np.random.default_rng(seed).standard_normal((d, d)),
    "zero": lambda d, seed: np.zeros((d, d)),
}
"""The paper's two: at zero, and with entries from N(0, 1)."""


class Problems:
    """Makes the problem that a request names; uploads are kept in memory, the last few of them."""

    def __init__(self) -> None:
        self._uploads: dict[str, Problem] = {}

    def named(self, request: Mapping[str, Any]) -> Problem:
        """The problem of ``{"problem": "example1" | "example2" | "sphere" | "file", ...}``."""
        kind = request.get("problem")
        if isinstance(kind, str) and kind in EXAMPLES:
            return EXAMPLES[kind]()
        if kind == "sphere":
            sizes = {
                name: integer(name, request.get(name), at_least=least, at_most=most)
                for name, (least, most) in SPHERE_BOUNDS.items()
            }
            return check_size(_sphere(**sizes))
        if kind == "file":
            try:
                return self._uploads[str(request.get("file"))]
            except KeyError:
                raise ValueError("this file is not here any more; upload it again.") from None
        raise ValueError(f"problem must be one of {', '.join(EXAMPLES)}, sphere or file, got {kind!r}.")

    def add(self, content: bytes, name: str) -> tuple[str, Problem]:
        """Read an uploaded ``.npz`` with :func:`mirrormax.data.load_problem`; its key, and what is in it."""
        unpacked = 0  # of what is no archive at all, which load_problem says
        with suppress(zipfile.BadZipFile, ValueError, OSError), zipfile.ZipFile(io.BytesIO(content)) as archive:
            unpacked = sum(entry.file_size for entry in archive.infolist())
        if unpacked > LARGEST_CONTENT:
            raise ValueError(f"{name} unpacks to {unpacked:,} bytes; this page takes {LARGEST_CONTENT:,}.")
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "upload.npz"
            path.write_bytes(content)
            try:
                problem = check_size(load_problem(path))
            except ValueError as error:
                raise ValueError(str(error).replace(str(path), name)) from None
        key = hashlib.sha256(content).hexdigest()[:16]
        self._uploads.pop(key, None)  # the newest is the last
        self._uploads[key] = problem
        for oldest in [*self._uploads][:-KEPT_UPLOADS]:
            del self._uploads[oldest]
        return key, problem


def check_size(problem: Problem) -> Problem:
    """The problem, or a refusal if a page cannot show it or would have to wait for it."""
    n, T, d = problem.X.shape
    if T < 2 or d < 2:
        raise ValueError(f"X has T = {T} tokens in d = {d} dimensions; there is something to see from 2 of each on.")
    if n * T > MOST_TOKENS or d > MOST_DIMENSIONS:
        raise ValueError(
            f"X has n·T = {n * T} tokens in d = {d} dimensions; this page takes {MOST_TOKENS} in {MOST_DIMENSIONS}, "
            "'mirrormax simulate' takes any number."
        )
    return problem


@dataclass(frozen=True)
class Question:
    """One view of the page.

    ``named``   the problem, as JSON for :meth:`Problems.named`
    ``rule``    ``"mirror"``, mirror descent with p, or one of ``RULES``, for which p does not matter
    ``others``  exponents of mirror descents to be shown beside it
    ``alpha``   the tokens that the SVM selects: ``"trained"``, ``"optimal"``, or one token per sample
    ``x``, ``z``  how far tokens (sample, token) and queries (sample,) were dragged, as vectors of d numbers
    ``held``    the plane (sample, 2·d numbers) on which a token is being dragged, so that it stays under the finger
    ``draft``   while something is dragged, the step that is shown: this one and a few others are recorded
    """

    named: str
    p: float
    lr: float
    steps: int
    start: str
    rule: str = "mirror"
    potential: str = "Lp"
    beta: float = 1.0
    others: tuple[float, ...] = ()
    alpha: str | tuple[int, ...] = "trained"
    x: tuple[Move, ...] = ()
    z: tuple[Move, ...] = ()
    held: Move | None = None
    draft: int | None = None

    def mirror(self, p: float) -> Potential:
        """The potential that trains the path of this p."""
        if self.rule != "mirror":
            return Lp(2.0)
        return POTENTIALS[self.potential](self.beta if self.potential == "Hypentropy" else p)

    def norm(self, p: float) -> float | str:
        """The exponent of the SVM that belongs to it, or the name of its norm."""
        if self.rule != "mirror":
            return RULES[self.rule][1]
        return NEAR_ONE if self.potential == "Hypentropy" else p

    def moved(self, problem: Problem) -> Problem:
        """The problem with its tokens and queries where they were dragged."""
        return _moved(problem, self.x, self.z) if self.x or self.z else problem


@lru_cache(maxsize=64)  # the same object again: what is kept of a problem is kept by what it is
def _moved(problem: Problem, x: tuple[Move, ...], z: tuple[Move, ...]) -> Problem:
    parts = {"x": np.array(problem.X, copy=True), "z": np.array(problem.z, copy=True)}
    for name, moves in (("x", x), ("z", z)):
        for place, by in moves:
            whole = parts[name]
            if len(by) != whole.shape[-1] or any(i >= size for i, size in zip(place, whole.shape, strict=False)):
                raise ValueError(f"moves names {name}{list(place)} with {len(by)} numbers; the problem has no such.")
            whole[place] += by
    return Problem(X=parts["x"], y=problem.y, z=parts["z"], v=problem.v, mask=problem.mask)


def read_question(request: Mapping[str, Any]) -> Question:
    """The question in a request; ValueError or TypeError with one sentence if there is something wrong with it."""
    rule = one_of("rule", request.get("rule", "mirror"), ("mirror", *RULES))
    potential = one_of("potential", request.get("potential", "Lp"), POTENTIALS) if rule == "mirror" else "Lp"
    steps = int(one_of("steps", request.get("steps"), STEPS))
    others = request.get("others", [])
    if not isinstance(others, list) or len(others) > MOST_OTHERS:
        raise ValueError(f"others must list at most {MOST_OTHERS} exponents, got {others!r}.")
    moves = request.get("moves", {})
    if not isinstance(moves, dict) or not {*moves} <= {"x", "z"}:
        raise ValueError("moves must have the lists x and z.")
    held, draft = request.get("held"), request.get("draft")
    return Question(
        named=json.dumps({key: request.get(key) for key in ("problem", "file", *SPHERE_BOUNDS)}, sort_keys=True),
        p=check_exponent("p", request.get("p")),
        lr=number("step size", request.get("lr"), at_least=1e-4, below=10.0),
        steps=steps,
        start=one_of("start", request.get("start"), STARTS),
        rule=rule,
        potential=potential,
        beta=number("beta", request.get("beta", 1.0), at_least=1e-3, below=1e3),
        others=tuple(check_exponent("others", p) for p in others) if potential != "Hypentropy" else (),
        alpha=_alpha(request.get("alpha", "trained")),
        x=_moves("x", moves.get("x", []), 2),
        z=_moves("z", moves.get("z", []), 1),
        held=None if held is None else _move("held", held, 1),
        draft=None if draft is None else min(integer("draft", draft, at_least=0), steps),
    )


def _alpha(value: Any) -> str | tuple[int, ...]:
    if isinstance(value, str):
        return str(one_of("alpha", value, ("trained", "optimal")))
    return tuple(check_place("alpha", token) for token in several("alpha", value, "tokens, one for each sample"))


def _moves(name: str, value: Any, indices: int) -> tuple[Move, ...]:
    if not isinstance(value, list) or len(value) > MOST_MOVES:
        raise ValueError(f"moves of {name} must be a list of at most {MOST_MOVES}; put some back.")
    return tuple(_move(f"moves of {name}", move, indices) for move in value)


def _move(name: str, value: Any, indices: int) -> Move:
    if not isinstance(value, list) or len(value) != indices + 1 or not isinstance(value[-1], list):
        raise ValueError(f"{name} must each be {indices} places and a list of numbers, got {value!r}.")
    place = tuple(check_place(name, index) for index in value[:-1])
    return place, tuple(number(name, entry, at_least=-FARTHEST, at_most=FARTHEST) for entry in value[-1])
