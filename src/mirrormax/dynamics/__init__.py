"""Training runs of one-layer attention under mirror descent, and regularisation paths."""

from mirrormax.dynamics.next_token import NextTokenRun, simulate_next_token
from mirrormax.dynamics.paths import RegularizationPath, joint_regularization_path, regularization_path
from mirrormax.dynamics.rules import Adam, Coordinate, Lion, Muon, Sign, Spectral
from mirrormax.dynamics.simulation import SimulationOptions, simulate, simulate_heads
from mirrormax.dynamics.starts import WarmStart, warm_start
from mirrormax.dynamics.trajectory import Trajectory

__all__ = [
    "Adam",
    "Coordinate",
    "Lion",
    "Muon",
    "NextTokenRun",
    "RegularizationPath",
    "Sign",
    "SimulationOptions",
    "Spectral",
    "Trajectory",
    "WarmStart",
    "joint_regularization_path",
    "regularization_path",
    "simulate",
    "simulate_heads",
    "simulate_next_token",
    "warm_start",
]
