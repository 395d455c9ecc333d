"""Mirror descent as a torch optimizer."""

from mirrormax.optim.groups import ParamGroups, param_groups
from mirrormax.optim.mirror_descent import MirrorDescent

__all__ = ["MirrorDescent", "ParamGroups", "param_groups"]
