"""The solvers of hard margins, behind one protocol; :mod:`mirrormax.svm.dispatch` chooses among them."""

from __future__ import annotations

from typing import Protocol

from mirrormax.svm._types import Answer, HardMargin
from mirrormax.svm.solvers.interior import ActiveSet, Extended, Interior
from mirrormax.svm.solvers.lagrangian import Lagrangian
from mirrormax.svm.solvers.large import Newton, WorkingSet

__all__ = ["SOLVERS", "Solver"]


class Solver(Protocol):
    """What a solver has to say and to do."""

    name: str
    takes: str  # what it accepts, in words
    batched: bool  # whether it solves several problems at once

    def accepts(self, problem: HardMargin) -> bool:
        """Whether it can solve this problem."""

    def solve(self, problem: HardMargin, tol: float) -> Answer:
        """Weights, multipliers and the gap reached; a problem that it gave up on has a gap above ``tol``."""


SOLVERS: dict[str, Solver] = {
    s.name: s for s in (Interior(), ActiveSet(), Newton(), WorkingSet(), Lagrangian(), Extended())
}
