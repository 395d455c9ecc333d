"""Mirror descent for attention: an exact optimizer, and the geometry of what attention selects.

What most programs need is here; the rest is in the rooms, such as ``mirrormax.svm`` and ``mirrormax.geometry``.
"""

from typing import TYPE_CHECKING, Any

from mirrormax._lazy import lazy, lazy_names

if TYPE_CHECKING:
    from mirrormax import app as app
    from mirrormax import attention as attention
    from mirrormax import auditing as auditing
    from mirrormax import bench as bench
    from mirrormax import commands as commands
    from mirrormax import contrib as contrib
    from mirrormax import data as data
    from mirrormax import dynamics as dynamics
    from mirrormax import experiments as experiments
    from mirrormax import geometry as geometry
    from mirrormax import nets as nets
    from mirrormax import optim as optim
    from mirrormax import pruning as pruning
    from mirrormax import report as report
    from mirrormax import svm as svm
    from mirrormax import theory as theory
    from mirrormax import training as training
    from mirrormax import tuning as tuning
    from mirrormax.attention import is_locally_optimal as is_locally_optimal
    from mirrormax.attention import optimal_tokens as optimal_tokens
    from mirrormax.auditing import ablate as ablate
    from mirrormax.auditing import attention_patterns as attention_patterns
    from mirrormax.auditing import audit as audit
    from mirrormax.data import Problem as Problem
    from mirrormax.data import load_problem as load_problem
    from mirrormax.data import save_problem as save_problem
    from mirrormax.dynamics import regularization_path as regularization_path
    from mirrormax.dynamics import simulate as simulate
    from mirrormax.geometry import ElasticNet as ElasticNet
    from mirrormax.geometry import directional_divergence as directional_divergence
    from mirrormax.optim import MirrorAdamW as MirrorAdamW
    from mirrormax.optim import MirrorDescent as MirrorDescent
    from mirrormax.optim import equivalent_lr as equivalent_lr
    from mirrormax.optim import param_groups as param_groups
    from mirrormax.optim import sparse_start as sparse_start
    from mirrormax.pruning import prune as prune
    from mirrormax.svm import InfeasibleError as InfeasibleError
    from mirrormax.svm import att_svm as att_svm
    from mirrormax.svm import lp_svm as lp_svm

__version__ = "0.2.0"
__all__ = [name for name, home in lazy_names(__name__).items() if home != __name__]
_MOVED: dict[str, str] = {
    name: room
    for room, names in {
        "attention": "Attention effective_scores leads optimal_attention selected_tokens support_tokens token_scores",
        "dynamics": "Trajectory joint_regularization_path simulate_heads simulate_next_token warm_start",
        "geometry": "GroupElasticNet Hypentropy Lp Potential SquaredLp bregman cosine dual_norm lp_norm",
        "optim": "ParamGroups",
        "svm": "NotSolvedError Solution graph_svm joint_limit label_margin priority_graph",
    }.items()
    for name in names.split()
}
"""Names that were here in 0.1.0, and the room that they are in."""

_part, __dir__ = lazy(__name__)


def __getattr__(name: str) -> Any:
    if name in _MOVED:
        raise AttributeError(f"mirrormax.{name} is mirrormax.{_MOVED[name]}.{name} since 0.2.0; write that.")
    return _part(name)
