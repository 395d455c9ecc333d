"""Training runs of one-layer attention under mirror descent, and regularisation paths."""

from mirrormax.dynamics.paths import RegularizationPath, joint_regularization_path, regularization_path
from mirrormax.dynamics.simulation import simulate
from mirrormax.dynamics.trajectory import Trajectory

__all__ = ["RegularizationPath", "Trajectory", "joint_regularization_path", "regularization_path", "simulate"]
