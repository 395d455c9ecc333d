"""Mirror descent for attention: an exact optimizer, and the geometry of what attention selects.

Names are imported from their homes when they are first used, so that ``mirrormax --help`` need not wait
for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mirrormax.attention import (
        Attention,
        FactoredAttention,
        is_locally_optimal,
        margins,
        optimal_tokens,
        selected_tokens,
        support_tokens,
        token_scores,
    )
    from mirrormax.auditing import audit
    from mirrormax.data import Problem, load_problem, save_problem
    from mirrormax.dynamics import Trajectory, joint_regularization_path, regularization_path, simulate
    from mirrormax.geometry import (
        Hypentropy,
        Lp,
        Potential,
        SquaredLp,
        bregman,
        cosine,
        directional_divergence,
        dual_norm,
        lp_norm,
    )
    from mirrormax.optim import MirrorDescent, ParamGroups, equivalent_lr, param_groups
    from mirrormax.svm import InfeasibleError, NotSolvedError, Solution, att_svm, label_margin, lp_svm

__version__ = "0.1.0"

__all__ = [
    "Attention",
    "FactoredAttention",
    "Hypentropy",
    "InfeasibleError",
    "Lp",
    "MirrorDescent",
    "NotSolvedError",
    "ParamGroups",
    "Potential",
    "Problem",
    "Solution",
    "SquaredLp",
    "Trajectory",
    "att_svm",
    "audit",
    "bregman",
    "cosine",
    "directional_divergence",
    "dual_norm",
    "equivalent_lr",
    "is_locally_optimal",
    "joint_regularization_path",
    "label_margin",
    "load_problem",
    "lp_norm",
    "lp_svm",
    "margins",
    "optimal_tokens",
    "param_groups",
    "regularization_path",
    "save_problem",
    "selected_tokens",
    "simulate",
    "support_tokens",
    "token_scores",
]

_HOMES = ("geometry", "optim", "attention", "data", "svm", "dynamics", "theory", "auditing")


def __getattr__(name: str) -> Any:
    if name in _HOMES:
        return import_module(f"mirrormax.{name}")
    if name in __all__:
        for home in _HOMES:
            module = import_module(f"mirrormax.{home}")
            if name in module.__all__:
                globals()[name] = value = getattr(module, name)
                return value
    raise AttributeError(f"module 'mirrormax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
