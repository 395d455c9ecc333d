"""Assumption B's ν, estimated from above."""

import numpy as np
import pytest

from mirrormax.attention import attend, attention_weights
from mirrormax.data import Problem, example2, sphere_problem
from mirrormax.svm import label_excess, label_margin, lp_svm
from mirrormax.theory import estimate_nu


@pytest.mark.parametrize("p", [1.75, 3])
def test_the_ratio_of_given_weights_is_that_of_the_definition(p):
    problem, alpha = sphere_problem(0, n=3, T=4, d=5), np.array([0, 1, 2])
    W = np.random.default_rng(1).standard_normal((6, 5, 5)) * 5
    found = estimate_nu(problem, alpha, p=p, W=W, samples=0)
    assert len(found.ratios) == 6 + len(found.off_margin), "and one for each sample off the label margin"
    for k in range(6):
        s = attention_weights(problem.X, problem.z, W=W[k])
        attended = lp_svm(attend(problem.X, problem.z, W=W[k]), problem.y, p=p, throw=False).margin
        gaps = [(found.label_margin - attended) / (1 - s[i, alpha[i]]) for i in range(3)]
        assert found.ratios[k] == pytest.approx(min(gaps))
    assert found.nu == found.ratios.min()
    if not found.off_margin:
        assert (W[found.ratios.argmin()] == found.W).all()
    assert found.label_margin == pytest.approx(label_margin(problem.X, problem.y, alpha, p=p))


def test_the_tokens_of_the_largest_label_margin_are_not_refuted():
    found = estimate_nu(example2(), [0, 0], p=3, samples=200)
    assert found.holds
    assert 0 < found.nu < found.label_margin
    assert "not refuted" in str(found)


@pytest.mark.parametrize("p", [1.5, 3])
def test_a_token_off_the_label_margin_refutes_the_assumption(p):
    refuted = 0
    for seed in range(4):
        problem = sphere_problem(seed, n=4, T=3, d=6)
        alpha = problem.best_tokens()
        excess = label_excess(problem, alpha, p=p)
        found = estimate_nu(problem, alpha, p=p, samples=20)
        assert found.off_margin == tuple(np.flatnonzero(excess > 1e-6))
        if found.off_margin:
            refuted += 1
            assert not found.holds
            assert found.nu < 1e-6
            assert "no label support vector" in str(found)
    assert refuted


def test_the_search_finds_what_samples_miss():
    problem = example2()
    few = np.random.default_rng(0).standard_normal((30, 2, 2))
    sampled, searched = (estimate_nu(problem, [0, 0], p=3, W=few, samples=more) for more in (0, 1))
    assert len(searched.ratios) > len(sampled.ratios)
    assert searched.nu < 0.9 * sampled.nu


def test_worse_tokens_are_refuted():
    found = estimate_nu(example2(), [2, 2], p=2, samples=200)
    assert not found.holds
    assert found.nu < 0
    assert str(found).startswith("Assumption B is refuted")


def test_tokens_that_no_head_separates_have_no_margin_to_lose():
    problem = Problem(X=[[[1.0, 0.0], [0.0, 1.0]]] * 2, y=[1.0, -1.0], z=[[1.0, 0.0], [0.0, 1.0]], v=[1.0, 0.0])
    found = estimate_nu(problem, [0, 0], samples=50)
    assert found.label_margin == 0
    assert not found.holds
    assert "no head separates" in str(found)


def test_more_weights_only_lower_the_estimate_and_the_seed_fixes_it():
    problem = example2()
    few = estimate_nu(problem, [0, 0], p=3, samples=100)
    given = np.random.default_rng(0).standard_normal((50, 2, 2))
    assert estimate_nu(problem, [0, 0], p=3, samples=100, W=given).nu <= few.nu
    assert estimate_nu(problem, [0, 0], p=3, samples=100).nu == few.nu


def test_weights_that_attend_to_alpha_alone_are_refused():
    problem = Problem(X=[[[1.0, 0.0], [0.0, 1.0]]], y=[1.0], z=[[1.0, 0.0]], v=[1.0, 0.0])
    with pytest.raises(ValueError, match="give W that attend elsewhere"):
        estimate_nu(problem, [0], W=[[[99.0, 0.0], [0.0, 0.0]]], samples=0)
