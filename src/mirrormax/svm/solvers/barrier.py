"""Attention SVMs in norms whose unit balls have a barrier: min ‖W‖ s.t. A W ≥ b (and B W = 0 at equality rows).

With F a barrier of a unit ball, F → ∞ at its boundary, the central path of μ → 0 is followed by Newton's method, in
weights W, multipliers λ and slacks y, a batch of problems at once. The ball is that of the norm itself (*own*:
spectral, largest row), which W stays in, or that of the dual norm (nuclear norm: spectral ball; sum of rows: largest
row; k-support norm: ℓ2 norm of the k largest entries), which Aᵀλ stays in:

    own    max s over A W ≥ s b, ‖W‖ ≤ 1:        μ F'(W) = Aᵀλ,    λ ∘ y = μ,    y = A W − s b,    bᵀλ = 1
    dual   max bᵀλ over ‖Aᵀλ‖_* ≤ 1, λ ≥ 0:      W = μ F'(Aᵀλ),    λ ∘ y = μ,    y = A W − b       (s = 1)

In both dW = H Aᵀdλ + G, with H = F''⁻¹/ν and G = H(Aᵀλ − μF') in the one, H = νF'' and G = μF' − W in the other, and
what is left is as large as there are rows:

    (A H Aᵀ + diag(y/λ)) dλ = μ/λ − (A W − s b) − A G + b ds.

μ shrinks when a step was short in the local norm of F; the step after that is along the tangent of the path, F''
weighing the μ before it (ν). It begins at ‖W‖ over the number of products that are to become μ, for feasible weights W:
less, as bᵀλ of a first guess, takes hundreds of steps where margins are thin and multipliers large.

W and λ are the certificate: ‖W‖ at smallest margin 1 against bᵀλ/‖Aᵀλ‖_*.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import numpy as np

from mirrormax.svm._types import Answer, HardMargin, Members, Unit
from mirrormax.svm.loop import Progress
from mirrormax.svm.norms import Norm
from mirrormax.svm.rows import Array, BlockRows, longest_step
from mirrormax.svm.solvers.interior import judge_problem
from mirrormax.svm.systems import Factor

OWN = ("spectral", "rows-max")
SHRINK = 0.2  # of μ, when the step was short
CLOSE = 1.0  # squared length of a step in the local norm, below which it is short
FRACTION = 0.75  # of the way to the ball's boundary that a step may take
CHUNK = 256  # problems at once: more gains nothing
LIMIT, PATIENCE = 200, 40  # steps, and those after which a gap that has not become better will not


class Ball:
    """The barrier F of a unit ball at matrices M (B, D, D), with further variables ``inner`` (B, k) of its own or none.

    Where there are such variables, F' and F'' are those of F minimised over them, by one step of Newton's method.

    ``gradient``            F'(M)
    ``curved(E, inverse)``  F'' E for E (B, D, D), or F''⁻¹ E
    ``gram(x, z, inverse)`` ⟨x_r z_iᵀ, F''(x_s z_jᵀ)⟩ (B, m, m) of rows x (B, n, R, D) and z (B, n, D), or with F''⁻¹
    ``reach(E, followed)``  a length (B,) along E, and along this step of the further variables, that stays in the ball
    """

    size: Array  # the norm of M, (B,)
    loose: Array | float = 0.0  # squared length (B,) of the step of the further variables, M being fixed

    def followed(self, E: Array) -> Array:
        """The step (B, k) of the further variables that goes with E (B, D, D)."""
        return np.zeros((len(E), 0))


class SpectralBall(Ball):
    """F(M) = −log det(I − MᵀM), in the coordinates of M's singular vectors, which keep 1 − σ to the last digit.

    There entries (i, j) and (j, i) meet in 2 × 2 systems: with ρ = 1 − σ²,

        F'' E = 2/(ρ_i ρ_j) (E_ij + σ_iσ_j E_ji),    F''⁻¹ E = ρ_i ρ_j/(2(1 − σ_i²σ_j²)) (E_ij − σ_iσ_j E_ji).
    """

    def __init__(self, M: Array, inner: Array, k: int) -> None:
        self.P, sigma, self.Qt = np.linalg.svd(M)
        room = (1 - sigma) * (1 + sigma)
        self.sigma, self.size = sigma, sigma[:, 0]
        self.gradient = (self.P * (2 * sigma / room)[:, None]) @ self.Qt
        self.product = sigma[:, :, None] * sigma[:, None]
        both = room[:, :, None] * room[:, None]
        self.weights = 2 / both, both / (2 * (room[:, :, None] + sigma[:, :, None] ** 2 * room[:, None]))

    def curved(self, E: Array, inverse: bool) -> Array:
        E = self.P.swapaxes(1, 2) @ E @ self.Qt.swapaxes(1, 2)
        turned = self.product * E.swapaxes(1, 2)
        return np.asarray(self.P @ (self.weights[inverse] * (E - turned if inverse else E + turned)) @ self.Qt)

    def gram(self, x: Array, z: Array, inverse: bool) -> Array:
        """Σ_ij w_ij a_ri c_kj (a_si c_lj ± σ_iσ_j a_sj c_li) for coordinates a of x and c of z, of samples k and l."""
        weight = self.weights[inverse]
        a, c = x @ self.P[:, None], z @ self.Qt.swapaxes(1, 2)
        straight = (c[:, :, None] * c[:, None]) @ weight[:, None]
        both = c[:, :, None, None] * a[:, None]
        both = (both.reshape(len(c), -1, c.shape[-1]) @ (weight * self.product)).reshape(both.shape)
        both *= c[:, None, :, None] if not inverse else -c[:, None, :, None]
        both += straight[:, :, :, None] * a[:, None]
        m = x.shape[1] * x.shape[2]
        return np.asarray(a @ both.reshape(*x.shape[:2], m, -1).swapaxes(2, 3)).reshape(-1, m, m)

    def reach(self, E: Array, followed: Array) -> Array:
        """[[I, M], [Mᵀ, I]] is to stay positive: diag(1 + σ, 1 − σ) in sums and differences of singular vectors."""
        E = self.P.swapaxes(1, 2) @ E @ self.Qt.swapaxes(1, 2)
        even, odd = (E + E.swapaxes(1, 2)) / 2, (E - E.swapaxes(1, 2)) / 2
        scale = np.concatenate([1 + self.sigma, 1 - self.sigma], axis=1) ** -0.5
        matrix = np.block([[even, -odd], [odd, -even]]) * scale[:, :, None] * scale[:, None]
        # The Frobenius norm bounds every eigenvalue: enough to know that a whole step may be taken.
        largest = np.linalg.norm(matrix, axis=(1, 2))
        far = (largest > FRACTION) & np.isfinite(largest)
        largest[far] = -np.linalg.eigvalsh(matrix[far])[:, 0]
        return np.asarray(1 / np.maximum(largest, 1e-300))


class RowsBall(Ball):
    """F(M) = −Σ_i log(1 − ‖m_i‖²) over the rows m_i, whose F'' has a block 2/ρ_i (I + (2/ρ_i) m_i m_iᵀ) for each."""

    def __init__(self, M: Array, inner: Array, k: int) -> None:
        self.M = M
        length = (M**2).sum(axis=-1)
        self.room = room = 1 - length
        self.size = np.sqrt(length.max(axis=1))
        self.gradient = 2 * M / room[..., None]
        self.scales, self.turns = (2 / room, room / 2), (2 / room, -2 / (room + 2 * length))

    def curved(self, E: Array, inverse: bool) -> Array:
        along = (E * self.M).sum(axis=-1, keepdims=True) * self.turns[inverse][..., None]
        return np.asarray(self.scales[inverse][..., None] * (E + along * self.M))

    def gram(self, x: Array, z: Array, inverse: bool) -> Array:
        batch, n, per_sample, d = x.shape
        m, scale = n * per_sample, self.scales[inverse]
        along = (x * (z @ self.M.swapaxes(1, 2))[:, :, None]).reshape(batch, m, d)
        x = x.reshape(batch, m, d)
        straight = ((x * scale[:, None]) @ x.swapaxes(1, 2)).reshape(batch, n, per_sample, n, per_sample)
        straight = straight * (z @ z.swapaxes(1, 2))[:, :, None, :, None]
        turned = (along * (scale * self.turns[inverse])[:, None]) @ along.swapaxes(1, 2)
        return np.asarray(straight.reshape(batch, m, m) + turned)

    def reach(self, E: Array, followed: Array) -> Array:
        return _roots(self.room, 2 * (self.M * E).sum(axis=-1), (E**2).sum(axis=-1))


class TopBall(Ball):
    """The ℓ2 norm of the k largest entries, at most 1: some t ≥ 0 and ν ≥ 0 have kt + Σν ≤ 1 and ν_j + t ≥ m_j².

    F(M; t, ν) = −log(1 − kt − Σν) − Σ log(ν_j + t − m_j²) − Σ log ν_j − log t; the further variables are (t, ν). With
    π_j = 1/(ν_j + t − m_j²), g = π² + 1/ν² and q = 1/(ν²g), F'' in these is an arrow, whose Schur complement in t is
    τ = Σ π²q + 1/t², and (k, 1, …, 1) times itself; eliminated, they leave a diagonal and two products of vectors.
    """

    def __init__(self, M: Array, inner: Array, k: int) -> None:
        self.shape, self.m, self.k = M.shape, M.reshape(len(M), -1), k
        self.inner, t, nu = inner, inner[:, :1], inner[:, 1:]
        self.size = np.linalg.norm(-np.sort(-np.abs(self.m), axis=1)[:, :k], axis=1)
        self.rest = 1 - k * t - nu.sum(axis=1, keepdims=True)
        self.apart = nu + t - self.m**2
        push = 1 / self.apart
        self.squares, self.g = push**2, push**2 + 1 / nu**2
        q = 1 / (nu**2 * self.g)
        self.tau = (self.squares * q).sum(axis=1, keepdims=True) + 1 / t**2
        self.cost = np.append(float(k), np.ones(self.m.shape[1]))  # of (t, ν) in kt + Σν
        self.paid = self._arrow(np.broadcast_to(self.cost, inner.shape))
        self.total = self.rest**2 + (self.paid @ self.cost)[:, None]
        pushes = np.concatenate([push.sum(axis=1, keepdims=True), push], axis=1)
        slope = self.cost / self.rest - pushes - 1 / inner
        self.still = self._solved(slope)
        self.loose = (slope * self.still).sum(axis=1)
        self.mixed = -2 * self.m * self.squares  # of m_j with t and with ν_j
        self.gradient = (2 * self.m * push - self.mixed * (self.still[:, :1] + self.still[:, 1:])).reshape(M.shape)
        self.diagonal = 2 * push + 4 * self.m**2 * self.squares * q
        self.less = self.mixed * q / np.sqrt(self.tau)
        self.more = self.mixed * (self.paid[:, :1] + self.paid[:, 1:]) / np.sqrt(self.total)

    def _arrow(self, right: Array) -> Array:
        """The solution for right (B, 1 + N), without (k, 1, …, 1)."""
        t = (right[:, :1] - (self.squares * right[:, 1:] / self.g).sum(axis=1, keepdims=True)) / self.tau
        return np.concatenate([t, (right[:, 1:] - self.squares * t) / self.g], axis=1)

    def _solved(self, right: Array) -> Array:
        solution = self._arrow(right)
        return np.asarray(solution - self.paid * ((solution @ self.cost)[:, None] / self.total))

    @staticmethod
    def start(M: Array, k: int) -> Array:
        """(t, ν) inside, for M of norm 1/2."""
        squares = M.reshape(len(M), -1) ** 2
        t = -np.sort(-squares, axis=1)[:, k - 1 : k] + 0.25 / k
        return np.concatenate([t, np.maximum(squares - t, 0) + 0.25 / squares.shape[1]], axis=1)

    def curved(self, E: Array, inverse: bool) -> Array:
        e = E.reshape(len(E), -1)
        less, more = (vector * (vector * e).sum(axis=1, keepdims=True) for vector in (self.less, self.more))
        return np.asarray(self.diagonal * e - less + more).reshape(self.shape)

    def gram(self, x: Array, z: Array, inverse: bool) -> Array:
        rows = BlockRows(x, z).dense()
        less, more = (rows @ vector[..., None] for vector in (self.less, self.more))
        straight = (rows * self.diagonal[:, None]) @ rows.swapaxes(1, 2)
        return np.asarray(straight - less * less.swapaxes(1, 2) + more * more.swapaxes(1, 2))

    def followed(self, E: Array) -> Array:
        moved = self.mixed * E.reshape(len(E), -1)
        return -self.still - self._solved(np.concatenate([moved.sum(axis=1, keepdims=True), moved], axis=1))

    def reach(self, E: Array, followed: Array) -> Array:
        e, (dt, dnu) = E.reshape(len(E), -1), (followed[:, :1], followed[:, 1:])
        rooms = np.concatenate([self.rest, self.apart, self.inner], axis=1)
        rest = (followed @ self.cost)[:, None]
        falls = np.concatenate([rest, 2 * self.m * e - dnu - dt, -followed], axis=1)
        bends = np.concatenate([0 * rest, e**2, np.zeros_like(followed)], axis=1)
        return _roots(rooms, falls, bends)


def _roots(room: Array, fall: Array, bend: Array) -> Array:
    """The first a > 0 (B,) at which some room − fall a − bend a², (B, r), is zero; room > 0 and bend ≥ 0."""
    return np.asarray((2 * room / (fall + np.sqrt(fall**2 + 4 * room * bend))).min(axis=1))


BALLS: dict[str, type[SpectralBall | RowsBall | TopBall]] = {
    "spectral": SpectralBall,
    "nuclear": SpectralBall,
    "rows-max": RowsBall,
    "rows-sum": RowsBall,
    "k-support": TopBall,
}


def solve_barrier(unit: Unit, norm: Norm, tol: float) -> Answer:
    """Weights and multipliers of every problem; infeasible ones with their verdict."""
    (size, _, _, d), e = unit.x.shape, unit.z.shape[-1]
    wide = max(d, e)  # zeros beside a matrix change none of these norms
    x, z = np.pad(unit.x, [(0, 0)] * 3 + [(0, wide - d)]), np.pad(unit.z, [(0, 0)] * 2 + [(0, wide - e)])
    problem = replace(unit, x=x, z=z).problem(np.full(size, 2.0), tol, large=True)
    answer = Answer.empty(size, d * e, problem.rows.m)
    start = np.zeros((size, wide, wide))
    for k in range(size):
        verdict = judge_problem(unit.take(np.array([k])).problem(np.array([2.0]), tol))
        start[k, :d, :e] = verdict.w.reshape(d, e)
        if not verdict.feasible:
            answer.verdicts[k] = verdict
    feasible = np.flatnonzero([verdict is None for verdict in answer.verdicts])
    for first in range(0, len(feasible), CHUNK):
        members = feasible[first : first + CHUNK]
        best = follow_path(problem.take(members), start[members], replace(norm, shape=(wide, wide)), tol)
        w = best.w.reshape(-1, wide, wide)[:, :d, :e].reshape(len(members), -1)
        answer.put(members, replace(best, w=w))
    return answer


@dataclass
class Point(Members):
    """A point near the central path at μ, with the ν that F'' is weighed by on the way to the next."""

    W: Array
    s: Array
    lam: Array
    y: Array
    inner: Array
    mu: Array
    nu: Array


def follow_path(problem: HardMargin, W: Array, norm: Norm, tol: float) -> Answer:
    """The best answer to every problem by relative gap, from feasible W (B, D, D)."""
    point = _start(problem, W, norm)
    progress = Progress(tol, PATIENCE, W.reshape(len(W), -1), point.lam)
    for step in range(LIMIT):
        new, gap, W, lam = _step(problem, point, norm)
        done = progress.record(step + 1, gap, W.reshape(len(W), -1), lam)
        done |= ~((new.y > 0).all(axis=1) & np.isfinite(new.W).all(axis=(1, 2)) & np.isfinite(new.lam).all(axis=1))
        if done.any():
            keep = progress.retire(done)
            problem, new = problem.take(keep), new.take(keep)
        if done.all():
            break
        point = new
    return progress.best


def _start(problem: HardMargin, W: Array, norm: Norm) -> Point:
    """λ∘y = μ for the y of half the largest s that W allows, at the scale of the ball."""
    v, own, aim, above = problem.rows.fwd(W), norm.name in OWN, problem.aim, problem.above
    quotients = np.divide(v, aim, out=np.zeros_like(v), where=aim != 0)
    largest = np.where(aim > 0, quotients, np.inf).min(axis=1)
    least = np.where(aim < 0, quotients, 0.0).max(axis=1, initial=0.0)
    share = 0.5 * (least + largest)
    scale = 0.5 / norm.sizes(W) if own else 1 / share
    W, s = scale[:, None, None] * W, scale * share
    y = np.where(above, scale[:, None] * v - s[:, None] * aim, 1.0)
    lam = np.where(above, 1 / y, 0.0)
    if own:
        mu = 1 / (aim * lam).sum(axis=1)
        return Point(W, s, mu[:, None] * lam, y, np.zeros((len(W), 0)), mu, mu)
    lam = lam * (0.5 / norm.duals(problem.rows.adj(lam)))[:, None]
    inner = np.zeros((len(W), 0)) if norm.k is None else TopBall.start(problem.rows.adj(lam), norm.k)
    mu = norm.sizes(W) / (above.sum(axis=1) + 2 * W.shape[-1] + inner.shape[1])
    return Point(W, s, lam, y, inner, mu, mu)


def _step(problem: HardMargin, point: Point, norm: Norm) -> tuple[Point, Array, Array, Array]:
    """The next point; the relative gap (B,) of W and λ, and these: the one that no ball holds takes the whole step."""
    rows, own, mu = cast(BlockRows, problem.rows), norm.name in OWN, point.mu
    aim, above, pull = problem.aim, problem.above, rows.adj(point.lam).reshape(point.W.shape)
    ball = BALLS[norm.name](point.W if own else pull, point.inner, norm.k or 0)
    weight = (1 / point.nu if own else point.nu)[:, None, None]
    lam, v = np.where(above, point.lam, 1.0), rows.fwd(point.W)
    matrices = weight * ball.gram(rows.x, rows.z, own)
    # A row that does not exist is zero and keeps its multiplier at zero.
    diagonal = np.where(above, point.y / lam, np.where(problem.exists, 0.0, 1.0))
    factor = Factor(matrices, diagonal)
    base = mu[:, None, None] * ball.gradient
    base = weight * ball.curved(pull - base, own) if own else base - point.W
    centre = mu[:, None] / lam
    missing = np.where(above, centre - (v - point.s[:, None] * aim), -v)
    dlam, ds = factor.solve(missing - rows.fwd(base)), np.zeros_like(mu)
    if own:
        turn = factor.solve(aim)
        ds = (1 - (aim * (point.lam + dlam)).sum(axis=1)) / (aim * turn).sum(axis=1)
        dlam = dlam + ds[:, None] * turn
    dpull = rows.adj(dlam).reshape(pull.shape)
    dW = base + weight * ball.curved(dpull, own)
    # From λ∘y and not from A dW, which rounds a small y away.
    dy = np.where(above, centre - point.y - diagonal * dlam, 0.0)
    turned = dW if own else dpull
    dinner = ball.followed(turned)
    squared = (turned * ball.curved(turned, False)).sum(axis=(1, 2)) + ball.loose
    length = longest_step((point.y, dy), (lam, np.where(above, dlam, 0.0)))
    length = np.minimum(1.0, np.minimum(0.9 * length, FRACTION * ball.reach(turned, dinner)))
    best_W, best_lam = (point.W, point.lam + dlam) if own else (point.W + dW, point.lam)
    gap = _gap(problem, ball, norm, best_W, v if own else rows.fwd(best_W), best_lam)
    by = length[:, None]
    new = Point(
        point.W + by[..., None] * dW,
        point.s + length * ds,
        point.lam + by * dlam,
        point.y + by * dy,
        point.inner + by * dinner,
        np.where((squared * point.nu < CLOSE * mu) & (length > 0.8), SHRINK * mu, mu),
        mu,
    )
    return new, gap, best_W, best_lam


def _gap(problem: HardMargin, ball: Ball, norm: Norm, W: Array, v: Array, lam: Array) -> Array:
    """1 − lb/ub (B,) with ub = ‖W‖/min(A W/b) and lb = bᵀλ/‖Aᵀλ‖_*, one of whose norms is that of the ball."""
    margin = problem.smallest_margin(v)
    lam = np.where(problem.above, np.maximum(lam, 0), lam)
    other = norm.duals(problem.rows.adj(lam)) if norm.name in OWN else norm.sizes(W)
    gap = 1 - (problem.gain * lam).sum(axis=1) * margin / np.maximum(ball.size * other, 1e-300)
    return np.asarray(np.where((margin > 0) & np.isfinite(gap), gap, np.inf))
