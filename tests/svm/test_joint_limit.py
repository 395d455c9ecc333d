"""The relaxed attention SVM of joint training: proved again from the data, and compared with another solver."""

import numpy as np
import pytest
import torch
from helpers import constraint_matrix, norm, random_case, sphere

from mirrormax.problem import Problem
from mirrormax.svm import InfeasibleError, att_svm, joint_limit, label_excess, lp_svm


def labelled(seed, n=5, T=6, d=8):
    case = random_case(seed, n, T, d)
    return case, np.random.default_rng(seed).choice([-1, 1], n)


def proved(solution, case, spare, p):
    """Gap and smallest relaxed margin in extended precision; ``spare`` is ρ ξ."""
    matrix, places = constraint_matrix(case)
    W = np.asarray(solution.W, dtype=np.longdouble).ravel()
    lam = solution.dual[places[:, 0], places[:, 1]].astype(np.longdouble)
    xi = spare[places[:, 0]]
    assert (lam >= 0).all()
    bound = norm(lam @ matrix, p / (p - 1)) + xi @ lam
    return float(1 - lam.sum() / bound / norm(W, p)), float((matrix @ W + xi * norm(W, p)).min())


@pytest.mark.parametrize("p", [1.2, 2, 3])
@pytest.mark.parametrize("ratio", [0.3, 1.0, 4.0])
def test_the_solution_is_optimal_and_says_so(p, ratio):
    relaxed = 0
    for seed in range(3):
        case, y = labelled(seed)
        solution = joint_limit(case.X, y, case.z, case.alpha, p=p, ratio=ratio)
        spare = ratio * label_excess(case.X, y, case.alpha, p=p)
        gap, smallest = proved(solution, case, spare, p)
        assert solution.status == "optimal"
        assert gap <= 1e-9
        assert abs(smallest - 1) < 1e-12
        assert abs(float(solution.margin) * float(norm(solution.W, p)) - 1) < 1e-12
        relaxed += solution.margin > 1.001 * att_svm(case.X, case.z, case.alpha, p=p).margin
    assert relaxed, "some sample is no label support vector"


def test_an_independent_solver_finds_the_same_margin():
    cvxpy = pytest.importorskip("cvxpy")
    case, y = labelled(1)
    matrix, places = constraint_matrix(case, float)
    for p in (1.5, 2, 3):
        xi = label_excess(case.X, y, case.alpha, p=p)[places[:, 0]]
        w, t = cvxpy.Variable(64), cvxpy.Variable()
        cvxpy.Problem(cvxpy.Maximize(t), [matrix @ w + 2 * xi >= t, cvxpy.norm(w, p) <= 1]).solve("CLARABEL")
        assert abs(joint_limit(case.X, y, case.z, case.alpha, p=p, ratio=2).margin / t.value - 1) < 1e-5


def test_excess_is_the_label_margin_beyond_the_smallest():
    case, y = labelled(2)
    points = case.X[np.arange(5), case.alpha]
    for p in (1.5, 2, 3):
        v = lp_svm(points, y, p=p).v
        margins = y * (points @ (v / float(norm(v, p))))
        np.testing.assert_allclose(label_excess(case.X, y, case.alpha, p=p), margins - margins.min(), atol=1e-6)


def test_without_excess_or_ratio_it_is_the_attention_svm():
    case, y = labelled(3)
    plain = att_svm(case.X, case.z, case.alpha, p=1.5)
    for found in (
        joint_limit(case.X, y, case.z, case.alpha, p=1.5, ratio=0),
        joint_limit(case.X, y, case.z, case.alpha, p=1.5, excess=np.zeros(5)),
    ):
        np.testing.assert_allclose(found.W, plain.W, atol=1e-6)
        assert (found.support == plain.support).all()


def test_a_sample_with_much_to_spare_need_not_select():
    case, y = labelled(4)
    free = joint_limit(case.X, y, case.z, case.alpha, excess=np.array([0.0, 0, 0, 0, 50.0]))
    without = att_svm(case.X[:4], case.z[:4], case.alpha[:4])
    np.testing.assert_allclose(free.W, without.W, atol=1e-6)
    assert free.samples.tolist()[-1] is False


def test_samples_that_contradict_each_other_matter_only_at_the_label_margin():
    case, y = labelled(5)
    X, z, alpha = case.X.copy(), case.z.copy(), case.alpha.copy()
    X[4], z[4], alpha[4] = X[3], z[3], (alpha[3] + 1) % 6
    solution = joint_limit(X, y, z, alpha, excess=np.array([0.0, 0, 0, 0, 2.0]), p=1.5)
    gap, smallest = proved(solution, type(case)(X, z, alpha), np.array([0.0, 0, 0, 0, 2.0]), 1.5)
    assert gap <= 1e-9
    assert smallest > 1 - 1e-9
    with pytest.raises(InfeasibleError) as caught:
        joint_limit(X, y, z, alpha, excess=np.zeros(5), p=1.5)
    assert caught.value.samples.tolist() == [False, False, False, True, True]


def test_batches_problems_and_tensors_are_taken():
    cases = [labelled(seed) for seed in (1, 2)]
    X, z, alpha = (np.stack([getattr(case, name) for case, _ in cases]) for name in ("X", "z", "alpha"))
    y = np.stack([labels for _, labels in cases])
    found = joint_limit(X, y, z, alpha, p=[1.5, 3], ratio=[1.0, 2.0])
    for k in range(2):
        alone = joint_limit(Problem(X=X[k], y=y[k], z=z[k]), alpha[k], p=[1.5, 3][k], ratio=[1.0, 2.0][k])
        np.testing.assert_allclose(found.W[k], alone.W, atol=1e-6)
    assert isinstance(joint_limit(torch.tensor(X), y, z, alpha).W, torch.Tensor)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"ratio": -1.0}, r"ratio must be a finite number of at least 0, got -1\.0"),
        ({"excess": np.array([-1.0, 0, 0, 0, 0])}, r"excess must hold finite numbers of at least 0"),
        ({"excess": np.zeros(4)}, r"excess must hold finite numbers of at least 0, \(\.\.\., n\) with n = 5"),
        ({"tol": 0.0}, r"tol must be a finite number greater than 0"),
        ({"X": sphere(0, 5, 8)[:, None], "alpha": [0] * 5}, r"no sample has a second token.*give T of 2 or more"),
    ],
)
def test_what_cannot_be_meant_is_refused(change, message):
    case, y = labelled(1)
    with pytest.raises(ValueError, match=message):
        joint_limit(**{"X": case.X, "y": y, "z": case.z, "alpha": case.alpha, **change})


def test_labels_that_no_head_separates_have_no_limit():
    X = np.stack([sphere(0, 3, 4)] * 2)
    with pytest.raises(InfeasibleError):
        joint_limit(X, [1, -1], sphere(1, 2, 4), [0, 0])
