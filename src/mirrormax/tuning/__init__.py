"""The choice of p and of the step size for a task, by validation.

What the command line asks about the choices needs no Optuna; the rest is imported when it is first used.
"""

from typing import TYPE_CHECKING

from mirrormax._lazy import lazy

if TYPE_CHECKING:
    from mirrormax.tuning.results import best_of, rows_of, write_results
    from mirrormax.tuning.study import KIND, Plan, forget_runs, run_study

CHOSEN = ("optimizer", "p", "lr")
"""What a study chooses; the rest is given."""

__all__ = ["CHOSEN", "KIND", "Plan", "best_of", "forget_runs", "rows_of", "run_study", "write_results"]

__getattr__, __dir__ = lazy(__name__)
