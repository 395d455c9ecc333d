"""Attention SVMs in norms other than ℓp: cvxpy's optimum, certificates, and what is refused."""

import cvxpy as cp
import numpy as np
import pytest
import torch

from mirrormax.data import sphere_problem
from mirrormax.problem import Problem
from mirrormax.svm import InfeasibleError, att_svm

NORMS = ("l1", "linf", "spectral", "nuclear", "rows-max", "rows-sum", "k-support")
K = 7


def solve(problem, norm, alpha=None, **settings):
    return att_svm(problem, alpha, norm=norm, k=K if norm == "k-support" else None, **settings)


def rows_of(problem):
    X, z, alpha = problem.X, problem.z, problem.alpha
    mask = np.ones(X.shape[:2], dtype=bool) if problem.mask is None else problem.mask
    pairs = [(i, t) for i in range(len(X)) for t in range(X.shape[1]) if t != alpha[i] and mask[i, t]]
    return np.stack([np.outer(X[i, alpha[i]] - X[i, t], z[i]).ravel() for i, t in pairs]), pairs


def least(problem, norm, keep=None):
    """The smallest norm by cvxpy."""
    A, pairs = rows_of(problem)
    d = problem.X.shape[-1]
    W = cp.Variable((d, d))
    w = cp.vec(W, order="C")
    equal = np.zeros(len(A), dtype=bool) if keep is None else np.array([keep[pair] for pair in pairs])
    constraints = [A[~equal] @ w >= 1] + ([A[equal] @ w == 0] if equal.any() else [])
    if norm == "k-support":
        share = cp.Variable(d * d)
        size = cp.sum(cp.hstack([cp.quad_over_lin(w[j], share[j]) for j in range(d * d)]))
        constraints += [share <= 1, cp.sum(share) <= K]
    else:
        lengths = cp.norm(W, 2, axis=1)
        size = {
            "l1": lambda: cp.norm1(w),
            "linf": lambda: cp.norm_inf(w),
            "spectral": lambda: cp.sigma_max(W),
            "nuclear": lambda: cp.normNuc(W),
            "rows-max": lambda: cp.max(lengths),
            "rows-sum": lambda: cp.sum(lengths),
        }[norm]()
    task = cp.Problem(cp.Minimize(size), constraints)
    task.solve(solver=cp.CLARABEL)
    return task.value**0.5 if norm == "k-support" else task.value


def chosen(seed, n=3, T=4, d=4):
    problem = sphere_problem(seed, n, T, d)
    return Problem(X=problem.X, z=problem.z, alpha=np.zeros(n, dtype=int))


