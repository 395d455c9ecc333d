"""What the solvers are given and what they give back. Nothing here knows a solver.

Row (i, t), t ≠ α_i, asks ⟨(x_{iα} − x_{it}) z_iᵀ, W⟩ ≥ 1. The solvers see rows of norm 1/4 to 1: with c_r the power of
two by which row r is divided and c* the smallest of them, W = w / c* and λ_r = l_r / c_r, the problem is â_r·w ≥ b_r
with b_r = c*/c_r in (0, 1]; nothing is rounded on the way there and back. A row that does not exist (a masked token)
is â = 0, b = −1: it holds for every w.

Samples of very different scale make b tiny, and rounding of a few 1e-16 in â·w a large *relative* error of the margin
there. The solvers therefore aim at b + FLOOR·tol, which such a row meets with room to spare, at a cost of about
FLOOR·tol in the gap; the certificate is always that of b itself.

**Beyond A w ≥ b > 0.** An *equality* row asks â·w = 0: its multiplier ν may have either sign and its
slack is zero, and in all else it is a row like the others, so that Aᵀλ stands for Aᵀλ + Bᵀν throughout. A right-hand
side may also be zero or negative; one at least is positive, else w = 0 were the answer.
"""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from typing import Any, TypeVar

import numpy as np

from mirrormax.svm.rows import Array, BlockRows, Bools, Index, Rows, make_rows

FLOOR = 1e-3
START = 1.5  # the first guess of ‖w‖ over its lower bound

M = TypeVar("M", bound="Members")


class Members:
    """A dataclass whose arrays have one entry per problem in their first dimension; a part may be None."""

    def _parts(self) -> dict[str, Any]:
        return {part.name: getattr(self, part.name) for part in fields(self)}  # type: ignore[arg-type]

    def take(self: M, members: Index) -> M:
        """Those of the problems with these indices."""

        def of(part: Any) -> Any:
            if part is None:
                return None
            return part[members] if isinstance(part, np.ndarray) else part.take(members)

        return type(self)(*map(of, self._parts().values()))

    def put(self: M, members: Index, other: M) -> None:
        """Write those of other problems over them."""
        for name, part in self._parts().items():
            part[members] = getattr(other, name)


