"""Minimisation over the sphere ‖w‖_p = R, and how far a point is from first-order optimal over the ball.

A risk that falls along every ray has its minimisers over the ball on the sphere. There w = R θ/‖θ‖_p with θ
free, and a quasi-Newton method (scipy's L-BFGS) does the rest.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from scipy.optimize import minimize

from mirrormax.dynamics.paths.excess import Array, Objective

MAX_ITERATIONS = 3000
MEMORY = 60


class Point(NamedTuple):
    """A point of the sphere, the objective there, and its first-order residual."""

    w: Array
    value: float
    residual: float


def minimize_on_sphere(
    objective: Objective, start: Array, R: float, p: float, iterations: int = MAX_ITERATIONS
) -> Point:
    """A local minimiser of ``objective`` over ‖w‖_p = R, from the direction of ``start`` (not zero)."""
    shape = start.shape

    def along(theta: Array) -> tuple[float, Array]:
        theta = theta.reshape(shape)
        size = norm(theta, p)
        unit = theta / size
        value, gradient = objective(R * unit)
        tangent = gradient - (gradient * unit).sum() * signed_power(unit, p - 1)
        return value, (R / size * tangent).ravel()

    options = {"maxcor": MEMORY, "maxiter": iterations, "maxfun": 2 * iterations, "ftol": 0.0, "gtol": 1e-9}
    found = minimize(along, (start / norm(start, p)).ravel(), jac=True, method="L-BFGS-B", options=options)
    theta = found.x.reshape(shape)
    w = R * theta / norm(theta, p)
    value, gradient = objective(w)
    return Point(w, value, residual(gradient, w, R, p))


def residual(g: Array, w: Array, R: float, p: float) -> float:
    """(⟨g, w⟩ + R‖g‖_q) / (R‖g‖_q): by how much the linearised problem over the ball improves on w, relatively.

    Zero exactly at first-order optimal points, at most 2, and the same for every multiple of g.
    """
    size = R * norm(g, p / (p - 1))
    return float(1 + (g * w).sum() / size) if size > 0 else 0.0


def steepest(g: Array, p: float) -> Array:
    """The point of the unit sphere with the smallest ⟨g, w⟩ = −‖g‖_q."""
    largest = np.abs(g).max()
    w = signed_power(-g / largest, 1 / (p - 1))
    return w / norm(w, p)


def norm(w: Array, p: float) -> float:
    """‖w‖_p, the largest entry divided out first."""
    largest = float(np.abs(w).max())
    return largest * float((np.abs(w / largest) ** p).sum() ** (1 / p)) if largest > 0 else 0.0


def signed_power(x: Array, exponent: float) -> Array:
    """sign(x) |x|^exponent."""
    result: Array = np.copysign(np.abs(x) ** exponent, x)
    return result
