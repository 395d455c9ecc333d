"""The solvers of hard margins, in one table; :mod:`mirrormax.svm.dispatch` chooses among them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

from mirrormax.svm._types import Answer, HardMargin
from mirrormax.svm.solvers.interior import (
    LARGEST_ACTIVE_SET,
    LARGEST_SYSTEM,
    is_small,
    is_small_euclidean,
    solve_active_set,
    solve_extended,
    solve_interior,
)
from mirrormax.svm.solvers.lagrangian import is_structured, solve_lagrangian
from mirrormax.svm.solvers.large import solve_newton, solve_working_set

__all__ = ["SOLVERS", "Solver"]


@dataclass(frozen=True)
class Solver:
    """``solve(problem, tol)`` gives weights, multipliers and the gap reached, above ``tol`` where it gave up.

    It takes the problems that it ``accepts``, which ``takes`` says in words; several at once if it is ``batched``.
    """

    name: str
    takes: str
    solve: Callable[[HardMargin, float], Answer]
    accepts: Callable[[HardMargin], bool] = lambda problem: True
    batched: bool = False


SMALL_EUCLIDEAN = f"p = 2 and at most {LARGEST_ACTIVE_SET} rows whose sizes are within a factor of 1000"
SOLVERS = {
    solver.name: solver
    for solver in (
        Solver("interior", "any problem", solve_interior, batched=True),
        Solver("active-set", f"one problem with {SMALL_EUCLIDEAN}", solve_active_set, is_small_euclidean),
        Solver("newton", "any problem, one at a time", solve_newton),
        Solver("working-set", "any problem, one at a time", solve_working_set),
        Solver("lagrangian", "one problem with at least 300 rows", solve_lagrangian, is_structured),
        Solver(
            "extended",
            f"one problem with at most {LARGEST_SYSTEM} rows and weights together",
            solve_extended,
            is_small,
        ),
    )
}