@pytest.mark.parametrize("norm", NORMS)
def test_the_optimum_is_that_of_cvxpy_on_random_degenerate_and_scaled_problems(norm):
    plain = chosen(0)
    flat = chosen(1)
    flat.X[..., -1] = 0.0  # a feature that nobody uses
    flat.X[1], flat.z[1] = flat.X[0], flat.z[0]  # a sample twice
    apart = chosen(2)
    apart.X[0] *= 30.0  # a sample of another scale
    for problem in (plain, flat, apart):
        solution = solve(problem, norm)
        assert solution.gap <= (1e-9 if norm in ("l1", "linf") else 1e-7)
        assert solution.violation <= 1e-9
        np.testing.assert_allclose(1 / solution.margin, least(problem, norm), rtol=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_a_thin_margin_is_certified(norm):
    """42 rows for nine weights that hardly any W meets, so that multipliers are large and cancel."""
    rng = np.random.default_rng(0)
    problem = Problem(X=rng.standard_normal((6, 8, 3)), z=rng.standard_normal((6, 3)), alpha=rng.integers(0, 8, 6))
    solution = solve(problem, norm)
    assert solution.gap <= (1e-9 if norm in ("l1", "linf") else 1e-7)
    np.testing.assert_allclose(1 / solution.margin, least(problem, norm), rtol=2e-6)


@pytest.mark.parametrize("norm", NORMS)
@pytest.mark.parametrize("seed", [757, 1924, 2283])
def test_margins_of_a_ten_thousandth_are_certified(norm, seed):
    """Unit rows that no weights of norm 1 meet by more than 3e-4.

    In the last case samples differ in length by four decades, and rounding leaves gaps of some 1e-7.
    """
    rng = np.random.default_rng(seed)
    n, T, d = (int(rng.integers(low, high)) for low, high in ((2, 7), (3, 9), (2, 6)))
    X, z, alpha = rng.standard_normal((n, T, d)), rng.standard_normal((n, d)), rng.integers(0, T, n)
    X = X * 10 ** rng.uniform(-2, 2, (n, 1, 1)) if seed % 3 == 0 else X
    tol = 1e-9 if norm in ("l1", "linf") else 1e-6 if seed % 3 == 0 else 1e-7
    assert solve(Problem(X=X, z=z, alpha=alpha), norm, tol=tol).gap <= tol


def test_the_k_support_norm_of_all_entries_is_the_euclidean_one():
    problem = chosen(0, d=3)
    all_entries = att_svm(problem, norm="k-support", k=9)
    np.testing.assert_allclose(all_entries.W, att_svm(problem, p=2).W, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("norm", ["l1", "linf"])
def test_linear_programmes_are_exact_where_samples_differ_in_scale(norm):
    for seed in range(3):
        problem = chosen(seed, 6, 8, 10)
        problem.X[...] *= 10 ** np.random.default_rng(seed).uniform(-3, 3, (6, 1, 1))
        assert solve(problem, norm).gap <= 1e-9


@pytest.mark.parametrize("norm", NORMS)
def test_tokens_that_share_the_attention_and_masks(norm):
    problem = chosen(3, T=5)
    keep = np.zeros((3, 5), dtype=bool)
    keep[:, 0] = keep[1, 2] = True
    mask = np.ones((3, 5), dtype=bool)
    mask[2, 4] = False
    masked = Problem(X=problem.X, z=problem.z, alpha=problem.alpha, mask=mask)
    solution = solve(masked, norm, keep=keep)
    leads = np.einsum("ntd,de,ne->nt", masked.X[:, :1] - masked.X, solution.W, masked.z)
    assert abs(leads[1, 2]) < 1e-8
    np.testing.assert_allclose(1 / solution.margin, least(masked, norm, keep), rtol=2e-6)


@pytest.mark.parametrize("norm", NORMS)
def test_a_batch_is_its_problems_and_tensors_come_back_as_tensors(norm):
    problems = [chosen(seed) for seed in (0, 4)]
    X, z = (np.stack([getattr(problem, name) for problem in problems]) for name in ("X", "z"))
    batch = att_svm(
        torch.tensor(X), torch.tensor(z), np.zeros((2, 3), dtype=int), norm=norm, k=K if norm == "k-support" else None
    )
    assert isinstance(batch.W, torch.Tensor)
    for k, problem in enumerate(problems):
        np.testing.assert_allclose(float(batch.margin[k]), solve(problem, norm).margin, rtol=2e-7)


@pytest.mark.parametrize("norm", NORMS)
def test_what_cannot_be_separated_is_refuted_by_farkas(norm):
    X = np.array([[[1.0, 0.0], [0.0, 1.0]], [[0.0, 1.0], [1.0, 0.0]]])
    with pytest.raises(InfeasibleError) as error:
        solve(Problem(X=X, z=np.ones((2, 2)), alpha=[0, 0]), norm if norm != "k-support" else "l1")
    lam = error.value.certificate
    assert lam.sum() == pytest.approx(1.0)
    assert np.abs(np.einsum("nt,ntd,ne->de", lam, X[:, :1] - X, np.ones((2, 2)))).max() < 1e-12


def test_solutions_that_are_not_the_only_one_say_so():
    # One row: every W with the right sum will do in ℓ1, and one alone in ℓ∞.
    problem = Problem(X=[[[1.0, 1.0], [0.0, 0.0]]], z=[[1.0, 1.0]], alpha=[0])
    assert not solve(problem, "l1").unique
    assert solve(problem, "linf").unique
    assert att_svm(problem, p=2).unique
    assert not solve(chosen(0, n=2, T=2, d=4), "spectral").unique


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"norm": "l3"}, "norm"),
        ({"norm": "spectral", "p": 3}, "p=3"),
        ({"norm": "spectral", "p": 2}, "p=2"),
        ({"norm": "l1", "C": 1.0}, "C="),
        ({"norm": "k-support"}, "k"),
        ({"norm": "k-support", "k": 99}, "99"),
        ({"norm": "linf", "k": 3}, "k=3"),
        ({"norm": "linf", "method": "interior"}, "method"),
    ],
)
def test_refusals_name_the_argument(change, words):
    with pytest.raises(ValueError, match=words):
        att_svm(chosen(0), **change)
