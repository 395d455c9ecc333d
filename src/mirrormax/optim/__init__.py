"""Mirror descent as a torch optimizer, plain and with AdamW's moments."""

from mirrormax.optim.groups import ParamGroups, param_groups
from mirrormax.optim.mirror_adamw import MirrorAdamW
from mirrormax.optim.mirror_descent import MirrorDescent
from mirrormax.optim.reference import reference_dual_norm, reference_step
from mirrormax.optim.starts import equivalent_lr, sparse_start
from mirrormax.optim.target import set_total_steps

__all__ = ["MirrorAdamW", "MirrorDescent", "ParamGroups", "equivalent_lr", "param_groups", "sparse_start"]
