"""Each solver by its name: that it arrives, with how much work, within which memory, and what it does not take."""

import tracemalloc

import numpy as np
import pytest
from helpers import Case, at_places, constraint_matrix, infeasible_case, proved_gap, random_case

from mirrormax.svm import att_svm, lp_svm
from mirrormax.svm._types import HardMargin, Unit
from mirrormax.svm.dispatch import SOLVERS, choose
from mirrormax.svm.feasibility import judge
from mirrormax.svm.solvers import large

TOL = 1e-9
SMALL, LARGE = random_case(0, 6, 8, 10), random_case(2, 25, 16, 27)
EXPONENTS = {
    "interior": (1.02, 1.5, 2, 2.1, 4, 20),
    "active-set": (2,),
    "newton": (1.1, 1.75, 2, 2.5, 3, 6, 10),
    "working-set": (1.1, 1.5, 2, 4, 10),
    "lagrangian": (1.5, 2, 3),
    "extended": (1.3, 1.5, 2, 4, 12),
}


def hard_margin(case, p=2.0, tol=TOL):
    """The problem as the solvers take it."""
    n, T, d = case.X.shape
    rivals = np.arange(T) != case.alpha[:, None]
    x = (case.X[np.arange(n), case.alpha][:, None] - case.X)[rivals].reshape(1, n, T - 1, d)
    return Unit.of(x, case.z[None], np.ones((1, n, T - 1), dtype=bool)).problem(np.array([float(p)]), tol)


def proved(case, solution, p):
    matrix, places = constraint_matrix(case)
    return proved_gap(matrix, solution.W, at_places(solution.dual, places), p)


def test_every_solver_is_tried_here():
    assert set(EXPONENTS) == set(SOLVERS)


@pytest.mark.parametrize(("method", "p"), [(method, p) for method, chosen in EXPONENTS.items() for p in chosen])
def test_a_solver_asked_for_by_name_proves_what_it_found(method, p):
    case = LARGE if method in ("newton", "lagrangian") else SMALL
    solution = att_svm(case.X, case.z, case.alpha, p=p, method=method)
    assert solution.status == "optimal"
    assert proved(case, solution, p) <= TOL
    assert solution.margin == pytest.approx(att_svm(case.X, case.z, case.alpha, p=p).margin, rel=2e-9)


@pytest.mark.parametrize("method", [name for name in SOLVERS if name != "lagrangian"])
def test_members_of_a_batch_go_to_the_solver_named(method):
    cases = [random_case(k) for k in range(3)]
    X, z, alpha = (np.stack([getattr(case, name) for case in cases]) for name in ("X", "z", "alpha"))
    solution = att_svm(X, z, alpha, p=2, method=method)
    assert solution.optimal.all()
    assert np.allclose(solution.margin, att_svm(X, z, alpha, p=2).margin, rtol=2e-9)


@pytest.mark.parametrize(
    ("method", "p", "largest"),
    [("interior", 1.02, 40), ("interior", 2, 40), ("interior", 2.1, 60), ("interior", 20, 60), ("extended", 3, 40)],
)
def test_interior_points_need_few_steps(method, p, largest):
    assert 3 < att_svm(SMALL.X, SMALL.z, SMALL.alpha, p=p, method=method).iterations < largest


@pytest.mark.parametrize(("p", "largest"), [(1.1, 306), (1.75, 306), (2, 306), (2.5, 330), (10, 330)])
def test_a_quasi_newton_guess_leaves_few_newton_steps(p, largest):
    assert att_svm(LARGE.X, LARGE.z, LARGE.alpha, p=p, method="newton").iterations < largest


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_the_rows_that_join_a_working_set_make_the_proof_that_of_all(p):
    """Many rows in few dimensions: the first set is not enough, and the rounds after it know that."""
    rng = np.random.default_rng(0)
    X, z, W = rng.standard_normal((60, 12, 5)), rng.standard_normal((60, 5)), rng.standard_normal((5, 5))
    case = Case(X, z, np.einsum("ntd,de,ne->nt", X, W, z).argmax(1))
    assert choose(hard_margin(case, p)).name == "working-set"
    solution = att_svm(case.X, case.z, case.alpha, p=p)
    assert solution.status == "optimal"
    assert proved(case, solution, p) <= TOL


def test_active_sets_solve_p_two_to_rounding():
    case = random_case(1, 6, 8, 10)
    assert proved(case, att_svm(case.X, case.z, case.alpha, method="active-set"), 2) < 1e-11


@pytest.mark.parametrize("p", [1.5, 4])
def test_a_working_set_answers_for_all_rows(p):
    rng = np.random.default_rng(4)
    X = rng.standard_normal((1000, 4))
    y = np.sign(X @ rng.standard_normal(4))
    solution = lp_svm(X, y, p=p, method="working-set")
    assert proved_gap((y[:, None] * X).astype(np.longdouble), solution.v, solution.dual, p) <= TOL
    assert (solution.dual > 0).sum() < 200


