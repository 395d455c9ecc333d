"""Training runs of one-layer attention under mirror descent, and regularisation paths."""

from mirrormax.dynamics.heads import simulate_heads
from mirrormax.dynamics.next_token import NextTokenRun, simulate_next_token
from mirrormax.dynamics.paths import RegularizationPath, joint_regularization_path, regularization_path

# For other rooms; not part of the face.
from mirrormax.dynamics.simulation import BACKENDS as BACKENDS
from mirrormax.dynamics.simulation import simulate
from mirrormax.dynamics.starts import WarmStart, warm_start
from mirrormax.dynamics.trajectory import Trajectory

__all__ = [
    "NextTokenRun",
    "RegularizationPath",
    "Trajectory",
    "WarmStart",
    "joint_regularization_path",
    "regularization_path",
    "simulate",
    "simulate_heads",
    "simulate_next_token",
    "warm_start",
]
