"""Margins of heads, against brute force and against heads whose margins are known."""

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

import mirrormax
from mirrormax.auditing.margins import HeadProblem, measure, span


def rows(seed=0, n=6, T=7, d=5, e=5):
    random = np.random.default_rng(seed)
    X, z, W = random.normal(size=(n, T, d)), random.normal(size=(n, e)), random.normal(size=(d, e))
    mask = np.ones((n, T), dtype=bool)
    mask[0, 4:] = False
    return X, z, mask, W


def problem_of(X, z, mask, W, rivals=100):
    """The token of the largest logit and up to ``rivals`` of the next ones."""
    logits = np.einsum("ntd,de,ne->nt", X, W, z)
    order = np.argsort(np.where(mask, -logits, np.inf), axis=1, kind="stable")[:, : rivals + 1]
    tokens, present = np.take_along_axis(X, order[..., None], 1), np.take_along_axis(mask, order, 1)
    return HeadProblem(tokens, z, present, W)


def brute_force(X, z, mask, W, p):
    """min over rows and rivals of (x_α − x_t)' W z / ‖W‖_p, with loops."""
    leads = []
    for x, query, there in zip(X, z, mask, strict=True):
        logits = [float(token @ W @ query) for token, present in zip(x, there, strict=True) if present]
        best = max(logits)
        leads.append(min(best - other for k, other in enumerate(logits) if k != logits.index(best)))
    return np.array(leads) / (np.abs(W) ** p).sum() ** (1 / p)


@pytest.mark.parametrize("p", [1.2, 2, 3])
def test_realised_margins_are_those_of_brute_force(p):
    X, z, mask, W = rows()
    found = measure(problem_of(X, z, mask, W), p, C=10, quantile=0.5)
    leads = brute_force(X, z, mask, W, p)
    assert found.margin == pytest.approx(leads.min())
    assert found.quantile_margin == pytest.approx(np.quantile(leads, 0.5))


@pytest.mark.parametrize("p", [1.2, 2, 3])
def test_optimal_margins_are_those_of_att_svm(p):
    X, z, mask, W = rows()
    alpha = np.where(mask, np.einsum("ntd,de,ne->nt", X, W, z), -np.inf).argmax(1)
    solution = mirrormax.att_svm(X, z, alpha, p=p, mask=mask)
    found = measure(problem_of(X, z, mask, W), p, C=10, quantile=0.1)
    assert found.problem == "hard"
    assert found.status == "optimal"
    assert found.optimal_margin == pytest.approx(float(solution.margin), rel=1e-5)
    assert found.ratio == pytest.approx(found.margin / float(solution.margin), rel=1e-5)
    expected = float(mirrormax.directional_divergence(solution.W, W, p))
    assert found.divergence == pytest.approx(expected, abs=1e-3)


@given(seed=st.integers(0, 10_000), p=st.sampled_from([1.3, 2.0, 4.0]))
@settings(max_examples=20, deadline=None)
def test_no_head_has_more_than_the_optimal_margin(seed, p):
    found = measure(problem_of(*rows(seed, n=4, T=5, d=3, e=4)), p, C=10, quantile=0.1)
    assert -1e-12 <= found.ratio <= 1 + 1e-5
    assert 0 <= found.divergence <= 2


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_fewer_rivals_keep_the_realised_margin_and_can_only_lower_the_ratio(p):
    X, z, mask, W = rows(n=5, T=9, d=6, e=6)
    every, few = (measure(problem_of(X, z, mask, W, rivals), p, C=10, quantile=0.1) for rivals in (100, 2))
    assert few.margin == pytest.approx(every.margin)
    assert few.optimal_margin >= every.optimal_margin * (1 - 1e-5)
    assert few.ratio <= every.ratio * (1 + 1e-5)
    assert few.constraints < every.constraints


def test_two_is_solved_in_low_rank_coordinates_without_loss():
    X, z, mask, W = rows(n=3, T=4, d=12, e=13)
    found = measure(problem_of(X, z, mask, W), 2, C=10, quantile=0.1)
    wide = np.pad(X, ((0, 0), (0, 0), (0, 1)))
    alpha = np.where(mask, np.einsum("ntd,de,ne->nt", X, W, z), -np.inf).argmax(1)
    solution = mirrormax.att_svm(wide, z, alpha, p=2, mask=mask)
    assert found.optimal_margin == pytest.approx(float(solution.margin), rel=1e-6)
    assert found.cosine == pytest.approx(float(mirrormax.geometry.cosine(solution.W[:12], W)), abs=1e-4)
    differences = [X[i, alpha[i]] - X[i, t] for i in range(3) for t in range(4) if mask[i, t] and t != alpha[i]]
    left, right = np.linalg.pinv(differences) @ differences, np.linalg.pinv(z) @ z
    assert found.in_span == pytest.approx(np.linalg.norm(left @ W @ right) / np.linalg.norm(W))


