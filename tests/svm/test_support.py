"""Which tokens are support tokens where the norm is flat, p > 2; mpmath is the reference."""

import mpmath
import numpy as np
import pytest
from helpers import DEGENERATE, at_places, constraint_matrix, random_case

from mirrormax.attention import is_locally_optimal, support_tokens
from mirrormax.svm import att_svm

STEEP = (3.0, 6.0, 8.0, 10.0, 20.0, 50.0)
DIGITS = 200


def with_zero_row(lead=1.0):
    """Example 1 with the zero row of its print; the token (0, 1) of the first sample leads by ``lead``."""
    X = np.array([[[5.0, 0.0], [0.0, 1.0], [0.0, 0.0]], [[-5.0, 0.0], [0.0, 0.0], [0.0, -1.0]]])
    X[0, 1, 0] = 5 - 5 * lead
    return X, np.array([1.0, -1.0]), X[:, 0], [0, 0]


@pytest.mark.parametrize("p", STEEP)
def test_a_support_token_without_a_multiplier_is_one_however_flat_the_norm(p):
    X, y, z, alpha = with_zero_row()
    found = att_svm(X, z, alpha, p=p)
    np.testing.assert_array_equal(found.W.round(15) + 0.0, [[0.04, 0.0], [0.0, 0.0]])
    assert found.support.tolist() == [[False, True, True], [False, True, True]]
    better = np.array([1.0, 6.0])  # (0, 1) scores 6, the chosen token 5
    assert not is_locally_optimal(X, y, z, v=better, W=found.W, alpha=alpha)
    assert not is_locally_optimal(X, y, z, v=better, support=found.support, alpha=alpha)


@pytest.mark.parametrize("p", STEEP)
@pytest.mark.parametrize("lead", [1.001, 1.01])
def test_a_token_a_little_further_away_is_none(lead, p):
    X, y, z, alpha = with_zero_row(lead)
    found = att_svm(X, z, alpha, p=p)
    assert found.support.tolist() == [[False, False, True], [False, True, True]]
    assert is_locally_optimal(X, y, z, v=np.array([1.0, 6.0]), W=found.W, alpha=alpha).offending == [(1, 2)]


def exact_margins(matrix, w, lam, p):
    """Margins of the solution to DIGITS/p digits: |w|^{p−2} w = A_Sᵀλ and A_S w = 1 by Newton's method in mpmath.

    It proves itself: λ ≥ 0 and all margins are at least 1.
    """
    with mpmath.workdps(DIGITS):
        active = np.flatnonzero(lam > 0)
        size = np.abs(w).max()
        every = mpmath.matrix((matrix * size).tolist())
        A = mpmath.matrix((matrix[active] * size).tolist())
        w, lam = mpmath.matrix((w / size).tolist()), mpmath.matrix(lam[active].tolist())
        lam *= mpmath.norm(w, p) ** (p - 1)
        for _ in range(3 * DIGITS):
            ahead = A.T * lam - w.apply(lambda x: abs(x) ** (p - 2) * x)
            short = mpmath.ones(len(active), 1) - A * w
            if max(mpmath.norm(ahead), mpmath.norm(short)) < mpmath.mpf(10) ** (10 - DIGITS):
                break
            D = mpmath.diag([1 / ((p - 1) * max(abs(x), mpmath.mpf(10) ** -8) ** (p - 2)) for x in w])
            dlam = mpmath.lu_solve(A * D * A.T, short - A * (D * ahead))
            w, lam = w + D * (ahead + A.T * dlam), lam + dlam
        else:
            raise AssertionError("Newton's method in mpmath did not end")
        margins = every * w
        assert min(lam) >= 0
        assert min(margins) >= 1 - mpmath.mpf(10) ** (20 - DIGITS)
        return np.array([float(margin) for margin in margins])


@pytest.mark.parametrize("p", [3, 6, 10, 20])
@pytest.mark.parametrize("seed", range(4))
def test_support_is_that_of_an_exact_solution(seed, p):
    case = random_case(seed, 3, 4, 3)
    found = att_svm(case.X, case.z, case.alpha, p=p)
    matrix, places = constraint_matrix(case)
    matrix = matrix.astype(float)
    margins = exact_margins(matrix, found.W.ravel(), at_places(found.dual, places).astype(float), p)
    assert not found.doubt.any()
    assert (at_places(found.support, places) == (margins <= 1 + 1e-4)).all()
    assert (at_places(support_tokens(case.X, case.z, W=found.W, alpha=case.alpha), places) == (margins <= 1.0001)).all()


def test_what_only_cancelling_sums_would_tell_is_said_to_be_in_doubt():
    with pytest.warns(UserWarning, match=r"whether \(0, 1\) is in solution.support is in doubt"):
        found = att_svm(DEGENERATE.X, DEGENERATE.z, DEGENERATE.alpha, p=6)
    assert np.argwhere(found.doubt).tolist() == [[0, 1]]
    assert found.support.sum() == 6, "the sums are taken for zero, which in exact arithmetic they are"
    assert not att_svm(DEGENERATE.X, DEGENERATE.z, DEGENERATE.alpha, p=3).doubt.any()
