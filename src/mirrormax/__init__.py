"""Mirror descent for attention: an exact optimizer, and the geometry of what attention selects.

Names are imported from their homes when they are first used, so that ``mirrormax --help`` need not wait
for torch.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

from mirrormax._extras import install

if TYPE_CHECKING:
    from mirrormax.attention import (
        Attention,
        FactoredAttention,
        effective_scores,
        is_locally_optimal,
        leads,
        optimal_attention,
        optimal_tokens,
        selected_tokens,
        support_tokens,
        token_scores,
    )
    from mirrormax.auditing import audit
    from mirrormax.data import Problem, load_problem, save_problem
    from mirrormax.dynamics import (
        Trajectory,
        joint_regularization_path,
        regularization_path,
        simulate,
        simulate_heads,
        simulate_next_token,
        warm_start,
    )
    from mirrormax.geometry import (
        ElasticNet,
        GroupElasticNet,
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
    from mirrormax.optim import MirrorAdamW, MirrorDescent, ParamGroups, equivalent_lr, param_groups, sparse_start
    from mirrormax.pruning import prune
    from mirrormax.svm import (
        InfeasibleError,
        NotSolvedError,
        Solution,
        att_svm,
        graph_svm,
        joint_limit,
        label_margin,
        lp_svm,
        priority_graph,
    )

__version__ = "0.1.0"
install()

__all__ = [
    "Attention",
    "ElasticNet",
    "FactoredAttention",
    "GroupElasticNet",
    "Hypentropy",
    "InfeasibleError",
    "Lp",
    "MirrorAdamW",
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
    "effective_scores",
    "equivalent_lr",
    "graph_svm",
    "is_locally_optimal",
    "joint_limit",
    "joint_regularization_path",
    "label_margin",
    "leads",
    "load_problem",
    "lp_norm",
    "lp_svm",
    "optimal_attention",
    "optimal_tokens",
    "param_groups",
    "priority_graph",
    "prune",
    "regularization_path",
    "save_problem",
    "selected_tokens",
    "simulate",
    "simulate_heads",
    "simulate_next_token",
    "sparse_start",
    "support_tokens",
    "token_scores",
    "warm_start",
]

_HOMES = {
    "Attention": "attention",
    "ElasticNet": "geometry",
    "FactoredAttention": "attention",
    "GroupElasticNet": "geometry",
    "Hypentropy": "geometry",
    "InfeasibleError": "svm",
    "Lp": "geometry",
    "MirrorAdamW": "optim",
    "MirrorDescent": "optim",
    "NotSolvedError": "svm",
    "ParamGroups": "optim",
    "Potential": "geometry",
    "Problem": "data",
    "Solution": "svm",
    "SquaredLp": "geometry",
    "Trajectory": "dynamics",
    "att_svm": "svm",
    "audit": "auditing",
    "bregman": "geometry",
    "cosine": "geometry",
    "directional_divergence": "geometry",
    "dual_norm": "geometry",
    "effective_scores": "attention",
    "equivalent_lr": "optim",
    "graph_svm": "svm",
    "is_locally_optimal": "attention",
    "joint_limit": "svm",
    "joint_regularization_path": "dynamics",
    "label_margin": "svm",
    "leads": "attention",
    "load_problem": "data",
    "lp_norm": "geometry",
    "lp_svm": "svm",
    "optimal_attention": "attention",
    "optimal_tokens": "attention",
    "param_groups": "optim",
    "priority_graph": "svm",
    "prune": "pruning",
    "regularization_path": "dynamics",
    "save_problem": "data",
    "selected_tokens": "attention",
    "simulate": "dynamics",
    "simulate_heads": "dynamics",
    "simulate_next_token": "dynamics",
    "sparse_start": "optim",
    "support_tokens": "attention",
    "token_scores": "attention",
    "warm_start": "dynamics",
}
"""Each public name, and the room that it comes from."""
_RENAMED = {"margins": "leads"}
_ROOMS = (
    "app",
    "attention",
    "auditing",
    "bench",
    "commands",
    "contrib",
    "data",
    "dynamics",
    "experiments",
    "geometry",
    "nets",
    "optim",
    "pruning",
    "report",
    "svm",
    "theory",
    "training",
    "tuning",
)


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return import_module(f"mirrormax.{name}")
    if name in _HOMES:
        globals()[name] = value = getattr(import_module(f"mirrormax.{_HOMES[name]}"), name)
        return value
    if name in _RENAMED:
        raise AttributeError(f"module 'mirrormax' has no attribute {name!r}; it is called {_RENAMED[name]!r} now.")
    raise AttributeError(f"module 'mirrormax' has no attribute {name!r}")


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *_ROOMS})
