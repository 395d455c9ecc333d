"""Mirror descent as a torch optimizer."""

from mirrormax.optim.groups import ParamGroups, param_groups
from mirrormax.optim.mirror_descent import MirrorDescent
from mirrormax.optim.step_size import equivalent_lr

__all__ = ["MirrorDescent", "ParamGroups", "equivalent_lr", "param_groups"]
