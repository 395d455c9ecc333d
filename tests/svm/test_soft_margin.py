"""Soft margins: the exact problem min (1/p)‖W‖_p^p + C Σ ξ, its gap, and its two limits."""

from fractions import Fraction

import cvxpy as cp
import numpy as np
import pytest
from helpers import PROBLEMS, Case, at_places, constraint_matrix, infeasible_case, norm

from mirrormax.svm import att_svm, lp_svm

CASES = {"inseparable": infeasible_case(), "sphere": PROBLEMS["sphere"], "masked": PROBLEMS["masked"]}


def objectives(matrix, weights, dual, p, C):
    """P(W) and D(λ) in extended precision."""
    xi = np.maximum(1 - matrix @ weights.ravel().astype(np.longdouble), 0)
    q = p / (p - 1)
    primal = norm(weights, p) ** p / p + C * xi.sum()
    return float(primal), float(dual.sum() - norm(dual.astype(np.longdouble) @ matrix, q) ** q / q)


@pytest.mark.parametrize("C", [1e-2, 1, 100])
@pytest.mark.parametrize("p", [1.1, 1.75, 2, 3, 6])
@pytest.mark.parametrize("name", CASES)
def test_gap_between_primal_and_dual_is_closed(name, p, C):
    case = CASES[name]
    solution = att_svm(case.X, case.z, case.alpha, p=p, C=C, mask=case.mask)
    matrix, places = constraint_matrix(case)
    dual = at_places(solution.dual, places)
    assert (dual >= 0).all()
    assert (dual <= C).all()
    primal, lower = objectives(matrix, solution.W, dual, p, C)
    assert 1 - lower / primal <= 1e-9
    assert solution.gap == pytest.approx(1 - lower / primal, abs=1e-12)
    assert solution.violation == pytest.approx(float(max(1 - (matrix @ solution.W.ravel()).min(), 0)), abs=1e-12)


@pytest.mark.parametrize("p", [1.5, 2, 4])
def test_agrees_with_a_conic_solver(p):
    case = infeasible_case()
    matrix = constraint_matrix(case, float)[0]
    w = cp.Variable(matrix.shape[1])
    objective = cp.sum(cp.power(cp.abs(w), p)) / p + 2.0 * cp.sum(cp.pos(1 - matrix @ w))
    problem = cp.Problem(cp.Minimize(objective))
    problem.solve(solver=cp.CLARABEL)
    solution = att_svm(case.X, case.z, case.alpha, p=p, C=2.0)
    value = (np.abs(solution.W) ** p).sum() / p + 2.0 * np.maximum(1 - matrix @ solution.W.ravel(), 0).sum()
    assert value == pytest.approx(problem.value, rel=1e-6)


@pytest.mark.parametrize("p", [1.3, 2, 4])
def test_a_high_price_gives_the_hard_margin_back(p):
    case = PROBLEMS["sphere"]
    hard = att_svm(case.X, case.z, case.alpha, p=p)
    soft = att_svm(case.X, case.z, case.alpha, p=p, C=1e6)
    assert soft.violation < 1e-6
    assert np.abs(soft.W - hard.W).max() < 1e-3 * np.abs(hard.W).max()


def test_a_low_price_caps_every_multiplier():
    case = PROBLEMS["sphere"]
    solution = att_svm(case.X, case.z, case.alpha, p=2, C=1e-4)
    matrix, places = constraint_matrix(case, float)
    assert np.allclose(at_places(solution.dual, places), 1e-4, rtol=1e-9)
    assert np.allclose(solution.W.ravel(), 1e-4 * matrix.sum(axis=0), rtol=1e-6, atol=1e-12)


def test_a_duplicated_chosen_token_is_no_obstacle():
    case = PROBLEMS["sphere"]
    X = case.X.copy()
    X[0, (case.alpha[0] + 1) % 5] = X[0, case.alpha[0]]
    solution = att_svm(X, case.z, case.alpha, p=1.5, C=3.0)
    matrix, places = constraint_matrix(Case(X, case.z, case.alpha))
    primal, lower = objectives(matrix, solution.W, at_places(solution.dual, places), 1.5, 3.0)
    assert solution.status == "optimal"
    assert 1 - lower / primal <= 1e-9
    assert solution.dual[0, (case.alpha[0] + 1) % 5] == 3.0
    assert solution.violation == 1.0


