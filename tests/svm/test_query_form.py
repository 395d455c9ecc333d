"""Queries of another dimension than the tokens, and the augmented Lagrangian that carries many samples of them."""

import numpy as np
import pytest
from helpers import Case, at_places, constraint_matrix, proved_gap

from mirrormax.svm import InfeasibleError, att_svm
from mirrormax.svm.solvers import lagrangian

TOL = 1e-9


def query_case(seed, n, T, d, e, *, separable=True):
    """Gaussian tokens (d) and queries (e); the chosen tokens are those of Gaussian weights, or any."""
    rng = np.random.default_rng(seed)
    X, z, W = rng.standard_normal((n, T, d)), rng.standard_normal((n, e)), rng.standard_normal((d, e))
    chosen = np.einsum("ntd,de,ne->nt", X, W, z).argmax(axis=1)
    return Case(X, z, chosen if separable else rng.integers(T, size=n))


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_queries_may_have_a_dimension_of_their_own(p):
    case = query_case(0, 6, 4, 3, 7)
    solution = att_svm(case.X, case.z, case.alpha, p=p)
    assert solution.W.shape == (3, 7)
    matrix, places = constraint_matrix(case)
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOL


def test_zeros_appended_to_the_tokens_change_nothing():
    case = query_case(1, 6, 4, 3, 7)
    padded = np.pad(case.X, ((0, 0), (0, 0), (0, 4)))
    square, slim = att_svm(padded, case.z, case.alpha), att_svm(case.X, case.z, case.alpha)
    assert slim.margin == pytest.approx(square.margin, rel=2e-9)
    assert np.abs(square.W[3:]).max() == 0


@pytest.mark.parametrize(
    ("z", "said"),
    [
        (np.ones((5, 7)), r"z must have the shape \(\.\.\., n, e\) = \(\.\.\., 6, e\)"),
        (np.full((6, 7), np.nan), "z holds nan at index"),
        (np.ones(7), "z must have the shape"),
    ],
)
def test_queries_that_do_not_fit_are_refused(z, said):
    case = query_case(0, 6, 4, 3, 7)
    with pytest.raises(ValueError, match=said):
        att_svm(case.X, z, case.alpha)


@pytest.mark.parametrize("few", [0, 10**9], ids=["by sample", "coupled"])
def test_each_preconditioner_leads_to_the_proof(few, monkeypatch):
    monkeypatch.setattr(lagrangian, "FEW_ROWS", few)
    p = 2
    case = query_case(2, 60, 8, 6, 20)
    solution = att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian")
    matrix, places = constraint_matrix(case)
    assert solution.status == "optimal"
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOL
    assert solution.margin == pytest.approx(att_svm(case.X, case.z, case.alpha, p=p, method="newton").margin, rel=2e-9)


@pytest.mark.parametrize("few", [0, 10**9], ids=["newton", "working set"])
@pytest.mark.parametrize("p", [1.5, 3])
def test_another_p_starts_from_2(p, few, monkeypatch):
    monkeypatch.setattr(lagrangian, "FEW_ACTIVE", few)
    case = query_case(5, 60, 8, 6, 20)
    solution = att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian")
    matrix, places = constraint_matrix(case)
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOL


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_masked_tokens_are_no_rivals(p):
    case = query_case(3, 60, 8, 6, 20)
    mask = np.random.default_rng(0).random((60, 8)) < 0.8
    mask[np.arange(60), case.alpha] = True
    solution = att_svm(case.X, case.z, case.alpha, p=p, mask=mask, method="lagrangian")
    assert (solution.dual[~mask] == 0).all()
    other = att_svm(case.X, case.z, case.alpha, p=p, mask=mask, method="newton")
    assert solution.margin == pytest.approx(other.margin, rel=2e-9)


@pytest.mark.parametrize("p", [2, 3])
def test_data_that_nothing_separates_are_refuted_by_the_multipliers(p):
    case = query_case(4, 80, 6, 3, 4, separable=False)
    with pytest.raises(InfeasibleError) as caught:
        att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian")
    matrix, places = constraint_matrix(case)
    lam = at_places(caught.value.certificate, places).astype(np.longdouble)
    assert (lam >= 0).all()
    assert float(lam.sum()) == pytest.approx(1)
    assert (np.abs(lam @ matrix) <= 1e-13 * (lam @ np.abs(matrix))).all()


def test_few_rows_are_not_for_the_lagrangian():
    case = query_case(0, 6, 4, 3, 7)
    with pytest.raises(ValueError, match='method="lagrangian" takes one problem with at least 300 rows'):
        att_svm(case.X, case.z, case.alpha, method="lagrangian")
