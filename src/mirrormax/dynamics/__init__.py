"""Training runs of one-layer attention under mirror descent, and regularisation paths."""

from mirrormax.dynamics.simulation import simulate
from mirrormax.dynamics.trajectory import Trajectory

__all__ = ["Trajectory", "simulate"]
