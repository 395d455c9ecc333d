"""The certificate does not depend on the order of sums: rows and features of every size, in every order."""

import itertools

import numpy as np
import pytest
from helpers import Case, at_places, constraint_matrix, proved_gap, random_case

from mirrormax.svm import NotSolvedError, att_svm, label_margin, lp_svm
from mirrormax.svm.systems import Elimination

# A triangle around the origin, lifted off it by a feature of 1e-12 of its size, which alone separates the points.
LIFTED = np.array([[1e6, 0, 1e-6], [-1e6, 1e6, 1e-6], [0, -1e6, 1e-6]])
ORDERS = list(itertools.product(itertools.permutations(range(3)), repeat=2))


EXPONENTS = [1.1, 1.5, 2, 2.5, 3, 6, 10]


@pytest.mark.parametrize("p", EXPONENTS)
def test_a_faint_feature_is_certified_in_every_order_and_at_every_power_of_two(p):
    """A third of the orders for each p, with every order of samples and every order of features: all have their p."""
    for k, (samples, features) in enumerate(ORDERS):
        if (k // 6 + k + EXPONENTS.index(p)) % 3:
            continue
        scale = 2.0 ** (3 * (k % 5) - 6)
        X = scale * LIFTED[np.ix_(samples, features)]
        solution = lp_svm(X, np.ones(3), p=p, throw=False)
        assert solution.optimal, (samples, features, solution.status)
        assert proved_gap(X.astype(np.longdouble), solution.v, solution.dual, p) <= 1e-9
        assert solution.margin == pytest.approx(scale * 1e-6)


@pytest.mark.parametrize("p", [1.5, 2, 3, 6])
def test_the_label_margin_of_a_faint_feature_is_known_in_any_order(p):
    """Every order of samples and of features once; the solver's own test above takes their pairs."""
    for samples, features in ORDERS[::7]:
        X = LIFTED[np.ix_(samples, features)][:, None]
        assert label_margin(X, [1, 1, 1], [0, 0, 0], p=p) == pytest.approx(1e-6)


@pytest.mark.parametrize("p", [1.2, 2, 3])
def test_the_faint_feature_may_be_anywhere_in_a_batch(p):
    X = np.stack([LIFTED, np.eye(3), LIFTED[::-1]])
    solution = lp_svm(X, np.ones(3), p=p)
    assert solution.optimal.all()
    assert np.allclose(solution.margin[[0, 2]], 1e-6)


@pytest.mark.parametrize("block", range(6))
def test_rows_over_twelve_orders_of_magnitude_are_certified_in_every_order(block):
    rng = np.random.default_rng(block)
    for _ in range(12):
        n, T, d = (int(k) for k in (rng.integers(2, 6), rng.integers(2, 6), rng.integers(5, 8)))
        case = random_case(int(rng.integers(1 << 30)), n, T, d)
        p = float(np.exp(rng.uniform(np.log(1.05), np.log(10))))
        X = case.X * 10 ** rng.uniform(-6, 6, (n, 1, 1))
        z = case.z * 10 ** rng.uniform(-6, 6, (n, 1))
        samples, tokens, features = rng.permutation(n), rng.permutation(T), rng.permutation(d)
        alpha = np.argsort(tokens)[case.alpha]
        for given in (
            Case(X, z, case.alpha),
            Case(X[samples], z[samples], case.alpha[samples]),
            Case(X[:, tokens][..., features], z[:, features], alpha),
        ):
            solution = att_svm(given.X, given.z, given.alpha, p=p, throw=False)
            matrix, places = constraint_matrix(given)
            assert solution.optimal, (p, solution.status)
            assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= 1e-9
            assert (matrix @ solution.W.ravel().astype(np.longdouble)).min() >= 1 - 1e-9


@pytest.mark.parametrize("block", range(4))
def test_points_over_twelve_orders_of_magnitude_are_certified_in_every_order(block):
    rng = np.random.default_rng(100 + block)
    for _ in range(15):
        n, d = int(rng.integers(2, 30)), int(rng.integers(2, 9))
        p = float(np.exp(rng.uniform(np.log(1.05), np.log(10))))
        X = rng.standard_normal((n, d))
        y = np.sign(X @ rng.standard_normal(d))
        X *= 10 ** rng.uniform(-6, 6, (n, 1))
        order = rng.permutation(n)
        margins = []
        for at in (np.arange(n), order):
            solution = lp_svm(X[at], y[at], p=p, throw=False)
            assert solution.optimal, (p, solution.status)
            matrix = (y[:, None] * X)[at].astype(np.longdouble)
            assert proved_gap(matrix, solution.v, solution.dual, p) <= 1e-9
            margins.append(float(solution.margin))
        assert margins[0] == pytest.approx(margins[1], rel=2e-9)


def test_elimination_with_rows_and_columns_of_every_size():
    rng = np.random.default_rng(0)
    row, column = 10.0 ** rng.integers(-12, 12, 12), 10.0 ** rng.integers(-12, 12, 12)
    matrix = (row[:, None] * rng.standard_normal((12, 12)) * column).astype(np.longdouble)
    solution = rng.standard_normal(12) / column
    found = Elimination(matrix).solve((matrix @ solution.astype(np.longdouble))[None])[0]
    assert np.allclose((found / solution).astype(float), 1, rtol=1e-12)


def nearly_opposite():
    """A batch of two: points that p = 2 separates, and a pair of which nobody can say whether anything separates it."""
    tokens = np.array([[[1.0, 0.3]], [[0.5, 1.0]]])
    doubtful = np.array([[[1.0, 0.3]], [[1.0, 0.3]]]) * (1 + np.array([0.0, 1e-13]))[:, None, None]
    doubtful[1, 0, 1] += 1e-13
    return np.stack([tokens, doubtful]), np.array([[1, 1], [1, -1]]), np.zeros((2, 2), dtype=int)


def test_a_label_margin_that_is_not_found_leaves_the_others_alone():
    X, y, alpha = nearly_opposite()
    found = label_margin(X, y, alpha, throw=False)
    assert found[0] == pytest.approx(label_margin(X[0], y[0], alpha[0]), rel=2e-9)
    assert np.isnan(found[1])


def test_a_label_margin_that_is_not_found_is_said_with_the_remedy():
    X, y, alpha = nearly_opposite()
    with pytest.raises(NotSolvedError, match="1 of 2 label margins are not known; problem 1: stopped") as caught:
        label_margin(X, y, alpha)
    assert "give C" not in str(caught.value)
    assert caught.value.solution.optimal.tolist() == [True, False]


@pytest.mark.parametrize(("p", "advised"), [(2, False), (3, True)])
def test_a_p_nearer_to_2_is_advised_only_where_there_is_one(p, advised):
    X = np.random.default_rng(0).standard_normal((5, 6))
    status = lp_svm(X, [1, 1, -1, 1, -1], p=p, tol=1e-17, throw=False).status
    assert status.startswith("stopped at relative gap")
    assert ("nearer to 2" in status) == advised
