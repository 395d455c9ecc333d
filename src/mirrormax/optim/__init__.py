"""Mirror descent as a torch optimizer, plain and with AdamW's moments."""

from mirrormax.optim.groups import ParamGroups, param_groups
from mirrormax.optim.mirror_adamw import MirrorAdamW
from mirrormax.optim.mirror_descent import MirrorDescent
from mirrormax.optim.starts import equivalent_lr, sparse_start

__all__ = ["MirrorAdamW", "MirrorDescent", "ParamGroups", "equivalent_lr", "param_groups", "sparse_start"]
