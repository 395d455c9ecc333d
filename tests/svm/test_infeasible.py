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
    assert (np.abs(dual @ matrix) <= 1e-14 * (dual @ np.abs(matrix))).all()


@pytest.mark.parametrize("p", [1.02, 1.5, 2, 3, 20])
def test_farkas_certificate_and_the_samples_in_it(p):
    case = infeasible_case()
    solution = att_svm(case.X, case.z, case.alpha, p=p, throw=False)
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
    solution = att_svm(scale * case.X, case.z, case.alpha, p=1.5, throw=False)
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
    solution = att_svm(case.X, z, case.alpha, p=2)
    assert solution.status == "optimal"
    assert solution.margin < 1e-2


def test_exception_carries_solution_certificate_and_samples():
    case = infeasible_case()
    with pytest.raises(InfeasibleError, match="infeasible: no weights") as caught:
        att_svm(case.X, case.z, case.alpha, p=3)
    assert isinstance(caught.value, ValueError)
    assert caught.value.samples.tolist() == [False, True, True]
    assert caught.value.certificate is caught.value.solution.dual


def test_exception_for_a_tolerance_not_reached_is_another_one():
    case = random_case(0)
    with pytest.raises(NotSolvedError, match="above tol") as caught:
        att_svm(case.X, case.z, case.alpha, p=1.5, tol=1e-18)
    assert not isinstance(caught.value, InfeasibleError)
    assert caught.value.solution.gap < 1e-9


@pytest.mark.parametrize("p", [1.5, 4])
def test_many_rows_are_refuted_too(p):
    case = random_case(5, 40, 20, 12)
    X, z, alpha = case.X.copy(), case.z.copy(), case.alpha.copy()
    X[7], z[7], alpha[7] = X[30], z[30], (alpha[30] + 1) % 20
    solution = att_svm(X, z, alpha, p=p, throw=False)
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
    solution = lp_svm(X, y, p=3, throw=False)
    assert solution.infeasible
    assert_farkas(y[:, None] * X.astype(np.longdouble), solution.dual)
    with pytest.raises(InfeasibleError):
        lp_svm(X, y, p=3)


def test_label_margin_of_inseparable_tokens_is_zero():
    X = np.array([[[1.0, 2.0], [3.0, 4.0]], [[1.0, 2.0], [0.0, 1.0]]])
    assert label_margin(X, [1, -1], [0, 0], p=2) == 0


def test_nuclear_norm_reports_infeasibility_too():
    case = infeasible_case()
    solution = att_svm(case.X, case.z, case.alpha, norm="nuclear", throw=False)
    assert solution.infeasible
    assert solution.samples.tolist() == [False, True, True]


def hull_with_a_faint_feature(rng, n, d, size):
    """Points all around the origin in d features and ``size`` in one more, which alone separates them."""
    return np.concatenate([rng.standard_normal((n, d)), np.full((n, 1), size)], axis=1)


@pytest.mark.parametrize("p", [1.1, 1.5, 2, 3, 6])
@pytest.mark.parametrize("large", [1.0, 1e6])
def test_a_faint_feature_that_separates_is_no_contradiction(large, p):
    faint = 1e-6 if large > 1 else 1e-11
    X = np.array([[large, 0, faint], [-large, large, faint], [0, -large, faint]])
    for solution in (lp_svm(X, np.ones(3), p=p, throw=False), lp_svm(X[None], np.ones(3), p=p, throw=False)):
        assert not np.any(solution.infeasible)
        assert (X @ np.reshape(solution.v, 3)).min() > 0.99


@pytest.mark.parametrize("block", range(4))
def test_what_one_feature_of_any_size_separates_is_never_refuted(block):
    rng = np.random.default_rng(block)
    for _ in range(8):
        d = int(rng.integers(2, 6))
        X = hull_with_a_faint_feature(rng, int(rng.integers(d + 2, 20)), d, 10 ** rng.uniform(-14, -9))
        p = float(rng.choice([1.1, 1.5, 2, 3, 6]))
        assert not lp_svm(X, np.ones(len(X)), p=p, throw=False).infeasible
        tokens = np.stack([X, np.zeros_like(X)], axis=1)
        z = np.concatenate([rng.standard_normal((len(X), d)), np.ones((len(X), 1))], axis=1)
        assert not att_svm(tokens, z, np.zeros(len(X), dtype=int), p=p, throw=False).infeasible


@pytest.mark.parametrize("faint", [1e-10, 1e-11, 1e-14])
def test_nuclear_norm_sees_a_faint_feature(faint):
    X = np.array([[[1, faint], [0, 0]], [[-1, faint], [0, 0]]])
    assert att_svm(X, np.ones((2, 2)), [0, 0], norm="nuclear").status == "optimal"


def test_label_margin_does_not_call_an_unsolved_problem_inseparable():
    X = np.array([[1e6, 0, 1e-6], [-1e6, 1e6, 1e-6], [0, -1e6, 1e-6]])[:, None]
    for p in (2, 3, 6):
        assert label_margin(X, [1, 1, 1], [0, 0, 0], p=p) == pytest.approx(1e-6)
    rng = np.random.default_rng(0)
    X = hull_with_a_faint_feature(rng, 12, 3, 1e-14)[:, None]
    with pytest.raises(NotSolvedError) as caught:
        label_margin(X, np.ones(12), np.zeros(12, dtype=int), p=3)
    assert not isinstance(caught.value, InfeasibleError)


def test_features_of_every_size_do_not_hide_a_contradiction():
    rng = np.random.default_rng(1)
    case = infeasible_case()
    scale = 10 ** rng.uniform(-8, 8, 5)
    solution = att_svm(case.X * scale, case.z, case.alpha, p=1.5, throw=False)
    assert solution.infeasible
    assert solution.samples.tolist() == [False, True, True]
    points = rng.standard_normal((30, 3)) * [1e-9, 1, 1e9]
    solution = lp_svm(points, np.ones(30), p=3, throw=False)
    assert solution.infeasible
    assert_farkas(points.astype(np.longdouble), solution.dual)
