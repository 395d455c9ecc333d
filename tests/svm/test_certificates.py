"""Every answer is proved: the tests prove it again, from the data and the arrays returned."""

import numpy as np
import pytest
from helpers import DEGENERATE, EXPONENTS, PROBLEMS, at_places, constraint_matrix, norm, proved_gap, random_case

from mirrormax.attention import is_locally_optimal, support_tokens
from mirrormax.svm import att_svm, label_margin, lp_svm

TOLERANCE = 1e-9
SUPPORTED = {**PROBLEMS, "degenerate": DEGENERATE}


@pytest.mark.filterwarnings("ignore:.* in doubt")  # at p = 20
@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("name", PROBLEMS)
def test_solution_is_optimal_and_says_so(name, p):
    case = PROBLEMS[name]
    solution = att_svm(case.X, case.z, case.alpha, p=p, mask=case.mask)
    matrix, places = constraint_matrix(case)
    smallest = (matrix @ solution.W.ravel().astype(np.longdouble)).min()
    assert solution.status == "optimal"
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOLERANCE
    assert 0 <= solution.gap <= TOLERANCE
    assert abs(smallest - 1) <= TOLERANCE
    assert solution.violation <= 1e-12
    assert abs(solution.margin * norm(solution.W, p) - 1) <= 1e-12


@pytest.mark.parametrize("p", [1.1, 2, 6])
@pytest.mark.parametrize("name", PROBLEMS)
def test_multipliers_stand_at_rivals_that_are_there_and_nowhere_else(name, p):
    case = PROBLEMS[name]
    solution = att_svm(case.X, case.z, case.alpha, p=p, mask=case.mask)
    matrix, places = constraint_matrix(case)
    elsewhere = np.ones(case.X.shape[:2], dtype=bool)
    elsewhere[places[:, 0], places[:, 1]] = False
    assert solution.dual.shape == solution.support.shape == case.X.shape[:2]
    assert not solution.dual[elsewhere].any()
    assert not solution.support[elsewhere].any()
    q = p / (p - 1)
    assert abs(norm(at_places(solution.dual, places).astype(np.longdouble) @ matrix, q) - 1) <= 1e-12
    lower = solution.dual.sum()
    assert (1 - TOLERANCE) * norm(solution.W, p) <= lower <= (1 + 1e-12) * norm(solution.W, p)


@pytest.mark.parametrize("p", [1.1, 2, 6])
def test_support_is_where_the_margin_is_one(p):
    case = PROBLEMS["paper size"]
    solution = att_svm(case.X, case.z, case.alpha, p=p)
    matrix, places = constraint_matrix(case)
    margins = (matrix @ solution.W.ravel()).astype(float)
    active = at_places(solution.support, places)
    assert 0 < active.sum() < len(active)
    assert np.abs(margins[active] - 1).max() < 1e-5
    assert margins[~active].min() > 1 + 1e-5


@pytest.mark.filterwarnings("ignore:.* in doubt")
@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize("name", SUPPORTED)
def test_support_is_that_of_the_weights_alone_and_in_a_batch(name, p):
    case = SUPPORTED[name]
    alone = att_svm(case.X, case.z, case.alpha, p=p, mask=case.mask)
    both = att_svm(np.stack([case.X] * 2), case.z, case.alpha, p=p, mask=case.mask)
    expected = support_tokens(case.X, case.z, W=alone.W, alpha=case.alpha, mask=case.mask)
    assert (alone.support == expected).all()
    assert (both.support == expected).all()


@pytest.mark.parametrize("p", EXPONENTS)
@pytest.mark.parametrize(("n", "d"), [(3, 8), (40, 8), (700, 5)])
def test_classifier_is_optimal_with_few_and_with_many_points(n, d, p):
    rng = np.random.default_rng(n)
    direction = rng.standard_normal(d)
    X = rng.standard_normal((n, d))
    y = np.where(X @ direction > 0, 1, -1)
    X += 0.2 * y[:, None] * direction / np.linalg.norm(direction)
    solution = lp_svm(X, y, p=p)
    matrix = y[:, None] * X.astype(np.longdouble)
    assert proved_gap(matrix, solution.v, solution.dual, p) <= TOLERANCE
    assert abs((matrix @ solution.v).min() - 1) <= 1e-12
    assert solution.v.shape == (d,)
    assert solution.dual.shape == solution.support.shape == (n,)


@pytest.mark.parametrize("p", [1.05, 1.75, 2, 3, 10])
def test_many_rows_take_another_way_to_the_same_certificate(p):
    case = random_case(70, 25, 26, 27)
    solution = att_svm(case.X, case.z, case.alpha, p=p)
    matrix, places = constraint_matrix(case)
    assert len(matrix) > 600
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOLERANCE


def test_unreachable_tolerance_is_admitted_with_the_gap_reached():
    case = random_case(80)
    solution = att_svm(case.X, case.z, case.alpha, p=1.3, tol=1e-18, throw=False)
    matrix, places = constraint_matrix(case)
    reached = proved_gap(matrix, solution.W, at_places(solution.dual, places), 1.3)
    assert solution.status.startswith("stopped at relative gap")
    assert "tol" in solution.status
    assert "optimal" not in solution.status
    assert 1e-18 < solution.gap < 1e-9
    assert abs(reached - solution.gap) < 1e-13