UNSUITABLE = {
    "active sets for another p": (
        {"p": 3, "method": "active-set"},
        r'method="active-set" takes one problem with p = 2',
    ),
    "extended precision for many rows": ({"method": "extended"}, r'"extended" takes .* at most 260 .*375 rows and 729'),
    "an unknown name": ({"method": "simplex"}, r'method must be None or one of "interior", .*got \'simplex\''),
    "no name": ({"method": 3}, r"method must be None or one of .*got 3"),
    "soft margins": ({"C": 1.0, "method": "interior"}, r"soft margins have one solver only, got method='interior'"),
    "the nuclear norm": ({"norm": "nuclear", "method": "newton"}, r'norm="nuclear" has one solver only'),
}


@pytest.mark.parametrize("name", UNSUITABLE)
def test_an_unsuitable_method_is_refused_with_what_it_takes(name):
    options, message = UNSUITABLE[name]
    with pytest.raises(ValueError, match=message):
        att_svm(LARGE.X, LARGE.z, LARGE.alpha, **options)


@pytest.mark.parametrize(
    ("case", "p", "expected"),
    [
        (SMALL, 2, "active-set"),
        (SMALL, 1.5, "interior"),
        (Case(SMALL.X, SMALL.z * 10.0 ** np.arange(-6, 6, 2)[:, None], SMALL.alpha), 2, "interior"),
        (LARGE, 2, "newton"),
        (random_case(0, 50, 20, 5), 3, "working-set"),
        (random_case(0, 90, 20, 20), 2, "newton"),
    ],
)
def test_the_table_chooses_by_size(case, p, expected):
    assert choose(hard_margin(case, p)).name == expected


@pytest.mark.parametrize("method", ["interior", "newton", "working-set", "extended"])
def test_infeasible_problems_are_refuted_whatever_the_method(method):
    case = infeasible_case()
    solution = att_svm(case.X, case.z, case.alpha, p=3, method=method, throw=False)
    assert solution.infeasible
    assert solution.samples.tolist() == [False, True, True]


@pytest.mark.parametrize("feasible", [True, False])
def test_phase_zero_decides_either_way_with_a_proof(feasible):
    problem = hard_margin(random_case(5) if feasible else infeasible_case())
    verdict = judge(problem.rows, np.ones(problem.rows.m))
    assert verdict.feasible is feasible
    if feasible:
        assert problem.rows.fwd(verdict.w[None]).min() > 0
    else:
        assert verdict.lam.min() >= 0
        assert verdict.lam.sum() == pytest.approx(1)
        assert np.abs(problem.rows.adj(verdict.lam[None])).max() < 1e-12


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
    assert proved(Case(tokens, query, np.array([0])), posed, 3) <= TOL


def test_a_problem_knows_no_solver():
    problem = hard_margin(SMALL, 3)
    assert isinstance(problem.at(2.0), HardMargin)
    assert problem.subset(np.array([0, 5])).rows.m == 2
    assert problem.smallest_margin(problem.b) == pytest.approx(1, rel=1e-9)


def faint_features():
    """1,140 rows of 60 samples, fifty of which share their query, with features over three orders of magnitude."""
    rng = np.random.default_rng(0)
    X = rng.standard_normal((60, 20, 24)) * 10 ** np.linspace(0, -3, 24)
    z = rng.standard_normal((60, 12))
    z[:50] = z[0]
    return X, z, np.einsum("ntd,de,ne->nt", X, rng.standard_normal((24, 12)), z).argmax(axis=1)


class Unwanted:
    """Interior points on all rows, which take minutes where there are thousands."""

    name, batched = "interior", True

    def solve(self, problem, tol):
        raise AssertionError("asked for")


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_rows_on_which_a_guess_separates_nothing_go_to_the_lagrangian(p, monkeypatch):
    X, z, alpha = faint_features()
    known = att_svm(X, z, alpha, p=p, method="working-set")
    monkeypatch.setattr(large, "quasi_newton", lambda problem, lam: (np.eye(1, problem.rows.m)[0], 1))
    monkeypatch.setattr(large, "projected_newton", lambda problem, lam, tol: (lam, np.inf, 0))
    monkeypatch.setitem(SOLVERS, "interior", Unwanted())
    solution = att_svm(X, z, alpha, p=p)
    assert solution.gap <= 1e-9
    assert solution.margin == pytest.approx(known.margin, rel=1e-8)


def test_contradictions_on_which_a_guess_separates_nothing_are_proved(monkeypatch):
    X, z, alpha = faint_features()
    X[1], z[1], alpha[1] = -X[0], z[0], alpha[0]
    monkeypatch.setitem(SOLVERS, "interior", Unwanted())
    solution = att_svm(X, z, alpha, p=2, throw=False)
    assert solution.status.startswith("infeasible")
    assert solution.samples[:2].all()