@dataclass
class HardMargin(Members):
    """Problems min ‖w‖_p s.t. A w ≥ b: rows, right-hand sides (B, m), exponents p (B, 1), which rows exist (B, m).

    The steps aim at ``b``, the certificate is that of ``exact``. ``equal`` (B, m) are the rows that are equalities;
    None, as nearly always, says that there are none and that every right-hand side is positive.
    """

    rows: Rows
    b: Array
    exact: Array
    p: Array
    exists: Bools
    equal: Bools | None = None
    cap: Array | Any = None  # (1, m): the largest λ of a soft margin

    def __post_init__(self) -> None:
        self.q = self.p / (self.p - 1)
        positive = self.exact > 0
        self.gain = np.where(self.exists, self.exact, 0.0)
        # Half-way to the aim: a row with a tiny b counts as met only with room for the rounding of v.
        self.per_margin = np.where(positive, 2 / (self.exact + self.b), 0.0)
        self.beyond = np.where(positive, 0.0, np.inf)

    def __len__(self) -> int:
        return len(self.p)

    @property
    def above(self) -> Bools:
        """Which rows (B, m) are inequalities."""
        return self.exists if self.equal is None else self.exists & ~self.equal

    @property
    def aim(self) -> Array:
        """``b`` at these, zero elsewhere."""
        return np.where(self.above, self.b, 0.0)

    def inequalities(self, array: Array, elsewhere: float = 0.0) -> Array:
        """The same array (B, m), with another value at equality rows."""
        return array if self.equal is None else np.where(self.equal, elsewhere, array)

    def count(self) -> Array | int:
        """How many slacks each problem (B, 1) has: one per row that is no equality, two where λ has a cap."""
        if self.cap is not None:
            return 2 * self.rows.m
        return self.rows.m if self.equal is None else (~self.equal).sum(axis=1, keepdims=True)

    def gap_of(self, ratio: Array, v: Array) -> Array:
        """1 − lb/ub (B,) for lb/ub ``ratio``, and what A w, scaled to meet every b > 0, misses of the other rows.

        Weights that miss a row may be shorter than any that do not, and bᵀλ may be negative: a ratio above 1 then says
        nothing.
        """
        gap = 1 - ratio
        if self.equal is not None:
            smallest = self.smallest_margin(v)
            scaled = v / np.maximum(smallest, 1e-300)[:, None]
            missed = np.where(self.equal, np.abs(scaled), (self.exact + self.b) / 2 - scaled)
            missed = np.where(self.exists & (self.exact <= 0), missed, 0.0).max(axis=1, initial=0.0)
            gap = np.where(smallest > 0, np.maximum(gap, 0.0) + missed, 1 + np.abs(ratio))
        return np.where(np.isfinite(gap), gap, np.inf)

    def margins(self, v: Array) -> Array:
        """v/b (B, m), infinite where no row exists."""
        return np.asarray(v * self.per_margin + self.beyond)

    def smallest_margin(self, v: Array) -> Array:
        """min v/b over the rows that exist, (B,)."""
        return np.asarray(self.margins(v).min(axis=1))

    def at(self, p: float) -> HardMargin:
        """The same constraints with another exponent."""
        return replace(self, p=np.full_like(self.p, p))

    def scaled(self, kappa: Array) -> HardMargin:
        """The problems for w/κ, κ (B,)."""
        return replace(self, rows=self.rows.scaled(kappa))

    def subset(self, keep: Index) -> HardMargin:
        """Only the rows with these sorted indices."""
        equal = None if self.equal is None else self.equal[:, keep]
        parts = self.b[:, keep], self.exact[:, keep], self.p, self.exists[:, keep]
        return HardMargin(self.rows.subset(keep), *parts, equal)

    def mirror(self, lam: Array) -> Array:
        """w = sign(u)|u|^{q−1}, u = Aᵀλ, with max|u| = 1: near p = 1 any other scale would under- or overflow."""
        u = self.rows.adj(lam)
        u = u / np.maximum(np.abs(u).max(axis=1, keepdims=True), 1e-300)
        return np.asarray(np.abs(u) ** (self.q - 2) * u)

    def dual_start(self, weights: Array | None = None) -> tuple[HardMargin, Array]:
        """The problems scaled so that their solution has entries near 1, and multipliers to start from.

        With l > 0 (ones, or ``weights``), u = Aᵀl, lb0 = bᵀl/‖u‖_q and N_eff = Σ(|u|/max|u|)^q:
        κ = 1.5·lb0/N_eff^{1/p}, solve with κA from λ = l/max|κu|; then w = κŵ.
        """
        q = self.q
        lam = np.ones_like(self.b) if weights is None else weights
        if self.equal is not None:  # ν makes Aᵀλ + Bᵀν shortest in the Euclidean norm, member by member
            lam = np.where(self.equal, 0.0, lam)
            for k in np.flatnonzero(self.equal.any(axis=1)):
                own, places = self.rows.take(np.array([k])), np.flatnonzero(self.equal[k])
                lam[k, places] = np.linalg.lstsq(own.subset(places).dense()[0].T, -own.adj(lam[[k]])[0], rcond=None)[0]
        u = np.abs(self.rows.adj(lam))
        # Rows that cancel exactly have no scale to offer; phase 0 will judge them.
        largest = np.maximum(u.max(axis=1, keepdims=True), 1e-8 * np.abs(lam).max(axis=1, keepdims=True))
        effective = np.maximum(((u / largest) ** q).sum(axis=1, keepdims=True), 1e-8)
        bound = (np.maximum(self.b, 0) * lam).sum(axis=1, keepdims=True) / (largest * effective ** (1 / q))
        kappa = START * bound / effective ** (1 - 1 / q)
        return self.scaled(kappa[:, 0]), lam / (kappa * largest)


