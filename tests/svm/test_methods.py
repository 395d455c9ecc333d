"""Each method on its own: that it arrives, by the way it claims, and within the memory it claims."""

import tracemalloc

import numpy as np
import pytest
from helpers import at_places, constraint_matrix, infeasible_case, proved_gap, random_case

from mirrormax.svm import att_svm, lp_svm
from mirrormax.svm.dual_ipm import Batch, solve_dual
from mirrormax.svm.feasibility import active_set, judge
from mirrormax.svm.interior import mirror
from mirrormax.svm.large import projected_newton, quasi_newton
from mirrormax.svm.primal_ipm import solve_primal
from mirrormax.svm.scaling import dual_start, unit_rows
from mirrormax.svm.semismooth import climb
from mirrormax.svm.working_set import nearest, solve_on_working_set

TOL = 1e-9


def rows_of(case):
    n, T, d = case.X.shape
    rivals = np.arange(T) != case.alpha[:, None]
    x = (case.X[np.arange(n), case.alpha][:, None] - case.X)[rivals].reshape(1, n, T - 1, d)
    return unit_rows(x, case.z[None], np.ones((1, n, T - 1), dtype=bool))


def batch_of(case, p):
    return rows_of(case).flat_batch(np.array([float(p)]), TOL)


def gap_of(batch, w, lam):
    """The certificate of unit rows, from their matrix written out."""
    matrix = batch.rows.dense()[0] / batch.exact[0][:, None]
    return proved_gap(matrix.astype(np.longdouble), w, lam[0] * batch.exact[0], float(batch.p[0, 0]))


@pytest.mark.parametrize("p", [1.02, 1.5, 2])
def test_dual_interior_point(p):
    batch = batch_of(random_case(0, 6, 8, 10), p)
    lam, gap, steps = solve_dual(*dual_start(batch), TOL)
    assert gap[0] <= TOL
    assert gap_of(batch, mirror(batch, lam), lam) <= 2 * TOL
    assert 3 < steps[0] < 40


@pytest.mark.parametrize("p", [2.1, 4, 20])
def test_primal_interior_point(p):
    batch = batch_of(random_case(0, 6, 8, 10), p)
    euclid = Batch(batch.rows, batch.b, batch.exact, np.array([[2.0]]))
    w = batch.rows.adj(active_set(euclid))
    w = 1.1 * w / batch.smallest_margin(batch.rows.fwd(w))
    w, lam, gap, steps = solve_primal(batch, w, TOL)
    assert gap[0] <= TOL
    assert gap_of(batch, w, lam) <= 2 * TOL
    assert 3 < steps[0] < 60


def test_active_set_solves_p_two_to_rounding():
    batch = batch_of(random_case(1, 6, 8, 10), 2)
    lam = active_set(batch)
    assert gap_of(batch, batch.rows.adj(lam), lam) < 1e-11


@pytest.mark.parametrize("p", [1.1, 1.75, 2])
def test_projected_newton_needs_few_factorisations(p):
    batch, start = dual_start(batch_of(random_case(2, 25, 16, 27), p))
    guess, steps = quasi_newton(batch, start)
    lam, gap, more = projected_newton(batch, guess[None], TOL)
    assert gap <= TOL
    assert gap_of(batch, mirror(batch, lam), lam) <= 2 * TOL
    assert steps < 300
    assert more <= 6


@pytest.mark.parametrize("p", [2.5, 3, 6, 10])
def test_semismooth_newton_climbs_to_large_p(p):
    batch = batch_of(random_case(3, 25, 16, 27), p)
    guess_p = np.array([[min(p, 3.0)]])
    scaled, start = dual_start(Batch(batch.rows, batch.b, batch.exact, guess_p))
    guess = quasi_newton(scaled, start)[0][None]
    w = mirror(Batch(batch.rows, batch.b, batch.exact, guess_p), guess)
    found = climb(batch, w, guess, min(p, 3.0), TOL)
    assert found is not None
    w, lam, steps = found
    assert gap_of(batch, w, lam) <= 2 * TOL
    assert steps <= 30


@pytest.mark.parametrize("p", [1.5, 4])
def test_a_working_set_answers_for_all_rows(p):
    rng = np.random.default_rng(4)
    direction = rng.standard_normal(4)
    X = rng.standard_normal((1000, 4))
    X *= np.sign(X @ direction)[:, None]
    unit = unit_rows(X[None, None], np.ones((1, 1, 1)), np.ones((1, 1, 1000), dtype=bool))
    batch = unit.flat_batch(np.array([p]), TOL)
    answer = solve_on_working_set(batch, nearest(batch, batch.rows.adj(batch.gain), 10), 0.9 * TOL, 5)
    assert gap_of(batch, answer.w, answer.lam) <= TOL
    assert (answer.lam > 0).sum() < 200


@pytest.mark.parametrize("feasible", [True, False])
@pytest.mark.parametrize("interior", [True, False])
def test_phase_zero_decides_either_way_with_a_proof(feasible, interior, monkeypatch):
    from mirrormax.svm import feasibility

    if interior:
        monkeypatch.setattr(feasibility, "LARGEST_ACTIVE_SET", 0)
    batch = batch_of(random_case(5) if feasible else infeasible_case(), 2)
    verdict = judge(batch.rows, np.ones(batch.rows.m))
    assert verdict.feasible is feasible
    if feasible:
        assert batch.rows.fwd(verdict.w[None]).min() > 0
    else:
        assert verdict.lam.min() >= 0
        assert verdict.lam.sum() == pytest.approx(1)
        assert np.abs(batch.rows.adj(verdict.lam[None])).max() < 1e-12


@pytest.mark.parametrize("p", [1.5, 3])
def test_the_constraint_matrix_is_never_written_out(p):
    case = random_case(6, 40, 21, 60)
    written_out = 8 * 40 * 20 * 60**2
    tracemalloc.start()
    solution = att_svm(case.X, case.z, case.alpha, p=p)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert solution.optimal
    assert peak < 0.5 * written_out


def test_equal_problems_have_equal_answers_however_they_are_posed():
    """ℓp SVM points as rivals of a zero token, with a query along one axis."""
    rng = np.random.default_rng(7)
    X = rng.standard_normal((20, 4))
    y = np.sign(X @ rng.standard_normal(4))
    plain = lp_svm(X, y, p=3)
    tokens = np.concatenate([np.zeros((1, 4)), -y[:, None] * X])[None]
    query = np.array([[1.0, 0.0, 0.0, 0.0]])
    posed = att_svm(tokens, query, [0], p=3)
    assert posed.margin == pytest.approx(plain.margin, rel=2e-9)
    assert np.allclose(posed.W[:, 0], plain.v, rtol=1e-3, atol=1e-4)
    matrix, places = constraint_matrix(type(random_case(0))(tokens, query, np.array([0])))
    assert proved_gap(matrix, posed.W, at_places(posed.dual, places), 3) <= TOL
