"""What the solvers are given and what they give back. Nothing here knows a solver.

Row (i, t), t ≠ α_i, asks ⟨(x_{iα} − x_{it}) z_iᵀ, W⟩ ≥ 1. The solvers see rows of norm 1/4 to 1: with c_r the power of
two by which row r is divided and c* the smallest of them, W = w / c* and λ_r = l_r / c_r, the problem is â_r·w ≥ b_r
with b_r = c*/c_r in (0, 1]; nothing is rounded on the way there and back. A row that does not exist (a masked token)
is â = 0, b = −1: it holds for every w.

Samples of very different scale make b tiny, and rounding of a few 1e-16 in â·w a large *relative* error of the margin
there. The solvers therefore aim at b + FLOOR·tol, which such a row meets with room to spare, at a cost of about
FLOOR·tol in the gap; the certificate is always that of b itself.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import numpy.typing as npt

from mirrormax.svm.rows import Array, BlockRows, Index, Rows, make_rows

FLOOR = 1e-3
START = 1.5  # the first guess of ‖w‖ over its lower bound


@dataclass
class HardMargin:
    """Problems min ‖w‖_p s.t. A w ≥ b: rows, right-hand sides (B, m), exponents p (B, 1).

    The steps aim at ``b``, the certificate is that of ``exact``.
    """

    rows: Rows
    b: Array
    exact: Array
    p: Array

    def __post_init__(self) -> None:
        self.q = self.p / (self.p - 1)
        exists = self.exact > 0
        self.gain = np.where(exists, self.exact, 0.0)
        # Half-way to the aim: a row with a tiny b counts as met only with room for the rounding of v.
        self.per_margin = np.where(exists, 2 / (self.exact + self.b), 0.0)
        self.beyond = np.where(exists, 0.0, np.inf)

    def __len__(self) -> int:
        return len(self.p)

    def margins(self, v: Array) -> Array:
        """v/b (B, m), infinite where no row exists."""
        return np.asarray(v * self.per_margin + self.beyond)

    def smallest_margin(self, v: Array) -> Array:
        """min v/b over the rows that exist, (B,)."""
        smallest: Array = self.margins(v).min(axis=1)
        return smallest

    def take(self, members: Index) -> HardMargin:
        """The problems with these indices."""
        return HardMargin(self.rows.take(members), self.b[members], self.exact[members], self.p[members])

    def at(self, p: float) -> HardMargin:
        """The same constraints with another exponent."""
        return HardMargin(self.rows, self.b, self.exact, np.full_like(self.p, p))

    def scaled(self, kappa: Array) -> HardMargin:
        """The problems for w/κ, κ (B,)."""
        return HardMargin(self.rows.scaled(kappa), self.b, self.exact, self.p)

    def subset(self, keep: Index) -> HardMargin:
        """Only the rows with these sorted indices."""
        return HardMargin(self.rows.subset(keep), self.b[:, keep], self.exact[:, keep], self.p)

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
        u = np.abs(self.rows.adj(lam))
        # Rows that cancel exactly have no scale to offer; phase 0 will judge them.
        largest = np.maximum(u.max(axis=1, keepdims=True), 1e-8 * lam.max(axis=1, keepdims=True))
        effective = np.maximum(((u / largest) ** q).sum(axis=1, keepdims=True), 1e-8)
        bound = (np.maximum(self.b, 0) * lam).sum(axis=1, keepdims=True) / (largest * effective ** (1 / q))
        kappa = START * bound / effective ** (1 - 1 / q)
        return self.scaled(kappa[:, 0]), lam / (kappa * largest)


@dataclass
class Unit:
    """Tokens as rows of one scale: x (B, n, R, d), z (B, n, e), and their scales c (B, n, R), 0 where no row exists."""

    x: Array
    z: Array
    c: Array

    @classmethod
    def of(cls, x: Array, z: Array, exists: npt.NDArray[np.bool_]) -> Unit:
        """Rows x (B, n, R, d) and queries z (B, n, e) divided by powers of two; zero rows stay zero."""
        x_size, z_size = binary(norms(x)), binary(norms(z))
        x = x / np.where((x_size > 0) & exists, x_size, np.inf)[..., None]
        z = z / np.where(z_size > 0, z_size, np.inf)[..., None]
        return cls(x, z, np.where(exists, x_size * z_size[..., None], 0.0))

    @property
    def exact(self) -> Array:
        """b (B, m): c*/c_r, and −1 where no row exists."""
        c = self.c.reshape(len(self.c), -1)
        smallest = np.where(c > 0, c, np.inf).min(axis=1, keepdims=True)
        return np.asarray(np.divide(smallest, c, out=np.full_like(c, -1.0), where=c > 0))

    def problem(self, p: Array, tol: float, large: bool = False) -> HardMargin:
        """The problems as the solvers take them, p (B,); the rows of a ``large`` one are never expanded."""
        exact = self.exact
        rows = BlockRows(self.x, self.z) if large else make_rows(self.x, self.z)
        return HardMargin(rows, np.where(exact > 0, exact + FLOOR * tol, exact), exact, p[:, None])

    def take(self, members: Index) -> Unit:
        """The problems with these indices."""
        return Unit(self.x[members], self.z[members], self.c[members])


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
class Answer:
    """Weights w (B, N) and multipliers of the scaled rows (B, m), each up to scale; verdicts where phase 0 was asked.

    ``gap`` (B,) is the solver's own estimate.
    """

    w: Array
    lam: Array
    iterations: Index
    gap: Array
    verdicts: dict[int, Verdict] = field(default_factory=dict)

    @classmethod
    def empty(cls, batch: int, size: int, m: int) -> Answer:
        """No answer yet."""
        return cls(
            np.zeros((batch, size)), np.zeros((batch, m)), np.zeros(batch, dtype=np.intp), np.full(batch, np.inf)
        )

    @classmethod
    def of(cls, w: Array, lam: Array, gap: float, iterations: int) -> Answer:
        """The answer to one problem, w (1, N) and λ (1, m)."""
        return cls(w, lam, np.array([iterations], dtype=np.intp), np.array([gap]))

    def put(self, members: Index, other: Answer) -> None:
        """Write the answers of these problems into it."""
        self.w[members], self.lam[members], self.gap[members] = other.w, other.lam, other.gap
        self.iterations[members] = other.iterations
        self.verdicts.update({int(members[k]): verdict for k, verdict in other.verdicts.items()})


@dataclass
class Certificate:
    """Weights (B, N) at minimum margin 1, multipliers (B, m) with dual norm 1, and what they prove, (B,)."""

    weights: Array
    dual: Array
    margin: Array
    gap: Array
    violation: Array
    support: npt.NDArray[np.bool_]


def norms(x: Array) -> Array:
    """Euclidean norms over the last axis, safe at any scale."""
    largest = np.abs(x).max(axis=-1, initial=0.0)
    safe = np.where(largest > 0, largest, 1.0)
    return np.asarray(largest * np.linalg.norm(x / safe[..., None], axis=-1))


def binary(size: Array) -> Array:
    """The power of two just above each size, 0 for 0: dividing by it rounds nothing."""
    return np.asarray(np.where(size > 0, np.ldexp(1.0, np.frexp(size)[1]), 0.0))