@dataclass
class Unit(Members):
    """Tokens as rows of one scale: x (B, n, R, d), z (B, n, e), and their scales c (B, n, R), 0 where no row exists.

    ``right`` (B, m) are the right-hand sides where they are not all 1, ``equal`` (B, m) the equality rows, if any.
    """

    x: Array
    z: Array
    c: Array
    right: Array | None = None
    equal: Bools | None = None

    @classmethod
    def of(cls, x: Array, z: Array, exists: Bools, right: Array | None = None, equal: Bools | None = None) -> Unit:
        """Rows x (B, n, R, d) and queries z (B, n, e) divided by powers of two; zero rows stay zero."""
        x_size, z_size = binary(norms(x)), binary(norms(z))
        x = x / np.where((x_size > 0) & exists, x_size, np.inf)[..., None]
        z = z / np.where(z_size > 0, z_size, np.inf)[..., None]
        return cls(x, z, np.where(exists, x_size * z_size[..., None], 0.0), right, equal)

    @property
    def exact(self) -> Array:
        """b (B, m): c*/c_r times the right-hand side, 0 at equalities, and −1 where no row exists."""
        c = self.c.reshape(len(self.c), -1)
        smallest = np.where(c > 0, c, np.inf).min(axis=1, keepdims=True)
        exact = np.asarray(np.divide(smallest, c, out=np.full_like(c, -1.0), where=c > 0))
        if self.right is None:
            return exact
        right = np.where(c > 0, exact * self.right, 0.0)
        return np.where(c > 0, right / right.max(axis=1, keepdims=True), -1.0)

    def problem(self, p: Array, tol: float, large: bool = False) -> HardMargin:
        """The problems as the solvers take them, p (B,); the rows of a ``large`` one are never expanded."""
        exact, exists = self.exact, self.c.reshape(len(self.c), -1) > 0
        rows = BlockRows(self.x, self.z) if large else make_rows(self.x, self.z)
        aimed = exists if self.equal is None else exists & ~self.equal
        return HardMargin(rows, np.where(aimed, exact + FLOOR * tol, exact), exact, p[:, None], exists, self.equal)


@dataclass
class Verdict:
    """``feasible`` with w (N,), A w > 0; or not, with λ (m,), Aᵀλ = 0; or undecided (None) with the best λ.

    ``residual`` is the largest |Aᵀλ| relative to |A|ᵀλ, the sum of the absolute values that make it.
    """

    feasible: bool | None
    w: Array
    lam: Array
    residual: float

    def spread(self, rows: Index, m: int) -> Verdict:
        """The same about a problem of m rows of which these were looked at."""
        lam = np.zeros(m)
        lam[rows] = self.lam
        return Verdict(self.feasible, self.w, lam, self.residual)


@dataclass
class Answer(Members):
    """Weights w (B, N) and multipliers of the scaled rows (B, m), each up to scale.

    ``gap`` (B,) is the solver's own estimate, ``verdicts`` (B,) hold a :class:`Verdict` where phase 0 was asked.
    """

    w: Array
    lam: Array
    iterations: Index
    gap: Array
    verdicts: Any = None

    def __post_init__(self) -> None:
        if self.verdicts is None:
            self.verdicts = np.full(len(self.gap), None, dtype=object)

    @classmethod
    def empty(cls, batch: int, size: int, m: int) -> Answer:
        """No answer yet."""
        iterations = np.zeros(batch, dtype=np.intp)
        return cls(np.zeros((batch, size)), np.zeros((batch, m)), iterations, np.full(batch, np.inf))

    @classmethod
    def of(cls, w: Array, lam: Array, gap: float, iterations: int) -> Answer:
        """The answer to one problem, w (1, N) and λ (1, m)."""
        return cls(w, lam, np.array([iterations], dtype=np.intp), np.array([gap]))


def project(rows: Rows, equal: Bools | None, w: Array) -> Array:
    """The nearest weights to w (B, N), in the Euclidean norm, with B w = 0 in the rows ``equal`` (B, m), if any."""
    if equal is None:
        return w
    w = w.copy()
    for k in np.flatnonzero(equal.any(axis=1)):
        matrix = rows.take(np.array([k])).subset(np.flatnonzero(equal[k])).dense()[0]
        basis = np.linalg.qr(matrix.T)[0]
        for _ in range(2):  # the second time for the rounding of the first
            w[k] -= basis @ (basis.T @ w[k])
    return w


def norms(x: Array) -> Array:
    """Euclidean norms over the last axis, safe at any scale."""
    largest = np.abs(x).max(axis=-1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    return np.asarray(largest * np.linalg.norm(x / safe[..., None], axis=-1))


def binary(size: Array) -> Array:
    """The power of two just above each size, 0 for 0: dividing by it rounds nothing."""
    return np.asarray(np.where(size > 0, np.ldexp(1.0, np.frexp(size)[1]), 0.0))