def test_a_loose_tolerance_is_used_and_reported_truthfully():
    case = random_case(90)
    solution = att_svm(case.X, case.z, case.alpha, p=1.3, tol=0.1)
    matrix, places = constraint_matrix(case)
    assert solution.status == "optimal"
    assert solution.gap <= 0.1
    assert abs(proved_gap(matrix, solution.W, at_places(solution.dual, places), 1.3) - solution.gap) < 1e-12
    assert solution.iterations < att_svm(case.X, case.z, case.alpha, p=1.3).iterations


def test_label_margin_is_that_of_the_classifier_on_the_chosen_tokens():
    X = PROBLEMS["paper size"].X
    y, alpha = np.array([1, -1, 1, 1, -1, -1]), np.array([0, 3, 2, 7, 1, 4])
    expected = lp_svm(X[np.arange(6), alpha], y, p=3).margin
    assert label_margin(X, y, alpha, p=3) == expected > 0


def test_label_margins_of_example_two_are_the_published_ones():
    from mirrormax.data import example2

    problem = example2()
    for p, first, second in ((1.75, 2.106, 2.170), (2, 2.177, 2.174), (3, 2.312, 2.178)):
        halved = problem.X / 2  # the scale of the published numbers
        assert label_margin(halved, problem.y, [0, 0], p=p) == pytest.approx(first, abs=6e-4)
        assert label_margin(halved, problem.y, [1, 0], p=p) == pytest.approx(second, abs=6e-4)


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore:.* in doubt")
@pytest.mark.parametrize("block", range(10))
def test_a_thousand_random_problems(block):
    """100 a block, p log-uniform in [1.02, 20], every kind of data: a gap of 1e-9, or a proof that there is no W."""
    rng = np.random.default_rng(1000 + block)
    unsolved = []
    for _ in range(100):
        case, p = _random_problem(rng)
        matrix, places = constraint_matrix(case)
        solution = att_svm(case.X, case.z, case.alpha, p=p, mask=case.mask, throw=False)
        dual = at_places(solution.dual, places)
        if solution.infeasible:
            sizes = np.linalg.norm(matrix.astype(float), axis=1)
            assert np.linalg.norm((dual @ matrix).astype(float)) <= 1e-9 * (dual @ sizes)
            assert dual.min() >= 0 < dual.max()
        elif solution.optimal:
            assert proved_gap(matrix, solution.W, dual, p) <= TOLERANCE
        else:
            unsolved.append((p, solution.status))
    assert not unsolved


def _random_problem(rng):
    n, T, d = rng.integers(1, 9), rng.integers(2, 10), rng.integers(2, 12)
    case = random_case(int(rng.integers(1 << 30)), n, T, d)
    X, z, alpha, mask = case
    kind = rng.integers(6)
    if kind == 1:
        X, z = X * 10 ** rng.uniform(-6, 6), z * 10 ** rng.uniform(-6, 6)
    if kind == 2:
        z = z * 10 ** rng.uniform(-6, 6, (n, 1))
    if kind == 3:
        X = np.sign(X)
        X[np.arange(n), alpha, rng.integers(d, size=n)] *= 2  # or it might occur twice, which is refused
    if kind == 4:
        X, z, alpha = np.concatenate([X, X]), np.concatenate([z, z]), np.concatenate([alpha, alpha])
    if kind == 5:
        mask = rng.random((n, T)) < 0.7
        mask[np.arange(n), alpha] = True
        mask[0] = True  # one sample at least has a rival
    return type(case)(X, z, alpha, mask), float(np.exp(rng.uniform(np.log(1.02), np.log(20))))


@pytest.mark.parametrize("p", [1.5, 2.0, 3.0, 6.0])
def test_a_support_token_without_a_multiplier_is_found_at_every_p(p):
    """Example 1 with the zero row of its print: W = (.04, 0; 0, 0) for every p, and both rivals lead by exactly 1."""
    X = np.array([[[5.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [[-5.0, 0.0], [0.0, 0.0], [0.0, -1.0]]])
    y, z, alpha = np.array([1.0, -1.0]), X[:, 0], [0, 0]
    found = att_svm(X, z, alpha=alpha, p=p)
    np.testing.assert_allclose(found.W, [[0.04, 0.0], [0.0, 0.0]], atol=2e-5)
    assert found.support.tolist() == [[False, True, True], [False, True, True]]
    v = np.array([1.0, 6.0])  # (0, 1) scores 6, the chosen token 5
    assert not is_locally_optimal(X, y, z, v=v, W=found.W, alpha=alpha)
    assert not is_locally_optimal(X, y, z, v=v, support=found.support, alpha=alpha)
    assert is_locally_optimal(X, y, z, v=np.array([1.0, 4.0]), W=found.W, alpha=alpha)
