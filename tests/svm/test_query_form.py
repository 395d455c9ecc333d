"""Queries of another dimension than the tokens, and the augmented Lagrangian that carries many samples of them."""

import numpy as np
import pytest
from helpers import Case, at_places, constraint_matrix, proved_gap

from mirrormax.svm import InfeasibleError, att_svm, loop
from mirrormax.svm.rows import FlatRows
from mirrormax.svm.solvers import lagrangian
from mirrormax.svm.systems import Implicit, coupled

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
        (np.ones((5, 7)), r"z must have the shape \(\.\.\., n, e\) = \(\.\.\., 6, 7\)"),
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


@pytest.mark.parametrize("few", [0, 10**9], ids=["all rows", "rows near the margin"])
@pytest.mark.parametrize("p", [1.5, 3])
def test_another_p_starts_from_2(p, few, monkeypatch):
    monkeypatch.setattr(lagrangian, "FEW_ACTIVE", few)
    case = query_case(5, 60, 8, 6, 20)
    solution = att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian")
    matrix, places = constraint_matrix(case)
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOL


@pytest.mark.parametrize("few", [0, 10**9], ids=["by sample", "coupled"])
@pytest.mark.parametrize("p", [1.3, 3])
def test_each_preconditioner_serves_every_p(p, few, monkeypatch):
    monkeypatch.setattr(lagrangian, "FEW_ACTIVE", 0)
    monkeypatch.setattr(lagrangian, "FEW_ROWS", few)
    case = query_case(6, 60, 8, 6, 20)
    solution = att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian", tol=1e-6)
    matrix, places = constraint_matrix(case)
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= 1e-6


@pytest.mark.parametrize(("p", "patience"), [(1.5, -1), (3, -1), (1.1, 40), (6, 40)])
def test_what_the_lagrangian_leaves_is_finished(p, patience, monkeypatch):
    monkeypatch.setattr(lagrangian, "FEW_ACTIVE", 0)
    monkeypatch.setattr(lagrangian, "PATIENCE", patience)
    case = query_case(8, 60, 8, 6, 20)
    solution = att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian")
    matrix, places = constraint_matrix(case)
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOL


@pytest.mark.parametrize("p", [1.2, 1.5, 3, 4, 10])
def test_systems_that_are_never_written_out_lead_to_the_same_proof(p, monkeypatch):
    monkeypatch.setattr(loop, "MANY_PAIRS", 0)
    case = query_case(7, 60, 8, 6, 20)
    solution = att_svm(case.X, case.z, case.alpha, p=p, method="lagrangian")
    matrix, places = constraint_matrix(case)
    assert proved_gap(matrix, solution.W, at_places(solution.dual, places), p) <= TOL


def flat_rows(rng, n, e=7):
    owner = np.sort(rng.integers(n, size=3 * n))
    return FlatRows(rng.standard_normal((3 * n, 4)), owner, rng.standard_normal((n, e)))


def test_a_system_is_solved_as_if_it_were_written_out():
    rng = np.random.default_rng(0)
    rows = flat_rows(rng, 9)
    weight, diagonal = rng.random((1, rows.size)) ** 3, rng.random((1, rows.m)) * 10.0 ** rng.integers(-6, 6, rows.m)
    right = rng.standard_normal((1, rows.m))
    found = Implicit(rows, weight, diagonal, 1e-12).solve(right)
    matrix = (rows.dense()[0] * weight) @ rows.dense()[0].T + np.diag(diagonal[0])
    assert np.linalg.norm(matrix @ found[0] - right[0]) <= 1e-10 * np.linalg.norm(right)


def test_preconditioners_are_exact_where_they_can_be():
    rng = np.random.default_rng(1)
    rows = flat_rows(rng, 9)
    right = rng.standard_normal((1, rows.m))
    product = np.outer(rng.random(rows.d) + 0.5, rng.random(rows.e) + 0.5).reshape(1, -1)
    matrix = (rows.dense()[0] * product) @ rows.dense()[0].T + 0.3 * np.eye(rows.m)
    assert np.allclose(matrix @ coupled(rows, product, 0.3)(right)[0], right[0])
    one = FlatRows(rows.x, np.zeros(rows.m, dtype=int), rows.z)  # a single sample is one block
    weight = rng.random((1, rows.size))
    matrix = (one.dense()[0] * weight) @ one.dense()[0].T + 0.3 * np.eye(rows.m)
    assert np.allclose(matrix @ lagrangian.by_sample(one, weight, 0.3)(right)[0], right[0])


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


def test_a_contradiction_of_two_samples_is_proved_among_many_others():
    case = query_case(5, 80, 9, 20, 20)
    case.X[1], case.z[1], case.alpha[1] = case.X[0], -case.z[0], case.alpha[0]
    with pytest.raises(InfeasibleError) as caught:
        att_svm(case.X, case.z, case.alpha, method="lagrangian")
    assert set(caught.value.samples) == {0, 1}


def test_tokens_that_repeat_leave_no_block_singular():
    rng = np.random.default_rng(0)
    x = np.repeat(rng.standard_normal((3, 1, 4)), 5, axis=1).reshape(15, 4).astype(np.float32)
    rows = FlatRows(x, np.repeat(np.arange(3), 5), rng.standard_normal((3, 7)).astype(np.float32))
    right = rng.standard_normal((1, 15)).astype(np.float32)
    found = lagrangian.by_sample(rows, np.ones((1, rows.size), dtype=np.float32), 1e-12)(right)
    assert np.isfinite(found).all()
    assert float(np.vdot(right, found)) > 0


def test_few_rows_are_not_for_the_lagrangian():
    case = query_case(0, 6, 4, 3, 7)
    with pytest.raises(ValueError, match='method="lagrangian" takes one problem with at least 300 rows'):
        att_svm(case.X, case.z, case.alpha, method="lagrangian")
