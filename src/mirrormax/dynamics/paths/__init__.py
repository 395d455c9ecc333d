"""Regularisation paths: minimisers of the risk over balls of growing radius."""

from mirrormax.dynamics.paths.attention import RegularizationPath, joint_regularization_path, regularization_path

__all__ = ["RegularizationPath", "joint_regularization_path", "regularization_path"]
