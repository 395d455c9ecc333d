"""ℓp geometry: potentials with their mirror maps, norms, and distances between directions."""

from mirrormax._checks import check_exponent
from mirrormax.geometry.families import ElasticNet, GroupElasticNet, Hypentropy, Lp, SquaredLp
from mirrormax.geometry.norms import dual_exponent, dual_norm, lp_norm, signed_power
from mirrormax.geometry.potential import Potential, as_potential, bregman, cosine, direction, directional_divergence

__all__ = [
    "ElasticNet",
    "GroupElasticNet",
    "Hypentropy",
    "Lp",
    "Potential",
    "SquaredLp",
    "as_potential",
    "bregman",
    "check_exponent",
    "cosine",
    "direction",
    "directional_divergence",
    "dual_exponent",
    "dual_norm",
    "lp_norm",
    "signed_power",
]
