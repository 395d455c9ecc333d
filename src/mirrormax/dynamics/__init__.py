"""Training runs of one-layer attention under mirror descent, and regularisation paths."""

from mirrormax.dynamics.joint_path import joint_regularization_path
from mirrormax.dynamics.path import RegularizationPath, regularization_path
from mirrormax.dynamics.simulation import simulate
from mirrormax.dynamics.trajectory import Trajectory

__all__ = ["RegularizationPath", "Trajectory", "joint_regularization_path", "regularization_path", "simulate"]
