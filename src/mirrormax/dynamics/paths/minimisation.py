"""What a path minimises, and how: the risk in digits that last, over balls of growing radius.

Risks fall along every ray, so that their minimisers over a ball are on its sphere ‖w‖_p = R. There w = R θ/‖θ‖_p with
θ free, and a quasi-Newton method (scipy's L-BFGS) does the rest. The risk itself saturates at large radii.

With γ_i the best score of sample i, Δ_it = γ_i − γ_it ≥ 0 and δ_i = Σ_t s_it Δ_it, no W has a risk below
L* = (1/n) Σ l(γ_i), and

    L(W) − L* = (1/n) Σ_i l(γ_i − δ_i) − l(γ_i) > 0.

Minimisers of L are those of log(L − L*), which is as smooth and falls about linearly in ‖W‖, where L itself
is constant to the last digit. Every term is a product, and the scale of the largest one is carried apart.
For the head, given what attention attends to, log L itself does the same.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from scipy.optimize import NoConvergence, minimize, newton_krylov

from mirrormax.attention import Loss
from mirrormax.problem import relative_to

Array = npt.NDArray[np.float64]
Objective = Callable[[Array], tuple[float, Array]]

# Below this, l(γ − δ) − l(γ) is better had from the slope at the midpoint: each is good to eleven digits here.
SMALL_DELTA = 1e-5
SMALLEST_LOSS = 1e-290
SMALLEST = np.finfo(np.float64).min  # of numbers, so that −inf has a difference to it
MAX_ITERATIONS = 500  # of L-BFGS; the rest is done in the dual,
NEAR_ONE, FEW_ITERATIONS = 1.5, 150  # and below this p sooner, because L-BFGS stalls there
ROUNDS = 30  # in the dual: Newton's method, or where it does not help
MIRROR_STEPS = 100  # of mirror descent
NEWTON_STEPS = 10
ROOT = 1e-9  # entries of u at dual norm 1 that are the same
FIRST_ORDER = 1e-10  # residual of a point that is first-order optimal
SMALLEST_SHARE = 1e-12  # of the way to the gradient
MEMORY = 60
LOOK = 40  # iterations of a first look at a start


class Excess:
    """W ↦ log(L(W) − L*) and its gradient, for one problem: X (n, T, d), y (n,), z (n, d), v (d,), mask (n, T)."""

    def __init__(self, X: Array, y: Array, z: Array, v: Array, mask: Any, loss: Loss) -> None:
        self.X, self.z, self.loss = X, z, loss
        scores = np.where(mask, y[:, None] * (X @ v), -np.inf)
        self.alpha = scores.argmax(1)
        rows = np.arange(len(X))
        self.best: Array = scores[rows, self.alpha]
        self.best_loss, self.best_log_slope = (_apply(f, self.best) for f in (loss.value, loss.log_derivative))
        self.offsets: Array = relative_to(torch.from_numpy(X), torch.from_numpy(self.alpha)).offsets.numpy()
        # From the offsets, so that tokens far from the origin lose no digits.
        self.gaps: Array = np.where(mask, -y[:, None] * (self.offsets @ v), 0.0).clip(min=0.0)
        self.absent: Array = np.where(mask, 0.0, -np.inf)
        with np.errstate(divide="ignore"):
            self.log_gaps: Array = np.log(self.gaps)
        if not (self.gaps > 0).any():
            raise ValueError("every token of every sample scores the same, so the risk does not depend on W.")

    def __call__(self, W: Array) -> tuple[float, Array]:
        """log(L − L*) and its gradient (d, d)."""
        n = len(self.X)
        r = (self.offsets @ (self.z @ W.T)[:, :, None])[:, :, 0] + self.absent
        log_s = r - logsumexp(r, 1)[:, None]
        logs = log_s + self.log_gaps
        log_delta, delta = logsumexp(logs, 1), (np.exp(log_s) * self.gaps).sum(1)
        log_slope, middle = _apply(self.loss.log_derivative, self.best - np.stack([delta, delta / 2]))
        value = float(logsumexp(self._log_mean_slope(delta, log_slope, middle) + log_delta, 0)) - math.log(n)
        # dδ/dr_t = s_t Δ_t − s_t δ, each over e^value: nothing here is larger than δ times a number near one.
        slope = log_slope - value
        weights = np.exp(slope[:, None] + logs) - np.exp(log_s) * np.exp(slope + log_delta)[:, None]
        pull = (weights[:, None, :] @ self.offsets)[:, 0] / n
        return value, pull.T @ self.z

    def _log_mean_slope(self, delta: Array, log_slope: Array, middle: Array) -> Array:
        """log of (l(γ − δ) − l(γ))/δ, given the logarithms of the slopes at γ − δ and γ − δ/2."""
        if (delta <= SMALL_DELTA).all():
            return middle
        value = _apply(self.loss.value, self.best - delta)
        with np.errstate(divide="ignore", invalid="ignore"):
            direct = np.log(value - self.best_loss)
            # A loss too small to be subtracted is in its exponential tail, and there its own slope.
            tail = log_slope + np.log(-np.expm1(self.best_log_slope - log_slope))
            whole = np.where(np.abs(value) < SMALLEST_LOSS, tail, direct) - np.log(delta)
        return np.where(delta > SMALL_DELTA, whole, middle)


class HeadLoss:
    """v ↦ log L and its gradient for attended tokens ξ (n, d): log (1/n) Σ l(y_i ξ_iᵀv), l logistic."""

    def __init__(self, attended: Array, y: Array) -> None:
        self.points: Array = y[:, None] * attended

    def __call__(self, v: Array) -> tuple[float, Array]:
        """log L and its gradient (d,)."""
        x = self.points @ v
        # log log(1 + e^{-x}): for large x the inner logarithm is e^{-x}(1 − e^{-x}/2), whose logarithm is exact.
        tail = np.exp(-np.maximum(x, 30.0))
        logs = np.where(x > 30.0, -x - tail / 2, np.log(np.logaddexp(0.0, -np.minimum(x, 30.0))))
        top = float(logs.max())
        value = top + float(np.log(np.exp(logs - top).mean()))
        weights = np.exp(-np.logaddexp(0.0, x) - value) / len(x)
        return value, -(weights @ self.points)


def attended(X: Array, z: Array, W: Array, mask: Any) -> Array:
    """X_iᵀσ(X_i W z_i), (n, d)."""
    h = np.where(mask, (X @ (z @ W.T)[:, :, None])[:, :, 0], -np.inf)
    s = np.exp(h - h.max(1, keepdims=True))
    result: Array = ((s / s.sum(1, keepdims=True))[:, None] @ X)[:, 0]
    return result


def logsumexp(logs: Array, axis: int) -> Array:
    """log Σ exp, −inf where every term is."""
    finite = np.maximum(logs.max(axis, keepdims=True), SMALLEST)
    with np.errstate(divide="ignore"):
        result: Array = finite.squeeze(axis) + np.log(np.exp(logs - finite).sum(axis))
    return result


def _apply(function: Callable[[torch.Tensor], torch.Tensor], x: Array) -> Array:
    result: Array = function(torch.from_numpy(np.ascontiguousarray(x))).numpy()
    return result


class Point(NamedTuple):
    """A point of the sphere, the objective there, and its first-order residual."""

    w: Array
    value: float
    residual: float


def minimize_on_sphere(objective: Objective, start: Array, R: float, p: float, *, look: bool = False) -> Point:
    """A local minimiser of ``objective`` over ‖w‖_p = R, from the direction of ``start`` (not zero).

    By L-BFGS, and then to first order in the dual; a first ``look`` takes a few iterations of the former.
    Below p = 2 the free variable is θ = ∇ψ(w): w = R θ^k/‖θ^k‖_p with k = 1/(p − 1), else k = 1. Entries of w that are
    all but zero, most of them near p = 1, are of moderate size in θ.
    """
    shape, power = start.shape, max(1.0, 1 / (p - 1))

    def unit_of(theta: Array) -> tuple[Array, float, Array]:
        """The unit w, the scale that was divided out, and θ at largest entry 1: near p = 1 that of long steps has θ^k
        overflow."""
        largest = float(np.abs(theta).max()) if power > 1 else 1.0
        theta = theta / largest
        w = signed_power(theta, power)
        size = norm(w, p)
        return w / size, largest * size, theta

    def along(flat: Array) -> tuple[float, Array]:
        unit, size, theta = unit_of(flat.reshape(shape))
        value, gradient = objective(R * unit)
        tangent = gradient - (gradient * unit).sum() * signed_power(unit, p - 1)
        scale = power * np.abs(theta) ** (power - 1) if power > 1 else 1.0
        return value, (R / size * tangent * scale).ravel()

    iterations = LOOK if look else FEW_ITERATIONS if p < NEAR_ONE else MAX_ITERATIONS
    options = {"maxcor": MEMORY, "maxiter": iterations, "maxfun": 2 * iterations, "ftol": 0.0, "gtol": 1e-9}
    first = signed_power(start / np.abs(start).max(), 1 / power).ravel()
    w = R * unit_of(minimize(along, first, jac=True, method="L-BFGS-B", options=options).x.reshape(shape))[0]
    value, gradient = objective(w)
    point = Point(w, value, residual(gradient, w, R, p))
    return point if look else to_first_order(objective, point, R, p)


def to_first_order(objective: Objective, point: Point, R: float, p: float) -> Point:
    """What L-BFGS leaves, followed in the dual until the residual is ``FIRST_ORDER``, or for ``ROUNDS``.

    At a minimiser u = ∇ψ(w), at dual norm 1, is −g/‖g‖_q. Near p = 1 most entries of w are all but zero, where L-BFGS
    stalls: w is |u|^{1/(p−1)}, and no step in w is small enough; those entries of u are of moderate size. So each round
    solves u = −g(u)/‖g(u)‖_q by Newton's method (scipy's, with Krylov's), which takes few steps from nearby; where it
    leads to no lower point, ``_descend`` gives it a nearer start.
    """
    for _ in range(ROUNDS):
        if not point.residual > FIRST_ORDER:
            break
        solved = _solve(objective, point, R, p)
        lower = solved.value <= point.value and solved.residual < point.residual
        before, point = point, solved if lower else _descend(objective, point, R, p)
        if point.value == before.value:  # to rounding, this is the minimum
            break
    return point


def _solve(objective: Objective, point: Point, R: float, p: float) -> Point:
    """The root of −g/‖g‖_q − u/‖u‖_q near ``point``, or wherever Newton's method came to."""
    q = p / (p - 1)

    def apart(u: Array) -> Array:
        gradient = objective(on_sphere(u, R, p))[1]
        difference: Array = -gradient / norm(gradient, q) - u / norm(u, q)
        return difference

    try:
        with np.errstate(all="ignore"):
            root = newton_krylov(apart, _dual(point.w, p), f_tol=ROOT, maxiter=NEWTON_STEPS)
    except (NoConvergence, ValueError, ZeroDivisionError):  # it came to nothing, or to numbers that are none
        return point
    w = on_sphere(root, R, p)
    value, gradient = objective(w)
    return Point(w, value, residual(gradient, w, R, p))


