"""Where no weights separate the data: the proof, the culprits, the exception."""

import numpy as np
import pytest
from helpers import at_places, constraint_matrix, infeasible_case, random_case, sphere

from mirrormax.svm import InfeasibleError, NotSolvedError, att_svm, label_margin, lp_svm


def assert_farkas(matrix, dual):
    """λ ≥ 0, 1ᵀλ = 1, Aᵀλ = 0: no W has A W ≥ 1."""
    dual = np.asarray(dual, dtype=np.longdouble)
    assert (dual >= 0).all()
    assert abs(dual.sum() - 1) < 1e-12
    assert np.abs(dual @ matrix).max() <= 1e-10 * np.abs(matrix).max()


@pytest.mark.parametrize("p", [1.02, 1.5, 2, 3, 20])
def test_farkas_certificate_and_the_samples_in_it(p):
    case = infeasible_case()
    solution = att_svm(case.X, case.z, case.alpha, p, throw=False)
    matrix, places = constraint_matrix(case)
    assert solution.status.startswith("infeasible")
    assert "optimal" not in solution.status
    assert_farkas(matrix, at_places(solution.dual, places))
    assert solution.samples.tolist() == [False, True, True]
    assert np.isnan(solution.W).all()
    assert solution.margin == 0
    assert solution.gap == np.inf


@pytest.mark.parametrize("scale", [1e-6, 1e6])
def test_scale_does_not_blur_the_verdict(scale):
    case = infeasible_case()
    solution = att_svm(scale * case.X, case.z, case.alpha, 1.5, throw=False)
    assert solution.infeasible
    assert solution.samples.tolist() == [False, True, True]


def test_a_token_inside_the_hull_of_its_rivals_is_refuted():
    X = np.array([[[0.0, 0.0], [1.0, 0.0], [-1.0, 1.0], [-1.0, -1.0]]])
    with pytest.raises(InfeasibleError) as caught:
        att_svm(X, np.array([[1.0, 2.0]]), [0])
    assert caught.value.samples.tolist() == [True]
    assert np.allclose(caught.value.certificate, [[0, 0.5, 0.25, 0.25]])


def test_nearly_inseparable_is_still_separable():
    case = infeasible_case()
    z = case.z.copy()
    z[2] += 1e-3 * sphere(0, 5)
    solution = att_svm(case.X, z, case.alpha, 2)
    assert solution.status == "optimal"
    assert solution.margin < 1e-2


def test_exception_carries_solution_certificate_and_samples():
    case = infeasible_case()
    with pytest.raises(InfeasibleError, match="infeasible: no weights") as caught:
        att_svm(case.X, case.z, case.alpha, 3)
    assert isinstance(caught.value, ValueError)
    assert caught.value.samples.tolist() == [False, True, True]
    assert caught.value.certificate is caught.value.solution.dual


def test_exception_for_a_tolerance_not_reached_is_another_one():
    case = random_case(0)
    with pytest.raises(NotSolvedError, match="above tol") as caught:
        att_svm(case.X, case.z, case.alpha, 1.5, tol=1e-18)
    assert not isinstance(caught.value, InfeasibleError)
    assert caught.value.solution.gap < 1e-9


@pytest.mark.parametrize("p", [1.5, 4])
def test_many_rows_are_refuted_too(p):
    case = random_case(5, 40, 20, 12)
    X, z, alpha = case.X.copy(), case.z.copy(), case.alpha.copy()
    X[7], z[7], alpha[7] = X[30], z[30], (alpha[30] + 1) % 20
    solution = att_svm(X, z, alpha, p, throw=False)
    matrix, places = constraint_matrix(type(case)(X, z, alpha))
    assert len(matrix) > 600
    assert solution.infeasible
    assert_farkas(matrix, at_places(solution.dual, places))


@pytest.mark.parametrize("n", [6, 900])
def test_classifier_refutes_contradicting_labels(n):
    rng = np.random.default_rng(0)
    X = rng.standard_normal((n, 5))
    y = np.sign(X @ rng.standard_normal(5))
    X[1], y[1] = X[0], -y[0]
    solution = lp_svm(X, y, 3, throw=False)
    assert solution.infeasible
    assert_farkas(y[:, None] * X.astype(np.longdouble), solution.dual)
    with pytest.raises(InfeasibleError):
        lp_svm(X, y, 3)


def test_label_margin_of_inseparable_tokens_is_zero():
    X = np.array([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [0.0, 1.0]]])
    assert label_margin(X, [1, -1], [0, 0], 2) == 0


def test_nuclear_norm_reports_infeasibility_too():
    case = infeasible_case()
    solution = att_svm(case.X, case.z, case.alpha, norm="nuclear", throw=False)
    assert solution.infeasible
    assert solution.samples.tolist() == [False, True, True]