def test_a_span_has_an_orthonormal_basis_of_the_right_size():
    random = np.random.default_rng(0)
    low = random.normal(size=(9, 3)) @ random.normal(size=(3, 7))
    basis = span(low)
    assert basis.shape == (7, 3)
    np.testing.assert_allclose(basis.T @ basis, np.eye(3), atol=1e-12)
    np.testing.assert_allclose(low @ basis @ basis.T, low, atol=1e-10)


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_a_planted_max_margin_head_is_found_out(p):
    X, z, mask, W = rows(n=4, T=6, d=8, e=8)
    alpha = np.zeros(4, dtype=int)
    planted = np.asarray(mirrormax.att_svm(X, z, alpha, p=p, mask=mask).W)
    found = measure(problem_of(X, z, mask, planted * 7.0), p, C=10, quantile=0.1)
    random = measure(problem_of(X, z, mask, W), p, C=10, quantile=0.1)
    assert found.ratio == pytest.approx(1, abs=1e-3)
    assert found.divergence < 1e-3
    assert found.quantile_ratio == pytest.approx(1, abs=1e-2)
    assert random.ratio < 0.9
    assert random.divergence > 0.05


@pytest.mark.parametrize("p", [1.5, 2])
def test_tied_tokens_make_the_problem_soft(p):
    X, z, mask, W = rows()
    best = np.einsum("ntd,de,ne->nt", X, W, z)[2].argmax()
    X[2, (best + 1) % X.shape[1]] = X[2, best]
    found = measure(problem_of(X, z, mask, W), p, C=10, quantile=0.1)
    assert found.problem == "soft"
    assert found.margin == pytest.approx(0, abs=1e-12)
    assert 0 < found.ratio <= 1 + 1e-6


def test_a_planted_soft_solution_has_ratio_one():
    X, z, mask, W = rows()
    best = np.einsum("ntd,de,ne->nt", X, W, z)[2].argmax()
    X[2, (best + 1) % X.shape[1]] = X[2, best]
    problem = problem_of(X, z, mask, W)
    sizes = np.linalg.norm(problem.differences, axis=-1) * np.linalg.norm(z, axis=-1)[:, None]
    soft = mirrormax.att_svm(
        problem.X / sizes.max(), z, np.zeros(len(X), int), p=2, mask=problem.mask, C=10.0, tol=1e-8
    )
    planted = problem_of(X, z, mask, np.asarray(soft.W))
    np.testing.assert_array_equal(planted.X[:, 0], problem.X[:, 0])  # the planted weights select the same tokens
    assert measure(planted, 2, C=10, quantile=0.1).ratio == pytest.approx(1, abs=1e-4)


@pytest.mark.parametrize("p", [1.5, 2])
def test_a_head_without_weights_and_tokens_without_differences_are_named(p):
    X, z, mask, W = rows()
    silent = measure(problem_of(X, z, mask, np.zeros_like(W)), p, C=10, quantile=0.1)
    alike = measure(problem_of(np.ones_like(X), z, mask, W), p, C=10, quantile=0.1)
    assert "weights are zero" in silent.status
    assert "all alike" in alike.status
    for found in (silent, alike):
        assert found.problem == "none"
        assert np.isnan(found.ratio)
        assert not found.support.any()


def planted_attention(p=2.0, n=4, T=6, d=8):
    """A MultiheadAttention of one head whose W_K'W_Q/√d is the max-margin solution of its data."""
    torch.manual_seed(3)
    X = torch.randn(n, T, d, dtype=torch.float64)
    best = mirrormax.att_svm(X, X[:, 0], torch.ones(n, dtype=torch.long), p=p).W
    model = nn.MultiheadAttention(d, 1, bias=False, batch_first=True, dtype=torch.float64)
    with torch.no_grad():
        model.in_proj_weight[:d] = best * d**0.5
        model.in_proj_weight[d : 2 * d] = torch.eye(d)
    return model, X


@pytest.mark.parametrize("p", [1.5, 2, 3])
def test_the_audit_of_a_planted_layer_finds_ratio_one_and_no_divergence(p):
    model, X = planted_attention(p)
    (head,) = mirrormax.audit(model, [X], p=p, query="first", samples=10, rivals=10, controls=0).heads
    assert head.ratio == pytest.approx(1, abs=1e-3)
    assert head.divergence < 1e-3
    assert head.margin_all == pytest.approx(head.margin, rel=1e-5)
    assert head.support_tokens > 0


def test_the_scan_finds_the_p_of_a_planted_layer():
    for p in (1.5, 3.0):
        model, X = planted_attention(p)
        found = mirrormax.audit(model, [X], p=p, query="first", scan=(1.5, 2, 3), samples=10, rivals=10, controls=0)
        assert found.heads[0].best_p_ratio == p
        assert found.heads[0].best_p_divergence == p