def _descend(objective: Objective, point: Point, R: float, p: float) -> Point:
    """Mirror descent: u moves a share τ of the way to −g/‖g‖_q, with the largest τ that lowers the objective."""
    q, w, value = p / (p - 1), point.w, point.value
    u, (_, gradient), share = _dual(w, p), objective(w), 0.5
    for _ in range(MIRROR_STEPS):
        goal, share, lowered = -gradient / norm(gradient, q), min(1.0, 2 * share), False
        while not lowered and share > SMALLEST_SHARE:
            tried = (1 - share) * u + share * goal
            candidate = on_sphere(tried, R, p)
            new_value, new_gradient = objective(candidate)
            lowered = new_value < value
            share = share if lowered else share / 2
        if not lowered:
            break
        u, w, value, gradient = tried / norm(tried, q), candidate, new_value, new_gradient
    return Point(w, value, residual(gradient, w, R, p))


def _dual(w: Array, p: float) -> Array:
    """∇ψ(w) at dual norm 1."""
    u = signed_power(w / np.abs(w).max(), p - 1)
    return u / norm(u, p / (p - 1))


def on_sphere(u: Array, R: float, p: float) -> Array:
    """The point of ‖w‖_p = R whose ∇ψ is a multiple of u: the one with the largest ⟨u, w⟩ = R‖u‖_q."""
    w = signed_power(u / np.abs(u).max(), 1 / (p - 1))
    return R / norm(w, p) * w


def residual(g: Array, w: Array, R: float, p: float) -> float:
    """(⟨g, w⟩ + R‖g‖_q) / (R‖g‖_q): by how much the linearised problem over the ball improves on w, relatively.

    Zero exactly at first-order optimal points, at most 2, and the same for every multiple of g.
    """
    size = R * norm(g, p / (p - 1))
    return float(1 + (g * w).sum() / size) if size > 0 else 0.0


def norm(w: Array, p: float) -> float:
    """‖w‖_p, the largest entry divided out first."""
    largest = float(np.abs(w).max())
    return largest * float((np.abs(w / largest) ** p).sum() ** (1 / p)) if largest > 0 else 0.0


def signed_power(x: Array, exponent: float) -> Array:
    """sign(x) |x|^exponent."""
    if exponent == 1:
        return x
    result: Array = np.copysign(np.abs(x) ** exponent, x)
    return result
