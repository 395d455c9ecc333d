"""The same numbers from other solvers, from the paper, and from symmetries of the problem."""

import cvxpy as cp
import numpy as np
import pytest
from helpers import PROBLEMS, constraint_matrix, random_case
from hypothesis import given
from hypothesis import strategies as st
from scipy.optimize import minimize

from mirrormax.data import example1
from mirrormax.geometry import Lp
from mirrormax.svm import att_svm, lp_svm

SMALL = ("sphere", "one sample", "two tokens", "masked", "duplicated samples", "zero features", "signs", "orthonormal")


def peer_value(objective, constraints):
    problem = cp.Problem(cp.Minimize(objective), constraints)
    problem.solve(solver=cp.CLARABEL, tol_gap_rel=1e-8, tol_gap_abs=1e-8, tol_feas=1e-8)
    assert problem.status == "optimal"
    return problem.value


@pytest.mark.parametrize("name", SMALL)
def test_p_two_is_the_quadratic_programme(name):
    case = PROBLEMS[name]
    solution = att_svm(case.X, case.z, case.alpha, p=2, mask=case.mask)
    matrix = constraint_matrix(case, float)[0]
    w = cp.Variable(matrix.shape[1])
    value = peer_value(cp.sum_squares(w), [matrix @ w >= 1])
    assert np.linalg.norm(solution.W) ** 2 == pytest.approx(value, rel=1e-7)
    assert np.abs(solution.W.ravel() - w.value).max() < 1e-4 * np.abs(w.value).max()


@pytest.mark.parametrize("p", [1.25, 1.5, 3, 5])
@pytest.mark.parametrize("name", SMALL)
def test_other_p_agree_with_a_conic_solver(name, p):
    case = PROBLEMS[name]
    solution = att_svm(case.X, case.z, case.alpha, p=p, mask=case.mask)
    matrix = constraint_matrix(case, float)[0]
    w = cp.Variable(matrix.shape[1])
    assert 1 / solution.margin == pytest.approx(peer_value(cp.pnorm(w, p), [matrix @ w >= 1]), rel=1e-6)


def test_a_general_nonlinear_solver_finds_nothing_better():
    case = PROBLEMS["one sample"]
    matrix = constraint_matrix(case, float)[0]
    best = att_svm(case.X, case.z, case.alpha, p=2.5)
    found = minimize(
        lambda w: (np.abs(w) ** 2.5).sum(),
        best.W.ravel() + 0.3,
        jac=lambda w: 2.5 * np.sign(w) * np.abs(w) ** 1.5,
        constraints={"type": "ineq", "fun": lambda w: matrix @ w - 1, "jac": lambda w: matrix},
        method="SLSQP",
        options={"maxiter": 1000, "ftol": 1e-14},
    )
    assert found.fun ** (1 / 2.5) == pytest.approx(1 / best.margin, rel=1e-6)


def test_example_one_at_p_two_is_what_the_paper_prints():
    problem = example1()
    solution = att_svm(problem.X, problem.z, problem.alpha, p=2)
    assert np.allclose(solution.W, [[25 / 650, 0], [-5 / 650, 0]], atol=1e-12)


def test_example_one_at_p_three_is_not_what_the_paper_prints():
    problem = example1()
    solution = att_svm(problem.X, problem.z, problem.alpha, p=3, tol=1e-13)
    assert np.allclose(solution.W, [[0.03672, 0], [-0.01642, 0]], atol=5e-6)
    # One constraint, 25 a − 5 b ≥ 1 after symmetry: a and b in the ratio sqrt(25) : sqrt(5) by Hölder.
    assert -solution.W[0, 0] / solution.W[1, 0] == pytest.approx(5**0.5, rel=1e-6)


@pytest.mark.parametrize("p", [1.3, 2, 4])
def test_one_row_has_its_solution_in_closed_form(p):
    case = PROBLEMS["one row"]
    row = constraint_matrix(case, float)[0][0]
    q = p / (p - 1)
    expected = np.sign(row) * np.abs(row) ** (q - 1) / (np.abs(row) ** q).sum()
    assert np.allclose(att_svm(case.X, case.z, case.alpha, p=p, tol=1e-13).W.ravel(), expected, rtol=1e-5)


