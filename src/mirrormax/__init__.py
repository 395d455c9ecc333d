"""Mirror descent for attention: an exact optimizer, and the geometry of what attention selects."""

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
    "bregman",
    "cosine",
    "directional_divergence",
    "dual_norm",
    "equivalent_lr",
    "lp_norm",
    "param_groups",
]