@pytest.mark.parametrize(("n", "p"), [(60, 1.5), (80, 1.5), (80, 2), (80, 3)])
def test_classifier_with_noisy_labels(n, p):
    """With 80 points in 4 dimensions every system is solved by its shorter side."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 4))
    y = np.where(X[:, 0] + 0.8 * rng.standard_normal(n) > 0, 1, -1)
    solution = lp_svm(X, y, p=p, C=0.5)
    primal, lower = objectives(y[:, None] * X.astype(np.longdouble), solution.v, solution.dual, p, 0.5)
    assert solution.status == "optimal"
    assert 1 - lower / primal <= 1e-9
    assert solution.violation > 0


def test_members_of_a_batch_have_their_own_price_and_p():
    case = infeasible_case()
    prices, exponents = np.array([0.1, 10.0]), np.array([1.5, 3.0])
    both = att_svm(case.X, case.z, case.alpha, p=exponents, C=prices, mask=np.ones((2, 3, 4), dtype=bool))
    for k in range(2):
        alone = att_svm(case.X, case.z, case.alpha, p=exponents[k], C=prices[k])
        assert np.allclose(both.W[k], alone.W, rtol=1e-12, atol=1e-15)


@pytest.mark.parametrize("seed", [2, 17, 23])
def test_slacks_that_rounding_makes_are_charged_at_their_price(seed):
    """With C = 1e5 a slack of 5e-17 is a gap of 1e-5; slacks and gap are those of exact arithmetic."""
    rng = np.random.default_rng(seed)
    X, z = 1000 * rng.standard_normal((1, 3, 2)), rng.standard_normal((1, 2))
    solution = att_svm(X, z, [0], p=1.8, C=1e5)
    slack = Fraction(0)
    for t in (1, 2):
        margin = sum(
            (Fraction(X[0, 0, i]) - Fraction(X[0, t, i])) * Fraction(solution.W[i, j]) * Fraction(z[0, j])
            for i, j in np.ndindex(2, 2)
        )
        slack += max(1 - margin, Fraction(0))
    matrix, places = constraint_matrix(Case(X, z, np.array([0])))
    dual = at_places(solution.dual, places)
    lower = dual.sum() - norm(dual.astype(np.longdouble) @ matrix, 1.8 / 0.8) ** (1.8 / 0.8) / (1.8 / 0.8)
    primal = norm(solution.W, 1.8) ** 1.8 / 1.8 + 1e5 * float(slack)
    assert 1 - lower / primal <= solution.gap + 1e-13 <= 1e-9


@pytest.mark.parametrize(
    ("seed", "n", "T", "p", "C"), [(0, 8, 7, 1.05, 3e8), (1, 5, 7, 1.14, 7e9), (2, 6, 5, 1.6, 6e9), (3, 5, 4, 3.0, 1e9)]
)
def test_a_high_price_on_data_that_nothing_separates_is_solved(seed, n, T, p, C):
    """Multipliers are of the size of C and their sum Aᵀλ of that of 1: most of its digits cancel."""
    rng = np.random.default_rng(seed)
    X, z = rng.standard_normal((n, T, 2)), rng.standard_normal((n, 2))
    case = Case(X, z, rng.integers(0, T, n))
    assert att_svm(case.X, case.z, case.alpha, p=p, throw=False).infeasible
    solution = att_svm(case.X, case.z, case.alpha, p=p, C=C)
    matrix, places = constraint_matrix(case)
    dual = at_places(solution.dual, places)
    assert (dual >= 0).all()
    assert (dual <= C).all()
    primal, lower = objectives(matrix, solution.W, dual, p, C)
    assert -1e-12 <= 1 - lower / primal <= 1e-9


def test_a_price_that_double_precision_cannot_pay_is_admitted():
    X = np.random.default_rng(1).standard_normal((4, 2))
    solution = lp_svm(X, np.ones(4), p=1.5, C=1.0, tol=1e-18, throw=False)
    assert "double precision may not allow less" in solution.status


@pytest.mark.parametrize("C", [1e-300, 1e-30, 1e30])
def test_prices_and_data_of_any_size_end_in_a_status(C):
    X = np.random.default_rng(5).standard_normal((2, 2, 2))
    solution = att_svm(1e-20 * X, X[:, 0], [0, 0], p=2, C=C, throw=False)
    assert solution.status.startswith(("optimal", "stopped"))
    assert solution.gap >= 0
