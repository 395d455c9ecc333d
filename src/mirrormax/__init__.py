"""Mirror descent for attention: an exact optimizer, and the geometry of what attention selects."""

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

__version__ = "0.1.0.dev0"

__all__ = [
    "Hypentropy",
    "Lp",
    "MirrorDescent",
    "ParamGroups",
    "Potential",
    "SquaredLp",
    "Trajectory",
    "bregman",
    "cosine",
    "directional_divergence",
    "dual_norm",
    "equivalent_lr",
    "joint_regularization_path",
    "lp_norm",
    "param_groups",
    "regularization_path",
    "simulate",
]
