"""Problems for the SVM tests, in one list, and their certificates computed another way.

Everything here writes the constraint matrix out in full and computes in extended precision; nothing is taken
from the solvers under test.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EXPONENTS = (1.02, 1.1, 1.75, 2, 3, 6, 20)


class Case(NamedTuple):
    X: np.ndarray
    z: np.ndarray
    alpha: np.ndarray
    mask: np.ndarray | None = None


def sphere(seed, *shape):
    points = np.random.default_rng(seed).standard_normal(shape)
    return points / np.linalg.norm(points, axis=-1, keepdims=True)


def random_case(seed, n=4, T=5, d=6):
    """Feasible, as d ≥ max(T − 1, n)."""
    alpha = np.random.default_rng(seed + 1).integers(0, T, n)
    return Case(sphere(seed, n, T, d), sphere(seed + 2, n, d), alpha)


def _orthonormal():
    rng = np.random.default_rng(3)
    X = np.stack([np.linalg.qr(rng.standard_normal((6, 6)))[0][:4] for _ in range(4)])
    return Case(X, X[:, 0], np.array([0, 1, 2, 3]))


def _signs():
    rng = np.random.default_rng(5)
    X = rng.choice([-1.0, 1.0], (4, 4, 8))
    return Case(X, rng.choice([-1.0, 1.0], (4, 8)), np.array([0, 1, 2, 3]))


def _problems():
    base = random_case(0)
    X, z, alpha, _ = base
    spread = 10.0 ** np.array([-6, -2, 3, 6])[:, None]
    blank, blank_z = X.copy(), z.copy()
    blank[..., 2], blank_z[:, 4] = 0, 0
    mask = np.random.default_rng(9).random((4, 5)) < 0.6
    mask[np.arange(4), alpha] = True
    mask[0] = True
    example = np.array([[[5.0, 0.0], [0.0, 1.0]], [[-5.0, 0.0], [0.0, -1.0]]])
    return {
        "sphere": base,
        "paper size": random_case(10, 6, 8, 10),
        "one sample": random_case(20, 1, 6, 6),
        "two tokens": random_case(30, 5, 2, 5),
        "one row": random_case(40, 1, 2, 3),
        "masked": Case(X, z, alpha, mask),
        "duplicated samples": Case(np.concatenate([X, X]), np.concatenate([z, z]), np.concatenate([alpha, alpha])),
        "zero features": Case(blank, blank_z, alpha),
        "signs": _signs(),
        "orthonormal": _orthonormal(),
        "tiny": Case(1e-6 * X, 1e-6 * z, alpha),
        "huge": Case(1e6 * X, 1e6 * z, alpha),
        "huge tokens, tiny queries": Case(1e6 * X, 1e-6 * z, alpha),
        "queries of every size": Case(X, spread * z, alpha),
        "tokens of every size": Case(spread[..., None] * X, z, alpha),
        "example 1": Case(example, example[:, 0], np.array([0, 0])),
        "tight": random_case(50, 6, 6, 4),  # few dimensions: a small margin
    }


PROBLEMS = _problems()

# Six active constraints, of which four can carry all multipliers.
DEGENERATE = Case(
    np.array([[[1, -1], [-1, 1], [1, 1]], [[-1, 1], [1, -1], [1, 1]], [[1, 1], [-1, -1], [-1, 1]]], dtype=float),
    np.array([[-1, 1], [-1, -1], [-1, -1]], dtype=float),
    np.array([0, 1, 1]),
)


def infeasible_case():
    """Samples 1 and 2 share tokens and query and choose differently; sample 0 is innocent."""
    X, z, _, _ = random_case(60, 3, 4, 5)
    X[2], z[2] = X[1], z[1]
    return Case(X, z, np.array([0, 0, 1]))


def constraint_matrix(case, dtype=np.longdouble):
    """All rows (x_iα − x_it) z_iᵀ with t ≠ α_i and t present, (m, d²), and their places (m, 2)."""
    rows, places = [], []
    for i, (tokens, query, chosen) in enumerate(zip(case.X, case.z, case.alpha, strict=True)):
        for t in range(len(tokens)):
            if t != chosen and (case.mask is None or case.mask[i, t]):
                difference = tokens[chosen].astype(dtype) - tokens[t].astype(dtype)
                rows.append(np.outer(difference, query.astype(dtype)).ravel())
                places.append((i, t))
    return np.array(rows, dtype=dtype), np.array(places)


def norm(x, p):
    """‖x‖_p in extended precision."""
    x = np.abs(np.asarray(x, dtype=np.longdouble)).ravel()
    largest = x.max()
    return largest * ((x / largest) ** np.longdouble(p)).sum() ** (1 / np.longdouble(p))


def proved_gap(matrix, weights, dual, p):
    """1 − lb/ub after scaling the weights to minimum margin 1, with the multipliers (m,) of the rows."""
    weights = np.asarray(weights, dtype=np.longdouble).ravel()
    dual = np.asarray(dual, dtype=np.longdouble)
    assert (dual >= 0).all()
    smallest = (matrix @ weights).min()
    assert smallest > 0
    lower = dual.sum() / norm(dual @ matrix, np.longdouble(p) / (np.longdouble(p) - 1))
    return float(1 - lower * smallest / norm(weights, p))


def at_places(dual, places):
    """The multipliers of the rows out of an (n, T) array."""
    return np.asarray(dual)[places[:, 0], places[:, 1]]