@pytest.mark.parametrize("p", [1.2, 2, 5])
def test_classifier_agrees_with_a_conic_solver(p):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((30, 6))
    y = np.sign(X @ rng.standard_normal(6))
    v = cp.Variable(6)
    value = peer_value(cp.pnorm(v, p), [cp.multiply(y, X @ v) >= 1])
    assert 1 / lp_svm(X, y, p=p).margin == pytest.approx(value, rel=1e-6)


@given(st.integers(0, 10**6), st.floats(1.05, 12), st.floats(-5, 5), st.floats(-5, 5))
def test_scaling_the_data_scales_the_weights_back(seed, p, x_scale, z_scale):
    case = random_case(seed)
    plain = att_svm(case.X, case.z, case.alpha, p=p)
    scaled = att_svm(10**x_scale * case.X, 10**z_scale * case.z, case.alpha, p=p)
    assert scaled.margin == pytest.approx(10 ** (x_scale + z_scale) * plain.margin, rel=2e-9)


@given(st.integers(0, 10**6), st.floats(1.05, 12))
def test_order_and_signs_of_features_do_not_matter(seed, p):
    case = random_case(seed)
    rng = np.random.default_rng(seed)
    order, signs = rng.permutation(6), rng.choice([-1.0, 1.0], 6)
    other = att_svm(case.X[..., order] * signs, case.z[:, order[::-1]], case.alpha, p=p)
    assert other.margin == pytest.approx(att_svm(case.X, case.z, case.alpha, p=p).margin, rel=2e-9)


@given(st.integers(0, 10**6))
def test_the_norm_of_the_solution_is_monotone_in_p(seed):
    """‖W‖_p falls as p grows, for every W and so for the best."""
    case = random_case(seed)
    margins = [float(att_svm(case.X, case.z, case.alpha, p=p).margin) for p in (1.1, 1.5, 2, 3, 8)]
    assert margins == sorted(margins)


def test_a_potential_may_stand_for_its_p():
    case = PROBLEMS["sphere"]
    one, other = (att_svm(case.X, case.z, case.alpha, p=p) for p in (1.5, Lp(1.5)))
    assert np.array_equal(one.W, other.W)


@pytest.mark.parametrize("name", [*SMALL, "huge tokens, tiny queries", "queries of every size"])
def test_nuclear_norm_is_certified_and_agrees_with_a_conic_solver(name):
    case = PROBLEMS[name]
    solution = att_svm(case.X, case.z, case.alpha, norm="nuclear", mask=case.mask)
    matrix, places = constraint_matrix(case, float)
    d = case.X.shape[-1]
    size = np.linalg.svd(solution.W, compute_uv=False).sum()
    dual = solution.dual[places[:, 0], places[:, 1]]
    lower = dual.sum() / np.linalg.norm((dual @ matrix).reshape(d, d), 2)
    assert 1 - lower / size <= 1e-9
    assert solution.gap <= 1e-9
    assert (matrix @ solution.W.ravel()).min() > 1 - 1e-9
    assert solution.margin == pytest.approx(1 / size, rel=1e-12)
    if name in SMALL:
        W = cp.Variable((d, d))
        value = peer_value(cp.normNuc(W), [matrix @ cp.vec(W, order="C") >= 1])
        assert size == pytest.approx(value, rel=1e-6)


def test_nuclear_norm_prefers_low_rank():
    case = PROBLEMS["paper size"]
    nuclear, euclid = (
        np.linalg.svd(att_svm(case.X, case.z, case.alpha, norm=norm).W, compute_uv=False) for norm in ("nuclear", "lp")
    )
    assert nuclear.sum() < euclid.sum()
    assert (nuclear > 1e-4 * nuclear[0]).sum() < (euclid > 1e-4 * euclid[0]).sum()
